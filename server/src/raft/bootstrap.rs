//! How a replica with an empty store enters a cluster: a safe bootstrap, and a safe rejoin after
//! its disk was lost.
//!
//! **The danger.** Raft relies on every voter to remember its vote and the entries that it has
//! acknowledged. A replica whose disk was wiped has forgotten both, and looks like a new one. If it
//! voted at once, two leaders could be elected in one Raft term, or a leader that lacks a committed
//! entry. Acknowledged writes would be lost, although only a minority of the disks was (S11).
//!
//! **The rule.** A replica with an empty store answers none of Raft's messages and does not
//! campaign. It asks all other members for their stage:
//!
//! - *A member takes part in a cluster* → it asks that cluster's leader to let it rejoin
//!   (`ReplicaNode::request_rejoin`).
//! - *All are empty* → the one with the lowest id bootstraps a cluster.
//! - *A member does not answer* → it waits and asks again. The absent member may have what this
//!   replica has forgotten.
//!
//! A replica with a [store identity](crate::store::store_identity) starts at once. A cluster of one
//! bootstraps itself at once.
//!
//! **Why the rejoin is safe.** E is the empty replica, C the configuration in which it is a voter,
//! and C′ the same without E. L is the leader, in Raft term T.
//!
//! 1. Until L admits it, E is silent. To Raft that is a crash, so it needs no argument.
//! 2. After E's request, L proves its leadership. Then it commits C′ by a joint change, which a
//!    majority of C without E acknowledges. Call these replicas W.
//! 3. Only then L lets E start, with an empty log. E is no member; the next entry makes it a
//!    learner, which has no vote. L's vote is E's *floor*: E never votes in a Raft term up to T.
//!
//! Let E vote in a Raft term t > T. Could that elect a leader Y although E's forgotten vote helped
//! to elect a leader X, or a Y that lacks a committed entry? Y needs E as a voter in its own
//! configuration, so its log lacks L's entry with C′. So Y needs a majority of C. That majority has
//! a member in W: W, and the majority without E, together have more members than C without E.
//!
//! That member acknowledged L's entry in T < t, before it voted in t. So it does not vote for Y,
//! whose log is older. The same holds for X. So neither Y nor X exists: E's votes, old or new,
//! elect nobody in t. Later E is like any new member: a learner, then, once caught up, a voter.
//!
//! If a majority of C is lost with E, the joint change never commits, and E waits. S11 does not
//! promise to survive that. (Of two members, a wiped one always needs an operator.)
//!
//! **Only from its address.** The membership records E's address, and only the process there is E.
//! The leader asks that address itself, whatever address the request names. So a second process
//! with E's id cannot evict a healthy E. That process is refused for good, and exits.
//!
//! **Every step can be repeated.** E's request names its store id. Before the leader removes E, it
//! asks E whether it is still empty under that id: a delayed request removes no replica that has
//! returned. If the leader dies half-way, E asks the next one, which finds E removed, or removes
//! it. E persists its store identity, with the floor, before its Raft starts. After a restart it
//! continues from there, and asks until it is a voter (`ReplicaNode::become_voter`).
//!
//! **Why the bootstrap is safe.** An empty member cannot know whether it is new or was wiped. So a
//! cluster is bootstrapped only when all members have durably accepted it, and none has taken part
//! in another. If one were absent, the others might be wiped, and the new cluster would lack its
//! data. A member that has voted or stored an entry in one bootstrap refuses all others.
//!
//! Several bootstraps can be in progress, if members at first reach different other members. Each
//! has a random name, and only its founder initialises it. Before that, a founder abandons its
//! bootstrap for good when it hears of a bootstrap with a lower founder. A member that accepted the
//! abandoned one learns that from its founder, and may accept another. The price is that a
//! cluster's first start waits for every member.

mod wait;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures::{StreamExt, stream::FuturesUnordered};
use openraft::{
    BasicNode,
    errors::{InitializeError, RaftError},
};
use tarpc::{client::RpcError, context::Context};

use self::wait::BootstrapWait;
use super::{
    error::ReplicaStartError,
    link::{CallError, PeerLink, ask},
    node::ReplicaNode,
    peer::{Admitted, Bootstrap, Joining, MembershipRefusal, PeerClient, PeerRefusal, PeerReport, ReplicaStage},
};
use crate::store::store_identity::{ClusterId, Participation, StoreIdentity};

/// How long to wait for a member to accept a bootstrap.
const OFFER_TIMEOUT: Duration = Duration::from_secs(1);
/// The interval between two rounds of questions to the others.
const POLL: Duration = Duration::from_millis(100);
/// The longest wait for the leader to change the membership.
const REJOIN_TIMEOUT: Duration = Duration::from_secs(10);

impl ReplicaNode {
    /// Brings this replica into its cluster, however long that takes.
    pub(super) async fn bootstrap(self: Arc<Self>) {
        let result = self.enter_cluster().await;
        if let Err(error) = result
            && !self.is_closing()
        {
            self.poison.poison(error.to_string());
        }
    }

    async fn enter_cluster(self: &Arc<Self>) -> Result<(), ReplicaStartError> {
        let mut waits = BootstrapWait::default();
        while !self.is_closing() {
            match self.identity() {
                None => self.discover(&mut waits).await?,
                Some(StoreIdentity { participation: Participation::Bootstrapped, cluster, .. })
                    if cluster.founder == self.config.id && !self.has_participated() =>
                {
                    self.bootstrap_cluster(cluster).await?;
                }
                Some(StoreIdentity { participation: Participation::Rejoining { .. }, cluster, .. }) => {
                    self.start_raft().await?;
                    self.become_voter(cluster, &mut waits).await?;
                }
                Some(_) => {
                    self.start_raft().await?;
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Asks the other members once, and acts on their answers.
    async fn discover(self: &Arc<Self>, waits: &mut BootstrapWait) -> Result<(), ReplicaStartError> {
        let others = self.others();
        if others.is_empty() {
            return self.begin_bootstrap().await;
        }
        let reports = self.ask_all().await?;
        let mut lowest = self.config.id;
        let mut free = 1;
        for report in &reports {
            match &report.stage {
                ReplicaStage::Started { leader, .. } => {
                    return self.request_rejoin(report, leader.clone(), waits).await;
                }
                // Wait: its founder will ask this replica too.
                ReplicaStage::Bootstrapping { cluster } if cluster.founder < self.config.id => {
                    return self.rest().await;
                }
                // A bootstrap that this replica began, and then abandoned or forgot; or one that
                // yields to this replica's.
                ReplicaStage::Bootstrapping { .. } => free += 1,
                ReplicaStage::Empty { .. } => {
                    free += 1;
                    lowest = lowest.min(report.replica);
                }
            }
        }
        if lowest == self.config.id && free == self.config.members.len() {
            return self.begin_bootstrap().await;
        }
        let answered: BTreeSet<u64> = reports.iter().map(|report| report.replica).collect();
        waits.members(free < self.config.members.len(), answered);
        self.rest().await
    }

    async fn rest(&self) -> Result<(), ReplicaStartError> {
        tokio::select! {
            () = tokio::time::sleep(POLL) => {}
            () = self.closing.cancelled() => {}
        }
        Ok(())
    }

    /// Calls the leader, or a replica that may know it. Fails when this replica is closed.
    async fn call_leader<T, F>(
        &self,
        address: &str,
        call: impl FnOnce(PeerClient, Context) -> F,
    ) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, RpcError>>,
    {
        let link = PeerLink::new(address);
        tokio::select! {
            answer = link.call(REJOIN_TIMEOUT, call) => answer,
            () = self.closing.cancelled() => Err(CallError::Rpc(RpcError::Shutdown)),
        }
    }

    /// Asks all other members for their stage. Returns the answers that arrive.
    async fn ask_all(&self) -> Result<Vec<PeerReport>, ReplicaStartError> {
        let asked: FuturesUnordered<_> =
            self.others().into_iter().map(|(id, address)| async move { (id, ask(&address).await, address) }).collect();
        let answers: Vec<_> = asked.collect().await;
        self.rounds.fetch_add(1, Ordering::Relaxed);
        let mut reports = Vec::new();
        for (id, answer, address) in answers {
            let Ok(report) = answer else { continue };
            if report.replica != id {
                return Err(ReplicaStartError::OtherReplica { address, got: report.replica, expected: id });
            }
            // The configuration of a running cluster's member no longer matters: the cluster's
            // record counts.
            if !matches!(report.stage, ReplicaStage::Started { .. }) {
                self.compare(&report)?;
            }
            reports.push(report);
        }
        Ok(reports)
    }

    fn compare(&self, report: &PeerReport) -> Result<(), ReplicaStartError> {
        let differ =
            |got: String, expected: String| ReplicaStartError::Configuration { replica: report.replica, got, expected };
        if report.members != self.config.members {
            return Err(differ(format!("members {:?}", report.members), format!("{:?}", self.config.members)));
        }
        if report.root != self.config.root {
            return Err(differ(format!("the root volume {:?}", report.root), format!("{:?}", self.config.root)));
        }
        Ok(())
    }

    /// Chooses a cluster's name. [`bootstrap_cluster`](Self::bootstrap_cluster) continues.
    async fn begin_bootstrap(self: &Arc<Self>) -> Result<(), ReplicaStartError> {
        let _changing = self.membership_lock.lock().await;
        if self.identity().is_some() {
            return Ok(());
        }
        let cluster = ClusterId { founder: self.config.id, nonce: rand::random() };
        let identity = StoreIdentity {
            replica: self.config.id,
            cluster,
            root: self.config.root,
            participation: Participation::Bootstrapped,
        };
        tracing::info!(%cluster, "bootstrapping a new cluster");
        self.set_identity(Some(identity)).await.map_err(ReplicaStartError::Store)
    }

    /// Offers the bootstrap to all members. Initialises the cluster if all have accepted.
    async fn bootstrap_cluster(self: &Arc<Self>, cluster: ClusterId) -> Result<(), ReplicaStartError> {
        let gives_way = |other: ClusterId| other != cluster && other.founder < cluster.founder;
        for report in self.ask_all().await? {
            match report.stage {
                ReplicaStage::Started { cluster: other, .. } if other != cluster => {
                    return self.abandon_bootstrap(cluster, other).await;
                }
                ReplicaStage::Bootstrapping { cluster: other } if gives_way(other) => {
                    return self.abandon_bootstrap(cluster, other).await;
                }
                _ => {}
            }
        }
        let bootstrap = Bootstrap { cluster, members: self.config.members.clone(), root: self.config.root };
        let offers: FuturesUnordered<_> = self
            .others()
            .into_values()
            .map(|address| {
                let bootstrap = bootstrap.clone();
                async move { offer(&address, bootstrap).await }
            })
            .collect();
        let answers: Vec<_> = offers.collect().await;
        let mut accepted = 1;
        for answer in answers {
            match answer {
                Ok(()) => accepted += 1,
                Err(CallError::Refused(PeerRefusal::OtherCluster { got, .. })) if gives_way(got) => {
                    return self.abandon_bootstrap(cluster, got).await;
                }
                Err(CallError::Refused(PeerRefusal::Configuration { replica, got, expected })) => {
                    return Err(ReplicaStartError::Configuration { replica, got, expected });
                }
                Err(error) => tracing::debug!(%error, "a member has not accepted the founding"),
            }
        }
        if accepted < self.config.members.len() {
            return self.rest().await;
        }
        self.initialise(cluster).await
    }

    async fn initialise(self: &Arc<Self>, cluster: ClusterId) -> Result<(), ReplicaStartError> {
        let _changing = self.membership_lock.lock().await;
        if self.identity().is_none_or(|identity| identity.cluster != cluster) {
            return Ok(());
        }
        let raft = self.start_raft().await?;
        let members: BTreeMap<u64, BasicNode> =
            self.config.members.iter().map(|(id, address)| (*id, BasicNode::new(address))).collect();
        match raft.initialize(members).await {
            Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
            Err(error) => Err(ReplicaStartError::Raft(error.to_string())),
        }
    }

    /// Abandons this replica's own bootstrap, unless it has initialised the cluster.
    async fn abandon_bootstrap(&self, cluster: ClusterId, other: ClusterId) -> Result<(), ReplicaStartError> {
        let changing = self.membership_lock.lock().await;
        if self.identity().is_some_and(|identity| identity.cluster == cluster) && !self.has_participated() {
            tracing::info!(cluster = %other, "this replica bootstraps no cluster: another one exists already, or goes first");
            self.set_identity(None).await.map_err(ReplicaStartError::Store)?;
        }
        drop(changing);
        self.rest().await
    }

    /// Takes part in a bootstrap, if this replica is free to.
    pub(super) async fn accept_bootstrap(self: &Arc<Self>, bootstrap: Bootstrap) -> Result<(), PeerRefusal> {
        let replica = self.config.id;
        let differ = |got: String, expected: String| PeerRefusal::Configuration { replica, got, expected };
        if bootstrap.members != self.config.members {
            return Err(differ(format!("members {:?}", self.config.members), format!("{:?}", bootstrap.members)));
        }
        if bootstrap.root != self.config.root {
            return Err(differ(format!("the root volume {:?}", self.config.root), format!("{:?}", bootstrap.root)));
        }
        let cluster = bootstrap.cluster;
        let stopped = |error: &dyn std::fmt::Display| PeerRefusal::Stopped { replica, reason: error.to_string() };
        let _changing = self.membership_lock.lock().await;
        let mut switching = None;
        if let Some(identity) = self.identity() {
            if identity.cluster == cluster {
                return Ok(());
            }
            let refusal = PeerRefusal::OtherCluster { replica, got: identity.cluster, expected: cluster };
            if !self.may_leave(&identity, cluster).await {
                return Err(refusal);
            }
            // From here on, this replica accepts no message of the old bootstrap. An earlier one
            // must not have had an effect.
            switching = Some(self.cluster_switch_lock.write().await);
            if !self.is_untouched().await {
                return Err(refusal);
            }
        }
        let identity =
            StoreIdentity { replica, cluster, root: bootstrap.root, participation: Participation::Bootstrapped };
        tracing::info!(%cluster, "taking part in the bootstrap of a new cluster");
        self.set_identity(Some(identity)).await.map_err(|error| stopped(&error))?;
        drop(switching);
        self.start_raft().await.map_err(|error| stopped(&error))?;
        Ok(())
    }

    /// Whether the accepted bootstrap is abandoned, or yields to `other`.
    async fn may_leave(&self, identity: &StoreIdentity, other: ClusterId) -> bool {
        let founder = identity.cluster.founder;
        if identity.participation != Participation::Bootstrapped {
            return false;
        }
        if founder == self.config.id {
            return other.founder < founder;
        }
        if founder == other.founder {
            return true;
        }
        let Some(address) = self.config.members.get(&founder) else { return true };
        match ask(address).await.map(|report| report.stage) {
            Ok(ReplicaStage::Empty { .. }) => true,
            Ok(ReplicaStage::Bootstrapping { cluster } | ReplicaStage::Started { cluster, .. }) => {
                cluster != identity.cluster
            }
            Err(_) => false,
        }
    }

    /// Whether this replica has neither voted nor stored an entry, nor is about to. Raft answers
    /// this after all messages that it got before.
    async fn is_untouched(&self) -> bool {
        if self.has_participated() {
            return false;
        }
        let Some(raft) = self.raft() else { return true };
        let untouched = raft.with_raft_state(|state| {
            state.vote_ref().leader_id().term == 0 && state.membership_state.effective().log_id().is_none()
        });
        untouched.await.unwrap_or(false)
    }

    /// Asks the leader to let this replica rejoin.
    async fn request_rejoin(
        self: &Arc<Self>,
        report: &PeerReport,
        leader: Option<(u64, String)>,
        waits: &mut BootstrapWait,
    ) -> Result<(), ReplicaStartError> {
        let asked = leader.map(|(_, address)| address);
        let Some(asked) = asked.or_else(|| self.config.members.get(&report.replica).cloned()) else {
            return self.rest().await;
        };
        let (newcomer, address, life) = (self.config.id, self.address().to_owned(), self.store_id);
        waits.asks(&asked);
        let readmit =
            |client: PeerClient, context| async move { client.rejoin(context, newcomer, address, life).await };
        let answer = self.call_leader(&asked, readmit).await;
        match answer {
            Ok(Ok(Admitted { cluster, root, vote_floor })) => {
                let _changing = self.membership_lock.lock().await;
                if self.identity().is_some() {
                    return Ok(());
                }
                let identity = StoreIdentity {
                    replica: newcomer,
                    cluster,
                    root,
                    participation: Participation::Rejoining { vote_floor },
                };
                tracing::info!(%cluster, "this replica rejoins its cluster: it is no voter yet");
                self.set_identity(Some(identity)).await.map_err(ReplicaStartError::Store)
            }
            Ok(Err(MembershipRefusal::Refused { reason })) => Err(ReplicaStartError::Refused { reason }),
            Ok(Err(MembershipRefusal::Retry { reason })) => {
                waits.note_rejoin_refusal(&reason);
                self.rest().await
            }
            Ok(Err(MembershipRefusal::NotLeader { .. })) => {
                waits.note_rejoin_refusal("no leader is known: there is no quorum, or an election is under way");
                self.rest().await
            }
            Err(error) => {
                waits.note_rejoin_refusal(&error.to_string());
                self.rest().await
            }
        }
    }

    /// Asks to become a voter until this replica is one.
    async fn become_voter(
        self: &Arc<Self>,
        cluster: ClusterId,
        waits: &mut BootstrapWait,
    ) -> Result<(), ReplicaStartError> {
        let mut known = None;
        while !self.is_closing() {
            let asked: Vec<String> = match known.take().or_else(|| self.leadership.borrow().leader.clone()) {
                Some((_, address)) => vec![address],
                None => self.others().into_values().collect(),
            };
            for asked in asked {
                let (newcomer, address) = (self.config.id, self.address().to_owned());
                let join =
                    |client: PeerClient, context| async move { client.join(context, cluster, newcomer, address).await };
                let answer = self.call_leader(&asked, join).await;
                match answer {
                    Ok(Ok(Joining::Voter)) => {
                        let _changing = self.membership_lock.lock().await;
                        let Some(identity) = self.identity() else { return Ok(()) };
                        let returned = StoreIdentity { participation: Participation::Rejoined, ..identity };
                        tracing::info!("this replica is a voter again");
                        return self.set_identity(Some(returned)).await.map_err(ReplicaStartError::Store);
                    }
                    Ok(Err(MembershipRefusal::NotLeader { leader })) => known = leader,
                    Ok(Ok(Joining::CatchingUp { matched, last })) => waits.catches_up(matched, last),
                    Ok(Err(MembershipRefusal::Refused { reason })) => {
                        return Err(ReplicaStartError::Refused { reason });
                    }
                    Ok(Err(MembershipRefusal::Retry { reason })) => waits.note_not_voter(&reason),
                    Err(error) => waits.note_not_voter(&error.to_string()),
                }
            }
            self.rest().await?;
        }
        Ok(())
    }
}

async fn offer(address: &str, bootstrap: Bootstrap) -> Result<(), CallError> {
    let accepted = PeerLink::new(address)
        .call(OFFER_TIMEOUT, |client, context| async move { client.bootstrap(context, bootstrap).await })
        .await?;
    Ok(accepted?)
}
