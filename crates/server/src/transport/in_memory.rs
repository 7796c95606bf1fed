//! The server without sockets, for fuzzing: it gets the bytes of a connection and returns the bytes of the answer.

use super::access::{ClientPeer, PeerKey};
use super::body::{BoxError, MinimumRateBody};
use super::front::{ConnectionService, SharedTransport};
use super::listener::connection_builder;
use super::policy::CallProtocol;
use super::slots::SlotAdmission;
use crate::serve::ServerTransports;
use crate::viewing::ServedRig;
use crate::{Error, ServerOptions, Tester};
use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Body;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::service::Service;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

/// A server whose connections are byte strings. Its client needs no token.
pub struct InMemoryServer {
    runtime: tokio::runtime::Runtime,
    transports: ServerTransports,
}

impl std::fmt::Debug for InMemoryServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InMemoryServer").finish_non_exhaustive()
    }
}

impl InMemoryServer {
    /// Creates a server. The addresses and files in `options` are not used.
    pub fn new(options: &ServerOptions, tester: Arc<dyn Tester>) -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(Error::Runtime)?;
        Ok(Self { runtime, transports: ServerTransports::new(options, &ServedRig::from_tester(tester)) })
    }

    /// Returns all bytes that the server sends on an HTTP/1.1 connection whose client sends only `bytes`.
    pub fn answer_http(&self, bytes: &[u8]) -> Vec<u8> {
        let shared = self.transports.build_shared_transport(CallProtocol::Http);
        self.answer_request_bytes(bytes, shared, self.transports.build_http_routes())
    }

    /// Returns all bytes that the server sends on an HTTP/2 connection for gRPC whose client sends only `bytes`.
    pub fn answer_grpc(&self, bytes: &[u8]) -> Vec<u8> {
        let shared = self.transports.build_shared_transport(CallProtocol::Grpc);
        let service = self.transports.build_grpc_service();
        service.map(|service| self.answer_request_bytes(bytes, shared, service)).unwrap_or_default()
    }

    fn answer_request_bytes<S, B>(&self, bytes: &[u8], shared: SharedTransport, api: S) -> Vec<u8>
    where
        S: Service<Request<MinimumRateBody>, Response = Response<B>, Error = Infallible>
            + Clone
            + Send
            + 'static,
        S::Future: Send,
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let peer = ClientPeer { key: PeerKey::User(0), is_trusted: true };
        let SlotAdmission::Admitted(slot) = shared.slots.admit_peer(peer) else { return Vec::new() };
        let mut builder = connection_builder(shared.policy.protocol);
        // The end of the bytes must not close the connection before the answer.
        builder.http1().half_close(true);
        let front = ConnectionService { shared, record: Arc::clone(&slot.record), api };
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let stream = ByteStream { rest: Bytes::copy_from_slice(bytes), written: Arc::clone(&written) };
        // An error only says how the connection ended; the answer is what the server has written.
        self.runtime.block_on(async { drop(builder.serve_connection(stream, front).await) });
        std::mem::take(&mut written.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A connection on which the client has already sent everything.
struct ByteStream {
    rest: Bytes,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Read for ByteStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let length = buffer.remaining().min(self.rest.len());
        let next = self.rest.split_to(length);
        // Zero bytes mean the end of the stream: this client sends no more.
        buffer.put_slice(&next);
        Poll::Ready(Ok(()))
    }
}

impl Write for ByteStream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
