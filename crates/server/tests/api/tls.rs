//! Encryption: the server's own certificate, one of files, and certificates of clients.

use crate::http::{Response, request};
use crate::mock::{Served, plain};
use packetrig_server::{IdentityFiles, ServerOptions};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

/// A client that trusts one certificate and may show one of its own.
fn client(
    trusted: &CertificateDer<'static>,
    shown: Option<&rcgen::CertifiedKey<rcgen::KeyPair>>,
) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    match shown {
        None => builder.with_no_client_auth(),
        Some(shown) => {
            let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(shown.signing_key.serialize_der()));
            builder.with_client_auth_cert(vec![shown.cert.der().clone()], key).unwrap()
        }
    }
}

fn version(address: Option<SocketAddr>, config: ClientConfig) -> std::io::Result<u16> {
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(connection, TcpStream::connect(address.unwrap())?);
    stream.write_all(request("GET", "/capabilities/version", "", "").as_bytes())?;
    let mut first = [0; 1];
    std::io::Read::read_exact(&mut stream, &mut first)?;
    let mut whole = std::io::Read::chain(&first[..], stream);
    Ok(Response::read(&mut whole).status)
}

fn identity(directory: &tempfile::TempDir) -> (IdentityFiles, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let files = IdentityFiles {
        certificate: directory.path().join("certificate.pem"),
        key: directory.path().join("key.pem"),
    };
    std::fs::write(&files.certificate, made.cert.pem()).unwrap();
    std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
    (files, made.cert.der().clone())
}

#[test]
fn certificate_from_files_is_presented() {
    let directory = tempfile::tempdir().unwrap();
    let (files, certificate) = identity(&directory);
    let served = Served::start(ServerOptions { http_tls: true, identity: Some(files), ..plain() });
    assert_eq!(version(served.bound.http, client(&certificate, None)).unwrap(), 200);
    // Another one is not trusted: what was shown is that of the files.
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    assert!(version(served.bound.http, client(other.cert.der(), None)).is_err());
}

#[test]
fn grpc_is_served_encrypted_as_http2() {
    let directory = tempfile::tempdir().unwrap();
    let (files, certificate) = identity(&directory);
    let served = Served::start(ServerOptions { grpc_tls: true, identity: Some(files), ..plain() });
    let mut config = client(&certificate, None);
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(connection, TcpStream::connect(served.bound.grpc.unwrap()).unwrap());
    // The preface, and settings of nothing.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let mut frame = [0; 9];
    std::io::Read::read_exact(&mut stream, &mut frame).unwrap();
    assert_eq!(stream.conn.alpn_protocol(), Some(&b"h2"[..]));
    assert_eq!(frame[3], 4, "the server's settings come first");
}

#[test]
fn client_certificate_from_authority_is_required() {
    let directory = tempfile::tempdir().unwrap();
    let (files, certificate) = identity(&directory);
    let (known, stranger) = (
        rcgen::generate_simple_self_signed(["client".to_owned()]).unwrap(),
        rcgen::generate_simple_self_signed(["client".to_owned()]).unwrap(),
    );
    let authority = directory.path().join("authority.pem");
    std::fs::write(&authority, known.cert.pem()).unwrap();
    let options = ServerOptions {
        http_tls: true,
        grpc_tls: true,
        identity: Some(files),
        client_ca: Some(authority),
        ..plain()
    };
    let served = Served::start(options);
    for address in [served.bound.http, served.bound.grpc] {
        assert!(version(address, client(&certificate, None)).is_err());
        assert!(version(address, client(&certificate, Some(&stranger))).is_err());
    }
    assert_eq!(version(served.bound.http, client(&certificate, Some(&known))).unwrap(), 200);
}
