//! A connection whose other end is the fuzzer. The fuzzer feeds the bytes to read, and sees the
//! bytes that are written. Nothing waits for a clock.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The end for the code under test.
#[derive(Debug)]
pub struct Pipe(Arc<Mutex<Ends>>);

/// The end for the fuzzer.
#[derive(Debug)]
pub struct Far(Arc<Mutex<Ends>>);

#[derive(Debug, Default)]
struct Ends {
    fed: BytesMut,
    is_closed: bool,
    written: Vec<u8>,
    reader: Option<Waker>,
}

/// Makes a connection.
pub fn pipe() -> (Pipe, Far) {
    let ends = Arc::new(Mutex::new(Ends::default()));
    (Pipe(Arc::clone(&ends)), Far(ends))
}

fn lock(ends: &Mutex<Ends>) -> MutexGuard<'_, Ends> {
    ends.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Far {
    /// Sends bytes.
    pub fn feed(&self, bytes: &[u8]) {
        let mut ends = lock(&self.0);
        ends.fed.extend_from_slice(bytes);
        let reader = ends.reader.take();
        drop(ends);
        reader.into_iter().for_each(Waker::wake);
    }

    /// Closes the connection. No more bytes come.
    pub fn close(&self) {
        let mut ends = lock(&self.0);
        ends.is_closed = true;
        let reader = ends.reader.take();
        drop(ends);
        reader.into_iter().for_each(Waker::wake);
    }

    /// The bytes that were sent and not yet read.
    pub fn unread(&self) -> Vec<u8> {
        lock(&self.0).fed.to_vec()
    }

    /// All bytes that the code under test wrote.
    pub fn written(&self) -> Vec<u8> {
        lock(&self.0).written.clone()
    }
}

impl AsyncRead for Pipe {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut ends = lock(&self.0);
        if ends.fed.is_empty() && !ends.is_closed {
            ends.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let count = into.remaining().min(ends.fed.len());
        into.put_slice(&ends.fed[..count]);
        ends.fed.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        lock(&self.0).written.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
