//! A fleet with certificates: authority, message server, enrolment server.

use crate::server::{RESULTS_ROOM, setup};
use packetrig_fleet::message::NodeName;
use packetrig_nats::authority::{FleetAuthority, ServerCertificateRenewer};
use packetrig_nats::broker::{BrokerSetup, MessageServer};
use packetrig_nats::enrol::{EnrolServer, FleetMembership, JoinLine, enrol_node};
use packetrig_nats::{NatsFabric, ServerAccess};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tempfile::TempDir;

pub(crate) struct Fleet {
    pub(crate) broker: Arc<Mutex<MessageServer>>,
    pub(crate) authority: Arc<FleetAuthority>,
    pub(crate) door: EnrolServer,
    pub(crate) place: TempDir,
    certificate: Mutex<ServerCertificateRenewer>,
}

pub(crate) fn node(name: &str) -> NodeName {
    NodeName(name.into())
}

impl Fleet {
    pub(crate) fn new(program: PathBuf) -> Self {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs();
        Self::issued_at(program, now)
    }

    /// A fleet whose server has a certificate of that time, in seconds since 1970.
    pub(crate) fn issued_at(program: PathBuf, now: u64) -> Self {
        let place = TempDir::new().expect("a place");
        let authority =
            Arc::new(FleetAuthority::open_or_create(&place.path().join("authority")).expect("it is founded"));
        let names = vec!["127.0.0.1".to_owned()];
        let certificate = ServerCertificateRenewer::with_new_certificate(Arc::clone(&authority), names, now);
        let certificate = certificate.expect("a certificate");
        let security = certificate.security().clone();
        let setup = BrokerSetup { security: Some(security.clone()), ..setup(program, &place) };
        let broker =
            Arc::new(Mutex::new(MessageServer::start_server_and_wait(setup).expect("the server starts")));
        let (own, nodes) = (Arc::clone(&broker), Arc::clone(&authority));
        let on_join = move |node: &NodeName| {
            let node = nodes.read_admitted_node(node).map_err(|error| error.to_string())?;
            let node = node.expect("it was let in");
            own.lock().expect("whole").admit_node(&node).map_err(|error| error.to_string())
        };
        let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let door =
            EnrolServer::start_listening(Arc::clone(&authority), &security, anywhere, Arc::new(on_join));
        let certificate = Mutex::new(certificate);
        Self { broker, authority, door: door.expect("it listens"), place, certificate }
    }

    pub(crate) fn certificate(&self) -> MutexGuard<'_, ServerCertificateRenewer> {
        self.certificate.lock().expect("whole")
    }

    pub(crate) fn address(&self) -> String {
        self.broker.lock().expect("whole").address().to_string()
    }

    pub(crate) fn line(&self) -> JoinLine {
        let secret = self.authority.create_secret("test", Some(1), None).expect("made");
        self.door.make_join_line(self.address(), self.door.address().to_string(), secret).expect("a line")
    }

    pub(crate) fn member(&self, name: &str) -> FleetMembership {
        enrol_node(&self.line(), &node(name), None).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub(crate) fn controller_access(&self) -> ServerAccess {
        let (credentials, keys) = self.authority.load_controller_credentials().expect("it has keys");
        let access = ServerAccess::for_server(self.address(), Some(credentials));
        ServerAccess { keys: Some(keys), ..roomy(access) }
    }

    pub(crate) fn controller(&self) -> NatsFabric {
        NatsFabric::new(self.controller_access()).expect("a runtime")
    }
}

pub(crate) fn roomy(access: ServerAccess) -> ServerAccess {
    ServerAccess { results_room: RESULTS_ROOM as u64, timeout: Duration::from_secs(20), ..access }
}

pub(crate) fn fabric(of: &FleetMembership) -> NatsFabric {
    NatsFabric::new(roomy(of.server_access().expect("it is whole"))).expect("a runtime")
}
