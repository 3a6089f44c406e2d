//! The calling side: one connection to one peer, opened on demand and reopened when it breaks.
//!
//! Entries are pipelined. Up to [`PIPELINE`] messages are in flight on one connection, in order, so
//! that followers combine several into one fsync. Heartbeats and snapshots have connections of
//! their own, and wait behind nothing.

use std::{
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{FutureExt, Stream, StreamExt, future::BoxFuture, stream::BoxStream};
use openraft::{
    OptionalSend, RPCTypes,
    errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::{RPCOption, RaftNetworkFactory, RaftNetworkV2},
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
        TransferLeaderResponse, VoteRequest, VoteResponse,
    },
};
use parking_lot::RwLock;
use tarpc::{client::RpcError, context};

use super::{
    link::{CallError, PeerLink, until},
    peer::{Installation, PeerClient, PeerRefusal},
    reach::{PeerReach, PeersReach},
    types::{
        TypeConfig,
        alias::{LogId, Vote},
    },
};
use crate::store::{
    snapshot::{RaftSnapshot, StateSnapshot, pieces},
    store_identity::{ClusterId, StoreIdentity},
};

/// The most messages with entries in flight to one follower. While the follower writes one to its
/// disk, the next one arrives, and later entries gather for the one after that. With a larger
/// number, messages would be smaller and more. The log's reads bound the bytes of each message, so
/// this bounds memory too.
const PIPELINE: usize = 2;
/// The pause before a snapshot call is repeated, after its connection broke.
const SNAPSHOT_RETRY: Duration = Duration::from_millis(100);
/// Opens connections when Raft requests them.
#[derive(Clone)]
pub struct PeerNetworks {
    pub(super) replica: u64,
    /// Names the cluster. It can change while a bootstrap is not complete.
    pub(super) identity: Arc<RwLock<Option<StoreIdentity>>>,
    /// The shortest timeout for entries, because a follower may be in an fsync.
    pub(super) append_timeout: Duration,
    /// See [`ReplicaConfig`](super::ReplicaConfig::snapshot_stall).
    pub(super) snapshot_stall: Duration,
    pub(super) reaches: PeersReach,
}

/// One connection to one peer, for one purpose.
pub struct PeerNetwork {
    network: PeerNetworks,
    target: u64,
    link: PeerLink,
    reach: Arc<PeerReach>,
}

impl RaftNetworkFactory<TypeConfig> for PeerNetworks {
    type Network = PeerNetwork;

    async fn new_client(&mut self, target: u64, node: &openraft::BasicNode) -> PeerNetwork {
        PeerNetwork { network: self.clone(), target, link: PeerLink::new(&node.addr), reach: self.reaches.of(target) }
    }
}

impl PeerNetwork {
    fn cluster(&self) -> Result<ClusterId, RPCError<TypeConfig>> {
        let identity = *self.network.identity.read();
        let nowhere = || RPCError::Unreachable(Unreachable::from_string("this replica belongs to no cluster"));
        Ok(identity.ok_or_else(nowhere)?.cluster)
    }

    fn failed(&self, action: RPCTypes, within: Duration, error: CallError) -> RPCError<TypeConfig> {
        self.reach.failed(&error);
        match error {
            CallError::Rpc(RpcError::DeadlineExceeded) => RPCError::Timeout(openraft::errors::Timeout {
                action,
                id: self.network.replica,
                target: self.target,
                timeout: within,
            }),
            CallError::Rpc(error) => RPCError::Network(NetworkError::from_string(error)),
            CallError::Connect(_) => RPCError::Unreachable(Unreachable::from_string(error)),
            CallError::Refused(refusal) => RPCError::Unreachable(Unreachable::from_string(refusal)),
        }
    }

    async fn call<T, F>(
        &self,
        action: RPCTypes,
        within: Duration,
        call: impl FnOnce(PeerClient, context::Context) -> F,
    ) -> Result<T, RPCError<TypeConfig>>
    where
        F: Future<Output = Result<Result<T, PeerRefusal>, RpcError>>,
    {
        let answer = self.link.call(within, call).await;
        let answer = answer.and_then(|answer| Ok(answer?)).map_err(|error| self.failed(action, within, error))?;
        self.reach.answered();
        Ok(answer)
    }

    async fn append(
        &self,
        client: PeerClient,
        request: AppendEntriesRequest<TypeConfig>,
        within: Duration,
    ) -> Result<Appended, RPCError<TypeConfig>> {
        let previous = request.prev_log_id;
        let last = request.entries.last().map_or(previous, |entry| Some(entry.log_id));
        let answer = self.link.note(client.append(until(within), self.cluster()?, request).await);
        let answer = answer
            .map_err(CallError::from)
            .and_then(|answer| Ok(answer?))
            .map_err(|error| self.failed(RPCTypes::AppendEntries, within, error))?;
        self.reach.answered();
        Appended::new(answer, previous, last)
    }

    /// Sends all pieces, then asks until they are installed. There is no limit on the total time:
    /// see [`Self::until_answered`].
    ///
    /// Each answer that the installation is in progress counts as progress: the receiver could not
    /// begin another installation before it ends.
    async fn send_snapshot(&self, vote: Vote, snapshot: RaftSnapshot) -> SentSnapshot {
        let StateSnapshot::View(view) = snapshot.snapshot else {
            return Err(StreamingError::Network(NetworkError::from_string("a received snapshot cannot be sent")));
        };
        let cluster = self.cluster()?;
        let transfer = rand::random();
        let mut offset = 0;
        let mut pieces = pieces(view);
        while let Some(piece) = pieces.recv().await {
            let piece = piece.map_err(|error| StreamingError::Network(NetworkError::new(&error)))?;
            let length = piece.len() as u64;
            self.until_answered(|client, context| {
                let piece = piece.clone();
                async move { client.snapshot_piece(context, cluster, transfer, offset, piece).await }
            })
            .await?;
            offset += length;
        }
        loop {
            let installation = self.until_answered(|client, context| async move {
                client.snapshot_install(context, cluster, vote, transfer, offset).await
            });
            if let Installation::Done(response) = installation.await? {
                return Ok(response);
            }
        }
    }

    /// Makes a call of a snapshot transfer. Repeats it while its connection breaks, until no answer
    /// came for [`snapshot_stall`](PeerNetworks::snapshot_stall).
    async fn until_answered<T, F>(
        &self,
        call: impl Fn(PeerClient, context::Context) -> F,
    ) -> Result<T, RPCError<TypeConfig>>
    where
        F: Future<Output = Result<Result<T, PeerRefusal>, RpcError>>,
    {
        let (stall, since) = (self.network.snapshot_stall, Instant::now());
        loop {
            let left = stall.saturating_sub(since.elapsed());
            let answer = self.link.call(left, &call).await;
            let is_broken = matches!(
                &answer,
                Err(CallError::Connect(_) | CallError::Rpc(RpcError::Shutdown | RpcError::Channel(_)))
            );
            if is_broken && since.elapsed() + SNAPSHOT_RETRY < stall {
                tokio::time::sleep(SNAPSHOT_RETRY).await;
                continue;
            }
            let answer = answer.and_then(|answer| Ok(answer?));
            let answer = answer.map_err(|error| self.failed(RPCTypes::InstallSnapshot, stall, error))?;
            self.reach.answered();
            return Ok(answer);
        }
    }
}

type SentSnapshot = Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>>;
type Responses<'s> = BoxStream<'s, Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>>;

/// The outcome of one message of a stream.
struct Appended {
    result: StreamAppendResult<TypeConfig>,
    /// Whether the peer took all of it. If not, later messages are useless.
    is_complete: bool,
}

impl Appended {
    fn new(
        answer: AppendEntriesResponse<TypeConfig>,
        previous: Option<LogId>,
        last: Option<LogId>,
    ) -> Result<Self, RPCError<TypeConfig>> {
        if answer.is_conflict() && previous.is_none() {
            let contradiction = "the peer says that its log contradicts the empty log";
            return Err(RPCError::Network(NetworkError::from_string(contradiction)));
        }
        let is_complete = match &answer {
            AppendEntriesResponse::Success => true,
            AppendEntriesResponse::PartialSuccess(upto) => *upto == last,
            AppendEntriesResponse::Conflict | AppendEntriesResponse::HigherVote(_) => false,
        };
        Ok(Self { result: answer.into_stream_result(previous, last), is_complete })
    }
}

impl RaftNetworkV2<TypeConfig> for PeerNetwork {
    type SnapshotData = StateSnapshot;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        let cluster = self.cluster()?;
        let within = option.soft_ttl().max(self.network.append_timeout);
        self.call(RPCTypes::AppendEntries, within, |client, context| async move {
            client.append(context, cluster, request).await
        })
        .await
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<Responses<'s>, RPCError<TypeConfig>>>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        let this = &*self;
        let within = option.soft_ttl().max(this.network.append_timeout);
        async move {
            // Raft delays the first message after an error. Connecting before that message exists
            // would retry at once, again and again while the peer is down.
            let mut input = input.peekable();
            if Pin::new(&mut input).peek().await.is_none() {
                return Ok(futures::stream::empty().boxed());
            }
            // All messages use one connection, because the pipeline relies on its order.
            let client = this.link.client().await;
            let client = client.map_err(|error| this.failed(RPCTypes::AppendEntries, within, error))?;
            let appended = input.map(move |request| this.append(client.clone(), request, within)).buffered(PIPELINE);
            let responses = futures::stream::unfold(Some(Box::pin(appended)), |appended| async move {
                let mut appended = appended?;
                match appended.next().await? {
                    // If a message was not taken completely, later ones are useless: the stream
                    // ends.
                    Ok(Appended { result, is_complete }) => Some((Ok(result), is_complete.then_some(appended))),
                    Err(error) => Some((Err(error), None)),
                }
            });
            Ok(responses.boxed())
        }
        .boxed()
    }

    async fn vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        let cluster = self.cluster()?;
        self.call(RPCTypes::Vote, option.soft_ttl(), |client, context| async move {
            client.vote(context, cluster, request).await
        })
        .await
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        let cluster = self.cluster()?;
        self.call(RPCTypes::Vote, option.soft_ttl(), |client, context| async move {
            client.pre_vote(context, cluster, request).await
        })
        .await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: RaftSnapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> SentSnapshot {
        tokio::select! {
            sent = self.send_snapshot(vote, snapshot) => sent,
            closed = cancel => Err(StreamingError::Closed(closed)),
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        let cluster = self.cluster()?;
        self.call(RPCTypes::TransferLeader, option.soft_ttl(), |client, context| async move {
            client.transfer_leader(context, cluster, request).await
        })
        .await
    }
}

#[cfg(test)]
mod tests;
