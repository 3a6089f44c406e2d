//! Two channels over one connection: one for requests and responses, one for recalls, consents and
//! pushes.
//!
//! Each frame begins with a tag. 0 and 1 are the channels. 2 gives the other side credit on a
//! channel.
//!
//! **No channel waits for the other's consumer.** The reader never stops reading, and puts each
//! frame into the queue of its channel. That queue cannot overflow, because a side may send only
//! within its credit. The credit begins with [`WINDOW_BYTES`], and grows as the consumer takes
//! frames (as in HTTP/2 and yamux). So a server that is slow with requests delays the client's
//! requests, but no consents. A side that exceeds its credit breaks the protocol, and the
//! connection ends.
//!
//! **Recalls go first.** Each batch of the writer has credit, then frames of the recalls' channel,
//! then at least one frame of requests or responses. So neither channel starves. A recall waits for
//! the batch being written, at most [`WRITE_BATCH_BYTES`] and one frame, for the pushes before it,
//! which the server bounds, and for bytes in the kernel.
//!
//! **Writes are gathered.** The writer passes all ready frames, up to a batch, to the socket at
//! once.
//!
//! **Closing.** A dropped [`ConnectionTask`] closes the connection at once. A dropped transport
//! closes it when all sent frames have been written, or after [`LINGER`]. After the end the
//! transports yield the frames that had arrived, then nothing. Frames that are sent later are lost,
//! as on any network.

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

/// The channel for requests from the client, and their responses.
pub const REQUESTS: u8 = 0;

/// The channel for recalls and pushes from the server, and their replies.
pub const RECALLS: u8 = 1;

/// The size of a batch. It is large enough that the cost of a write is negligible, and takes less
/// than a millisecond on a gigabit link.
pub const WRITE_BATCH_BYTES: usize = 64 << 10;

/// How long this side may write the frames that remain after a transport was dropped.
pub const LINGER: Duration = Duration::from_secs(1);

/// The initial size of the read buffer.
const READ_BYTES: usize = 16 << 10;

/// Most frames are no longer.
const FRAME_USUAL_BYTES: usize = 256;

/// Splits a connection into the [`REQUESTS`] channel, the [`RECALLS`] channel, and the task of
/// both. `Item`s come in, and `SinkItem`s go out.
pub fn split<S, ItemA, SinkItemA, ItemB, SinkItemB>(
    stream: S,
) -> (ChannelTransport<ItemA, SinkItemA>, ChannelTransport<ItemB, SinkItemB>, ConnectionTask)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let shared = Arc::new(MuxShared::default());
    let requests = ChannelTransport::new(&shared, REQUESTS);
    let recalls = ChannelTransport::new(&shared, RECALLS);
    let ending = Ending(Arc::clone(&shared));
    let task = async move { drive(stream, &ending.0).await };
    (requests, recalls, ConnectionTask { work: Box::pin(task) })
}

/// Does the work of a connection. It must be polled, usually in its own task.
///
/// It ends with the connection: with `Ok` if either side closed it between two frames, otherwise
/// with the reason. The reason has been logged if the other side broke the protocol. A dropped
/// task closes the connection.
#[must_use = "nothing is sent or received unless the task is polled"]
pub struct ConnectionTask {
    work: Pin<Box<dyn Future<Output = Result<(), ConnectionError>> + Send>>,
}

impl ConnectionTask {
    /// Polls `other` in the same task. `other` works on one of the connection's channels, and must
    /// end when its channel does. After the connection has ended, `other` can still take the frames
    /// that had arrived.
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

impl std::fmt::Debug for ConnectionTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

impl Future for ConnectionTask {
    type Output = Result<(), ConnectionError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.work.as_mut().poll(cx)
    }
}

/// One channel of a connection: a [`tarpc::Transport`].
///
/// It has room for a bounded number of outgoing bytes. When they are used up, it is not ready until
/// the task has written some. `start_send` refuses a message that does not fit into a frame, and
/// the channel goes on. In place of a response that does not fit, it sends an error, so that the
/// caller learns the reason.
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

    /// Never yields an error: a frame that is not a message ends the connection, and the task
    /// returns the reason.
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

    /// Ready when there is room, because the task writes as soon as it can. If it were ready
    /// without room, tarpc would spin.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), CodecError>> {
        self.poll_ready(cx)
    }

    /// Nothing to do: a channel is closed by dropping it.
    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), CodecError>> {
        Poll::Ready(Ok(()))
    }
}

/// Notifies the transports of the end, even if the task is dropped before its first poll.
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

/// Returns after the last frame of the other side.
async fn read_frames(read: impl AsyncRead + Unpin, shared: &MuxShared) -> Result<(), ConnectionError> {
    let mut frames = FramedRead::with_capacity(read, FrameDecoder, READ_BYTES);
    while let Some(frame) = frames.next().await {
        shared.receive(frame?)?;
    }
    Ok(())
}

/// Returns when this side closes and all that may be written has been written.
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
