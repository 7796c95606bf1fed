//! The fabric over NATS: parameters for reaching the server, and functions that open its parts.
//!
//! Invariant: opening a part is the first use of the network; no two parts share a connection.

use crate::captures::{NatsCaptureAnswers, NatsCaptureQuestions};
use crate::connection::{RenewedCredentials, ServerAccess};
use crate::endpoint::NatsEndpoint;
use crate::incoming::NatsIncoming;
use crate::observer::FleetObserver;
use crate::records::NatsRecords;
use crate::results::NatsOutgoing;
use crate::runtime::SharedRuntime;
use packetrig_fleet::fabric::{Error, Fabric};
use packetrig_fleet::message::NodeName;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// A fabric over NATS. Clones share the runtime and the parameters.
#[derive(Clone, Debug)]
pub struct NatsFabric {
    runtime: SharedRuntime,
    access: ServerAccess,
}

impl NatsFabric {
    /// Creates a fabric with these parameters. It connects only when a part is opened.
    pub fn new(access: ServerAccess) -> Result<Self, Error> {
        Ok(Self { runtime: SharedRuntime::start_thread()?, access })
    }
}

impl NatsFabric {
    /// Creates a fabric for another member in this process, which shares only the runtime.
    #[must_use]
    pub fn with_access(&self, access: ServerAccess) -> Self {
        Self { runtime: self.runtime.clone(), access }
    }

    /// Makes new connections use this certificate and these claims, for the same key. Does nothing without credentials.
    pub fn renew_credentials(&self, newest: RenewedCredentials) {
        if let Some(credentials) = &self.access.credentials {
            *credentials.renewed.write().unwrap_or_else(PoisonError::into_inner) = Some(newest);
        }
    }

    /// Number of reconnections that the server has refused since it last accepted a connection.
    pub fn refused_log_ins(&self) -> u32 {
        self.access.refused_log_ins.load(Ordering::Relaxed)
    }

    /// Opens the fetching side for captures of `node`. It signs its questions with the controller's key.
    pub fn fetch_captures_of(&self, node: &NodeName) -> Result<NatsCaptureAnswers, Error> {
        NatsCaptureAnswers::open_for_node(self.runtime.clone(), self.access.clone(), node)
    }

    /// Opens the answering side for captures of `node`.
    pub fn open_capture_questions(&self, node: &NodeName) -> Result<NatsCaptureQuestions, Error> {
        NatsCaptureQuestions::open_for_node(self.runtime.clone(), self.access.clone(), node)
    }

    /// Listens to the hellos of nodes, without disturbing a controller.
    pub fn observe_hellos(&self) -> Result<FleetObserver, Error> {
        FleetObserver::open_observer(self.runtime.clone(), self.access.clone())
    }
}

impl Fabric for NatsFabric {
    type Endpoint = NatsEndpoint;
    type Records = NatsRecords;
    type Outgoing = NatsOutgoing;
    type Incoming = NatsIncoming;

    fn open_endpoint(&self, name: NodeName) -> Result<NatsEndpoint, Error> {
        NatsEndpoint::join_fabric(self.runtime.clone(), self.access.clone(), name)
    }

    fn open_records(&self) -> Result<NatsRecords, Error> {
        NatsRecords::open_record_bucket(self.runtime.clone(), self.access.clone())
    }

    fn open_result_outlet(&self, node: &NodeName) -> Result<NatsOutgoing, Error> {
        NatsOutgoing::open_for_node(self.runtime.clone(), self.access.clone(), node)
    }

    fn open_result_inlet(&self, reader: &str) -> Result<NatsIncoming, Error> {
        NatsIncoming::open_for_reader(self.runtime.clone(), self.access.clone(), reader)
    }
}
