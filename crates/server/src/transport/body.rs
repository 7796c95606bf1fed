//! Bodies of requests and responses. The body of a request must arrive at a minimum rate, and all bodies share limited
//! memory. The end of each response is recorded.

use super::rejections::{RejectionCause, RejectionCounters};
use super::slots::{ConnectionRecord, ConnectionSlots};
use crate::ClientDeadlines;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::body::{Body, Frame, SizeHint};
use std::error::Error as StdError;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::Sleep;

pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;

/// Limits the memory of all request bodies together. A body counts until the response to its request has ended.
#[derive(Debug)]
pub(crate) struct BodyMemory {
    most: usize,
    taken: AtomicUsize,
}

impl BodyMemory {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, taken: AtomicUsize::new(0) })
    }
}

/// Memory that one request occupies until its response has ended.
#[derive(Debug)]
struct RequestBodyMemory {
    memory: Arc<BodyMemory>,
    taken: AtomicUsize,
}

impl RequestBodyMemory {
    fn reserve_bytes(&self, bytes: usize) -> bool {
        // The bytes are added even if they exceed the limit: the request then fails, and dropping
        // this value returns them.
        let before = self.memory.taken.fetch_add(bytes, Ordering::AcqRel);
        self.taken.fetch_add(bytes, Ordering::AcqRel);
        before.saturating_add(bytes) <= self.memory.most
    }
}

impl Drop for RequestBodyMemory {
    fn drop(&mut self) {
        self.memory.taken.fetch_sub(*self.taken.get_mut(), Ordering::AcqRel);
    }
}

/// Reason why a body was not read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFault {
    TooSlow,
    NoMemory,
}

impl BodyFault {
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::TooSlow => "the body of the request arrived too slowly",
            Self::NoMemory => "the requests in progress fill the memory for request bodies; try again later",
        }
    }

    const fn rejection_cause(self) -> RejectionCause {
        match self {
            Self::TooSlow => RejectionCause::SlowBody,
            Self::NoMemory => RejectionCause::Memory,
        }
    }
}

/// A [`BodyFault`] as an error. Its source is a gRPC status, which tonic finds and returns to the client.
#[derive(Debug, thiserror::Error)]
#[error("{}", fault.text())]
pub(crate) struct BodyError {
    pub(crate) fault: BodyFault,
    source: tonic::Status,
}

impl From<BodyFault> for BodyError {
    fn from(fault: BodyFault) -> Self {
        let code = match fault {
            BodyFault::TooSlow => tonic::Code::DeadlineExceeded,
            BodyFault::NoMemory => tonic::Code::ResourceExhausted,
        };
        Self { fault, source: tonic::Status::new(code, fault.text()) }
    }
}

/// The body of a request. It ends with an error if its bytes arrive too slowly, or if there is no memory for them.
pub(crate) struct MinimumRateBody {
    inner: UnsyncBoxBody<Bytes, BoxError>,
    deadline: Pin<Box<Sleep>>,
    bytes_per_second: u32,
    share: Arc<RequestBodyMemory>,
    counters: Arc<RejectionCounters>,
}

impl MinimumRateBody {
    fn reject_body(&self, fault: BodyFault) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.counters.count_rejection(fault.rejection_cause());
        Poll::Ready(Some(Err(Box::new(BodyError::from(fault)))))
    }
}

impl Body for MinimumRateBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        // The deadline matters only while bytes are missing: bytes that have arrived are taken even after it.
        let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(context) else {
            // Polled while bytes are missing, so that the end of the deadline wakes this task.
            ready!(self.deadline.as_mut().poll(context));
            return self.reject_body(BodyFault::TooSlow);
        };
        let bytes = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref().map(Bytes::len));
        let bytes = bytes.unwrap_or_default();
        if !self.share.reserve_bytes(bytes) {
            return self.reject_body(BodyFault::NoMemory);
        }
        // Each frame moves the deadline by the time that its bytes take at the minimum rate. So a client gets the
        // initial time only once, and gains nothing by sending single bytes at long intervals.
        let earned = Duration::from_nanos(
            // The rate is an option, and may be 0.
            (bytes as u64).saturating_mul(1_000_000_000) / u64::from(self.bytes_per_second.max(1)),
        );
        let later = self.deadline.deadline() + earned;
        self.deadline.as_mut().reset(later);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Tracks a request from its head to the end of its response, and counts it in the record of its connection.
#[derive(Debug)]
pub(crate) struct RequestGuard {
    record: Arc<ConnectionRecord>,
    slots: Arc<ConnectionSlots>,
    share: Arc<RequestBodyMemory>,
    waits_for_client: bool,
    is_served: bool,
}

impl RequestGuard {
    pub(crate) fn new(
        record: &Arc<ConnectionRecord>,
        slots: &Arc<ConnectionSlots>,
        memory: &Arc<BodyMemory>,
    ) -> Self {
        record.requests.fetch_add(1, Ordering::Relaxed);
        record.in_flight.fetch_add(1, Ordering::AcqRel);
        slots.record_activity(record);
        let share = Arc::new(RequestBodyMemory { memory: Arc::clone(memory), taken: AtomicUsize::new(0) });
        Self {
            record: Arc::clone(record),
            slots: Arc::clone(slots),
            share,
            waits_for_client: false,
            is_served: false,
        }
    }

    /// Notes that the request was admitted. Its connection is not closed to make room for another until
    /// the response has ended.
    pub(crate) fn mark_request_admitted(&mut self) {
        if !self.is_served {
            self.record.being_served.fetch_add(1, Ordering::AcqRel);
        }
        self.is_served = true;
    }

    /// Wraps the body of this request, so that it fails if it arrives below the minimum rate. Its deadline
    /// runs from now on.
    pub(crate) fn require_minimum_rate(
        &self,
        inner: UnsyncBoxBody<Bytes, BoxError>,
        deadlines: &ClientDeadlines,
        counters: &Arc<RejectionCounters>,
    ) -> MinimumRateBody {
        MinimumRateBody {
            inner,
            deadline: Box::pin(tokio::time::sleep(deadlines.body)),
            bytes_per_second: deadlines.body_bytes_per_second,
            share: Arc::clone(&self.share),
            counters: Arc::clone(counters),
        }
    }

    /// Notes whether the response waits for the client to read its next part.
    fn set_waits_for_client(&mut self, waits: bool) {
        if waits && !self.waits_for_client {
            self.record.unfetched.fetch_add(1, Ordering::AcqRel);
        } else if !waits && self.waits_for_client {
            self.record.unfetched.fetch_sub(1, Ordering::AcqRel);
        }
        self.waits_for_client = waits;
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        // A response that is dropped while it waits must not stay in the count.
        self.set_waits_for_client(false);
        // Bytes from here on belong to the head of the next request and have its deadline.
        let read = self.record.bytes_read.load(Ordering::Relaxed);
        self.record.read_when_idle.store(read, Ordering::Relaxed);
        // `in_flight` is updated after `read_when_idle`: a watch that sees no request in progress also
        // sees the new number.
        self.record.in_flight.fetch_sub(1, Ordering::AcqRel);
        self.record.being_served.fetch_sub(usize::from(self.is_served), Ordering::AcqRel);
        self.slots.record_activity(&self.record);
    }
}

/// The body of a response, from the API or of a refusal, with the guard of its request.
pub(crate) struct TrackedBody<B> {
    inner: TrackedBodyContent<B>,
    guard: RequestGuard,
}

enum TrackedBodyContent<B> {
    Api(Pin<Box<B>>),
    Refusal(Full<Bytes>),
}

impl<B> TrackedBody<B> {
    pub(crate) fn for_api(body: B, guard: RequestGuard) -> Self {
        Self { inner: TrackedBodyContent::Api(Box::pin(body)), guard }
    }

    pub(crate) fn for_refusal(body: Full<Bytes>, guard: RequestGuard) -> Self {
        Self { inner: TrackedBodyContent::Refusal(body), guard }
    }
}

impl<B: Body<Data = Bytes, Error: Into<BoxError>>> Body for TrackedBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = match &mut self.inner {
            TrackedBodyContent::Api(body) => body.as_mut().poll_frame(context).map_err(Into::into),
            TrackedBodyContent::Refusal(body) => Pin::new(body).poll_frame(context).map_err(Into::into),
        };
        // hyper asks for the next part only when the client has read enough of this one.
        let waits = matches!(polled, Poll::Ready(Some(Ok(_))));
        self.guard.set_waits_for_client(waits);
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            TrackedBodyContent::Api(body) => body.is_end_stream(),
            TrackedBodyContent::Refusal(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            TrackedBodyContent::Api(body) => body.size_hint(),
            TrackedBodyContent::Refusal(body) => body.size_hint(),
        }
    }
}

/// Boxes a body of any type.
pub(crate) fn box_body<B>(body: B) -> UnsyncBoxBody<Bytes, BoxError>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    body.map_err(Into::into).boxed_unsync()
}
