//! Frames: a length in four bytes, big-endian, then that many bytes.
//!
//! A length above the bound is refused before anything is read or allocated. Below it, memory
//! follows the bytes that have arrived, not the announced length. After a bad frame the next one
//! cannot be found, so the connection ends.

use std::marker::PhantomData;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tarpc::Transport;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::codec::{Decoder, Encoder, Framed};

use crate::{
    codec::{self, Decode, Encode},
    error::ConnectionError,
    warn,
};

pub use crate::codec::FRAME_MAX_BYTES;

/// The length of the length prefix.
pub(crate) const PREFIX_BYTES: usize = 4;

/// A peer transport passes frames to the socket when it has this many bytes, or has nothing more to
/// send.
const PEER_BATCH_BYTES: usize = 256 << 10;

/// Splits arriving bytes into frames.
#[derive(Debug, Default)]
pub(crate) struct FrameDecoder;

impl Decoder for FrameDecoder {
    type Item = Bytes;
    type Error = ConnectionError;

    fn decode(&mut self, arrived: &mut BytesMut) -> Result<Option<Bytes>, ConnectionError> {
        let Some(prefix) = arrived.first_chunk::<PREFIX_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*prefix) as usize;
        if length > FRAME_MAX_BYTES {
            return Err(ConnectionError::Oversized { got: length, expected: FRAME_MAX_BYTES });
        }
        if arrived.len() < PREFIX_BYTES + length {
            return Ok(None);
        }
        arrived.advance(PREFIX_BYTES);
        Ok(Some(arrived.split_to(length).freeze()))
    }

    fn decode_eof(&mut self, arrived: &mut BytesMut) -> Result<Option<Bytes>, ConnectionError> {
        match self.decode(arrived)? {
            Some(frame) => Ok(Some(frame)),
            None if arrived.is_empty() => Ok(None),
            None => Err(ConnectionError::Truncated { got: arrived.len() }),
        }
    }
}

/// Appends the message as one frame, after the tag if there is one. If an error is returned, `out`
/// is unchanged.
pub(crate) fn put_frame<T: Encode>(message: &T, tag: Option<u8>, out: &mut BytesMut) -> Result<(), codec::CodecError> {
    let start = out.len();
    match try_put_frame(message, tag, out) {
        Ok(()) => Ok(()),
        Err(error) => {
            out.truncate(start);
            match message.refusal(&error) {
                Some(refusal) => try_put_frame(&refusal, tag, out).inspect_err(|_| out.truncate(start)),
                None => Err(error),
            }
        }
    }
}

fn try_put_frame<T: Encode>(message: &T, tag: Option<u8>, out: &mut BytesMut) -> Result<(), codec::CodecError> {
    let start = out.len();
    out.put_u32(0);
    if let Some(tag) = tag {
        out.put_u8(tag);
    }
    message.encode(out, start + PREFIX_BYTES + FRAME_MAX_BYTES)?;
    let length = out.len() - start - PREFIX_BYTES;
    // At most FRAME_MAX_BYTES, which is below 2^32.
    out[start..start + PREFIX_BYTES].copy_from_slice(&(length as u32).to_be_bytes());
    Ok(())
}

/// The transport between servers: one channel that takes the whole connection. The server defines
/// the service.
///
/// `Item`s come in, and `SinkItem`s go out. They are `ClientMessage<Request>` and
/// `Response<Response>` on the side that serves, and the opposite on the side that calls. Frames
/// are gathered until a flush. An error ends the connection: it is logged here, and is the stream's
/// last item.
pub fn peer_transport<Item, SinkItem>(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> impl Transport<SinkItem, Item, TransportError = ConnectionError> + Send + Unpin + 'static
where
    Item: Decode + Send + 'static,
    SinkItem: Encode + Send + 'static,
{
    let mut framed = Framed::new(stream, MessageCodec { frames: FrameDecoder, messages: PhantomData });
    framed.set_backpressure_boundary(PEER_BATCH_BYTES);
    framed
}

/// Messages of one type in, and of another out, each in its own frame.
struct MessageCodec<Item, SinkItem> {
    frames: FrameDecoder,
    messages: PhantomData<fn(SinkItem) -> Item>,
}

impl<Item: Decode, SinkItem> MessageCodec<Item, SinkItem> {
    fn message(frame: Result<Option<Bytes>, ConnectionError>) -> Result<Option<Item>, ConnectionError> {
        frame.and_then(|frame| Ok(frame.map(|frame| Item::decode(&frame)).transpose()?)).inspect_err(|error| {
            if error.is_violation() {
                warn::violation(error)
            }
        })
    }
}

impl<Item: Decode, SinkItem> Decoder for MessageCodec<Item, SinkItem> {
    type Item = Item;
    type Error = ConnectionError;

    fn decode(&mut self, arrived: &mut BytesMut) -> Result<Option<Item>, ConnectionError> {
        Self::message(self.frames.decode(arrived))
    }

    fn decode_eof(&mut self, arrived: &mut BytesMut) -> Result<Option<Item>, ConnectionError> {
        Self::message(self.frames.decode_eof(arrived))
    }
}

impl<Item, SinkItem: Encode> Encoder<SinkItem> for MessageCodec<Item, SinkItem> {
    type Error = ConnectionError;

    fn encode(&mut self, message: SinkItem, out: &mut BytesMut) -> Result<(), ConnectionError> {
        Ok(put_frame(&message, None, out)?)
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, SinkExt, StreamExt};
    use tarpc::Response;
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::error::CodecError;

    type Message = Response<String>;

    fn message(bytes: usize) -> Message {
        Response { request_id: 1, message: Ok("x".repeat(bytes)) }
    }

    #[test]
    fn an_oversized_frame_is_refused_by_its_length_alone() {
        let mut arrived = BytesMut::from(&u32::MAX.to_be_bytes()[..]);
        let error = FrameDecoder.decode(&mut arrived).unwrap_err();
        assert!(matches!(error, ConnectionError::Oversized { got: 0xffff_ffff, expected: FRAME_MAX_BYTES }));
        assert!(arrived.capacity() < 1024);
    }

    #[test]
    fn memory_follows_what_has_arrived() {
        let mut arrived = BytesMut::from(&(FRAME_MAX_BYTES as u32).to_be_bytes()[..]);
        assert!(FrameDecoder.decode(&mut arrived).unwrap().is_none());
        assert!(arrived.capacity() < 1024);
    }

    #[test]
    fn a_message_that_does_not_fit_leaves_nothing_behind() {
        let mut out = BytesMut::from(&b"before"[..]);
        let request = tarpc::ClientMessage::Request(tarpc::Request {
            context: tarpc::context::current(),
            id: 1,
            message: "x".repeat(FRAME_MAX_BYTES),
        });
        assert!(matches!(put_frame(&request, Some(0), &mut out), Err(CodecError::TooLarge { .. })));
        assert_eq!(&out[..], b"before");
    }

    #[test]
    fn a_response_that_does_not_fit_is_replaced_by_an_error() {
        let mut out = BytesMut::new();
        put_frame(&message(FRAME_MAX_BYTES), None, &mut out).unwrap();
        let frame = FrameDecoder.decode(&mut out).unwrap().unwrap();
        let got = Message::decode(&frame).unwrap();
        assert_eq!(got.request_id, 1);
        assert!(got.message.unwrap_err().detail.contains("exceeds the limit of 16777216"));
    }

    #[tokio::test]
    async fn peers_exchange_messages_of_all_sizes() {
        let (one, other) = tokio::io::duplex(1 << 16);
        let mut one = peer_transport::<Message, Message>(one);
        let mut other = peer_transport::<Message, Message>(other);
        let sizes = [0, 1, 1000, PEER_BATCH_BYTES, 8 << 20];
        let send = async {
            for size in sizes {
                one.feed(message(size)).await.unwrap();
            }
            one.flush().await.unwrap();
        };
        let receive = async {
            for size in sizes {
                assert_eq!(other.next().await.unwrap().unwrap(), message(size));
            }
        };
        futures::join!(send, receive);
        drop(one);
        assert!(other.next().await.is_none());
    }

    #[tokio::test]
    async fn half_a_frame_and_a_close_is_an_error() {
        let (mut raw, stream) = tokio::io::duplex(1 << 16);
        let mut transport = peer_transport::<Message, Message>(stream);
        raw.write_all(&[0, 0, 0, 9, 1, 2]).await.unwrap();
        assert!(transport.next().now_or_never().is_none());
        drop(raw);
        let error = transport.next().await.unwrap().unwrap_err();
        assert!(matches!(error, ConnectionError::Truncated { got: 6 }));
        assert!(transport.next().await.is_none());
    }
}
