//! Messages as bytes: postcard, through types of ours.
//!
//! tarpc's own encoding of a request is not used: decoding it adds a duration that the other side chose to the clock,
//! which panics if that is large enough, and a deadline of more than two years panics in its timer. Here a deadline
//! crosses as the microseconds that are left (T1) and is cut to [`DEADLINE_MAX`].

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

/// The longest time that a request's deadline can lie ahead when it arrives. Longer ones are cut: nothing waits that
/// long, as a write ends within a volume term and the timer behind it has a limit.
pub const DEADLINE_MAX: Duration = Duration::from_secs(3600);

/// Can be sent.
pub trait Encode: Sized {
    /// Appends the message to `out`, whose length must not go beyond `end`.
    ///
    /// # Errors
    ///
    /// [`CodecError::TooLarge`] if it does not fit, [`CodecError::Encode`] if postcard cannot express it. `out` then
    /// has a part of the message at its end.
    fn encode(&self, out: &mut BytesMut, end: usize) -> Result<(), CodecError>;

    /// What to send instead of a message that cannot be sent, so that somebody who waits for it learns why.
    fn refusal(&self, error: &CodecError) -> Option<Self>;
}

/// Can be received.
pub trait Decode: Sized {
    /// Reads a message that takes all of the frame.
    ///
    /// # Errors
    ///
    /// [`CodecError::Decode`] or [`CodecError::Trailing`] if that is not what the frame is.
    fn decode(frame: &[u8]) -> Result<Self, CodecError>;
}

/// [`ClientMessage`] as it crosses the wire.
#[derive(Serialize, Deserialize)]
enum Call<T> {
    Request {
        id: u64,
        deadline_us: u64,
        trace: Trace,
        message: T,
    },
    Cancel {
        id: u64,
        trace: Trace,
    },
}

/// [`trace::Context`] as it crosses the wire: three bytes when nobody traces.
#[derive(Serialize, Deserialize)]
struct Trace {
    trace: u128,
    span: u64,
    is_sampled: bool,
}

impl From<trace::Context> for Trace {
    fn from(context: trace::Context) -> Self {
        let trace = u128::from(context.trace_id);
        // Without a trace, tarpc makes up a random span for each request, which is of no use to anybody.
        let span = if trace == 0 {
            0
        } else {
            u64::from(context.span_id)
        };
        Self {
            trace,
            span,
            is_sampled: context.sampling_decision == SamplingDecision::Sampled,
        }
    }
}

impl From<Trace> for trace::Context {
    fn from(
        Trace {
            trace,
            span,
            is_sampled,
        }: Trace,
    ) -> Self {
        let sampling_decision = if is_sampled {
            SamplingDecision::Sampled
        } else {
            SamplingDecision::Unsampled
        };
        Self {
            trace_id: TraceId::from(trace),
            span_id: SpanId::from(span),
            sampling_decision,
        }
    }
}

/// Any context: the type can only be made by asking for the current one, which costs more than copying it.
static CONTEXT: LazyLock<context::Context> = LazyLock::new(context::current);

impl<T: Serialize> Encode for ClientMessage<T> {
    fn encode(&self, out: &mut BytesMut, end: usize) -> Result<(), CodecError> {
        let call = match self {
            Self::Request(Request {
                context,
                id,
                message,
            }) => {
                let left = context
                    .deadline
                    .saturating_duration_since(Instant::now())
                    .min(DEADLINE_MAX);
                // An hour in microseconds is below 2^64.
                let deadline_us = left.as_micros() as u64;
                Call::Request {
                    id: *id,
                    deadline_us,
                    trace: context.trace_context.into(),
                    message,
                }
            }
            Self::Cancel {
                trace_context,
                request_id,
            } => Call::Cancel {
                id: *request_id,
                trace: (*trace_context).into(),
            },
            // The type says that there may be more kinds in other versions of tarpc; in ours there are not.
            _ => return Err(CodecError::Encode(postcard::Error::WontImplement)),
        };
        put(&call, out, end)
    }

    fn refusal(&self, _: &CodecError) -> Option<Self> {
        // The caller is on this side and is told.
        None
    }
}

impl<T: DeserializeOwned> Decode for ClientMessage<T> {
    fn decode(frame: &[u8]) -> Result<Self, CodecError> {
        Ok(match take(frame)? {
            Call::Request {
                id,
                deadline_us,
                trace,
                message,
            } => {
                let mut context = *CONTEXT;
                context.deadline =
                    Instant::now() + Duration::from_micros(deadline_us).min(DEADLINE_MAX);
                context.trace_context = trace.into();
                Self::Request(Request {
                    context,
                    id,
                    message,
                })
            }
            Call::Cancel { id, trace } => Self::Cancel {
                trace_context: trace.into(),
                request_id: id,
            },
        })
    }
}

impl<T: Serialize> Encode for Response<T> {
    fn encode(&self, out: &mut BytesMut, end: usize) -> Result<(), CodecError> {
        put(self, out, end)
    }

    fn refusal(&self, error: &CodecError) -> Option<Self> {
        let message = Err(ServerError::new(
            io::ErrorKind::InvalidData,
            error.to_string(),
        ));
        Some(Self {
            request_id: self.request_id,
            message,
        })
    }
}

impl<T: DeserializeOwned> Decode for Response<T> {
    fn decode(frame: &[u8]) -> Result<Self, CodecError> {
        take(frame)
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
    let bounded = Bounded {
        out,
        room,
        needed: &mut needed,
    };
    postcard::serialize_with_flavor(message, bounded).map_err(CodecError::Encode)?;
    if needed > room {
        let expected = crate::frame::FRAME_MAX_BYTES;
        return Err(CodecError::TooLarge {
            got: expected + (needed - room),
            expected,
        });
    }
    Ok(())
}

/// Keeps what there is room for and counts the rest, so that a message that is too large takes no memory and its length
/// can be told.
struct Bounded<'a> {
    out: &'a mut BytesMut,
    room: usize,
    needed: &'a mut usize,
}

impl postcard::ser_flavors::Flavor for Bounded<'_> {
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
