//! The first service of a transport: every request on every connection passes [`ConnectionService`] before
//! the API gets it.

use super::access::ClientCredential;
use super::body::{BodyMemory, BoxError, MinimumRateBody, RequestGuard, TrackedBody, box_body};
use super::policy::{CallProtocol, RequestPolicy, RequestRejection};
use super::refusal;
use super::rejections::{RejectionCause, RejectionCounters};
use super::slots::{ConnectionRecord, ConnectionSlots};
use crate::tester::RefusalKind;
use crate::{ClientDeadlines, shape};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::body::{Body, Incoming};
use hyper::service::Service;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Number of refused requests that a connection may have. The next one closes it.
const MAX_REFUSED: u64 = 8;
/// Maximum number of bytes of a refused body that are read and discarded, so that the client reads the answer.
const MAX_DRAINED: usize = 256 << 10;
const REFUSED_BODY_DRAIN_TIME: Duration = Duration::from_secs(1);

/// The parts that all connections of a transport share.
#[derive(Clone)]
pub(crate) struct SharedTransport {
    pub(crate) policy: RequestPolicy,
    pub(crate) slots: Arc<ConnectionSlots>,
    pub(crate) memory: Arc<BodyMemory>,
    pub(crate) counters: Arc<RejectionCounters>,
    pub(crate) deadlines: ClientDeadlines,
}

/// Handles the requests of one connection: checks each request, and passes it to the API if it is admitted.
#[derive(Clone)]
pub(crate) struct ConnectionService<S> {
    pub(crate) shared: SharedTransport,
    pub(crate) record: Arc<ConnectionRecord>,
    pub(crate) api: S,
}

impl<S, B> ConnectionService<S>
where
    S: Service<Request<MinimumRateBody>, Response = Response<B>, Error = Infallible>,
{
    async fn handle_request(
        self,
        request: Request<UnsyncBoxBody<Bytes, BoxError>>,
    ) -> Response<TrackedBody<B>> {
        let mut guard = RequestGuard::new(&self.record, &self.shared.slots, &self.shared.memory);
        let (mut head, body) = request.into_parts();
        let body = guard.require_minimum_rate(body, &self.shared.deadlines, &self.shared.counters);
        match self.shared.policy.check_request(&self.record.peer, &head) {
            Ok(credential) => {
                guard.mark_request_admitted();
                self.record_admission(credential);
                // The page needs the credential, so that it shows only actions that this client may perform.
                head.extensions.insert(credential);
                let request = Request::from_parts(head, body);
                // The error is `Infallible`: every failure of the API is an answer.
                let Ok(response) = self.api.call(request).await;
                response.map(|body| TrackedBody::for_api(body, guard))
            }
            Err(rejection) => {
                self.record_refusal(&rejection);
                // A client of HTTP/1 sends its whole body before it reads. If the server closed the connection
                // earlier, the kernel would reset it, and the answer would be lost. HTTP/2 has a separate
                // stream for each request.
                if !matches!(self.shared.policy.protocol, CallProtocol::Grpc) {
                    drain_body(body).await;
                }
                let response = rejection_response(self.shared.policy.protocol, &rejection);
                response.map(|body| TrackedBody::for_refusal(body, guard))
            }
        }
    }

    fn record_admission(&self, credential: ClientCredential) {
        // A client that has only fetched files of the page still has the shorter idle time of a stranger.
        if credential != ClientCredential::PublicFile {
            self.record.was_admitted.store(true, Ordering::Relaxed);
        }
        // From now on this client has precedence over strangers (decision 0018, 7).
        if matches!(credential, ClientCredential::Token | ClientCredential::ViewToken) {
            self.record.mark_trusted();
            self.shared.slots.remember_token_holder(&self.record.peer);
        }
    }

    fn record_refusal(&self, rejection: &RequestRejection) {
        self.shared.counters.count_rejection(rejection.cause);
        if self.record.refused.fetch_add(1, Ordering::Relaxed) >= MAX_REFUSED {
            self.record.request_close(RejectionCause::TooManyRefusals);
        }
    }
}

impl<S, B> Service<Request<Incoming>> for ConnectionService<S>
where
    S: Service<Request<MinimumRateBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
{
    type Response = Response<TrackedBody<B>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let front = self.clone();
        Box::pin(async move { Ok(front.handle_request(request.map(box_body)).await) })
    }
}

/// Reads and discards the body of a refused request, up to limits of bytes and time.
async fn drain_body(mut body: MinimumRateBody) {
    if body.is_end_stream() {
        return;
    }
    let all = async {
        let mut read = 0;
        while let Some(Ok(frame)) = body.frame().await {
            read += frame.data_ref().map_or(0, Bytes::len);
            // The client may now miss its answer, but an endless body must not occupy the server.
            if read > MAX_DRAINED {
                return;
            }
        }
    };
    // A client that is still sending after this time may miss its answer.
    drop(tokio::time::timeout(REFUSED_BODY_DRAIN_TIME, all).await);
}

fn rejection_response(protocol: CallProtocol, rejection: &RequestRejection) -> Response<Full<Bytes>> {
    let code = match rejection.status {
        StatusCode::UNAUTHORIZED => tonic::Code::Unauthenticated,
        _ => tonic::Code::PermissionDenied,
    };
    // A request that is not gRPC gets no gRPC answer.
    if protocol == CallProtocol::Grpc && rejection.cause != RejectionCause::ContentType {
        return tonic::Status::new(code, rejection.message.clone()).into_http();
    }
    let errors = [rejection.message.clone()];
    let body = shape::format_json(&refusal::build_refusal_json(
        rejection.status.as_u16(),
        RefusalKind::Validation,
        &errors,
    ));
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = rejection.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if rejection.status == StatusCode::UNAUTHORIZED {
        // An answer with 401 must name a scheme (RFC 9110, 15.5.2).
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}
