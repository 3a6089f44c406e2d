//! Snapshot transfers to receivers that are slow, or stop answering.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use leasehold_protocol::{state::State, volume::VolumeSettings};
use tarpc::server::{BaseChannel, Channel};
use tokio::net::TcpListener;

use super::*;
use crate::{
    raft::{
        peer::{Admitted, Bootstrap, Joining, MembershipRefusal, Peer, PeerReport, ReplicaStage},
        types::alias::StoredMembership,
    },
    store::{poison::Poison, snapshot::PIECE_BYTES, state::StateStore, store_identity::Participation},
};

const STALL: Duration = Duration::from_millis(600);
/// The extra time that a busy machine may need.
const GENEROUS: Duration = Duration::from_secs(20);
const PIECES: usize = 12;

/// A slow receiver, which stops answering from piece `stands_still_from` on.
#[derive(Clone)]
struct Slow {
    each: Duration,
    stands_still_from: u64,
    received: Arc<AtomicU64>,
    /// How often the sender has asked for the installation. It is in progress for the first `asks`.
    asked: Arc<AtomicU64>,
    asks: u64,
}

impl Slow {
    fn new(stands_still_from: u64, asks: u64) -> Self {
        Self { each: STALL / 4, stands_still_from, received: Arc::default(), asked: Arc::default(), asks }
    }

    async fn listen(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let slow = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let slow = slow.clone();
                tokio::spawn(async move {
                    let accepted = leasehold_wire::accept(stream, None).await.expect("a peer");
                    let transport = leasehold_wire::peer_transport(accepted.stream);
                    BaseChannel::with_defaults(transport).execute(slow.serve()).for_each(|request| request).await;
                });
            }
        });
        address
    }
}

const NOT_ASKED: PeerRefusal = PeerRefusal::NotStarted { replica: 2 };

impl Peer for Slow {
    async fn snapshot_piece(
        self,
        _: context::Context,
        _: ClusterId,
        _: u64,
        _: u64,
        piece: Bytes,
    ) -> Result<(), PeerRefusal> {
        let number = self.received.fetch_add(1, Ordering::SeqCst);
        if number >= self.stands_still_from {
            std::future::pending::<()>().await;
        }
        assert!(piece.len() <= PIECE_BYTES);
        tokio::time::sleep(self.each).await;
        Ok(())
    }

    async fn snapshot_install(
        self,
        _: context::Context,
        _: ClusterId,
        vote: Vote,
        _: u64,
        _: u64,
    ) -> Result<Installation, PeerRefusal> {
        tokio::time::sleep(self.each).await;
        match self.asked.fetch_add(1, Ordering::SeqCst) {
            asked if asked < self.asks => Ok(Installation::UnderWay),
            _ => Ok(Installation::Done(SnapshotResponse::new(vote))),
        }
    }

    async fn append(
        self,
        _: context::Context,
        _: ClusterId,
        _: AppendEntriesRequest<TypeConfig>,
    ) -> Result<AppendEntriesResponse<TypeConfig>, PeerRefusal> {
        Err(NOT_ASKED)
    }

    async fn vote(
        self,
        _: context::Context,
        _: ClusterId,
        _: VoteRequest<TypeConfig>,
    ) -> Result<VoteResponse<TypeConfig>, PeerRefusal> {
        Err(NOT_ASKED)
    }

    async fn pre_vote(
        self,
        _: context::Context,
        _: ClusterId,
        _: VoteRequest<TypeConfig>,
    ) -> Result<VoteResponse<TypeConfig>, PeerRefusal> {
        Err(NOT_ASKED)
    }

    async fn transfer_leader(
        self,
        _: context::Context,
        _: ClusterId,
        _: TransferLeaderRequest<TypeConfig>,
    ) -> Result<TransferLeaderResponse<TypeConfig>, PeerRefusal> {
        Err(NOT_ASKED)
    }

    async fn bootstrap_state(self, _: context::Context) -> PeerReport {
        let stage = ReplicaStage::Empty { store_id: 1 };
        PeerReport { replica: 2, members: BTreeMap::new(), root: VolumeSettings::DEFAULT, stage }
    }

    async fn bootstrap(self, _: context::Context, _: Bootstrap) -> Result<(), PeerRefusal> {
        Err(NOT_ASKED)
    }

    async fn rejoin(self, _: context::Context, _: u64, _: String, _: u64) -> Result<Admitted, MembershipRefusal> {
        Err(MembershipRefusal::Retry { reason: "not asked".to_owned() })
    }

    async fn replace(self, _: context::Context, _: u64, _: String) -> Result<(), MembershipRefusal> {
        Err(MembershipRefusal::Retry { reason: "not asked".to_owned() })
    }

    async fn join(self, _: context::Context, _: ClusterId, _: u64, _: String) -> Result<Joining, MembershipRefusal> {
        Err(MembershipRefusal::Retry { reason: "not asked".to_owned() })
    }
}

/// Sends a snapshot of some pieces. Returns the outcome and the time that it took.
async fn sent(to: &Slow) -> (SentSnapshot, Duration) {
    let dir = tempfile::tempdir().expect("a directory");
    let (store, ..) = StateStore::open(&dir.path().join("state"), Poison::default()).expect("opens");
    store.begin(State::new(VolumeSettings::DEFAULT)).await.expect("begins");
    let applied = LogId::new(openraft::vote::leader_id_std::CommittedLeaderId::new(1), 1);
    // The rows have no meaning, because nobody reads them.
    let row = |number: usize| (vec![0xee, number as u8], Some(vec![number as u8; PIECE_BYTES - 64]));
    store.write(applied, None, (1..PIECES).map(row)).await.expect("written");
    let view = store.view().await.expect("viewed");
    let meta = crate::raft::types::alias::SnapshotMeta {
        last_log_id: Some(applied),
        last_membership: StoredMembership::default(),
    };
    let cluster = ClusterId { founder: 1, nonce: 5 };
    let identity = StoreIdentity {
        replica: 1,
        cluster,
        root: VolumeSettings::DEFAULT,
        participation: Participation::Bootstrapped,
    };
    let mut network = PeerNetworks {
        replica: 1,
        identity: Arc::new(RwLock::new(Some(identity))),
        append_timeout: STALL,
        snapshot_stall: STALL,
        reaches: PeersReach::default(),
    };
    let address = to.listen().await;
    let peer = network.new_client(2, &openraft::BasicNode::new(address)).await;
    let began = Instant::now();
    let snapshot = RaftSnapshot { meta, snapshot: StateSnapshot::View(view) };
    let outcome = peer.send_snapshot(Vote::new_committed(1, 1), snapshot).await;
    (outcome, began.elapsed())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_receiver_gets_all_of_a_snapshot_however_long_it_takes() {
    let slow = Slow::new(u64::MAX, 8);
    let (outcome, took) = sent(&slow).await;
    assert!(outcome.is_ok(), "{outcome:?}");
    let received = slow.received.load(Ordering::SeqCst);
    println!("{received} pieces and an installation took {took:.2?}, with {STALL:?} for each step");
    assert!(received >= PIECES as u64 - 1, "{received} pieces");
    assert!(took > 4 * STALL, "{took:?}: longer than one step may take was to be shown");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receiver_that_stands_still_is_given_up() {
    let still = Slow::new(3, 0);
    let (outcome, took) = sent(&still).await;
    assert!(
        matches!(outcome, Err(StreamingError::Timeout(_))),
        "{outcome:?}: expected that it acknowledged nothing in time"
    );
    println!("given up after {took:.2?}: three pieces of {:?}, and {STALL:?} of silence", still.each);
    assert!((STALL..STALL + GENEROUS).contains(&took), "{took:?}: expected {STALL:?} and three pieces");
    assert_eq!(still.received.load(Ordering::SeqCst), 4, "the fourth piece is not acknowledged");
}
