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

fn identity(directory: &Path, name: &str) -> MadeMessages {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let files = ["crt", "key"].map(|kind| directory.join(format!("{name}.{kind}")));
    std::fs::write(&files[0], made.cert.pem()).unwrap();
    std::fs::write(&files[1], made.signing_key.serialize_pem()).unwrap();
    MadeMessages { files, made }
}

/// Serves one connection, and trusts one client if there is one.
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
    let config = builder.with_single_cert(vec![server.made.cert.der().clone()], key).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = std::thread::spawn(move || {
        let (socket, _) = listener.accept().unwrap();
        let connection = ServerConnection::new(Arc::new(config)).unwrap();
        let mut bytes = Vec::new();
        // An error is what a client that is not trusted sees, too.
        drop(StreamOwned::new(connection, socket).read_to_end(&mut bytes));
        bytes
    });
    (port, thread)
}

#[test]
fn records_go_encrypted_to_whom_is_trusted_and_who_is_trusted_sends() {
    let directory = tempfile::tempdir().unwrap();
    let [server, client, other] = ["server", "client", "other"].map(|name| identity(directory.path(), name));
    let identity = |of: &MadeMessages| Some((of.files[0].clone(), of.files[1].clone()));
    let of = |trusted, shown, wanted, works| TlsCase { server: &server, trusted, shown, wanted, works };
    let cases = [
        of(&server, None, None, true),
        of(&server, identity(&client), Some(&client), true),
        of(&other, None, None, false),
        of(&server, identity(&other), Some(&client), false),
    ];
    // Those that fail wait for their end, so all wait at once.
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
        let files =
            TlsFiles { authorities: self.trusted.files[0].clone(), identity: self.shown, server_name: None };
        let linger = if self.works { LONG_LINGER } else { Nanos::from_millis(1500) };
        let plain = to(&[(format!("tls://localhost:{port}"), IPFIX)]);
        let options = MeterExport { tls: Some(files), linger, ..plain };
        let counts = export(&options, 500);
        let received = thread.join().unwrap();
        if self.works {
            assert_eq!(counts.sent.records, 500);
            assert_eq!(flows(&messages(&received)), halves(500));
        } else {
            assert!(received.is_empty());
            assert_balanced(&counts);
        }
    }
}
