//! Two channels over one connection: requests and their responses on one, recalls and their
//! consents on the other.
//!
//! Each frame begins with a tag: 0 and 1 are the channels, 2 gives the other side room on one of
//! them.
//!
//! **No channel waits for the other's consumer.** The reader never stops reading: it puts each
//! frame into the in-queue of its channel, and that cannot overflow, since each side may send on a
//! channel only what the other has given it room for, a [`WINDOW_BYTES`] to begin with and more as
//! the consumer takes frames out (as HTTP/2 and yamux do). So a server that does not get round to
//! requests pushes back on the client's requests and on nothing else: consents go on. Whoever sends
//! beyond its window breaks the protocol, and the connection ends.
//!
//! **Recalls go first.** Each batch that the writer takes begins with room, then recalls or
//! consents, then at least one frame of requests or responses, so that neither starves. A recall
//! waits for the batch being written, that is for [`WRITE_BATCH_BYTES`] and one frame at most, and
//! for what the kernel has already taken.
//!
//! **Writes are gathered.** All that is ready, up to a batch, goes to the socket at once.
//!
//! Who closes: dropping the [`MuxDriver`] closes at once; dropping either transport closes once
//! what was sent on them has been written, or after [`LINGER`]. After the end the transports give
//! what had arrived, then nothing; what is still sent is lost, as on any network.

mod queues;

use std::{
    future::Future,
    marker::PhantomData,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::BytesMut;
use futures::{Sink, Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio_util::codec::FramedRead;

use self::queues::MuxShared;
pub use self::queues::WINDOW_BYTES;
use crate::{
    codec::{CodecError, Decode, Encode},
    error::ConnectionError,
    frame::{FrameDecoder, put_frame},
    warn,
};

/// The channel for requests, client to server, and their responses.
pub const REQUESTS: u8 = 0;

/// The channel for recalls, server to client, and their consents.
pub const RECALLS: u8 = 1;

/// As much is gathered for one write: large enough that the cost of a write is nothing beside the
/// bytes, small enough to be gone within a millisecond on a gigabit link.
pub const WRITE_BATCH_BYTES: usize = 64 << 10;

/// How long a connection that this side gives up may take to write what has been sent on it.
pub const LINGER: Duration = Duration::from_secs(1);

/// What is read at once, to begin with.
const READ_BYTES: usize = 16 << 10;

/// Most frames are no longer than this.
const FRAME_USUAL_BYTES: usize = 256;

/// Splits a connection into the [`REQUESTS`] channel, the [`RECALLS`] channel, and the driver that
/// works for both. `Item`s come in, `SinkItem`s go out.
pub fn split<S, ItemA, SinkItemA, ItemB, SinkItemB>(
    stream: S,
) -> (ChannelTransport<ItemA, SinkItemA>, ChannelTransport<ItemB, SinkItemB>, MuxDriver)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let shared = Arc::new(MuxShared::default());
    let requests = ChannelTransport::new(&shared, REQUESTS);
    let recalls = ChannelTransport::new(&shared, RECALLS);
    let ending = Ending(Arc::clone(&shared));
    let driver = async move { drive(stream, &ending.0).await };
    (requests, recalls, MuxDriver { work: Box::pin(driver) })
}

/// Does the work of a connection: somebody has to poll it, in a task of its own as a rule.
///
/// Ends when the connection does: with `Ok` if it was closed by either side between two frames,
/// else with the reason, which has been logged if the other side broke the protocol. Dropping it
/// closes the connection.
#[must_use = "nothing is sent or received unless the driver is polled"]
pub struct MuxDriver {
    work: Pin<Box<dyn Future<Output = Result<(), ConnectionError>> + Send>>,
}

impl MuxDriver {
    /// Has `other`, which works on one of the connection's channels, polled with it, in the same
    /// task. Once the connection has ended, `other` is given the time to take out what had arrived,
    /// as it must end when its channel does.
    pub(crate) fn with<T>(self, other: impl Future<Output = T> + Send + 'static) -> Self {
        let work = async move {
            let mut work = self.work;
            let mut other = pin!(other);
            let mut is_done = false;
            let end = loop {
                tokio::select! {
                    biased;
                    end = &mut work => break end,
                    _ = &mut other, if !is_done => is_done = true,
                }
            };
            drop(work);
            if !is_done {
                other.await;
            }
            end
        };
        Self { work: Box::pin(work) }
    }
}

impl std::fmt::Debug for MuxDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

impl Future for MuxDriver {
    type Output = Result<(), ConnectionError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.work.as_mut().poll(cx)
    }
}

/// One channel of a connection: a [`tarpc::Transport`].
///
/// Has room for a bounded number of bytes on their way out, and is not ready to take more until the
/// driver has written some. A message that does not fit into a frame is refused by `start_send` and
/// the channel goes on; if it is a response, an error is sent in its place and the caller learns
/// why.
#[derive(Debug)]
pub struct ChannelTransport<Item, SinkItem> {
    shared: Arc<MuxShared>,
    channel: u8,
    messages: PhantomData<fn(SinkItem) -> Item>,
}

impl<Item, SinkItem> ChannelTransport<Item, SinkItem> {
    fn new(shared: &Arc<MuxShared>, channel: u8) -> Self {
        Self { shared: Arc::clone(shared), channel, messages: PhantomData }
    }
}

impl<Item, SinkItem> Drop for ChannelTransport<Item, SinkItem> {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl<Item: Decode, SinkItem> Stream for ChannelTransport<Item, SinkItem> {
    type Item = Result<Item, CodecError>;

    /// Never gives an error: a frame that is no message ends the connection, and the driver says
    /// why.
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.shared.poll_next(self.channel, cx).map(|frame| match Item::decode(&frame?) {
            Ok(message) => Some(Ok(message)),
            Err(error) => {
                self.shared.fail(error.into());
                None
            }
        })
    }
}

impl<Item, SinkItem: Encode> Sink<SinkItem> for ChannelTransport<Item, SinkItem> {
    type Error = CodecError;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), CodecError>> {
        self.shared.poll_ready(self.channel, cx).map(Ok)
    }

    fn start_send(self: Pin<&mut Self>, message: SinkItem) -> Result<(), CodecError> {
        let mut frame = BytesMut::with_capacity(FRAME_USUAL_BYTES);
        put_frame(&message, Some(self.channel), &mut frame)?;
        self.shared.push(self.channel, frame);
        Ok(())
    }

    /// Ready when there is room: the driver writes as soon as it can. (Were it ready without room,
    /// tarpc would spin.)
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), CodecError>> {
        self.poll_ready(cx)
    }

    /// Nothing to do: a channel is closed by dropping it.
    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), CodecError>> {
        Poll::Ready(Ok(()))
    }
}

/// Tells the transports that the connection has ended, even if the driver is dropped before its
/// first poll.
struct Ending(Arc<MuxShared>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end();
    }
}

async fn drive<S: AsyncRead + AsyncWrite>(stream: S, shared: &MuxShared) -> Result<(), ConnectionError> {
    let (read, write) = tokio::io::split(stream);
    let end = tokio::select! {
        biased;
        failure = shared.failure() => Err(failure),
        end = read_frames(read, shared) => end,
        end = write_frames(write, shared) => end,
        () = linger(shared) => Ok(()),
    };
    match &end {
        Err(error) if error.is_violation() => warn::violation(error),
        Err(error) => tracing::debug!(%error, "connection ended"),
        Ok(()) => tracing::debug!("connection closed"),
    }
    end
}

/// Ends with the last frame of the other side.
async fn read_frames(read: impl AsyncRead + Unpin, shared: &MuxShared) -> Result<(), ConnectionError> {
    let mut frames = FramedRead::with_capacity(read, FrameDecoder, READ_BYTES);
    while let Some(frame) = frames.next().await {
        shared.receive(frame?)?;
    }
    Ok(())
}

/// Ends when this side is done with the connection and all that can be written has been.
async fn write_frames(mut write: impl AsyncWrite + Unpin, shared: &MuxShared) -> Result<(), ConnectionError> {
    let mut frames = Vec::new();
    let mut gathered = Vec::new();
    while shared.next_batch(&mut frames).await {
        for frame in frames.drain(..) {
            if gathered.len() + frame.len() > WRITE_BATCH_BYTES {
                write.write_all(&gathered).await?;
                gathered.clear();
            }
            if frame.len() > WRITE_BATCH_BYTES {
                write.write_all(&frame).await?;
            } else {
                gathered.extend_from_slice(&frame);
            }
        }
        write.write_all(&gathered).await?;
        gathered.clear();
        write.flush().await?;
    }
    write.shutdown().await?;
    Ok(())
}

async fn linger(shared: &MuxShared) {
    shared.closing().await;
    tokio::time::sleep(LINGER).await;
}

#[cfg(test)]
mod tests;
