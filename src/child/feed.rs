//! The messages of an owner to its guard, and the guard's one question, through two pipes. The
//! first pipe closes when the owner dies.
//!
//! A deadline is an instant of `CLOCK_BOOTTIME`, not a duration. Owner and guard run on one machine
//! and read the same clock. So a message that waits in the pipe while the guard is stopped prolongs
//! nothing.

use std::{
    fs::{File, OpenOptions},
    io::{self, PipeReader, PipeWriter, Read, Write},
    os::fd::{AsFd, AsRawFd},
    time::Duration,
};

use nix::{
    time::{ClockId, clock_gettime},
    unistd,
};
use rustix::io::FdFlags;

/// A message from an owner to its guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FeedMessage {
    /// The command may run until this instant of [`boot_time`]. The first one starts the command.
    /// The owner sends it after a renewal. If it is lost, the previous deadline stays.
    Until(Duration),
    /// The owner got SIGTERM. The guard passes it on to the command.
    Terminate,
    /// The answer to the guard's question: the command has exited, and its descendants may
    /// continue. A dead owner does not answer, even if the guard has not yet seen the pipe close.
    Leave,
}

const UNTIL: u8 = 0;
const TERMINATE: u8 = 1;
const LEAVE: u8 = 2;

impl FeedMessage {
    /// All messages have one length below `PIPE_BUF`, so a pipe takes each as a whole.
    const BYTES: usize = 9;

    fn encoded(self) -> [u8; Self::BYTES] {
        let (tag, number) = match self {
            Self::Until(until) => (UNTIL, u64::try_from(until.as_micros()).unwrap_or(u64::MAX)),
            Self::Terminate => (TERMINATE, 0),
            Self::Leave => (LEAVE, 0),
        };
        let mut bytes = [tag; Self::BYTES];
        bytes[1..].copy_from_slice(&number.to_le_bytes());
        bytes
    }

    fn decoded(bytes: [u8; Self::BYTES]) -> io::Result<Self> {
        let [tag, number @ ..] = bytes;
        match tag {
            UNTIL => Ok(Self::Until(Duration::from_micros(u64::from_le_bytes(number)))),
            TERMINATE => Ok(Self::Terminate),
            LEAVE => Ok(Self::Leave),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// The owner's end. The guard notices when it is dropped or when the owner dies.
#[derive(Debug)]
pub(super) struct Feeder(PipeWriter);

impl Feeder {
    /// A pipe to a guard that is not started yet.
    pub(super) fn pipe() -> io::Result<(PipeReader, Self)> {
        let (reader, writer) = io::pipe()?;
        // Non-blocking, so that a stopped guard does not block the owner.
        rustix::io::ioctl_fionbio(&writer, true)?;
        Ok((reader, Self(writer)))
    }

    /// Sends a message. It is lost if the pipe is full because the guard is stopped. If the guard
    /// has died, the owner learns it from the exit status.
    pub(super) fn send(&mut self, message: FeedMessage) {
        let _ = self.0.write(&message.encoded());
    }
}

/// The guard's end.
#[derive(Debug)]
pub(super) struct Feed(pub(super) File);

impl Feed {
    /// More than a pipe can hold: one read returns all messages, so the newest deadline counts.
    const READ_BYTES: usize = 16_384 * FeedMessage::BYTES;

    /// Reads all messages that have arrived. `None` if the owner has died.
    pub(super) fn read(&mut self) -> io::Result<Option<Vec<FeedMessage>>> {
        let mut bytes = vec![0; Self::READ_BYTES];
        let read = self.0.read(&mut bytes)?;
        if read == 0 {
            return Ok(None);
        }
        let (messages, rest) = bytes[..read].as_chunks();
        if !rest.is_empty() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        messages.iter().map(|bytes| FeedMessage::decoded(*bytes)).collect::<io::Result<_>>().map(Some)
    }
}

/// The time since the machine booted, including suspension.
pub(super) fn boot_time() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has had CLOCK_BOOTTIME since 2.6.39").into()
}

/// Lets the next process that is started inherit this end of a pipe. Returns the descriptor's
/// number.
pub(super) fn bequeath(pipe: impl AsFd) -> io::Result<i32> {
    let pipe = pipe.as_fd();
    rustix::io::fcntl_setfd(pipe, FdFlags::empty())?;
    Ok(pipe.as_raw_fd())
}

/// Opens an inherited end of a pipe for reading or writing. Processes that this one starts do not
/// inherit it.
pub(super) fn inherited(number: i32, how: &OpenOptions) -> io::Result<File> {
    let pipe = how.open(format!("/proc/self/fd/{number}"))?;
    unistd::close(number)?;
    Ok(pipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        for message in
            [FeedMessage::Until(Duration::from_micros(7_000_001)), FeedMessage::Terminate, FeedMessage::Leave]
        {
            assert_eq!(FeedMessage::decoded(message.encoded()).expect("a message"), message);
        }
        assert!(FeedMessage::decoded([3; FeedMessage::BYTES]).is_err());
    }
}
