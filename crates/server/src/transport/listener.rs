//! The accept loop: connections, at most so many, encrypted or not, and their end.

use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use std::convert::Infallible;
use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// A client that says nothing for so long has gone.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// After an accept that failed, for want of descriptors most likely.
const BREATH: Duration = Duration::from_millis(50);

/// One transport, ready to be served.
pub(crate) struct Listener {
    pub(crate) socket: TcpListener,
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) builder: Builder<TokioExecutor>,
    pub(crate) most_connections: usize,
    /// How long calls under way may take to end after the stop.
    pub(crate) grace: Duration,
}

/// For the SDKs' HTTP, which is 1.1 only.
pub(crate) fn http1() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(Duration::from_mins(1));
    builder
}

/// For gRPC. A client that vanished is noticed.
pub(crate) fn http2() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new()).http2_only();
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Duration::from_mins(1))
        .max_header_list_size(64 << 10);
    builder
}

impl Listener {
    /// Serves until told to stop, then until calls under way have ended or the grace is over.
    pub(crate) async fn serve<S, B>(self, service: S, mut stop: watch::Receiver<bool>)
    where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
        B: Body<Data: Send, Error: Into<Box<dyn StdError + Send + Sync>>> + Send + 'static,
    {
        let graceful = GracefulShutdown::new();
        let places = Arc::new(Semaphore::new(self.most_connections.max(1)));
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => break,
                Some(_) = connections.join_next() => continue,
                accepted = accept(&self.socket, &places) => accepted,
            };
            let Ok((stream, place)) = accepted else {
                tokio::time::sleep(BREATH).await;
                continue;
            };
            let (tls, builder) = (self.tls.clone(), self.builder.clone());
            let (service, watcher, stop) = (service.clone(), graceful.watcher(), stop.clone());
            connections.spawn(async move {
                match tls {
                    None => converse(builder, stream, service, watcher).await,
                    Some(tls) => {
                        if let Some(stream) = handshake(&tls, stream, stop).await {
                            converse(builder, stream, service, watcher).await;
                        }
                    }
                }
                drop(place);
            });
        }
        drop(self.socket);
        // Those still there afterwards are ended with the set.
        drop(tokio::time::timeout(self.grace, graceful.shutdown()).await);
        connections.shutdown().await;
    }
}

async fn accept(
    socket: &TcpListener,
    places: &Arc<Semaphore>,
) -> std::io::Result<(tokio::net::TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.map_err(std::io::Error::other)?;
    let (stream, _) = socket.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, place))
}

async fn handshake(
    tls: &TlsAcceptor,
    stream: tokio::net::TcpStream,
    mut stop: watch::Receiver<bool>,
) -> Option<tokio_rustls::server::TlsStream<tokio::net::TcpStream>> {
    tokio::select! {
        _ = stop.wait_for(|stop| *stop) => None,
        shaken = tokio::time::timeout(HANDSHAKE, tls.accept(stream)) => shaken.ok()?.ok(),
    }
}

/// A connection to its end. How it ends is the client's affair.
async fn converse<S, B>(
    builder: Builder<TokioExecutor>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    service: S,
    watcher: Watcher,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Send + 'static,
    S::Future: Send + 'static,
    B: Body<Data: Send, Error: Into<Box<dyn StdError + Send + Sync>>> + Send + 'static,
{
    let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
    drop(watcher.watch(connection).await);
}
