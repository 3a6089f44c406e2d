//! Bytes that arrive on a connection: handshakes, frames, and the two channels of
//! [`leasehold_wire::mux`].
//!
//! The result is compared with that of a twin, which has all bytes at once and reads them in the
//! simplest way.

use std::{
    future::Future,
    pin::{Pin, pin},
    task::{Context, Poll},
};

use bytes::{BufMut, BytesMut};
use futures::{Sink, Stream, task::noop_waker_ref};
use leasehold_wire::{
    ConnectionError, ConnectionTask, HandshakeError, Role,
    codec::{Decode, Encode},
    frame::FRAME_MAX_BYTES,
    handshake::{self, CLUSTER_BYTES, MAGIC, PROTOCOL_VERSION, REASON_MAX_BYTES},
    mux::{self, ChannelTransport, WINDOW_BYTES},
    peer_transport,
};
use tarpc::Response;

use super::{
    draw::Draw,
    pipe::{Far, pipe},
};

/// The message of these tests. Only its frame matters.
type Message = Response<String>;
type Channel = ChannelTransport<Message, Message>;

/// What windows count for a frame beside its bytes.
const FRAME_COST_BYTES: usize = 64;

/// The most bytes that one input may send, so that it stays quick.
const BYTES_MAX: usize = 8 << 20;

thread_local! {
    // Timers can be made, and never fire, because nobody drives the runtime.
    static RUNTIME: tokio::runtime::Runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime without threads");
}

/// Reads the bytes as one side of a connection. The first byte names the kind.
pub fn run(data: &[u8]) {
    RUNTIME.with(|runtime| {
        let _inside = runtime.enter();
        let mut draw = Draw::new(data);
        match draw.below(8) {
            0 => server_handshake(draw),
            1 => client_handshake(draw),
            2 | 3 => frames(draw),
            _ => Mux::new().run(draw),
        }
    });
}

fn poll<F: Future>(future: &mut Pin<&mut F>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(noop_waker_ref()))
}

/// Feeds the bytes in two pieces, then closes. Returns the future's output.
fn fed<F: Future>(future: F, far: &Far, bytes: &[u8], cut: usize) -> F::Output {
    let mut future = pin!(future);
    let (first, second) = bytes.split_at(cut.min(bytes.len()));
    far.feed(first);
    if let Poll::Ready(output) = poll(&mut future) {
        far.feed(second);
        return output;
    }
    far.feed(second);
    far.close();
    match poll(&mut future) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("all that comes is there, and it waits"),
    }
}

fn server_handshake(mut draw: Draw<'_>) {
    let (stream, far) = pipe();
    let cut = draw.below(16) as usize;
    let bytes = draw.rest();
    let got = fed(handshake::receive(stream, None), &far, bytes, cut);
    let expected = opening(bytes).map(|(version, last)| match (version, last) {
        (PROTOCOL_VERSION, 1) => Ok(Role::Client),
        (PROTOCOL_VERSION, 2) => Ok(Role::Peer),
        (PROTOCOL_VERSION, got) => Err(HandshakeError::Role { got }),
        (theirs, _) => Err(HandshakeError::Version { theirs, ours: PROTOCOL_VERSION }),
    });
    let expected = expected.and_then(|role| role);
    let is_accepted = got.is_ok();
    assert_eq!(shown(got.map(|accepted| accepted.role)), shown(expected));
    assert!(far.written().is_empty() || far.written().starts_with(&MAGIC));
    if is_accepted {
        assert_eq!(far.unread(), &bytes[7..], "what follows the handshake is left for who comes next");
    }
}

fn client_handshake(mut draw: Draw<'_>) {
    let (stream, far) = pipe();
    let cut = draw.below(16) as usize;
    let bytes = draw.rest();
    let got = fed(handshake::introduce(stream, Role::Client), &far, bytes, cut);
    let expected = opening(bytes).and_then(|(version, verdict)| match verdict {
        _ if version != PROTOCOL_VERSION => Err(HandshakeError::Version { theirs: version, ours: PROTOCOL_VERSION }),
        0 if bytes.len() < 7 + CLUSTER_BYTES => Err(HandshakeError::Closed),
        0 => Ok(()),
        1 => Err(refusal(&bytes[7..])),
        got => Err(HandshakeError::Verdict { got }),
    });
    let is_accepted = got.is_ok();
    assert_eq!(shown(got.map(drop)), shown(expected));
    if is_accepted {
        assert_eq!(far.unread(), &bytes[7 + CLUSTER_BYTES..], "what follows the handshake is left for who comes next");
    }
}

fn shown<T: std::fmt::Debug>(outcome: Result<T, HandshakeError>) -> String {
    outcome.map_or_else(|error| error.to_string(), |role| format!("{role:?}"))
}

/// The version, and the byte after it.
fn opening(bytes: &[u8]) -> Result<(u16, u8), HandshakeError> {
    match bytes {
        [a, b, c, d, ..] if [*a, *b, *c, *d] != MAGIC => Err(HandshakeError::Magic { got: [*a, *b, *c, *d] }),
        [_, _, _, _, high, low, last, ..] => Ok((u16::from_be_bytes([*high, *low]), *last)),
        _ => Err(HandshakeError::Closed),
    }
}

fn refusal(bytes: &[u8]) -> HandshakeError {
    let Some((length, rest)) = bytes.split_first_chunk() else { return HandshakeError::Closed };
    match usize::from(u16::from_be_bytes(*length)) {
        got if got > REASON_MAX_BYTES => HandshakeError::Reason { got, expected: REASON_MAX_BYTES },
        got if got > rest.len() => HandshakeError::Closed,
        got => HandshakeError::Refused { reason: String::from_utf8_lossy(&rest[..got]).into_owned() },
    }
}

fn frames(mut draw: Draw<'_>) {
    let (stream, far) = pipe();
    let mut transport = peer_transport::<Message, Message>(stream);
    let mut bytes = BytesMut::new();
    let mut got = Vec::new();
    let mut is_over = false;
    while !draw.is_done() && !is_over {
        let start = bytes.len();
        if draw.below(2) == 1 {
            put_message(&mut bytes, None, draw.below(256), draw.below(200) as usize);
        } else {
            bytes.extend_from_slice(&draw.bytes(16));
        }
        far.feed(&bytes[start..]);
        is_over = take_all(&mut transport, &mut got);
    }
    far.close();
    assert!(is_over || take_all(&mut transport, &mut got), "all that comes is there, and it waits");
    assert_eq!(got, twin(&bytes));
}

/// Takes all messages that are there. True at the end of the connection.
fn take_all<T>(transport: &mut T, got: &mut Vec<Result<Message, String>>) -> bool
where
    T: Stream<Item = Result<Message, ConnectionError>> + Unpin,
{
    loop {
        match Pin::new(&mut *transport).poll_next(&mut Context::from_waker(noop_waker_ref())) {
            Poll::Ready(Some(message)) => got.push(message.map_err(|error| error.to_string())),
            Poll::Ready(None) => return true,
            Poll::Pending => return false,
        }
    }
}

/// The result of a connection with these bytes: messages, and perhaps an error at the end.
fn twin(mut bytes: &[u8]) -> Vec<Result<Message, String>> {
    let mut expected = Vec::new();
    while !bytes.is_empty() {
        let next = next_frame(bytes).and_then(|(frame, rest)| Ok((Message::decode(frame)?, rest)));
        match next {
            Ok((message, rest)) => {
                expected.push(Ok(message));
                bytes = rest;
            }
            Err(error) => {
                expected.push(Err(error.to_string()));
                break;
            }
        }
    }
    expected
}

fn next_frame(bytes: &[u8]) -> Result<(&[u8], &[u8]), ConnectionError> {
    let truncated = ConnectionError::Truncated { got: bytes.len() };
    let Some((prefix, rest)) = bytes.split_first_chunk() else { return Err(truncated) };
    match u32::from_be_bytes(*prefix) as usize {
        got if got > FRAME_MAX_BYTES => Err(ConnectionError::Oversized { got, expected: FRAME_MAX_BYTES }),
        length => rest.split_at_checked(length).ok_or(truncated),
    }
}

/// Appends a frame with a message of `length` bytes or a few more.
fn put_message(out: &mut BytesMut, tag: Option<u8>, id: u64, length: usize) {
    let start = out.len();
    out.put_u32(0);
    out.extend(tag);
    let message = Message { request_id: id, message: Ok("x".repeat(length)) };
    message.encode(out, usize::MAX).expect("a text encodes");
    let length = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

/// One connection, and what must hold for it.
struct Mux {
    far: Far,
    channels: [Channel; 2],
    task: ConnectionTask,
    /// The bytes of the frames fed, and of those taken out, as windows count them.
    fed: [usize; 2],
    taken: [usize; 2],
    /// False once arbitrary bytes were fed, because they may contain frames.
    is_counted: bool,
    /// The room that the fuzzer gave to the sender under test.
    given: [usize; 2],
    /// The ids of the messages sent, in order.
    sent: [Vec<u64>; 2],
    bytes: usize,
}

impl Mux {
    fn new() -> Self {
        let (stream, far) = pipe();
        let (requests, recalls, task) = mux::split(stream);
        let channels = [requests, recalls];
        Self {
            far,
            channels,
            task,
            fed: [0; 2],
            taken: [0; 2],
            is_counted: true,
            given: [0; 2],
            sent: Default::default(),
            bytes: 0,
        }
    }

    fn run(mut self, mut draw: Draw<'_>) {
        let mut end = Poll::Pending;
        while !draw.is_done() && end.is_pending() {
            self.something(&mut draw);
            end = self.turn();
        }
        self.far.close();
        for _ in 0..8 {
            if end.is_pending() {
                end = self.turn();
            }
        }
        let Poll::Ready(end) = end else { panic!("the connection is closed, and its task goes on") };
        if let Err(ConnectionError::Overrun { channel, got, .. }) = end {
            let fed = self.fed[usize::from(channel)];
            assert!(got >= WINDOW_BYTES && (fed >= got || !self.is_counted), "an overrun at {got} after {fed}");
        }
        for channel in 0..2 {
            while self.take(channel) {}
        }
        self.check_written();
    }

    fn turn(&mut self) -> Poll<Result<(), ConnectionError>> {
        Pin::new(&mut self.task).poll(&mut Context::from_waker(noop_waker_ref()))
    }

    fn something(&mut self, draw: &mut Draw<'_>) {
        let channel = draw.below(2) as usize;
        match draw.below(12) {
            0 => {
                self.is_counted = false;
                self.far.feed(&draw.bytes(16));
            }
            1..=3 => self.feed_message(channel, draw),
            4 | 5 => self.feed_credit(channel, draw),
            6..=8 => self.send(channel, draw),
            _ => {
                for _ in 0..draw.below(8) {
                    self.take(channel);
                }
            }
        }
    }

    fn length(&mut self, draw: &mut Draw<'_>) -> usize {
        let length = draw.pick(&[0, 1, 100, 4 << 10, 64 << 10, 1 << 19]).unwrap_or_default();
        self.bytes += length;
        if self.bytes > BYTES_MAX { 0 } else { length }
    }

    fn feed_message(&mut self, channel: usize, draw: &mut Draw<'_>) {
        let mut frame = BytesMut::new();
        put_message(&mut frame, Some(channel as u8), draw.below(256), self.length(draw));
        self.fed[channel] += frame.len() - 4 + FRAME_COST_BYTES;
        self.far.feed(&frame);
    }

    fn feed_credit(&mut self, channel: usize, draw: &mut Draw<'_>) {
        let most = self.sent[channel].len() * FRAME_COST_BYTES;
        let amount = match draw.below(4) {
            0 => draw.wild() as u32,
            1 => 1 << 19,
            _ => draw.below(256) as u32 % (most as u32 + 1),
        };
        let mut frame = vec![0, 0, 0, 6, 2, if draw.one_in(16) { 7 } else { channel as u8 }];
        frame.extend_from_slice(&amount.to_be_bytes());
        self.given[channel] += amount as usize;
        self.far.feed(&frame);
    }

    fn send(&mut self, channel: usize, draw: &mut Draw<'_>) {
        let length = self.length(draw);
        let mut sink = Pin::new(&mut self.channels[channel]);
        if sink.as_mut().poll_ready(&mut Context::from_waker(noop_waker_ref())).is_pending() {
            return;
        }
        let request_id = self.sent[channel].len() as u64;
        let message = Message { request_id, message: Ok("x".repeat(length)) };
        sink.start_send(message).expect("it fits into a frame");
        self.sent[channel].push(request_id);
    }

    /// Takes one message. False if there is none.
    fn take(&mut self, channel: usize) -> bool {
        match Pin::new(&mut self.channels[channel]).poll_next(&mut Context::from_waker(noop_waker_ref())) {
            Poll::Ready(Some(Ok(message))) => {
                let mut frame = BytesMut::new();
                message.encode(&mut frame, usize::MAX).expect("it was decoded");
                self.taken[channel] += frame.len() + 1 + FRAME_COST_BYTES;
                true
            }
            Poll::Ready(Some(Err(error))) => panic!("a channel gives no errors: {error}"),
            Poll::Ready(None) | Poll::Pending => false,
        }
    }

    /// The written bytes are frames. Messages are in the order in which they were sent, and within
    /// the room that was given. Room is given back for no more than was taken out.
    fn check_written(&self) {
        let written = self.far.written();
        let mut rest = &written[..];
        let (mut costs, mut credits, mut seen) = ([0; 2], [0; 2], [0; 2]);
        while !rest.is_empty() {
            let (frame, after) = next_frame(rest).expect("whole frames are written");
            rest = after;
            let (tag, message) = frame.split_first().expect("a tag");
            let channel = usize::from(*tag);
            if *tag == 2 {
                let (of, amount) = message.split_first().expect("a channel");
                let amount = u32::from_be_bytes(amount.try_into().expect("four bytes"));
                credits[usize::from(*of)] += amount as usize;
                continue;
            }
            let room = WINDOW_BYTES + self.given[channel];
            assert!(costs[channel] < room || !self.is_counted, "sent without room on {channel}");
            costs[channel] += frame.len() + FRAME_COST_BYTES;
            let message = Message::decode(message).expect("a message");
            assert_eq!(message.request_id, self.sent[channel][seen[channel]], "in order on {channel}");
            seen[channel] += 1;
        }
        let is_earned = (0..2).all(|channel| credits[channel] <= self.taken[channel]);
        assert!(is_earned || !self.is_counted, "room for {credits:?} given, and {:?} taken", self.taken);
    }
}
