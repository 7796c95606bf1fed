//! Both transports from start to stop.

use crate::transport::Desk;
use crate::transport::access::Access;
use crate::transport::grpc;
use crate::transport::http::router;
use crate::transport::listener::{Listener, http1, http2};
use crate::transport::tls::Identity;
use crate::{Bound, Error, ServerOptions, Tester};
use hyper_util::service::TowerToHyperService;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Serves the API until `stop` comes to its end, then lets calls under way end, for at most the time the options allow.
///
/// `bound` is called once, when connections are accepted, with the addresses they are accepted on.
pub async fn serve(
    options: ServerOptions,
    tester: Arc<dyn Tester>,
    bound: impl FnOnce(Bound),
    stop: impl Future<Output = ()>,
) -> Result<(), Error> {
    check(&options)?;
    let (http, grpc) = (bind("HTTP", options.http).await?, bind("gRPC", options.grpc).await?);
    let identity = needs_tls(&options).then(|| Identity::new(&options)).transpose()?;
    let client_ca = options.client_ca.as_deref();
    let listener = |bound: Option<TcpListener>, encrypted: bool, protocol: &[u8], builder| {
        let Some(socket) = bound else { return Ok(None) };
        let tls = match identity.as_ref().filter(|_| encrypted) {
            Some(identity) => Some(identity.acceptor(client_ca, protocol)?),
            None => None,
        };
        let (most_connections, grace) = (options.most_connections, options.grace);
        Ok::<_, Error>(Some(Listener { socket, tls, builder, most_connections, grace }))
    };
    let address = |socket: &Option<TcpListener>| socket.as_ref().and_then(|socket| socket.local_addr().ok());
    let addresses = Bound { http: address(&http), grpc: address(&grpc) };
    let http = listener(http, options.http_tls, b"http/1.1", http1())?;
    let grpc = listener(grpc, options.grpc_tls, b"h2", http2())?;

    let desk = Desk::new(tester);
    let access = Access::new(options.token.as_deref());
    let most = options.most_request_bytes;
    let routes = TowerToHyperService::new(router(desk.clone(), access.clone(), most));
    let service = grpc::Service { desk, access, most_request_bytes: most };
    let (stopped, stops) = watch::channel(false);
    bound(addresses);
    let until_stop = async {
        stop.await;
        stopped.send_replace(true);
    };
    let over_http = async {
        if let Some(listener) = http {
            listener.serve(routes, stops.clone()).await;
        }
    };
    let over_grpc = async {
        if let Some(listener) = grpc {
            listener.serve(service, stops.clone()).await;
        }
    };
    tokio::join!(until_stop, over_http, over_grpc);
    Ok(())
}

/// [`serve`] for a caller that has no async runtime. `stop` may block: it gets a thread of its own, and the server stops
/// when it returns.
pub fn run(
    options: ServerOptions,
    tester: Arc<dyn Tester>,
    bound: impl FnOnce(Bound),
    stop: impl FnOnce() + Send + 'static,
) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("server").build();
    let runtime = runtime.map_err(Error::Runtime)?;
    let stopped = async {
        // A waiter that panics stops the server as well.
        drop(tokio::task::spawn_blocking(stop).await);
    };
    let served = runtime.block_on(serve(options, tester, bound, stopped));
    // A tester that does not come back must not keep the program.
    runtime.shutdown_background();
    served
}

fn needs_tls(options: &ServerOptions) -> bool {
    (options.http.is_some() && options.http_tls) || (options.grpc.is_some() && options.grpc_tls)
}

fn check(options: &ServerOptions) -> Result<(), Error> {
    if options.http.is_none() && options.grpc.is_none() {
        return Err(Error::Options("neither HTTP nor gRPC is to be served".into()));
    }
    let in_the_clear =
        (options.http.is_some() && !options.http_tls) || (options.grpc.is_some() && !options.grpc_tls);
    if options.client_ca.is_some() && in_the_clear {
        let message = "certificates of clients are checked on encrypted connections only: encrypt both transports, or leave one out";
        return Err(Error::Options(message.into()));
    }
    if options.token.as_ref().is_some_and(String::is_empty) {
        return Err(Error::Options("the token is empty".into()));
    }
    Ok(())
}

async fn bind(transport: &'static str, address: Option<SocketAddr>) -> Result<Option<TcpListener>, Error> {
    let Some(address) = address else { return Ok(None) };
    match TcpListener::bind(address).await {
        Ok(socket) => Ok(Some(socket)),
        Err(source) => Err(Error::Listen { transport, address, source }),
    }
}
