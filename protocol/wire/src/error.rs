//! Errors of sending a message, and reasons for the end of a connection.

use std::io;

/// A message does not become a frame, or a frame is not a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The message does not fit into a frame.
    #[error("the message takes a frame of {got} bytes: expected at most {expected}")]
    TooLarge {
        /// The length of the needed frame in bytes.
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
    /// The frame has more bytes after its message.
    #[error("the frame has {got} bytes after its message: expected 0")]
    Trailing {
        /// The number of bytes.
        got: usize,
    },
}

/// Why a connection ended, unless it was closed between two frames.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The socket failed.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// The other side stopped in the middle of a frame.
    #[error("the connection ended in the middle of a frame, after {got} bytes of it")]
    Truncated {
        /// The bytes of the frame that had arrived, with the length prefix.
        got: usize,
    },
    /// The other side announced a frame that is too long. None of it was read.
    #[error("a frame of {got} bytes was announced: expected at most {expected}")]
    Oversized {
        /// The announced length in bytes.
        got: usize,
        /// The bound in bytes.
        expected: usize,
    },
    /// A frame has no valid tag.
    #[error("a frame names channel {got:?}: expected 0, 1 or 2")]
    UnknownChannel {
        /// The tag. None in an empty frame.
        got: Option<u8>,
    },
    /// The other side sent more than its credit.
    #[error("channel {channel} has {got} unread bytes: expected to be sent nothing from {expected} on")]
    Overrun {
        /// The channel.
        channel: u8,
        /// The unread bytes before the frame, as flow control counts them.
        got: usize,
        /// The window.
        expected: usize,
    },
    /// The other side gave more credit than there were unacknowledged bytes.
    #[error("room for {got} more bytes was given: expected at most the {expected} that had been sent")]
    Credit {
        /// The credit in bytes.
        got: usize,
        /// The unacknowledged bytes.
        expected: usize,
    },
    /// A frame is not a message.
    #[error(transparent)]
    Codec(#[from] CodecError),
}

impl ConnectionError {
    /// Whether the other side broke the protocol. If not, the connection failed.
    pub fn is_violation(&self) -> bool {
        !matches!(self, Self::Io(_) | Self::Truncated { .. })
    }
}
