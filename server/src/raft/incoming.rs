//! The receiver of a Raft snapshot: it writes the pieces into a file, then installs the file.
//!
//! **Guarantees.** The whole file is checked before Raft gets it; the check has one row in memory
//! at a time. An installation begins once for each transfer. It continues even if its sender stops
//! asking.

use std::{
    io::{self, Write},
    time::Duration,
};

use openraft::raft::SnapshotResponse;
use tokio::sync::watch;

use super::{
    peer::{Installation, PeerRefusal, PeerServer},
    types::{
        TypeConfig,
        alias::{RaftSnapshot, Vote},
    },
};
use crate::store::{
    snapshot::{PIECE_BYTES, SNAPSHOT_MAX_BYTES, SnapshotFile, StateSnapshot},
    store_identity::ClusterId,
};

/// The interval at which the receiver answers that an installation is still in progress. Far
/// shorter than any [`snapshot_stall`](super::ReplicaConfig::snapshot_stall).
const INSTALLATION_ANSWER: Duration = Duration::from_millis(100);

/// The outcome of an installation; `None` while it is in progress.
type InstallOutcome = Option<Result<SnapshotResponse<TypeConfig>, PeerRefusal>>;

/// The current or last installation, and its outcome.
#[derive(Debug)]
pub(super) struct Installing {
    transfer: u64,
    outcome: watch::Receiver<InstallOutcome>,
}

/// The transfer that is being received.
#[derive(Debug)]
pub(super) struct Incoming {
    transfer: u64,
    length: u64,
    file: SnapshotFile,
}

impl PeerServer {
    pub(super) fn receive(&self, transfer: u64, offset: u64, piece: &[u8]) -> Result<(), PeerRefusal> {
        let failed = |error: io::Error| PeerRefusal::Snapshot { reason: error.to_string() };
        let _directory = self.node.directory().map_err(failed)?;
        let mut incoming = self.node.incoming.lock();
        if offset == 0 {
            let file = SnapshotFile::create(&self.node.incoming_path(), self.node.poison.clone()).map_err(failed)?;
            *incoming = Some(Incoming { transfer, length: 0, file });
        }
        match &mut *incoming {
            // The acknowledgement of this piece was lost.
            Some(incoming)
                if incoming.transfer == transfer
                    && offset > 0
                    && incoming.length == offset.saturating_add(piece.len() as u64) =>
            {
                Ok(())
            }
            Some(incoming) if incoming.transfer == transfer && incoming.length == offset => {
                let length = offset.saturating_add(piece.len() as u64);
                if piece.len() > PIECE_BYTES || length > SNAPSHOT_MAX_BYTES {
                    let reason = format!("a piece of {} bytes up to {length}", piece.len());
                    return Err(PeerRefusal::Snapshot { reason });
                }
                incoming.file.write_all(piece).map_err(failed)?;
                incoming.length = length;
                Ok(())
            }
            other => {
                let got = other.as_ref().filter(|other| other.transfer == transfer).map_or(0, |other| other.length);
                Err(PeerRefusal::Piece { transfer, got, expected: offset })
            }
        }
    }

    fn received(&self, transfer: u64, length: u64) -> Result<RaftSnapshot, PeerRefusal> {
        let mut incoming = self.node.incoming.lock();
        let whole = incoming.take_if(|incoming| incoming.transfer == transfer && incoming.length == length);
        drop(incoming);
        let Some(whole) = whole else { return Err(PeerRefusal::Piece { transfer, got: 0, expected: length }) };
        let checked = whole.file.check().map_err(|error| PeerRefusal::Snapshot { reason: error.to_string() })?;
        Ok(RaftSnapshot { meta: checked.header.meta(), snapshot: StateSnapshot::Received(Box::new(checked)) })
    }

    /// Begins the installation of a transfer if it has not begun, and reports its progress.
    pub(super) async fn installation(
        &self,
        cluster: ClusterId,
        vote: Vote,
        transfer: u64,
        length: u64,
    ) -> Result<Installation, PeerRefusal> {
        let mut outcome = self.installing(cluster, vote, transfer, length);
        let done = match tokio::time::timeout(INSTALLATION_ANSWER, outcome.wait_for(Option::is_some)).await {
            Err(_) => return Ok(Installation::UnderWay),
            Ok(done) => done.map_err(|error| self.stopped(error))?.clone(),
        };
        done.unwrap_or_else(|| Err(self.stopped("the installation has no outcome"))).map(Installation::Done)
    }

    /// The outcome of a transfer's installation, which begins now if it has not begun.
    fn installing(
        &self,
        cluster: ClusterId,
        vote: Vote,
        transfer: u64,
        length: u64,
    ) -> watch::Receiver<InstallOutcome> {
        let mut installing = self.node.installing.lock();
        if let Some(installing) = installing.as_ref().filter(|installing| installing.transfer == transfer) {
            return installing.outcome.clone();
        }
        let (done, outcome) = watch::channel(None);
        *installing = Some(Installing { transfer, outcome: outcome.clone() });
        let this = self.clone();
        tokio::spawn(async move {
            let installed = this.install(cluster, vote, transfer, length).await;
            done.send_replace(Some(installed));
        });
        outcome
    }

    async fn install(
        &self,
        cluster: ClusterId,
        vote: Vote,
        transfer: u64,
        length: u64,
    ) -> Result<SnapshotResponse<TypeConfig>, PeerRefusal> {
        let this = self.clone();
        let snapshot = tokio::task::spawn_blocking(move || this.received(transfer, length)).await;
        let snapshot = snapshot.map_err(|error| self.stopped(error))??;
        let _part = self.node.cluster_switch_lock.read().await;
        let raft = self.raft(cluster)?;
        self.node.heard.lock().forget();
        raft.install_full_snapshot(vote, snapshot).await.map_err(|error| self.stopped(error))
    }
}
