//! Several clients at once, and the end.

use crate::http::{call, config, request};
use crate::mock::{Mock, Served, plain};
use packetrig_server::{Error, ServedRig, ServerOptions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn reads_are_answered_during_a_serialized_change() {
    let served = Served::start(plain());
    let http = served.bound.http;
    let (began, end) = served.mock.hold();
    std::thread::scope(|scope| {
        let first = scope.spawn(move || call(http, "POST", "/config", &config().to_string()).status);
        began.recv().unwrap();
        let others: Vec<_> =
            (0..20).map(|_| scope.spawn(move || call(http, "POST", "/config", "{}").status)).collect();
        // None of these would come back if they waited for the change.
        assert_eq!(call(http, "GET", "/config", "").text(), "{}");
        assert_eq!(call(http, "POST", "/monitor/metrics", "{}").status, 200);
        assert!(!first.is_finished());
        end.send(()).unwrap();
        assert_eq!(first.join().unwrap(), 200);
        assert!(others.into_iter().all(|other| other.join().unwrap() == 200));
    });
    assert_eq!(served.mock.max_concurrent_changes(), 1);
}

#[test]
fn change_completes_after_client_disconnects() {
    let served = Served::start(plain());
    let (began, end) = served.mock.hold();
    let mut client = TcpStream::connect(served.bound.http.unwrap()).unwrap();
    client.write_all(request("POST", "/config", "", &config().to_string()).as_bytes()).unwrap();
    began.recv().unwrap();
    drop(client);
    end.send(()).unwrap();
    // The next change waits for the one before.
    let update = call(served.bound.http, "PATCH", "/config", r#"{"flows":{"property_names":["size"]}}"#);
    assert_eq!(update.status, 200);
    assert!(call(served.bound.http, "GET", "/config", "").text().contains("veth-a"));
}

#[test]
fn stopping_server_finishes_current_calls_only() {
    let mut served = Served::start(plain());
    let http = served.bound.http;
    let (began, end) = served.mock.hold();
    let client = std::thread::spawn(move || call(http, "POST", "/config", "{}").status);
    began.recv().unwrap();
    served.stop();
    // The stop has arrived once nothing listens any more.
    while TcpStream::connect(http.unwrap()).is_ok() {
        std::thread::yield_now();
    }
    end.send(()).unwrap();
    assert_eq!(client.join().unwrap(), 200);
    served.finish();
}

#[test]
fn stopping_server_closes_idle_then_busy_connections() {
    let served = Served::start(ServerOptions { grace: Duration::from_millis(100), ..plain() });
    let mut idle = TcpStream::connect(served.bound.http.unwrap()).unwrap();
    let (began, end) = served.mock.hold();
    let mut busy = TcpStream::connect(served.bound.http.unwrap()).unwrap();
    busy.write_all(request("POST", "/config", "", "{}").as_bytes()).unwrap();
    began.recv().unwrap();
    // Ends although the tester does not come back.
    served.finish();
    let mut rest = Vec::new();
    drop(idle.read_to_end(&mut rest));
    drop(busy.read_to_end(&mut rest));
    assert_eq!(rest, b"");
    drop(end);
}

#[test]
fn idle_connection_is_evicted_and_busy_one_kept() {
    let served = Served::start(ServerOptions { most_connections: 1, ..plain() });
    let http = served.bound.http;
    let mut idle = TcpStream::connect(http.unwrap()).unwrap();
    assert_eq!(call(http, "GET", "/config", "").status, 200);
    assert_eq!(idle.read_to_end(&mut Vec::new()).unwrap_or(0), 0, "it was closed");
    let (began, end) = served.mock.hold();
    let busy = std::thread::spawn(move || call(http, "POST", "/config", "{}").status);
    began.recv().unwrap();
    let waiting = std::thread::spawn(move || call(http, "GET", "/config", "").status);
    end.send(()).unwrap();
    assert_eq!((busy.join().unwrap(), waiting.join().unwrap()), (200, 200));
}

#[test]
fn default_options_listen_on_loopback_with_https() {
    let options = ServerOptions::default();
    let addresses = [options.http.unwrap(), options.grpc.unwrap()];
    assert!(addresses.iter().all(|address| address.ip().is_loopback()));
    assert_eq!(addresses.map(|address| address.port()), [8443, 40051]);
    assert!(options.http_tls && !options.grpc_tls);
    assert_eq!(options.most_request_bytes, 64 << 20);
}

#[test]
fn unservable_options_are_refused_before_start() {
    let run = |options| {
        packetrig_server::run_server(
            options,
            ServedRig::from_tester(Arc::new(Mock::default())),
            |_| panic!("bound"),
            || (),
        )
    };
    let none = ServerOptions { http: None, grpc: None, ..plain() };
    assert!(matches!(run(none), Err(Error::Options(_))));
    let clear = ServerOptions { client_ca: Some("ca.pem".into()), ..plain() };
    assert!(matches!(run(clear), Err(Error::Options(_))));
    // A transport that other machines can reach must authenticate them, and not in the clear.
    let anywhere = Some(([0, 0, 0, 0], 0).into());
    let token = Some("secret".to_owned());
    for open in [
        ServerOptions { http: anywhere, ..plain() },
        ServerOptions { http: anywhere, http_tls: true, ..plain() },
        ServerOptions { http: anywhere, token: token.clone(), ..plain() },
        ServerOptions { grpc: anywhere, token: token.clone(), ..plain() },
    ] {
        assert!(matches!(run(open), Err(Error::Options(_))));
    }
    drop(Served::start(ServerOptions { http: anywhere, http_tls: true, token, ..plain() }));
    drop(Served::start(ServerOptions { grpc: anywhere, let_anyone_in: true, ..plain() }));
    let served = Served::start(plain());
    let taken = ServerOptions { http: served.bound.http, ..plain() };
    assert!(matches!(run(taken), Err(Error::Listen { transport: "HTTP", .. })));
    let missing = packetrig_server::IdentityFiles { certificate: "/nowhere".into(), key: "/nowhere".into() };
    let missing = ServerOptions { http_tls: true, identity: Some(missing), ..plain() };
    assert!(matches!(run(missing), Err(Error::File { what: "the certificate", .. })));
}
