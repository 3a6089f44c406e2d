//! Errors of sending a message, and reasons for the end of a connection.

use std::io;

/// A message does not become a frame, or a frame is not a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The message does not fit into a frame.
    #[error("message: a frame of {got} bytes exceeds the limit of {expected}")]
    TooLarge {
        /// The length of the needed frame in bytes.
        got: usize,
        /// The bound in bytes.
        expected: usize,
    },
    /// The message has a part that the format cannot express.
    #[error("message: cannot be encoded: {0}")]
    Encode(postcard::Error),
    /// The frame is not a message of the expected type.
    #[error("frame: cannot be decoded: {0}")]
    Decode(postcard::Error),
    /// The frame has more bytes after its message.
    #[error("frame: {got} bytes after the message; expected none")]
    Trailing {
        /// The number of bytes.
        got: usize,
    },
}

/// Why a connection ended, unless it was closed between two frames.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The socket failed.
    #[error("connection failed: {0}")]
    Io(#[from] io::Error),
    /// The other side stopped in the middle of a frame.
    #[error("connection closed within a frame, after {got} bytes of it")]
    Truncated {
        /// The bytes of the frame that had arrived, with the length prefix.
        got: usize,
    },
    /// The other side announced a frame that is too long. None of it was read.
    #[error("frame: {got} announced bytes exceed the limit of {expected}")]
    Oversized {
        /// The announced length in bytes.
        got: usize,
        /// The bound in bytes.
        expected: usize,
    },
    /// A frame has no valid tag.
    #[error("frame: unknown channel {got:?}; expected 0, 1 or 2")]
    UnknownChannel {
        /// The tag. None in an empty frame.
        got: Option<u8>,
    },
    /// The other side sent more than its credit.
    #[error("channel {channel}: {got} unread bytes exceed the window of {expected}")]
    Overrun {
        /// The channel.
        channel: u8,
        /// The unread bytes before the frame, as flow control counts them.
        got: usize,
        /// The window.
        expected: usize,
    },
    /// The other side gave more credit than there were unacknowledged bytes.
    #[error("flow control: credit for {got} bytes exceeds the {expected} bytes sent")]
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
