//! The fabric over NATS: parameters for reaching the server, and functions that open endpoints,
//! records, results and captures.
//!
//! Invariant: only these functions connect to the server, and each opens its own connections.

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
    /// Creates a fabric with these parameters. It does not connect yet: each `open_…` function
    /// opens its own connection.
    pub fn new(access: ServerAccess) -> Result<Self, Error> {
        Ok(Self { runtime: SharedRuntime::start_thread()?, access })
    }
}

impl NatsFabric {
    /// Creates a fabric with other parameters in this process. The two fabrics share only the runtime.
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

    /// Opens a connection that fetches captures from `node`. It signs its questions with the controller's key.
    pub fn open_capture_fetcher(&self, node: &NodeName) -> Result<NatsCaptureAnswers, Error> {
        NatsCaptureAnswers::open_for_node(self.runtime.clone(), self.access.clone(), node)
    }

    /// Opens the connection with which `node` receives and answers questions about its captures.
    pub fn open_capture_questions(&self, node: &NodeName) -> Result<NatsCaptureQuestions, Error> {
        NatsCaptureQuestions::open_for_node(self.runtime.clone(), self.access.clone(), node)
    }

    /// Receives the hellos of all nodes and sends nothing, so a controller is not disturbed.
    pub fn open_hello_observer(&self) -> Result<FleetObserver, Error> {
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
