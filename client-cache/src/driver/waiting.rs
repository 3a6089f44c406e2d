//! The reads and writes that the application waits for. They are bounded, so that a client without
//! servers does not fill its memory.

use std::collections::HashMap;

use leasehold_protocol::{
    command::Write,
    holder::{ReadFailure, ReadId, WriteFailure, WriteId},
    message::Refusal,
};
use tokio::sync::oneshot;

use super::{ReadOutcome, WriteOutcome};

/// The most waiting reads of one client. A client refuses one more as busy.
pub(crate) const READS_MAX: usize = 1 << 16;

/// The most unanswered writes of one client. A client refuses one more as busy.
pub(crate) const WRITES_MAX: usize = 1 << 16;

/// The most encoded bytes of one client's unanswered writes, not counting the last of them. Beyond
/// it, a client refuses one more write as busy.
pub(crate) const WRITES_BYTES_MAX: usize = 256 << 20;

/// An unanswered write.
#[derive(Debug)]
struct WaitingWrite {
    bytes: usize,
    requests_lock: bool,
    waiter: oneshot::Sender<WriteOutcome>,
}

/// The waiting reads and writes of one client.
#[derive(Debug, Default)]
pub(super) struct WaitingCalls {
    reads: HashMap<ReadId, oneshot::Sender<ReadOutcome>>,
    writes: HashMap<WriteId, WaitingWrite>,
    writes_bytes: usize,
}

impl WaitingCalls {
    /// Adds a read. If there is no room, returns no id, and a receiver that has the refusal.
    pub(super) fn read(&mut self, read: ReadId) -> (Option<ReadId>, oneshot::Receiver<ReadOutcome>) {
        let (waiter, receiver) = oneshot::channel();
        if let Some(refusal) = no_room("reads of this client", self.reads.len(), READS_MAX) {
            // Cannot fail: the receiver is still here.
            let _ = waiter.send(ReadOutcome::Failed(ReadFailure::Refused(refusal)));
            return (None, receiver);
        }
        self.reads.insert(read, waiter);
        (Some(read), receiver)
    }

    /// Adds a write. If there is no room, returns no id, and a receiver that has the refusal. A
    /// release is never refused. This client has at most one release for each of its locks, its
    /// attached nodes, and its requests for locks that were given up.
    pub(super) fn write(
        &mut self,
        write: WriteId,
        change: &Write,
        gives_back: bool,
    ) -> (Option<WriteId>, oneshot::Receiver<WriteOutcome>) {
        let (waiter, receiver) = oneshot::channel();
        let refusal = no_room("writes of this client", self.writes.len(), WRITES_MAX)
            .or_else(|| no_room("bytes of writes of this client", self.writes_bytes, WRITES_BYTES_MAX));
        if let Some(refusal) = refusal.filter(|_| !gives_back) {
            // Cannot fail: the receiver is still here.
            let _ = waiter.send(Err(WriteFailure::Refused(refusal)));
            return (None, receiver);
        }
        let bytes = change.encoded_bytes();
        self.writes_bytes += bytes;
        let requests_lock = matches!(change, Write::Lock { .. });
        self.writes.insert(write, WaitingWrite { bytes, requests_lock, waiter });
        (Some(write), receiver)
    }

    pub(super) fn has_write(&self, write: WriteId) -> bool {
        self.writes.contains_key(&write)
    }

    /// Whether the write requests a new lock.
    pub(super) fn requests_lock(&self, write: WriteId) -> bool {
        self.writes.get(&write).is_some_and(|waiting| waiting.requests_lock)
    }

    /// Removes a read. Returns false if it is not waiting.
    pub(super) fn cancel_read(&mut self, read: ReadId) -> bool {
        self.reads.remove(&read).is_some()
    }

    /// Removes the reads, and sends the outcome to their receivers.
    pub(super) fn finish_reads(&mut self, reads: Vec<ReadId>, outcome: impl Fn() -> ReadOutcome) {
        for read in reads {
            if let Some(waiter) = self.reads.remove(&read) {
                // The receiver may have been dropped.
                let _ = waiter.send(outcome());
            }
        }
    }

    /// Removes the write, and sends the result to its receiver.
    pub(super) fn finish_write(&mut self, write: WriteId, result: WriteOutcome) {
        if let Some(WaitingWrite { bytes, waiter, .. }) = self.writes.remove(&write) {
            self.writes_bytes -= bytes;
            // The receiver may have been dropped.
            let _ = waiter.send(result);
        }
    }
}

fn no_room(what: &str, got: usize, most: usize) -> Option<Refusal> {
    (got >= most).then(|| Refusal::Busy { what: what.to_owned(), got, most })
}

#[cfg(test)]
mod tests {
    use leasehold_protocol::{object::Object, path::NodePath};

    use leasehold_protocol::lease_policy::LeaseRequest;

    use super::*;
    use crate::{driver::Driver, options::Options};

    fn path(number: usize) -> NodePath {
        NodePath::parse(&format!("/{number}")).expect("a path")
    }

    fn busy(what: &str, got: usize, most: usize) -> Refusal {
        Refusal::Busy { what: what.to_owned(), got, most }
    }

    #[tokio::test]
    async fn writes_beyond_the_bound_are_refused_with_the_limit() {
        let driver = Driver::new(Options::new(["nobody:1"]), 0);
        let mut waiting: Vec<_> =
            (0..WRITES_MAX).map(|number| driver.write(Write::put(path(number), Default::default()))).collect();
        let refused = || driver.write(Write::put(path(0), Default::default())).1.try_recv();
        let expected = busy("writes of this client", WRITES_MAX, WRITES_MAX);
        assert_eq!(refused(), Ok(Err(WriteFailure::Refused(expected))));
        driver.cancel_write(waiting[0].0);
        assert!(matches!(waiting[0].1.try_recv(), Ok(Err(_))), "it is known that it was never sent");
        assert!(refused().is_err(), "there is room: it waits");
    }

    #[tokio::test]
    async fn bytes_of_writes_are_bounded() {
        let driver = Driver::new(Options::new(["nobody:1"]), 0);
        let large = || Write::put(path(0), vec![0; 1 << 20].into());
        let mut waiting = Vec::new();
        let refused = loop {
            let (write, mut answer) = driver.write(large());
            match answer.try_recv() {
                Ok(refused) => break refused,
                Err(_) => waiting.push((write, answer)),
            }
        };
        let Err(WriteFailure::Refused(Refusal::Busy { what, got, most })) = refused else { panic!("{refused:?}") };
        assert_eq!((what.as_str(), most), ("bytes of writes of this client", WRITES_BYTES_MAX));
        assert!(got >= most && got - most <= large().encoded_bytes(), "{got}");
        for (write, _) in &waiting {
            driver.cancel_write(*write);
        }
        assert!(driver.write(large()).1.try_recv().is_err(), "there is room: it waits");
    }

    #[tokio::test]
    async fn reads_beyond_the_bound_are_refused_with_the_limit() {
        let driver = Driver::new(Options::new(["nobody:1"]), 0);
        let waiting: Vec<_> =
            (0..READS_MAX).map(|number| driver.read(Object::data(path(number)), LeaseRequest::Implicit)).collect();
        let refused = || driver.read(Object::data(path(0)), LeaseRequest::Implicit).1.try_recv();
        let Ok(ReadOutcome::Failed(ReadFailure::Refused(refusal))) = refused() else { panic!("it is not refused") };
        assert_eq!(refusal, busy("reads of this client", READS_MAX, READS_MAX));
        driver.cancel_read(waiting[0].0);
        assert!(refused().is_err(), "there is room: it waits");
    }
}
