//! A foreign client with a certificate of the fleet, and one whose certificate permits everything.

use crate::fleet::Fleet;
use async_nats::{Client, HeaderMap, Message};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use futures_util::StreamExt;
use packetrig_nats::FleetCredentials;
use packetrig_nats::enrol::FleetMembership;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A certificate of the fleet in a foreign client.
pub(crate) struct Stranger {
    pub(crate) runtime: tokio::runtime::Runtime,
    pub(crate) client: Client,
}

impl Stranger {
    pub(crate) fn new(fleet: &Fleet, member: &FleetMembership) -> Self {
        let credentials = member.server_access().expect("whole").credentials.expect("it has one");
        Self::with(fleet, member, credentials).expect("let in")
    }

    /// A client that may publish and receive everything.
    pub(crate) fn witness(fleet: &Fleet, member: &FleetMembership) -> Self {
        let (credentials, _) = fleet.authority.load_controller_credentials().expect("it has keys");
        let credentials = FleetCredentials { user: Some(unlimited_user(fleet)), ..credentials };
        Self::with(fleet, member, credentials).expect("let in")
    }

    /// Connects with these credentials, if the server accepts them.
    pub(crate) fn with(
        fleet: &Fleet,
        member: &FleetMembership,
        credentials: FleetCredentials,
    ) -> Option<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let place = tempfile::TempDir::new().expect("a place");
        for (name, text) in
            [("ca", &credentials.authority), ("pem", &credentials.certificate), ("key", &credentials.key)]
        {
            std::fs::write(place.path().join(name), text).expect("written");
        }
        let log_in = move |nonce: Vec<u8>| {
            let credentials = credentials.clone();
            async move {
                let mut auth = async_nats::Auth::new();
                auth.signature = Some(credentials.sign_nonce(&nonce).map_err(async_nats::AuthError::new)?);
                auth.jwt = credentials.user;
                Ok(auth)
            }
        };
        let options = async_nats::ConnectOptions::with_auth_callback(log_in)
            .add_root_certificates(place.path().join("ca"))
            .add_client_certificate(place.path().join("pem"), place.path().join("key"))
            .custom_inbox_prefix(format!("_INBOX_{}", member.name))
            .require_tls(true);
        let client = runtime.block_on(options.connect(format!("tls://{}", fleet.address()))).ok()?;
        Some(Self { runtime, client })
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

    /// Publishes as much as the server takes until the end, 4 GiB at most; returns the bytes.
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

    /// Repeats a recorded message.
    pub(crate) fn repeat(&self, message: Message) {
        let headers = message.headers.unwrap_or_default();
        let sending = self.client.publish_with_headers(message.subject, headers, message.payload);
        self.runtime.block_on(sending).expect("it is sent");
    }

    /// Keeps every message at `at`.
    pub(crate) fn listen(&self, at: &str) -> Overheard {
        let overheard = Overheard::default();
        let (kept, client, at) = (Arc::clone(&overheard.0), self.client.clone(), at.to_owned());
        let mut passing = self.runtime.block_on(client.subscribe(at)).expect("it is sent");
        self.prove();
        self.runtime.spawn(async move {
            while let Some(message) = passing.next().await {
                kept.lock().expect("whole").push(message);
            }
        });
        overheard
    }

    /// Waits until the server has taken all sent messages: it answers in order.
    pub(crate) fn prove(&self) {
        let client = self.client.clone();
        self.runtime.block_on(async move {
            let inbox = client.new_inbox();
            let mut echo = client.subscribe(inbox.clone()).await.expect("it may");
            client.publish(inbox, "".into()).await.expect("sent");
            echo.next().await.expect("it comes back");
        });
    }
}

/// Messages that a stranger has received at a subject. The intended receiver may have them long before.
#[derive(Default)]
pub(crate) struct Overheard(Arc<Mutex<Vec<Message>>>);

impl Overheard {
    /// All messages that it has received by now.
    pub(crate) fn so_far(&self) -> Vec<Message> {
        self.0.lock().expect("whole").clone()
    }

    /// The first `count` messages that are `wanted`, as soon as they have come.
    pub(crate) fn wait_for(&self, count: usize, wanted: fn(&Message) -> bool) -> Vec<Message> {
        let so_far = || self.so_far().into_iter().filter(wanted).take(count).collect::<Vec<_>>();
        let heard = (0..1000).map(|_| so_far()).find(|heard| {
            std::thread::sleep(Duration::from_millis(10));
            heard.len() == count
        });
        heard.expect("it hears them")
    }

    pub(crate) fn first(&self) -> Message {
        self.wait_for(1, |_| true).remove(0)
    }
}

/// The controller's user, with the right to publish and receive everything: as an attacker that has
/// taken over the server.
fn unlimited_user(fleet: &Fleet) -> String {
    let secret =
        std::fs::read_to_string(fleet.place.path().join("authority/accounts.key")).expect("it is there");
    let secret: Vec<u8> = (0..secret.trim().len() / 2)
        .map(|at| u8::from_str_radix(&secret[2 * at..2 * at + 2], 16).expect("hexadecimal"))
        .collect();
    let seed = ring::hmac::sign(&ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &secret), b"account CONTROL");
    let account = ring::signature::Ed25519KeyPair::from_seed_unchecked(seed.as_ref()).expect("32 bytes");
    let (credentials, _) = fleet.authority.load_controller_credentials().expect("it has keys");
    let token = credentials.user.expect("it has a user");
    let parts: Vec<&str> = token.split('.').collect();
    let claims = BASE64.decode(parts[1]).expect("base64");
    let mut claims: serde_json::Value = serde_json::from_slice(&claims).expect("claims");
    for right in ["pub", "sub"] {
        claims["nats"][right]["allow"] = serde_json::json!([">"]);
    }
    let covered = format!("{}.{}", parts[0], BASE64.encode(claims.to_string()));
    format!("{covered}.{}", BASE64.encode(account.sign(covered.as_bytes()).as_ref()))
}
