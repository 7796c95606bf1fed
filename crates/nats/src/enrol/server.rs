//! The controller's side of enrolment: a listener on its own thread, and a thread for each connection.
//!
//! Invariant: a node gets the answer that it is admitted only after the message server knows it. If the message server
//! does not accept the node, the admission is undone: the use of the secret does not count, and the name stays free.

use super::deadline::DeadlineStream;
use super::slots::{ConnectionSlot, ConnectionSlots};
use super::{
    ConnectionSecret, ENROL_ANSWER_TIMEOUT, ENROL_STEP_TIMEOUT, EnrolAnswer, EnrolQuestion, Error, JoinLine,
    certificate_fingerprint, export_connection_secret, network_error, read_message, write_message,
};
use crate::authority::{
    Error as AuthorityError, FleetAuthority, JoinSecret, NodeAdmission, NodeKeys, decode_hex,
};
use crate::broker::ServerSecurity;
use crate::connection::parse_certificates;
use nkeys::KeyPairType;
use packetrig_fleet::message::NodeName;
use packetrig_sys::clock::wall_clock_ns;
use ring::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// Reason for refusing a question without a valid proof.
const MISSING_PROOF_REASON: &str = "the request is not signed with the node's key for this connection; use \
                                    the same version of packetrig on both machines";
/// Interval at which the listener checks whether it should end.
const END_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Called with a new node before the node gets its answer, to inform the message server.
pub type JoinCallback = Arc<dyn Fn(&NodeName) -> Result<(), String> + Send + Sync>;

/// Admits nodes to the fleet. Dropping this ends the listener.
pub struct EnrolServer {
    address: SocketAddr,
    service: Arc<EnrolService>,
    end: Arc<AtomicBool>,
    listener: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for EnrolServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EnrolServer").field("address", &self.address).finish_non_exhaustive()
    }
}

impl EnrolServer {
    /// Listens at `listen` with the certificate that [`FleetAuthority::issue_server_certificate`] made.
    pub fn start_listening(
        authority: Arc<FleetAuthority>,
        security: &ServerSecurity,
        listen: SocketAddr,
        on_join: JoinCallback,
    ) -> Result<Self, Error> {
        let config = RwLock::new(Arc::new(tls_config(&authority, security)?));
        let socket = TcpListener::bind(listen).map_err(network_error(listen.to_string()))?;
        // The thread polls for connections, so that it also notices that it must end.
        socket.set_nonblocking(true).map_err(network_error(listen.to_string()))?;
        let address = socket.local_addr().map_err(network_error(listen.to_string()))?;
        let end = Arc::new(AtomicBool::new(false));
        let service =
            Arc::new(EnrolService { authority, config, on_join, slots: ConnectionSlots::default() });
        let ended = Arc::clone(&end);
        let serving = Arc::clone(&service);
        let listener = std::thread::Builder::new()
            .name("enrol".to_owned())
            .spawn(move || listen_until(&socket, &serving, &ended))
            .map_err(network_error("cannot start the thread of the enrolment server"))?;
        Ok(Self { address, service, end, listener: Some(listener) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Makes new connections use this certificate.
    pub fn renew_certificate(&self, security: &ServerSecurity) -> Result<(), Error> {
        let renewed = Arc::new(tls_config(&self.service.authority, security)?);
        *self.service.config.write().unwrap_or_else(PoisonError::into_inner) = renewed;
        Ok(())
    }

    /// Builds a join line for a node's owner, see [`build_join_line`].
    pub fn make_join_line(
        &self,
        address: String,
        enrol: String,
        secret: JoinSecret,
    ) -> Result<JoinLine, Error> {
        build_join_line(&self.service.authority, address, enrol, secret)
    }
}

/// Builds the join line for a node's owner. `address` is that of the message server (of a cluster: all addresses,
/// separated by commas), `enrol` that of the enrolment server. The node must be able to reach both.
pub fn build_join_line(
    authority: &FleetAuthority,
    address: String,
    enrol: String,
    secret: JoinSecret,
) -> Result<JoinLine, Error> {
    let certificate = authority.read_certificate_pem()?;
    let first = parse_certificates(&certificate).into_iter().next();
    let authority = certificate_fingerprint(
        &first.ok_or_else(|| Error::Here("the authority has no certificate".to_owned()))?,
    );
    Ok(JoinLine { address, enrol, authority, secret })
}

impl Drop for EnrolServer {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Release);
        if let Some(listener) = self.listener.take() {
            // `join` fails only if the thread has panicked, and the panic was printed then.
            drop(listener.join());
        }
    }
}

fn tls_config(authority: &FleetAuthority, security: &ServerSecurity) -> Result<ServerConfig, Error> {
    let mut chain = parse_certificates(&read_pem(&security.certificate)?);
    // The node knows only the fingerprint of the authority, so the chain includes its certificate.
    chain.extend(parse_certificates(&authority.read_certificate_pem()?));
    let key = PrivateKeyDer::from_pem_slice(read_pem(&security.key)?.as_bytes());
    let key = key.map_err(|error| Error::Here(error.to_string()))?;
    ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(|error| Error::Here(error.to_string()))
}

fn read_pem(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(network_error(path.display().to_string()))
}

/// State that all connections share.
struct EnrolService {
    authority: Arc<FleetAuthority>,
    config: RwLock<Arc<ServerConfig>>,
    on_join: JoinCallback,
    slots: ConnectionSlots,
}

fn listen_until(socket: &TcpListener, service: &Arc<EnrolService>, end: &AtomicBool) {
    while !end.load(Ordering::Acquire) {
        let Ok((stream, from)) = socket.accept() else {
            std::thread::sleep(END_CHECK_INTERVAL);
            continue;
        };
        // No slot can be made free. The connection is dropped, which makes the node retry.
        let Some(slot) = service.slots.claim_slot(from.ip(), &stream) else { continue };
        let service = Arc::clone(service);
        let thread = std::thread::Builder::new().name("enrol".to_owned());
        // If no thread can be started, the slot becomes free and the node retries. The same happens after a failed
        // connection: a node that was already admitted asks again with the same key.
        drop(thread.spawn(move || drop(service.serve_connection(stream, &slot))));
    }
}

/// Checks the proof of a question. Returns the keys of the asking node if the proof is valid.
fn verify_key_proof(question: &EnrolQuestion, connection: &ConnectionSecret) -> Option<NodeKeys> {
    let keys = NodeKeys { certificate: decode_hex(&question.public_key)?, user: question.user_key.clone() };
    let proof = decode_hex(&question.proof)?;
    // The signature covers purpose, name, secret, user key and connection, so it proves nothing for another question.
    let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &keys.certificate);
    key.verify(&question.signed_payload(connection), &proof).ok()?;
    // The text becomes the subject of signed claims, so it must be a valid public key of a user.
    nkeys::is_public_key(&keys.user, KeyPairType::User).then_some(keys)
}

impl EnrolService {
    fn serve_connection(&self, stream: TcpStream, slot: &ConnectionSlot) -> std::io::Result<()> {
        stream.set_nonblocking(false)?;
        let stream = DeadlineStream::new(stream, ENROL_STEP_TIMEOUT);
        // The certificate is read for each connection, so that the next node sees a renewed one.
        let config = Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner));
        let connection = ServerConnection::new(config).map_err(std::io::Error::other)?;
        let mut stream = StreamOwned::new(connection, stream);
        let question: EnrolQuestion = read_message(&mut stream)?;
        slot.mark_question_received();
        let secret = export_connection_secret(&stream.conn).map_err(std::io::Error::other)?;
        let answer = self.answer_question(&question, &secret).unwrap_or_else(EnrolAnswer::Refused);
        stream.sock.restart_deadline(ENROL_ANSWER_TIMEOUT);
        write_message(&mut stream, &answer)?;
        stream.conn.send_close_notify();
        stream.conn.complete_io(&mut stream.sock).map(|_| ())
    }

    fn answer_question(
        &self,
        question: &EnrolQuestion,
        connection: &ConnectionSecret,
    ) -> Result<EnrolAnswer, String> {
        let now = wall_clock_ns() / 1_000_000_000;
        let keys = verify_key_proof(question, connection).ok_or(MISSING_PROOF_REASON)?;
        let name = NodeName(question.name.clone());
        if question.is_renewal {
            return match self.authority.renew_certificate(&name, &keys, now) {
                Ok(renewed) => Ok(EnrolAnswer::Admitted(renewed)),
                // A node whose renewal is refused assumes that the operator has removed it from the fleet, and ends.
                Err(error @ (AuthorityError::Unknown(_) | AuthorityError::Name(_))) => Err(error.to_string()),
                Err(error) => Ok(EnrolAnswer::Later(error.to_string())),
            };
        }
        let admission = self.authority.admit_node(&name, &keys, &question.secret, now);
        Ok(self.announce_admission(&name, admission.map_err(|error| error.to_string())?, &question.secret))
    }

    /// Informs the message server of the node. If that fails, undoes the admission, and the node may ask again later.
    fn announce_admission(&self, name: &NodeName, admission: NodeAdmission, secret: &str) -> EnrolAnswer {
        let Err(why) = (self.on_join)(name) else { return EnrolAnswer::Admitted(admission) };
        match self.authority.undo_admission(name, &admission, secret) {
            Ok(()) => EnrolAnswer::Later(why),
            Err(error) => EnrolAnswer::Later(format!("{why}; the admission could not be undone: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::encode_hex;
    use rcgen::{KeyPair, SigningKey};

    fn question(pair: &KeyPair, user_key: String, connection: &ConnectionSecret) -> EnrolQuestion {
        let bare = EnrolQuestion {
            name: "a".into(),
            secret: String::new(),
            public_key: encode_hex(rcgen::PublicKeyData::der_bytes(pair)),
            user_key,
            proof: String::new(),
            is_renewal: true,
        };
        let proof = pair.sign(&bare.signed_payload(connection)).expect("signed");
        EnrolQuestion { proof: encode_hex(&proof), ..bare }
    }

    #[test]
    fn proof_is_bound_to_question_and_connection() {
        let pair = KeyPair::generate().expect("a key");
        let keys = NodeKeys::from_private_key(&pair.serialize_pem()).expect("derived");
        let asked = || question(&pair, keys.user.clone(), &[1; 32]);
        assert_eq!(verify_key_proof(&asked(), &[1; 32]), Some(keys.clone()));
        assert_eq!(verify_key_proof(&asked(), &[2; 32]), None, "said again in another connection");
        let other = NodeKeys::from_private_key(&KeyPair::generate().expect("a key").serialize_pem())
            .expect("derived");
        let changed: [EnrolQuestion; 4] = [
            EnrolQuestion { name: "b".into(), ..asked() },
            EnrolQuestion { is_renewal: false, ..asked() },
            EnrolQuestion { user_key: other.user, ..asked() },
            EnrolQuestion { secret: "00".into(), ..asked() },
        ];
        assert!(changed.iter().all(|question| verify_key_proof(question, &[1; 32]).is_none()));
        let of_no_user = question(&pair, "*".into(), &[1; 32]);
        assert_eq!(verify_key_proof(&of_no_user, &[1; 32]), None, "no key of a user");
    }
}
