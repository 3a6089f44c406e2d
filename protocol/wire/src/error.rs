//! Why a message could not be sent, and why a connection ended.

use std::io;

/// A message that cannot be put into a frame, or a frame that is no message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The message does not fit into a frame.
    #[error("the message takes a frame of {got} bytes: expected at most {expected}")]
    TooLarge {
        /// The length of the frame that it would take, in bytes.
        got: usize,
        /// The bound in bytes.
        expected: usize,
    },
    /// The message has a part that the format cannot express.
    #[error("the message cannot be encoded: {0}")]
    Encode(postcard::Error),
    /// The frame is not a message of the expected type.
    #[error("the frame cannot be decoded: {0}")]
    Decode(postcard::Error),
    /// The frame goes on after its message.
    #[error("the frame has {got} bytes after its message: expected 0")]
    Trailing {
        /// How many bytes.
        got: usize,
    },
}

/// Why a connection ended, other than by being closed in good order between two frames.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The socket failed.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// The other side stopped in the middle of a frame.
    #[error("the connection ended in the middle of a frame, after {got} bytes of it")]
    Truncated {
        /// How many bytes of the frame had arrived, its length prefix included.
        got: usize,
    },
    /// The other side announced a frame beyond the bound. None of it was read.
    #[error("a frame of {got} bytes was announced: expected at most {expected}")]
    Oversized {
        /// The announced length in bytes.
        got: usize,
        /// The bound in bytes.
        expected: usize,
    },
    /// A frame that names no channel.
    #[error("a frame names channel {got:?}: expected 0, 1 or 2")]
    UnknownChannel {
        /// The tag; none in an empty frame.
        got: Option<u8>,
    },
    /// The other side sent more than it had been given room for.
    #[error("channel {channel} has {got} unread bytes: expected to be sent nothing from {expected} on")]
    Overrun {
        /// The channel.
        channel: u8,
        /// What was unread when the frame came, as flow control counts.
        got: usize,
        /// The window.
        expected: usize,
    },
    /// The other side gave room that makes no sense.
    #[error("room for {got} more bytes was given: expected at most the {expected} that had been sent")]
    Credit {
        /// What was given.
        got: usize,
        /// What there was to give back.
        expected: usize,
    },
    /// A frame that is no message, or a message that is no frame.
    #[error(transparent)]
    Codec(#[from] CodecError),
}

impl ConnectionError {
    /// Whether the other side broke the protocol, rather than having gone away.
    pub fn is_violation(&self) -> bool {
        !matches!(self, Self::Io(_) | Self::Truncated { .. })
    }
}
