//! What a holder tells its guard, through a pipe that ends with the holder; and the one question of
//! the guard, through another.
//!
//! A deadline is an instant of `CLOCK_BOOTTIME`, not a duration. Holder and guard run on one
//! machine, where this clock is the same for both. So a message that waits in the pipe while the
//! guard stands still prolongs nothing.

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

/// From a holder to its guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FeedMessage {
    /// The command may run until this instant of [`boot_time`]. The first one starts the command.
    /// Comes when the lease was renewed. If it is lost, the deadline of before counts.
    Until(Duration),
    /// The holder was told to stop: the guard passes SIGTERM on to the command.
    Terminate,
    /// The command has exited by itself, and what it has left running may run on: the answer to the
    /// guard's question. A dead holder does not answer, even if the guard has not seen yet that the
    /// pipe was closed.
    Leave,
}

const UNTIL: u8 = 0;
const TERMINATE: u8 = 1;
const LEAVE: u8 = 2;

impl FeedMessage {
    /// All have the same length, less than `PIPE_BUF`: a pipe takes each as a whole.
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

/// The holder's end. The guard notices when it is dropped, also by the death of the holder.
#[derive(Debug)]
pub(super) struct Feeder(PipeWriter);

impl Feeder {
    /// A pipe to a guard that is yet to be started.
    pub(super) fn pipe() -> io::Result<(PipeReader, Self)> {
        let (reader, writer) = io::pipe()?;
        // A guard that stands still must not stop the holder too.
        rustix::io::ioctl_fionbio(&writer, true)?;
        Ok((reader, Self(writer)))
    }

    /// Tells the guard. A guard that stands still while the pipe is full misses it. If the
    /// guard has died, the holder learns that from its exit status.
    pub(super) fn send(&mut self, message: FeedMessage) {
        let _ = self.0.write(&message.encoded());
    }
}

/// The guard's end.
#[derive(Debug)]
pub(super) struct Feed(pub(super) File);

impl Feed {
    /// What a pipe can hold, and more: all that has come is read at once, so that the newest
    /// deadline counts.
    const READ_BYTES: usize = 16_384 * FeedMessage::BYTES;

    /// Reads all that has come. None if the holder has died.
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

/// The time since the machine was started, time in suspension included.
pub(super) fn boot_time() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has had CLOCK_BOOTTIME since 2.6.39").into()
}

/// Lets a process that is started next have this end of a pipe, by the number that is returned.
pub(super) fn bequeath(pipe: impl AsFd) -> io::Result<i32> {
    let pipe = pipe.as_fd();
    rustix::io::fcntl_setfd(pipe, FdFlags::empty())?;
    Ok(pipe.as_raw_fd())
}

/// The end of a pipe that the parent has bequeathed, to be read from or written to. What this
/// process starts does not get it.
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
