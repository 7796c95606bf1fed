//! A certificate of the fleet in a client that is not ours, and a certificate that may hear and say everything.

use crate::fleet::Fleet;
use async_nats::{Client, HeaderMap, Message};
use futures_util::StreamExt;
use packetrig_nats::enrol::Membership;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A certificate of the fleet in somebody else's client.
pub(crate) struct Stranger {
    pub(crate) runtime: tokio::runtime::Runtime,
    pub(crate) client: Client,
}

impl Stranger {
    pub(crate) fn new(fleet: &Fleet, member: &Membership) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let credentials = member.access().expect("whole").credentials.expect("it has one");
        let place = tempfile::TempDir::new().expect("a place");
        for (name, text) in
            [("ca", &credentials.authority), ("pem", &credentials.certificate), ("key", &credentials.key)]
        {
            std::fs::write(place.path().join(name), text).expect("written");
        }
        let options = async_nats::ConnectOptions::new()
            .add_root_certificates(place.path().join("ca"))
            .add_client_certificate(place.path().join("pem"), place.path().join("key"))
            .custom_inbox_prefix(format!("_INBOX_{}", member.name))
            .require_tls(true);
        let client = runtime.block_on(options.connect(format!("tls://{}", fleet.address()))).expect("let in");
        Self { runtime, client }
    }

    pub(crate) fn publish(&self, at: &str, reply: Option<&str>, headers: HeaderMap, payload: &'static str) {
        let (client, at) = (self.client.clone(), at.to_owned());
        let sending = async move {
            match reply {
                Some(reply) => {
                    let reply = reply.to_owned();
                    client.publish_with_reply_and_headers(at, reply, headers, payload.into()).await
                }
                None => client.publish_with_headers(at, headers, payload.into()).await,
            }
        };
        self.runtime.block_on(sending).expect("it is sent");
    }

    /// Publishes as much as the server takes until it is over, 4 GiB at most; how many bytes.
    pub(crate) fn flood(&self, subjects: &[&str], payload: usize, over: &AtomicBool) -> u64 {
        let payload = bytes::Bytes::from(vec![b'x'; payload]);
        let mut sent = 0;
        for at in subjects.iter().cycle() {
            if over.load(Ordering::Acquire) || sent > 4 << 30 {
                break;
            }
            let mut headers = HeaderMap::new();
            headers.insert("Packetrig-Place", "00000000000000ff");
            let sending = self.client.publish_with_headers((*at).to_owned(), headers, payload.clone());
            self.runtime.block_on(sending).expect("it is sent");
            sent += payload.len() as u64;
        }
        sent
    }

    pub(crate) fn flush(&self) {
        self.runtime.block_on(self.client.flush()).expect("the server is there");
    }

    /// Says again what somebody else said.
    pub(crate) fn repeat(&self, message: Message) {
        let headers = message.headers.unwrap_or_default();
        let sending = self.client.publish_with_headers(message.subject, headers, message.payload);
        self.runtime.block_on(sending).expect("it is sent");
    }

    /// Keeps every message that it hears at `at`.
    pub(crate) fn listen(&self, at: &str) -> Arc<Mutex<Vec<Message>>> {
        let heard: Arc<Mutex<Vec<Message>>> = Arc::default();
        let (kept, client, at) = (Arc::clone(&heard), self.client.clone(), at.to_owned());
        let mut passing = self.runtime.block_on(client.subscribe(at)).expect("it is sent");
        self.prove();
        self.runtime.spawn(async move {
            while let Some(message) = passing.next().await {
                kept.lock().expect("whole").push(message);
            }
        });
        heard
    }

    /// Waits until the server has taken everything that was sent: it answers in order.
    fn prove(&self) {
        let client = self.client.clone();
        self.runtime.block_on(async move {
            let inbox = client.new_inbox();
            let mut echo = client.subscribe(inbox.clone()).await.expect("it may");
            client.publish(inbox, "".into()).await.expect("sent");
            echo.next().await.expect("it comes back");
        });
    }
}

/// Gives the certificate `witness` the rights of the controller's account, until the server is told again who may connect.
pub(crate) fn open_everything(fleet: &Fleet) {
    let directory = fleet.place.path().join("server");
    let file = directory.join("nats-server.conf");
    let text = std::fs::read_to_string(&file).expect("it is there");
    let open = "      { user: \"CN=witness\", permissions: { publish: \">\", subscribe: \">\" } }";
    let name = text.split('"').find(|word| word.starts_with("CN=witness")).expect("it is let in").to_owned();
    let open = open.replace("CN=witness", &name);
    let text = text.replace(&format!("\"{name}\""), "\"CN=nobody\"");
    let controller = text.lines().find(|line| line.contains("CN=controller")).expect("it is let in");
    let text = text.replace(controller, &format!("{controller}\n{open}"));
    std::fs::write(&file, text).expect("written");
    let log = || std::fs::read_to_string(directory.join("nats-server.log")).expect("it is there");
    let before = log().matches("Reloaded server configuration").count();
    let process = fleet.broker.lock().expect("whole").process();
    let done = std::process::Command::new("kill").args(["-HUP", &process.to_string()]).status();
    assert!(done.expect("there is a shell").success());
    for _ in 0..200 {
        if log().matches("Reloaded server configuration").count() > before {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("the server does not read its configuration again: {}", log());
}
