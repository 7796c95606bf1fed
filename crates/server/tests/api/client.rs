//! The client of this crate against the server.

use crate::mock::{Mock, Served, plain, strict};
use crate::page::MovingRun;
use packetrig_server::client::{ApiClient, CertificateTrust, ClientError};
use packetrig_server::{IdentityFiles, ServedRig, ServerOptions};
use serde_json::json;
use std::io::Read;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

fn serve(options: ServerOptions) -> Served {
    let mock = Arc::<Mock>::default();
    let rig = ServedRig {
        tester: Some(Arc::clone(&mock) as _),
        live: Some(Arc::<MovingRun>::default()),
        ..ServedRig::default()
    };
    Served::start_rig(options, rig, mock)
}

fn client(served: &Served, scheme: &str, token: Option<&str>, trust: &CertificateTrust) -> ApiClient {
    let port = served.bound.http.unwrap().port();
    let address = format!("{scheme}://localhost:{port}").parse().unwrap();
    ApiClient::new(address, token.map(str::to_owned), trust).unwrap()
}

#[test]
fn events_and_updates_work_over_http_and_tls() {
    let directory = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let files = IdentityFiles {
        certificate: directory.path().join("certificate.pem"),
        key: directory.path().join("key.pem"),
    };
    std::fs::write(&files.certificate, made.cert.pem()).unwrap();
    std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
    let known = CertificateTrust::Authorities(files.certificate.clone());
    let token = "the-token-of-the-owner";
    let options =
        ServerOptions { http_tls: true, identity: Some(files), token: Some(token.to_owned()), ..strict() };
    let of_tls = serve(options);
    let of_plain = serve(plain());
    for client in [
        client(&of_tls, "https", Some(token), &known),
        client(&of_tls, "https", Some(token), &CertificateTrust::Anything),
        client(&of_plain, "http", None, &CertificateTrust::ThisMachine),
    ] {
        assert_eq!(client.get("/api/v1/state").unwrap()["may"]["control"], true);
        client.post("/api/v1/streams", &json!({ "change": "stop" })).unwrap();
        let mut events = client.follow_events("/api/v1/events").unwrap();
        for name in ["history", "live", "live"] {
            let event =
                std::iter::from_fn(|| Some(events.wait_for_event(Duration::from_millis(50)).unwrap()))
                    .flatten()
                    .next();
            assert_eq!(event.unwrap().name, name);
        }
    }
}

/// A server that ends has taken connections that it does not answer any more.
#[test]
fn unanswered_request_error_is_retryable() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let client = ApiClient::new(address.parse().unwrap(), None, &CertificateTrust::Anything).unwrap();
    std::thread::spawn(move || {
        for connection in listener.incoming().take(2) {
            // Read before it is closed, so that it ends in good order.
            assert!(connection.unwrap().read(&mut [0; 4096]).unwrap() > 0);
        }
    });
    assert!(client.follow_events("/api/v1/events").unwrap_err().can_succeed_later());
    assert!(client.get("/api/v1/state").unwrap_err().can_succeed_later());
}

#[test]
fn refusals_say_what_to_do() {
    let of_tls = serve(ServerOptions { http_tls: true, ..strict() });
    let of_plain = serve(plain());
    let any = CertificateTrust::Anything;
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), other.cert.pem()).unwrap();
    let unknown = CertificateTrust::Authorities(file.path().to_owned());
    let refusal = |client: ApiClient| client.get("/api/v1/state").unwrap_err();
    let cases = [
        (refusal(client(&of_tls, "https", None, &any)), "--token-file"),
        (refusal(client(&of_tls, "https", None, &unknown)), "--ca FILE"),
        (refusal(client(&of_plain, "https", None, &any)), "write http://localhost:"),
    ];
    for (error, said) in cases {
        assert!(error.to_string().contains(said) && !error.can_succeed_later(), "{error}");
    }
    // A server with TLS may also close a connection without it at once.
    let error = refusal(client(&of_tls, "http", None, &any));
    assert!(matches!(error, ClientError::NotHttp { .. } | ClientError::Lost { .. }), "{error}");
    let refused = client(&of_plain, "http", None, &any).post("/api/v1/streams", &json!({ "change": "jump" }));
    assert!(refused.unwrap_err().to_string().contains("`jump`"));
    let gone = client(&of_plain, "http", None, &any);
    of_plain.finish();
    let error = refusal(gone);
    assert!(error.can_succeed_later() && error.to_string().contains("packetrig serve"), "{error}");
}
