//! The state that the two transports and the task of a connection share: queues and windows.
//!
//! One lock protects it. It is taken for a push or a pop, and never across a wait. Each queue has
//! one producer and one consumer, so one waker for each is enough. The task has one waker for all
//! that it waits for.

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{RECALLS, REQUESTS, WRITE_BATCH_BYTES};
use crate::{error::ConnectionError, frame::PREFIX_BYTES};

/// The credit of one side on a channel before the other's consumer has taken anything. It counts
/// bytes, and 64 more for each frame. The last frame may exceed it. The window bounds the memory
/// for an idle consumer. At a round trip of a millisecond it allows a gigabyte a second.
pub const WINDOW_BYTES: usize = 1 << 20;

/// Credit is returned in pieces of this size. That is rare enough to cost nothing, and early enough
/// that a fast consumer never makes the other side wait.
const CREDIT_BYTES: usize = WINDOW_BYTES / 2;

/// The most bytes that wait to be written on a channel: a few batches for the writer. Beyond them
/// the transport is not ready.
const OUTGOING_BYTES: usize = 4 * WRITE_BATCH_BYTES;

/// Counted for each frame beside its bytes, so that the bounds also limit the number of frames.
const FRAME_COST_BYTES: usize = 64;

/// The tag of credit frames. After it come the channel in one byte and the amount in four.
pub(super) const CREDIT: u8 = 2;

const CREDIT_FRAME_BYTES: usize = 6;

/// The cost of a frame, given its length from the tag on.
fn cost(bytes: usize) -> usize {
    bytes + FRAME_COST_BYTES
}

/// The state shared by the transports and the task.
#[derive(Debug, Default)]
pub(super) struct MuxShared {
    state: Mutex<MuxState>,
}

#[derive(Debug, Default)]
struct MuxState {
    requests: MuxChannel,
    recalls: MuxChannel,
    /// Why the task must end.
    failure: Option<ConnectionError>,
    /// This side has dropped a transport.
    is_closing: bool,
    /// The connection has ended.
    is_ended: bool,
    task: Option<Waker>,
}

#[derive(Debug, Default)]
struct MuxChannel {
    outgoing: VecDeque<BytesMut>,
    outgoing_cost: usize,
    /// Sent, and not yet credited by the other side.
    unacknowledged: usize,
    incoming: VecDeque<Bytes>,
    /// Received, and not yet credited to the other side.
    uncredited: usize,
    /// The part of `uncredited` that the consumer has taken.
    consumed: usize,
    sender: Option<Waker>,
    receiver: Option<Waker>,
}

impl MuxShared {
    fn lock(&self) -> MutexGuard<'_, MuxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For a transport: ready if there is room for another frame, or after the end.
    pub(super) fn poll_ready(&self, channel: u8, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.is_ended {
            return Poll::Ready(());
        }
        let channel = state.channel(channel);
        if channel.outgoing_cost < OUTGOING_BYTES {
            return Poll::Ready(());
        }
        register(&mut channel.sender, cx);
        Poll::Pending
    }

    /// For a transport: queues a frame, with its length prefix.
    pub(super) fn push(&self, channel: u8, frame: BytesMut) {
        let mut state = self.lock();
        if state.is_ended {
            return;
        }
        let channel = state.channel(channel);
        channel.outgoing_cost += cost(frame.len() - PREFIX_BYTES);
        channel.outgoing.push_back(frame);
        let task = if channel.may_send() { state.task.take() } else { None };
        drop(state);
        wake(task);
    }

    /// For a transport: the next message that has arrived. None after the end.
    pub(super) fn poll_next(&self, channel: u8, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut state = self.lock();
        let is_ended = state.is_ended;
        let channel = state.channel(channel);
        let Some(message) = channel.incoming.pop_front() else {
            if is_ended {
                return Poll::Ready(None);
            }
            register(&mut channel.receiver, cx);
            return Poll::Pending;
        };
        // The tag has been removed, and counts.
        channel.consumed += cost(message.len() + 1);
        let task = if channel.consumed >= CREDIT_BYTES { state.task.take() } else { None };
        drop(state);
        wake(task);
        Poll::Ready(Some(message))
    }

    /// For a transport: the other side sent something that ends the connection.
    pub(super) fn fail(&self, failure: ConnectionError) {
        let mut state = self.lock();
        state.failure.get_or_insert(failure);
        let task = state.task.take();
        drop(state);
        wake(task);
    }

    /// For a transport that is dropped.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closing = true;
        let task = state.task.take();
        drop(state);
        wake(task);
    }

    /// For the task: the connection has ended. Frames that have arrived can still be taken.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.is_ended = true;
        let wakers = [REQUESTS, RECALLS].map(|channel| {
            let channel = state.channel(channel);
            channel.outgoing.clear();
            (channel.sender.take(), channel.receiver.take())
        });
        drop(state);
        for (sender, receiver) in wakers {
            wake(sender);
            wake(receiver);
        }
    }

    /// For the task: takes a frame that has arrived, from its tag on.
    pub(super) fn receive(&self, mut frame: Bytes) -> Result<(), ConnectionError> {
        let Some(&tag) = frame.first() else {
            return Err(ConnectionError::UnknownChannel { got: None });
        };
        let cost = cost(frame.len());
        frame.advance(1);
        let mut state = self.lock();
        let channel = match tag {
            REQUESTS | RECALLS => state.channel(tag),
            CREDIT => return state.receive_credit(frame),
            got => return Err(ConnectionError::UnknownChannel { got: Some(got) }),
        };
        if channel.uncredited >= WINDOW_BYTES {
            let got = channel.uncredited;
            return Err(ConnectionError::Overrun { channel: tag, got, expected: WINDOW_BYTES });
        }
        channel.uncredited += cost;
        channel.incoming.push_back(frame);
        let receiver = channel.receiver.take();
        drop(state);
        wake(receiver);
        Ok(())
    }

    /// For the task: waits for frames to write, and puts them into `frames` in order. False if
    /// this side closes and nothing more may be written.
    pub(super) async fn next_batch(&self, frames: &mut Vec<BytesMut>) -> bool {
        poll_fn(|cx| {
            let mut state = self.lock();
            let senders = state.take_batch(frames);
            let is_idle = frames.is_empty() && !state.is_closing;
            if is_idle {
                register(&mut state.task, cx);
            }
            drop(state);
            senders.into_iter().for_each(wake);
            if is_idle { Poll::Pending } else { Poll::Ready(!frames.is_empty()) }
        })
        .await
    }

    /// For the task: waits until a transport has found a reason to end the connection.
    pub(super) async fn failure(&self) -> ConnectionError {
        poll_fn(|cx| {
            let mut state = self.lock();
            register(&mut state.task, cx);
            state.failure.take().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// For the task: waits until a transport is dropped.
    pub(super) async fn closing(&self) {
        poll_fn(|cx| {
            let mut state = self.lock();
            register(&mut state.task, cx);
            if state.is_closing { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl MuxState {
    fn channel(&mut self, channel: u8) -> &mut MuxChannel {
        if channel == RECALLS { &mut self.recalls } else { &mut self.requests }
    }

    /// Takes credit, then recalls, then at least one request if there is one.
    fn take_batch(&mut self, frames: &mut Vec<BytesMut>) -> [Option<Waker>; 2] {
        for tag in [RECALLS, REQUESTS] {
            frames.extend(self.channel(tag).take_credit(tag));
        }
        let mut bytes = 0;
        while bytes < WRITE_BATCH_BYTES
            && let Some(frame) = self.recalls.take_outgoing()
        {
            bytes += frame.len();
            frames.push(frame);
        }
        while let Some(frame) = self.requests.take_outgoing() {
            bytes += frame.len();
            frames.push(frame);
            if bytes >= WRITE_BATCH_BYTES {
                break;
            }
        }
        [self.recalls.take_sender(), self.requests.take_sender()]
    }

    fn receive_credit(&mut self, mut credit: Bytes) -> Result<(), ConnectionError> {
        if credit.len() != CREDIT_FRAME_BYTES - 1 {
            return Err(ConnectionError::UnknownChannel { got: None });
        }
        let channel = match credit.get_u8() {
            channel @ (REQUESTS | RECALLS) => self.channel(channel),
            got => return Err(ConnectionError::UnknownChannel { got: Some(got) }),
        };
        let got = credit.get_u32() as usize;
        if got > channel.unacknowledged {
            return Err(ConnectionError::Credit { got, expected: channel.unacknowledged });
        }
        channel.unacknowledged -= got;
        let task = self.task.take();
        // The task itself calls this. It may already be past its check for something to write.
        wake(task);
        Ok(())
    }
}

impl MuxChannel {
    fn may_send(&self) -> bool {
        self.unacknowledged < WINDOW_BYTES
    }

    fn take_outgoing(&mut self) -> Option<BytesMut> {
        if !self.may_send() {
            return None;
        }
        let frame = self.outgoing.pop_front()?;
        let cost = cost(frame.len() - PREFIX_BYTES);
        self.outgoing_cost -= cost;
        self.unacknowledged += cost;
        Some(frame)
    }

    /// A credit frame, if there is enough credit to return.
    fn take_credit(&mut self, tag: u8) -> Option<BytesMut> {
        if self.consumed < CREDIT_BYTES {
            return None;
        }
        let mut frame = BytesMut::with_capacity(PREFIX_BYTES + CREDIT_FRAME_BYTES);
        frame.put_u32(CREDIT_FRAME_BYTES as u32);
        frame.put_u8(CREDIT);
        frame.put_u8(tag);
        // At most a window and a frame, which is below 2^32.
        frame.put_u32(self.consumed as u32);
        self.uncredited -= self.consumed;
        self.consumed = 0;
        Some(frame)
    }

    /// The waker of the producer, if there is room.
    fn take_sender(&mut self) -> Option<Waker> {
        if self.outgoing_cost < OUTGOING_BYTES { self.sender.take() } else { None }
    }
}

fn register(slot: &mut Option<Waker>, cx: &Context<'_>) {
    match slot {
        Some(waker) if waker.will_wake(cx.waker()) => {}
        _ => *slot = Some(cx.waker().clone()),
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}
