//! Starts, runs and stops both transports.

use crate::page::PageContext;
use crate::transport::CallDispatcher;
use crate::transport::access::AccessRules;
use crate::transport::body::BodyMemory;
use crate::transport::front::SharedTransport;
use crate::transport::grpc;
use crate::transport::http::build_router;
use crate::transport::listener::{TransportListener, connection_builder};
use crate::transport::policy::{CallProtocol, RequestPolicy};
use crate::transport::rejections::RejectionCounters;
use crate::transport::slots::ConnectionSlots;
use crate::transport::tls::ServerIdentity;
use crate::viewing::ServedRig;
use crate::{BoundAddresses, Error, RejectionCounts, RejectionObserver, ServerOptions};
use hyper_util::service::TowerToHyperService;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Serves the API until `stop` completes. Then calls in progress may continue for at most [`ServerOptions::grace`].
///
/// `bound` is called once with the addresses of the transports, when the server can accept connections.
pub async fn serve_rig(
    options: ServerOptions,
    rig: ServedRig,
    bound: impl FnOnce(BoundAddresses),
    stop: impl Future<Output = ()>,
) -> Result<(), Error> {
    check_options(&options, &rig)?;
    let http = bind_listener("HTTP", options.http).await?;
    let grpc = bind_listener("gRPC", options.grpc).await?;
    // The certificate files are read only if a transport is encrypted; otherwise they need not be readable.
    let identity = needs_tls(&options).then(|| ServerIdentity::new(&options)).transpose()?;
    let addresses =
        BoundAddresses { http: bound_address_of(http.as_ref()), grpc: bound_address_of(grpc.as_ref()) };
    let transports = ServerTransports::new(&options, &rig);
    let http = transports.build_listener(CallProtocol::Http, http, identity.as_ref())?;
    let grpc = transports.build_listener(CallProtocol::Grpc, grpc, identity.as_ref())?;
    // Both listeners are set up completely before `bound` is called: a caller that prints "ready"
    // must not fail afterwards.
    let stops = transports.stopping.subscribe();
    bound(addresses);
    let until_stop = async {
        stop.await;
        // A watch channel keeps its value, so a listener that checks it later also stops.
        transports.stopping.send_replace(true);
    };
    let over_http = async {
        if let Some(listener) = http {
            listener.serve_connections(transports.build_http_routes(), stops.clone()).await;
        }
    };
    let over_grpc = async {
        if let (Some(listener), Some(service)) = (grpc, transports.build_grpc_service()) {
            listener.serve_connections(service, stops.clone()).await;
        }
    };
    let observing = report_rejections(options.on_rejections.as_ref(), &transports.counters, stops.clone());
    tokio::join!(until_stop, over_http, over_grpc, observing);
    Ok(())
}

/// The parts that both transports share.
pub(crate) struct ServerTransports {
    options: ServerOptions,
    rig: ServedRig,
    dispatcher: Option<CallDispatcher>,
    /// Tells listeners to stop, and ends the events of viewers, which would otherwise keep their connections for
    /// the whole grace time.
    stopping: watch::Sender<bool>,
    access: AccessRules,
    memory: Arc<BodyMemory>,
    counters: Arc<RejectionCounters>,
}

impl ServerTransports {
    pub(crate) fn new(options: &ServerOptions, rig: &ServedRig) -> Self {
        Self {
            options: options.clone(),
            rig: rig.clone(),
            dispatcher: rig.tester.clone().map(CallDispatcher::new),
            stopping: watch::Sender::new(false),
            access: AccessRules::new(options),
            memory: BodyMemory::new(options.most_request_memory),
            counters: Arc::default(),
        }
    }

    pub(crate) fn build_http_routes(&self) -> TowerToHyperService<axum::Router> {
        let most = self.options.most_request_bytes;
        let page = PageContext::new(
            &self.rig,
            self.dispatcher.clone(),
            Arc::clone(&self.counters),
            most,
            self.stopping.subscribe(),
        );
        TowerToHyperService::new(build_router(self.dispatcher.clone(), most, page))
    }

    /// The gRPC service; `None` without a tester.
    pub(crate) fn build_grpc_service(&self) -> Option<grpc::GrpcService> {
        Some(grpc::GrpcService {
            dispatcher: self.dispatcher.clone()?,
            most_request_bytes: self.options.most_request_bytes,
        })
    }

    /// The parts that all connections of a transport share.
    pub(crate) fn build_shared_transport(&self, protocol: CallProtocol) -> SharedTransport {
        let policy = RequestPolicy {
            protocol,
            is_encrypted: self.is_encrypted(protocol),
            access: self.access.clone(),
            host_names: self.options.host_names.clone().into(),
        };
        SharedTransport {
            policy,
            slots: ConnectionSlots::new(self.options.most_connections),
            memory: Arc::clone(&self.memory),
            counters: Arc::clone(&self.counters),
            deadlines: self.options.deadlines,
        }
    }

    const fn is_encrypted(&self, protocol: CallProtocol) -> bool {
        match protocol {
            CallProtocol::Http => self.options.http_tls,
            CallProtocol::Grpc => self.options.grpc_tls,
        }
    }

    fn build_listener(
        &self,
        protocol: CallProtocol,
        bound: Option<TcpListener>,
        identity: Option<&ServerIdentity>,
    ) -> Result<Option<TransportListener>, Error> {
        let Some(socket) = bound else { return Ok(None) };
        // ALPN names. Without the right one, clients of gRPC refuse a connection (RFC 9113, 3.2).
        let negotiated: &[u8] = match protocol {
            CallProtocol::Http => b"http/1.1",
            CallProtocol::Grpc => b"h2",
        };
        let tls = match identity.filter(|_| self.is_encrypted(protocol)) {
            Some(identity) => Some(identity.build_acceptor(self.options.client_ca.as_deref(), negotiated)?),
            None => None,
        };
        Ok(Some(TransportListener {
            socket,
            tls,
            builder: connection_builder(protocol),
            shared: self.build_shared_transport(protocol),
            grace: self.options.grace,
        }))
    }
}

fn bound_address_of(socket: Option<&TcpListener>) -> Option<SocketAddr> {
    socket?.local_addr().ok()
}

/// Interval between two checks for refusals.
const REFUSAL_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Number of checks between two reports.
const CHECKS_BETWEEN_REPORTS: u32 = 60;

/// Reports refusals: the first one within a second, then new ones at most once a minute, and at the end.
async fn report_rejections(
    observer: Option<&RejectionObserver>,
    counters: &RejectionCounters,
    mut stop: watch::Receiver<bool>,
) {
    let Some(observer) = observer else { return };
    let mut reported = RejectionCounts::default();
    let mut looks_until_next = 0;
    loop {
        let is_over = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => true,
            () = tokio::time::sleep(REFUSAL_CHECK_INTERVAL) => false,
        };
        let counts = counters.read_counts();
        // The value stays at 0 while no client is refused, so that the next refusal is reported within a second.
        looks_until_next = u32::saturating_sub(looks_until_next, 1);
        if counts.without_ordinary_causes() != reported.without_ordinary_causes()
            && (is_over || looks_until_next == 0)
        {
            (observer.0)(&counts);
            reported = counts;
            looks_until_next = CHECKS_BETWEEN_REPORTS;
        }
        if is_over {
            return;
        }
    }
}

/// Runs [`serve_rig`] for a caller that has no async runtime. `stop` may block: it gets a separate thread.
/// The server stops when `stop` returns or panics.
pub fn run_server(
    options: ServerOptions,
    rig: ServedRig,
    bound: impl FnOnce(BoundAddresses),
    stop: impl FnOnce() + Send + 'static,
) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("server").build();
    let runtime = runtime.map_err(Error::Runtime)?;
    let stopped = async {
        // If `stop` panics, the server stops as well.
        drop(tokio::task::spawn_blocking(stop).await);
    };
    let served = runtime.block_on(serve_rig(options, rig, bound, stopped));
    // A blocked call of the tester must not keep the program from ending.
    runtime.shutdown_background();
    served
}

fn needs_tls(options: &ServerOptions) -> bool {
    (options.http.is_some() && options.http_tls) || (options.grpc.is_some() && options.grpc_tls)
}

fn check_options(options: &ServerOptions, rig: &ServedRig) -> Result<(), Error> {
    if options.grpc.is_some() && rig.tester.is_none() {
        return Err(Error::Options(
            "this server only shows results, but gRPC is for running tests; turn gRPC off".into(),
        ));
    }
    if options.http.is_none() && options.grpc.is_none() {
        return Err(Error::Options("HTTP and gRPC are both off; serve at least one of them".into()));
    }
    let in_the_clear =
        (options.http.is_some() && !options.http_tls) || (options.grpc.is_some() && !options.grpc_tls);
    // Clients present their certificate in the TLS handshake, so without TLS no certificate could be required.
    if options.client_ca.is_some() && in_the_clear {
        let message = "--client-ca works with TLS only: add --grpc-tls or --no-grpc, and drop --plain-http";
        return Err(Error::Options(message.into()));
    }
    // An empty token would admit every client that sends an empty one.
    if [&options.token, &options.view_token].iter().any(|token| token.as_ref().is_some_and(String::is_empty))
    {
        return Err(Error::Options("the token file is empty; write a token into it".into()));
    }
    // The token with all rights is compared first, so with equal tokens every viewer could control the rig.
    if options.token.is_some() && options.token == options.view_token {
        return Err(Error::Options(
            "the token for viewers must differ from the token with all rights; use two token files".into(),
        ));
    }
    refuse_unprotected_access(options)
}

/// Refuses a transport that other machines can reach, unless they must authenticate over an encrypted connection, or
/// the user admits everyone.
fn refuse_unprotected_access(options: &ServerOptions) -> Result<(), Error> {
    // With a client CA, `check_options` has made sure of encryption, and every client shows a certificate.
    if options.let_anyone_in || options.client_ca.is_some() {
        return Ok(());
    }
    let transports = [("HTTP", options.http, options.http_tls), ("gRPC", options.grpc, options.grpc_tls)];
    for (name, address, is_encrypted) in transports {
        // `::ffff:127.0.0.1` is loopback, too.
        let Some(address) = address.filter(|address| !address.ip().to_canonical().is_loopback()) else {
            continue;
        };
        let token = options.token.as_ref().or(options.view_token.as_ref());
        let missing = match (token, is_encrypted) {
            (Some(_), true) => continue,
            (Some(_), false) => "the token would travel unencrypted; use TLS",
            (None, _) => "they cannot authenticate; give --token-file or --client-ca",
        };
        return Err(Error::Options(format!(
            "other machines can reach {name} at {address}, and {missing}; --let-anyone-in admits every \
                client without a check"
        )));
    }
    Ok(())
}

async fn bind_listener(
    transport: &'static str,
    address: Option<SocketAddr>,
) -> Result<Option<TcpListener>, Error> {
    let Some(address) = address else { return Ok(None) };
    match TcpListener::bind(address).await {
        Ok(socket) => Ok(Some(socket)),
        Err(source) => Err(Error::Listen { transport, address, source }),
    }
}
