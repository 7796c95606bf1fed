//! The accept loop: connections, each with a place, encrypted or not, and their end.

use super::access::{AccessRules, ClientPeer};
use super::body::{BoxError, PacedBody};
use super::front::{ConnectionService, SharedTransport};
use super::policy::CallProtocol;
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

/// After an accept that failed, for want of descriptors most likely.
const BREATH: Duration = Duration::from_millis(50);
/// How long a client of HTTP/2 that was idle has to take notice of the end.
const FAREWELL: Duration = Duration::from_millis(250);
/// Longest head of a request, both transports.
const LONGEST_HEAD: u32 = 64 << 10;

/// One transport, ready to be served.
pub(crate) struct TransportListener {
    pub(crate) socket: TcpListener,
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) builder: Builder<TokioExecutor>,
    pub(crate) doors: SharedTransport,
    /// How long calls under way may take to end after the stop.
    pub(crate) grace: Duration,
}

/// What speaks the protocol. Deadlines are [`ConnectionWatch`]'s.
pub(crate) fn builder(protocol: CallProtocol) -> Builder<TokioExecutor> {
    let builder = Builder::new(TokioExecutor::new());
    match protocol {
        CallProtocol::Http => {
            let mut builder = builder.http1_only();
            builder.http1().header_read_timeout(None).max_buf_size(LONGEST_HEAD as usize);
            builder
        }
        CallProtocol::Grpc => {
            let mut builder = builder.http2_only();
            builder
                .http2()
                .timer(TokioTimer::new())
                // A client that vanished is noticed.
                .keep_alive_interval(Duration::from_mins(1))
                .max_header_list_size(LONGEST_HEAD)
                .max_concurrent_streams(128)
                .max_pending_accept_reset_streams(16)
                .max_local_error_reset_streams(64);
            builder
        }
    }
}

impl TransportListener {
    /// Serves until told to stop, then until calls under way have ended or the grace is over.
    pub(crate) async fn serve<S, B>(self, api: S, mut stop: watch::Receiver<bool>)
    where
        S: Service<Request<PacedBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                biased;
                () = stopped(&mut stop) => break,
                Some(_) = connections.join_next() => continue,
                accepted = accept(&self.socket, &self.doors.policy.access) => accepted,
            };
            let Ok((stream, peer)) = accepted else {
                tokio::time::sleep(BREATH).await;
                continue;
            };
            let slot = tokio::select! {
                () = stopped(&mut stop) => break,
                slot = place(&self.doors, peer) => slot,
            };
            let Some(slot) = slot else { continue };
            let front = ConnectionService {
                doors: self.doors.clone(),
                record: Arc::clone(&slot.record),
                api: api.clone(),
            };
            let connection = ServedConnection { slot, builder: self.builder.clone(), stop: stop.clone() };
            connections.spawn(connection.run(stream, self.tls.clone(), front));
        }
        drop(self.socket);
        let ended = async { while connections.join_next().await.is_some() {} };
        // Those still there afterwards are ended with the set.
        drop(tokio::time::timeout(self.grace, ended).await);
        connections.shutdown().await;
    }
}

/// Returns when the server is to end.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await);
}

async fn accept(socket: &TcpListener, access: &AccessRules) -> std::io::Result<(TcpStream, ClientPeer)> {
    let (stream, client) = socket.accept().await?;
    stream.set_nodelay(true)?;
    // A client that has gone meanwhile is nobody known.
    let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
    let peer = access.peer(client, stream.local_addr().unwrap_or(nowhere));
    Ok((stream, peer))
}

/// A place for the client, as soon as there is one. `None`: it gets none.
async fn place(doors: &SharedTransport, peer: ClientPeer) -> Option<ConnectionSlot> {
    loop {
        match doors.slots.admit(peer) {
            SlotAdmission::Admitted(slot) => return Some(slot),
            SlotAdmission::Wait => doors.slots.freed().await,
            SlotAdmission::Refused(cause) => {
                doors.counters.add(cause);
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
    /// From the first byte to the end, which is the client's affair or has a cause that is counted.
    async fn run<S, B>(self, stream: TcpStream, tls: Option<TlsAcceptor>, front: ConnectionService<S>)
    where
        S: Service<Request<PacedBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let Some(tls) = tls else { return self.converse(stream, front).await };
        let mut stop = self.stop.clone();
        let counters = Arc::clone(&front.doors.counters);
        let shaken = tokio::select! {
            () = stopped(&mut stop) => return,
            cause = self.slot.record.closed() => return counters.add(cause),
            shaken = tokio::time::timeout(front.doors.deadlines.first, tls.accept(stream)) => shaken,
        };
        match shaken {
            Ok(Ok(stream)) => self.converse(stream, front).await,
            _ => counters.add(RejectionCause::Handshake),
        }
    }

    async fn converse<S, B>(
        mut self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        front: ConnectionService<S>,
    ) where
        S: Service<Request<PacedBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let record = Arc::clone(&self.slot.record);
        let counters = Arc::clone(&front.doors.counters);
        let watch = ConnectionWatch::new(front.doors.deadlines, front.doors.policy.protocol);
        let interval = ConnectionWatch::interval(&front.doors.deadlines);
        let says_farewell = front.doors.policy.protocol == CallProtocol::Grpc;
        let stream = TokioIo::new(WatchedStream::new(stream, Arc::clone(&record)));
        let mut connection = std::pin::pin!(self.builder.serve_connection(stream, front));
        let mut end = std::pin::pin!(to_be_closed(&record, watch, interval));
        let cause = tokio::select! {
            _ = &mut connection => return,
            cause = &mut end => cause,
            () = stopped(&mut self.stop) => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    _ = &mut connection => return,
                    cause = &mut end => cause,
                }
            }
        };
        counters.add(cause);
        // A client that has called before learns which of its calls were not begun, and makes them again.
        if says_farewell && record.was_admitted.load(Ordering::Relaxed) {
            connection.as_mut().graceful_shutdown();
            drop(tokio::time::timeout(FAREWELL, connection).await);
        }
    }
}

/// Returns when the connection has to be closed, with the cause.
async fn to_be_closed(
    record: &ConnectionRecord,
    mut watch: ConnectionWatch,
    interval: Duration,
) -> RejectionCause {
    loop {
        tokio::select! {
            cause = record.closed() => return cause,
            () = tokio::time::sleep(interval) => {}
        }
        if let Some(cause) = watch.look(ConnectionProgress::of(record), interval) {
            return cause;
        }
    }
}
