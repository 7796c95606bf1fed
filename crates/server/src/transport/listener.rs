//! The accept loop: gives each connection a slot, encrypts it if the options say so, and closes it when necessary.

use super::access::{AccessRules, ClientPeer};
use super::body::{BoxError, MinimumRateBody};
use super::front::{ConnectionService, SharedTransport};
use super::policy::{CallProtocol, MAX_REQUEST_HEAD_BYTES};
use super::rejections::RejectionCause;
use super::slots::{ConnectionRecord, ConnectionSlot, SlotAdmission};
use super::watch::{ConnectionProgress, ConnectionWatch};
use super::watched_stream::WatchedStream;
use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Body;
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// Pause after a failed accept. The usual cause is a lack of file descriptors, so a retry at once would fail, too.
const FAILED_ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long the server waits for an HTTP/2 client to read GOAWAY before it closes the connection.
const CLIENT_CLOSE_TIME: Duration = Duration::from_millis(250);

/// One transport: its bound socket, and what is needed to serve connections on it.
pub(crate) struct TransportListener {
    pub(crate) socket: TcpListener,
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) builder: Builder<TokioExecutor>,
    pub(crate) shared: SharedTransport,
    /// How long calls in progress may continue after the server was told to stop.
    pub(crate) grace: Duration,
}

/// Configures the implementation of HTTP/1 or HTTP/2 for a protocol. [`ConnectionWatch`] enforces the deadlines.
pub(crate) fn connection_builder(protocol: CallProtocol) -> Builder<TokioExecutor> {
    let builder = Builder::new(TokioExecutor::new());
    match protocol {
        CallProtocol::Http => {
            let mut builder = builder.http1_only();
            // `ConnectionWatch` enforces this deadline instead, because it distinguishes slow
            // heads from idle connections.
            builder.http1().header_read_timeout(None).max_buf_size(MAX_REQUEST_HEAD_BYTES as usize);
            builder
        }
        CallProtocol::Grpc => {
            let mut builder = builder.http2_only();
            builder
                .http2()
                .timer(TokioTimer::new())
                // A ping detects clients that have disappeared.
                .keep_alive_interval(Duration::from_mins(1))
                .max_header_list_size(MAX_REQUEST_HEAD_BYTES)
                // Limits against "rapid reset" (CVE-2023-44487): a client that opens and resets streams as
                // fast as it can.
                .max_concurrent_streams(128)
                .max_pending_accept_reset_streams(16)
                .max_local_error_reset_streams(64);
            builder
        }
    }
}

impl TransportListener {
    /// Serves connections until `stop`, then waits until calls in progress have ended, for at most the grace time.
    pub(crate) async fn serve_connections<S, B>(self, api: S, mut stop: watch::Receiver<bool>)
    where
        S: Service<Request<MinimumRateBody>, Response = Response<B>, Error = Infallible>
            + Clone
            + Send
            + 'static,
        S::Future: Send,
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let mut connections = JoinSet::new();
        // Biased: a stop counts before the next client, and ended connections are removed before new ones are added.
        loop {
            let accepted = tokio::select! {
                biased;
                () = wait_for_stop(&mut stop) => break,
                Some(_) = connections.join_next() => continue,
                accepted = accept_client(&self.socket, &self.shared.policy.access) => accepted,
            };
            let Ok((stream, peer)) = accepted else {
                tokio::time::sleep(FAILED_ACCEPT_PAUSE).await;
                continue;
            };
            // While this client waits, further clients wait in the kernel's backlog.
            let slot = tokio::select! {
                () = wait_for_stop(&mut stop) => break,
                slot = wait_for_slot(&self.shared, peer) => slot,
            };
            // A refused client gets no answer: its connection is closed when `stream` is dropped here.
            let Some(slot) = slot else { continue };
            let front = ConnectionService {
                shared: self.shared.clone(),
                record: Arc::clone(&slot.record),
                api: api.clone(),
            };
            let connection = ServedConnection { slot, builder: self.builder.clone(), stop: stop.clone() };
            connections.spawn(connection.serve_stream(stream, self.tls.clone(), front));
        }
        // New clients are refused from here on, instead of waiting in a backlog that is never read.
        drop(self.socket);
        let ended = async { while connections.join_next().await.is_some() {} };
        // `shutdown` aborts the connections that remain.
        drop(tokio::time::timeout(self.grace, ended).await);
        connections.shutdown().await;
    }
}

/// Waits until the server must stop.
async fn wait_for_stop(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await);
}

async fn accept_client(
    socket: &TcpListener,
    access: &AccessRules,
) -> std::io::Result<(TcpStream, ClientPeer)> {
    let (stream, client) = socket.accept().await?;
    // Answers are small: Nagle's algorithm would hold them back until the client acknowledges earlier data.
    stream.set_nodelay(true)?;
    // If the client has already gone, the local address may be unknown. Then this address is used: it is not loopback,
    // so the client is not trusted.
    let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
    let peer = access.identify_peer(client, stream.local_addr().unwrap_or(nowhere));
    Ok((stream, peer))
}

/// Waits for a slot for the client. `None` if it is refused.
async fn wait_for_slot(shared: &SharedTransport, peer: ClientPeer) -> Option<ConnectionSlot> {
    loop {
        match shared.slots.admit_peer(peer) {
            SlotAdmission::Admitted(slot) => return Some(slot),
            SlotAdmission::Wait => shared.slots.wait_until_freed().await,
            SlotAdmission::Refused(cause) => {
                shared.counters.count_rejection(cause);
                return None;
            }
        }
    }
}

struct ServedConnection {
    slot: ConnectionSlot,
    builder: Builder<TokioExecutor>,
    stop: watch::Receiver<bool>,
}

impl ServedConnection {
    /// Serves the connection from its first byte to its end. If the server closes it, the cause is counted.
    async fn serve_stream<S, B>(
        self,
        stream: TcpStream,
        tls: Option<TlsAcceptor>,
        front: ConnectionService<S>,
    ) where
        S: Service<Request<MinimumRateBody>, Response = Response<B>, Error = Infallible>
            + Clone
            + Send
            + 'static,
        S::Future: Send,
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let Some(tls) = tls else { return self.serve_requests(stream, front).await };
        let mut stop = self.stop.clone();
        let counters = Arc::clone(&front.shared.counters);
        let shaken = tokio::select! {
            () = wait_for_stop(&mut stop) => return,
            // The connection may have to be closed for another client before its handshake has ended.
            cause = self.slot.record.wait_for_close() => return counters.count_rejection(cause),
            shaken = tokio::time::timeout(front.shared.deadlines.first, tls.accept(stream)) => shaken,
        };
        match shaken {
            Ok(Ok(stream)) => self.serve_requests(stream, front).await,
            _ => counters.count_rejection(RejectionCause::Handshake),
        }
    }

    async fn serve_requests<S, B>(
        mut self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        front: ConnectionService<S>,
    ) where
        S: Service<Request<MinimumRateBody>, Response = Response<B>, Error = Infallible>
            + Clone
            + Send
            + 'static,
        S::Future: Send,
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let record = Arc::clone(&self.slot.record);
        let counters = Arc::clone(&front.shared.counters);
        let watch = ConnectionWatch::new(front.shared.deadlines, front.shared.policy.protocol);
        let interval = ConnectionWatch::connection_check_interval(&front.shared.deadlines);
        let sends_goaway = front.shared.policy.protocol == CallProtocol::Grpc;
        let stream = TokioIo::new(WatchedStream::new(stream, Arc::clone(&record)));
        let mut connection = std::pin::pin!(self.builder.serve_connection(stream, front));
        let mut end = std::pin::pin!(wait_for_close_cause(&record, watch, interval));
        let cause = tokio::select! {
            _ = &mut connection => return,
            cause = &mut end => cause,
            () = wait_for_stop(&mut self.stop) => {
                // Calls in progress may end. The deadlines still hold, so a slow client does not use up the grace time.
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    _ = &mut connection => return,
                    cause = &mut end => cause,
                }
            }
        };
        counters.count_rejection(cause);
        // GOAWAY names the last call that was started (RFC 9113, 6.8), so that a client can safely
        // repeat the later ones.
        if sends_goaway && record.was_admitted.load(Ordering::Relaxed) {
            connection.as_mut().graceful_shutdown();
            drop(tokio::time::timeout(CLIENT_CLOSE_TIME, connection).await);
        }
    }
}

/// Waits until the connection must be closed, and returns the cause.
async fn wait_for_close_cause(
    record: &ConnectionRecord,
    mut watch: ConnectionWatch,
    interval: Duration,
) -> RejectionCause {
    loop {
        tokio::select! {
            cause = record.wait_for_close() => return cause,
            () = tokio::time::sleep(interval) => {}
        }
        if let Some(cause) = watch.check_progress(ConnectionProgress::from_record(record), interval) {
            return cause;
        }
    }
}
