//! Export through TLS.

use super::*;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use std::path::PathBuf;

struct MadeMessages {
    files: [PathBuf; 2],
    made: rcgen::CertifiedKey<rcgen::KeyPair>,
}

/// Makes a self-signed certificate. `openssl req -x509` marks it as an authority.
fn identity(directory: &Path, name: &str, is_authority: bool) -> MadeMessages {
    let signing_key = rcgen::KeyPair::generate().unwrap();
    let mut wanted = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    if is_authority {
        wanted.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    }
    wanted.distinguished_name.push(rcgen::DnType::CommonName, name);
    let made = rcgen::CertifiedKey { cert: wanted.self_signed(&signing_key).unwrap(), signing_key };
    let files = ["crt", "key"].map(|kind| directory.join(format!("{name}.{kind}")));
    std::fs::write(&files[0], made.cert.pem()).unwrap();
    std::fs::write(&files[1], made.signing_key.serialize_pem()).unwrap();
    MadeMessages { files, made }
}

/// Serves one connection that brings something, and trusts one client if there is one. A connection without any bytes ends it, too.
fn collector(server: &MadeMessages, client: Option<&MadeMessages>) -> (u16, JoinHandle<Vec<u8>>) {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let builder = match client {
        None => builder.with_no_client_auth(),
        Some(client) => {
            let mut roots = RootCertStore::empty();
            roots.add(client.made.cert.der().clone()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(server.made.signing_key.serialize_der()));
    let config = Arc::new(builder.with_single_cert(vec![server.made.cert.der().clone()], key).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = std::thread::spawn(move || {
        loop {
            let (socket, _) = listener.accept().unwrap();
            let is_end = matches!(socket.peek(&mut [0]), Ok(0));
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut bytes = Vec::new();
            // An untrusted client causes an error here, too.
            drop(StreamOwned::new(connection, socket).read_to_end(&mut bytes));
            if is_end || !bytes.is_empty() {
                return bytes;
            }
        }
    });
    (port, thread)
}

#[test]
fn tls_export_succeeds_only_with_trusted_certificates() {
    let directory = tempfile::tempdir().unwrap();
    let [server, client, other] =
        ["server", "client", "other"].map(|name| identity(directory.path(), name, false));
    let authority = identity(directory.path(), "authority", true);
    let identity = |of: &MadeMessages| Some((of.files[0].clone(), of.files[1].clone()));
    let of = |server, trusted, shown, wanted, works| TlsCase { server, trusted, shown, wanted, works };
    let cases = [
        of(&server, &server, None, None, true),
        of(&server, &server, identity(&client), Some(&client), true),
        of(&server, &other, None, None, false),
        of(&server, &server, identity(&other), Some(&client), false),
        // A named certificate that is marked as an authority.
        of(&authority, &authority, None, None, true),
        of(&authority, &authority, identity(&client), Some(&client), true),
    ];
    // Failing cases wait for their end, so all run at once.
    std::thread::scope(|scope| {
        cases.map(|case| scope.spawn(|| case.check())).map(|case| case.join().unwrap())
    });
}

/// An export to a server that asks for a client, or does not.
struct TlsCase<'a> {
    server: &'a MadeMessages,
    trusted: &'a MadeMessages,
    shown: Option<(PathBuf, PathBuf)>,
    wanted: Option<&'a MadeMessages>,
    works: bool,
}

impl TlsCase<'_> {
    /// The collector gets everything, or nothing.
    fn check(self) {
        let (port, thread) = collector(self.server, self.wanted);
        let files = TlsFiles {
            authorities: self.trusted.files[0].clone(),
            identity: self.shown.clone(),
            server_name: None,
        };
        let linger = if self.works { LONG_LINGER } else { Nanos::from_millis(1500) };
        let plain = to(&[(format!("tls://localhost:{port}"), IPFIX)]);
        let options = MeterExport { tls: Some(files), linger, ..plain };
        let (queue, incoming) = open_export_queue(QUEUE, &BackpressurePolicy::default());
        let exporting = spawn_export(&options, incoming, MeterLedger::default).unwrap();
        let watch = exporting.export_watch();
        let mut outbox = queue.make_outbox();
        drop(queue);
        (0..500).for_each(|n| outbox.add_record(&record(n)));
        drop(outbox);
        let (counts, _) = exporting.join_threads();
        drop(std::net::TcpStream::connect(("127.0.0.1", port)));
        let received = thread.join().unwrap();
        if self.works {
            assert_eq!(counts.sent.records, 500);
            assert_eq!(flows(&messages(&received)), halves(500));
        } else {
            assert!(received.is_empty());
            assert_balanced(&counts);
            // Also if it is the collector that refuses: in TLS 1.3 that comes after the handshake.
            assert_eq!((counts.sent.records, counts.refused.records), (0, 500));
            let lines = watch.output_reports()[0].loss_lines();
            let named = if self.shown.is_some() { "certificate " } else { "(CN=server, SHA-256 " };
            assert!(lines.len() == 1 && lines[0].contains(named), "{lines:?}");
        }
    }
}
