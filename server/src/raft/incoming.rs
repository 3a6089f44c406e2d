//! A Raft snapshot that another replica sends: its pieces in a file, and its installation.
//!
//! **Guarantees.** The whole file is checked before Raft gets it; the check has one row in memory
//! at a time. An installation has one outcome for each transfer.

use std::io::{self, Write};

use openraft::raft::SnapshotResponse;
use tokio::sync::watch;

use super::{peer::PeerRefusal, types::TypeConfig};
use crate::store::snapshot::{PIECE_BYTES, RaftSnapshot, SNAPSHOT_MAX_BYTES, SnapshotFile, StateSnapshot};

/// The outcome of an installation; `None` while it is in progress.
pub(super) type InstallOutcome = Option<Result<SnapshotResponse<TypeConfig>, PeerRefusal>>;

/// The current or last installation, and its outcome.
#[derive(Debug)]
pub(super) struct Installing {
    transfer: u64,
    outcome: watch::Receiver<InstallOutcome>,
}

impl Installing {
    /// The installation of a transfer. The sender gets its outcome.
    pub(super) fn new(transfer: u64) -> (Self, watch::Sender<InstallOutcome>) {
        let (done, outcome) = watch::channel(None);
        (Self { transfer, outcome }, done)
    }

    /// The outcome, if this is the installation of the transfer.
    pub(super) fn outcome_of(&self, transfer: u64) -> Option<watch::Receiver<InstallOutcome>> {
        (self.transfer == transfer).then(|| self.outcome.clone())
    }
}

/// The transfer that is being received.
#[derive(Debug)]
pub(super) struct Incoming {
    transfer: u64,
    length: u64,
    file: SnapshotFile,
}

impl Incoming {
    /// A transfer of which nothing has arrived.
    pub(super) fn new(transfer: u64, file: SnapshotFile) -> Self {
        Self { transfer, length: 0, file }
    }

    /// Appends a piece. A piece that comes twice in a row is taken once, because the
    /// acknowledgement of the first may be lost.
    ///
    /// # Errors
    ///
    /// [`PeerRefusal`]: the piece does not continue this transfer, or is too large, or the disk
    /// failed.
    pub(super) fn append(&mut self, transfer: u64, offset: u64, piece: &[u8]) -> Result<(), PeerRefusal> {
        let length = offset.saturating_add(piece.len() as u64);
        if self.transfer == transfer && offset > 0 && self.length == length {
            return Ok(());
        }
        if self.transfer != transfer || self.length != offset {
            let got = if self.transfer == transfer { self.length } else { 0 };
            return Err(PeerRefusal::Piece { transfer, got, expected: offset });
        }
        if piece.len() > PIECE_BYTES || length > SNAPSHOT_MAX_BYTES {
            let reason = format!("a piece of {} bytes up to {length}", piece.len());
            return Err(PeerRefusal::Snapshot { reason });
        }
        self.file.write_all(piece).map_err(failed)?;
        self.length = length;
        Ok(())
    }

    /// Whether all bytes of the transfer have arrived.
    pub(super) fn is_whole(&self, transfer: u64, length: u64) -> bool {
        self.transfer == transfer && self.length == length
    }

    /// Checks the file.
    ///
    /// # Errors
    ///
    /// [`PeerRefusal::Snapshot`]: the bytes are no snapshot, or the disk failed.
    pub(super) fn check(self) -> Result<RaftSnapshot, PeerRefusal> {
        let checked = self.file.check().map_err(|error| PeerRefusal::Snapshot { reason: error.to_string() })?;
        Ok(RaftSnapshot { meta: checked.header.meta(), snapshot: StateSnapshot::Received(Box::new(checked)) })
    }
}

/// The refusal for a failure of the disk.
pub(super) fn failed(error: io::Error) -> PeerRefusal {
    PeerRefusal::Snapshot { reason: error.to_string() }
}
