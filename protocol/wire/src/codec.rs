//! The encoding of messages: postcard, by types of this crate.
//!
//! tarpc's own encoding is not used, for two reasons:
//!
//! - Deadlines. Its decoder adds a duration from the other side to the clock, which panics if the
//!   duration is too large. Its timer panics at a deadline of more than two years. Here a deadline
//!   crosses the wire as the remaining microseconds (T1), and is cut to [`DEADLINE_MAX`].
//! - Errors. It writes the kind of a server's error as a signed number, and reads it as an unsigned
//!   one. In postcard these differ.

use std::{
    io,
    sync::LazyLock,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tarpc::{
    ClientMessage, Request, Response, ServerError, context,
    trace::{self, SamplingDecision, SpanId, TraceId},
};

pub use crate::error::CodecError;

/// The longest frame, without its length prefix. It is four times the longest value that can be
/// configured (`Limits::VALUE_MAX_BYTES`). So a value always fits with all that surrounds it. One
/// frame delays the next by at most 0.14 s on a gigabit link.
pub const FRAME_MAX_BYTES: usize = 16 << 20;

const _: () = assert!(FRAME_MAX_BYTES >= 2 * leasehold_protocol::limits::Limits::VALUE_MAX_BYTES);

/// The longest time to a request's deadline when it arrives. Longer ones are cut: a write ends
/// within a volume term, and tarpc's timer has a limit.
pub const DEADLINE_MAX: Duration = Duration::from_secs(3600);

/// A message that can be sent.
pub trait Encode: Sized {
    /// Appends the message to `out`, whose length must not exceed `end`.
    ///
    /// # Errors
    ///
    /// [`CodecError::TooLarge`] if the message does not fit. [`CodecError::Encode`] if postcard
    /// cannot express it. Then `out` ends with a part of the message.
    fn encode(&self, out: &mut BytesMut, end: usize) -> Result<(), CodecError>;

    /// A message to send instead of one that cannot be sent, so that the peer that waits learns the
    /// reason.
    fn refusal(&self, error: &CodecError) -> Option<Self>;
}

/// A message that can be received.
pub trait Decode: Sized {
    /// Decodes a message that takes all of the frame.
    ///
    /// # Errors
    ///
    /// [`CodecError::Decode`] or [`CodecError::Trailing`] if the frame is not exactly one message.
    fn decode(frame: &[u8]) -> Result<Self, CodecError>;
}

/// [`ClientMessage`] on the wire.
#[derive(Serialize, Deserialize)]
enum WireCall<T> {
    Request { id: u64, deadline_us: u64, trace: WireTrace, message: T },
    Cancel { id: u64, trace: WireTrace },
}

/// [`trace::Context`] on the wire: three bytes without tracing.
#[derive(Serialize, Deserialize)]
struct WireTrace {
    trace: u128,
    span: u64,
    is_sampled: bool,
}

impl From<trace::Context> for WireTrace {
    fn from(context: trace::Context) -> Self {
        let trace = u128::from(context.trace_id);
        // Without a trace, tarpc makes a random span for each request. It is useless.
        let span = if trace == 0 { 0 } else { u64::from(context.span_id) };
        Self { trace, span, is_sampled: context.sampling_decision == SamplingDecision::Sampled }
    }
}

impl From<WireTrace> for trace::Context {
    fn from(WireTrace { trace, span, is_sampled }: WireTrace) -> Self {
        let sampling_decision = if is_sampled { SamplingDecision::Sampled } else { SamplingDecision::Unsampled };
        Self { trace_id: TraceId::from(trace), span_id: SpanId::from(span), sampling_decision }
    }
}

/// [`Response`] on the wire.
#[derive(Serialize, Deserialize)]
struct WireReply<T> {
    id: u64,
    message: Result<T, WireFailure>,
}

/// [`ServerError`] on the wire.
#[derive(Serialize, Deserialize)]
struct WireFailure {
    /// The index in [`FAILURE_KINDS`].
    kind: u8,
    detail: String,
}

/// The kinds of errors of tarpc and of this crate. Any other becomes the first. Append new ones.
const FAILURE_KINDS: [io::ErrorKind; 8] = [
    io::ErrorKind::Other,
    io::ErrorKind::WouldBlock,
    io::ErrorKind::InvalidInput,
    io::ErrorKind::InvalidData,
    io::ErrorKind::TimedOut,
    io::ErrorKind::PermissionDenied,
    io::ErrorKind::NotFound,
    io::ErrorKind::ConnectionAborted,
];

impl From<&ServerError> for WireFailure {
    fn from(error: &ServerError) -> Self {
        let kind = FAILURE_KINDS.iter().position(|kind| *kind == error.kind).unwrap_or(0);
        Self { kind: kind as u8, detail: error.detail.clone() }
    }
}

impl From<WireFailure> for ServerError {
    fn from(failure: WireFailure) -> Self {
        let kind = FAILURE_KINDS.get(usize::from(failure.kind)).copied().unwrap_or(io::ErrorKind::Other);
        Self::new(kind, failure.detail)
    }
}

/// A context to copy: only `context::current` makes one, and it costs more than a copy.
static CONTEXT: LazyLock<context::Context> = LazyLock::new(context::current);

impl<T: Serialize> Encode for ClientMessage<T> {
    fn encode(&self, out: &mut BytesMut, end: usize) -> Result<(), CodecError> {
        let call = match self {
            Self::Request(Request { context, id, message }) => {
                let left = context.deadline.saturating_duration_since(Instant::now()).min(DEADLINE_MAX);
                // An hour in microseconds is below 2^64.
                let deadline_us = left.as_micros() as u64;
                WireCall::Request { id: *id, deadline_us, trace: context.trace_context.into(), message }
            }
            Self::Cancel { trace_context, request_id } => {
                WireCall::Cancel { id: *request_id, trace: (*trace_context).into() }
            }
            // The enum is non-exhaustive. The present version of tarpc has no other kinds.
            _ => return Err(CodecError::Encode(postcard::Error::WontImplement)),
        };
        put(&call, out, end)
    }

    fn refusal(&self, _: &CodecError) -> Option<Self> {
        // The caller is on this side, and gets the error.
        None
    }
}

impl<T: DeserializeOwned> Decode for ClientMessage<T> {
    fn decode(frame: &[u8]) -> Result<Self, CodecError> {
        Ok(match take(frame)? {
            WireCall::Request { id, deadline_us, trace, message } => {
                let mut context = *CONTEXT;
                context.deadline = Instant::now() + Duration::from_micros(deadline_us).min(DEADLINE_MAX);
                context.trace_context = trace.into();
                Self::Request(Request { context, id, message })
            }
            WireCall::Cancel { id, trace } => Self::Cancel { trace_context: trace.into(), request_id: id },
        })
    }
}

impl<T: Serialize> Encode for Response<T> {
    fn encode(&self, out: &mut BytesMut, end: usize) -> Result<(), CodecError> {
        put(&WireReply { id: self.request_id, message: self.message.as_ref().map_err(WireFailure::from) }, out, end)
    }

    fn refusal(&self, error: &CodecError) -> Option<Self> {
        let message = Err(ServerError::new(io::ErrorKind::InvalidData, error.to_string()));
        Some(Self { request_id: self.request_id, message })
    }
}

impl<T: DeserializeOwned> Decode for Response<T> {
    fn decode(frame: &[u8]) -> Result<Self, CodecError> {
        let WireReply { id, message } = take(frame)?;
        Ok(Self { request_id: id, message: message.map_err(ServerError::from) })
    }
}

fn take<T: DeserializeOwned>(frame: &[u8]) -> Result<T, CodecError> {
    match postcard::take_from_bytes(frame) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(CodecError::Trailing { got: rest.len() }),
        Err(error) => Err(CodecError::Decode(error)),
    }
}

fn put<T: Serialize>(message: &T, out: &mut BytesMut, end: usize) -> Result<(), CodecError> {
    let room = end.saturating_sub(out.len());
    let mut needed = 0;
    let bounded = BoundedWriter { out, room, needed: &mut needed };
    postcard::serialize_with_flavor(message, bounded).map_err(CodecError::Encode)?;
    if needed > room {
        let expected = FRAME_MAX_BYTES;
        return Err(CodecError::TooLarge { got: expected + (needed - room), expected });
    }
    Ok(())
}

/// Appends bytes while there is room, and counts the rest. So a message that is too large takes no
/// memory, and the error has its length.
struct BoundedWriter<'a> {
    out: &'a mut BytesMut,
    room: usize,
    needed: &'a mut usize,
}

impl postcard::ser_flavors::Flavor for BoundedWriter<'_> {
    type Output = ();

    fn try_extend(&mut self, data: &[u8]) -> postcard::Result<()> {
        *self.needed += data.len();
        if *self.needed <= self.room {
            self.out.extend_from_slice(data);
        }
        Ok(())
    }

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.try_extend(&[byte])
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(message: &impl Encode) -> BytesMut {
        let mut out = BytesMut::new();
        message.encode(&mut out, FRAME_MAX_BYTES).unwrap();
        out
    }

    fn request(left: Duration) -> ClientMessage<String> {
        let mut context = context::current();
        context.deadline = Instant::now() + left;
        context.trace_context = trace::Context {
            trace_id: TraceId::from(7),
            span_id: SpanId::from(9),
            sampling_decision: SamplingDecision::Sampled,
        };
        ClientMessage::Request(Request { context, id: 3, message: "hello".to_owned() })
    }

    fn decoded_request(bytes: &[u8]) -> Request<String> {
        match ClientMessage::decode(bytes).unwrap() {
            ClientMessage::Request(request) => request,
            other => panic!("expected a request, got {other:?}"),
        }
    }

    #[test]
    fn request_roundtrip_preserves_trace_and_time_left() {
        let before = Instant::now();
        let got = decoded_request(&encoded(&request(Duration::from_secs(10))));
        assert_eq!((got.id, got.message.as_str()), (3, "hello"));
        assert_eq!(got.context.trace_context.trace_id, TraceId::from(7));
        assert_eq!(got.context.trace_context.span_id, SpanId::from(9));
        assert_eq!(got.context.trace_context.sampling_decision, SamplingDecision::Sampled);
        assert!(got.context.deadline >= before + Duration::from_secs(9));
        assert!(got.context.deadline <= Instant::now() + Duration::from_secs(10));
    }

    #[test]
    fn a_deadline_that_has_passed_is_one_that_passes_now() {
        let mut late = request(Duration::ZERO);
        if let ClientMessage::Request(request) = &mut late {
            request.context.deadline = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        }
        assert!(decoded_request(&encoded(&late)).context.deadline <= Instant::now());
    }

    #[test]
    fn a_deadline_beyond_all_clocks_is_cut() {
        let trace = WireTrace { trace: 0, span: 0, is_sampled: false };
        let call = WireCall::Request { id: 0, deadline_us: u64::MAX, trace, message: String::new() };
        let got = decoded_request(&postcard::to_stdvec(&call).unwrap());
        assert!(got.context.deadline <= Instant::now() + DEADLINE_MAX);
    }

    #[test]
    fn without_a_trace_a_small_request_takes_few_bytes() {
        let mut small = request(Duration::from_secs(10));
        if let ClientMessage::Request(request) = &mut small {
            request.context.trace_context.trace_id = TraceId::from(0);
            request.message.clear();
        }
        // Kind, id, up to four bytes of deadline, three of trace, and the length of the text.
        assert!(encoded(&small).len() <= 10);
    }

    #[test]
    fn a_cancellation_comes_back() {
        let cancel = ClientMessage::<String>::Cancel { trace_context: trace::Context::default(), request_id: 5 };
        let got = ClientMessage::<String>::decode(&encoded(&cancel)).unwrap();
        assert!(matches!(got, ClientMessage::Cancel { request_id: 5, .. }));
    }

    #[test]
    fn a_response_comes_back_whether_it_went_well_or_not() {
        let good = Response { request_id: 1, message: Ok(7_u64) };
        assert_eq!(Response::<u64>::decode(&encoded(&good)), Ok(good));
        let refused = ServerError::new(io::ErrorKind::WouldBlock, "busy".to_owned());
        let bad = Response::<u64> { request_id: 1, message: Err(refused) };
        assert_eq!(Response::<u64>::decode(&encoded(&bad)), Ok(bad));
    }

    #[test]
    fn what_follows_a_message_in_its_frame_is_an_error() {
        let mut frame = encoded(&Response { request_id: 1, message: Ok(7_u64) });
        frame.extend_from_slice(&[0, 0]);
        assert_eq!(Response::<u64>::decode(&frame), Err(CodecError::Trailing { got: 2 }));
    }

    #[test]
    fn no_bytes_make_decoding_panic() {
        let good = encoded(&request(Duration::from_secs(10)));
        for end in 0..good.len() {
            assert!(ClientMessage::<String>::decode(&good[..end]).is_err());
        }
        for at in 0..good.len() {
            for byte in 0..=u8::MAX {
                let mut bad = good.to_vec();
                bad[at] = byte;
                let _ = ClientMessage::<String>::decode(&bad);
                let _ = Response::<String>::decode(&bad);
            }
        }
    }

    #[test]
    fn oversized_message_uses_no_memory_and_reports_length() {
        let mut out = BytesMut::new();
        let message = Response { request_id: 1, message: Ok("x".repeat(1000)) };
        let end = 100;
        let error = message.encode(&mut out, end).unwrap_err();
        // 1000 bytes of text and 4 others, with room for 100.
        let expected = FRAME_MAX_BYTES;
        assert_eq!(error, CodecError::TooLarge { got: expected + 904, expected });
        assert!(out.len() <= end);
    }
}
