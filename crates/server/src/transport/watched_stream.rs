//! Counts the bytes of a connection.

use super::slots::ConnectionRecord;
use std::io::{Error, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Wraps the stream of a connection. It counts the bytes that are read and written in the record of the connection, and
/// marks there whether the client does not read.
pub(crate) struct WatchedStream<S> {
    inner: S,
    record: Arc<ConnectionRecord>,
}

impl<S> WatchedStream<S> {
    pub(crate) fn new(inner: S, record: Arc<ConnectionRecord>) -> Self {
        Self { inner, record }
    }

    fn record_write<T: Into<WrittenByteCount> + Copy>(&self, polled: &Poll<Result<T, Error>>) {
        if let Poll::Ready(Ok(written)) = polled {
            self.record.bytes_written.fetch_add((*written).into().0, Ordering::Relaxed);
        }
        // Pending means that the kernel's send buffer is full, because the client does not read.
        self.record.is_write_blocked.store(polled.is_pending(), Ordering::Relaxed);
    }
}

/// Bytes that a call has written. A flush writes none that were not counted before.
struct WrittenByteCount(u64);

impl From<usize> for WrittenByteCount {
    fn from(bytes: usize) -> Self {
        Self(bytes as u64)
    }
}

impl From<()> for WrittenByteCount {
    fn from((): ()) -> Self {
        Self(0)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<(), Error>> {
        // The buffer may hold earlier bytes already.
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(context, buffer);
        let read = buffer.filled().len().saturating_sub(before);
        self.record.bytes_read.fetch_add(read as u64, Ordering::Relaxed);
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize, Error>> {
        let polled = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.record_write(&polled);
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize, Error>> {
        let polled = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        self.record_write(&polled);
        polled
    }

    fn is_write_vectored(&self) -> bool {
        // Without this, hyper would copy the parts of a response together before each write.
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let polled = Pin::new(&mut self.inner).poll_flush(context);
        self.record_write(&polled);
        polled
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
