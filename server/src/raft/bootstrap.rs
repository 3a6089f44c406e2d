//! How a replica with an empty store comes to take part: a safe founding, and a safe return after
//! its disk was lost.
//!
//! **The danger.** Raft counts on every voter to remember its vote and the entries that it has
//! acknowledged. A replica whose disk was wiped has forgotten both and cannot tell: it looks like a
//! new one. If it simply voted again, two leaders could be elected in one term, or a leader that
//! lacks a committed entry; what was acknowledged would be lost although only a minority of the
//! disks was (S11).
//!
//! **The rule.** A replica with an empty store answers none of Raft's messages and does not
//! campaign. It asks all other members where they stand, and:
//!
//! - *Somebody has taken part in a cluster* → it asks that cluster's leader to let it in again
//!   (`ReplicaNode::readmit`).
//! - *All are empty* → the one with the lowest id founds a cluster (`ReplicaNode::found`).
//! - *Somebody does not answer* → it waits and asks again: who is away may have what this replica
//!   has forgotten.
//!
//! A replica with a [standing](crate::store::standing) just starts. A cluster of one founds itself
//! at once.
//!
//! **Why the return is safe.** Let E be the empty replica, C the configuration in which it is a
//! voter, C′ the same without it. Until it is let in, E is silent, which Raft cannot tell from a
//! crash, so nothing that happens until then needs an argument. The leader L, in term T, proves its
//! leadership after E has asked, then has C′ committed by a joint change, which takes a majority of
//! C without E: call these replicas W. Only then it tells E to start, as a non-member with an empty
//! log (from the next entry on as a learner, which has no vote), and with L's vote as a *floor*: E
//! never votes in a term up to T. Could a vote that E gives afterwards, in a term t > T, elect a
//! leader Y beside a leader X that E's forgotten vote has helped, or one that lacks a committed
//! entry? Y needs E to be a voter in its own configuration, so it has not got L's entry with C′,
//! and it needs a majority of C, hence one member of W, as W and the rest of that majority together
//! are more than C has besides E. That member has L's entry, acknowledged in term T < t, so before
//! it voted in t: it does not vote for Y, whose log is older. The same holds for X. So neither
//! exists, and who is elected in t > T was elected without E, old or new. From there on E is a new
//! member like any other: a learner first, which decides nothing, then a voter by a joint change of
//! configuration once it has caught up.
//!
//! The joint change needs the other voters. If with E a majority of C is lost, it is never
//! committed, and E waits: that is more than S11 promises to survive. (Two members have no
//! minority: a wiped one of two waits for ever, and needs a person.)
//!
//! **Only from its address.** The membership records where E listens, and only the process there is
//! E: the leader asks that address itself, whatever address the request names. A second process
//! with E's id would otherwise evict a healthy E. It is refused for good, and ends with the reason.
//!
//! **Every step can be repeated.** E's request names its life, and before the leader removes E it
//! asks E back whether it is still empty in that life: a request that was delayed until E had
//! returned removes nobody. If the leader dies half-way, E asks the next one, which finds E removed
//! already, or removes it. E stores its standing, with the floor, before its Raft starts; if it
//! dies after that, it starts with it, and goes on asking to become a voter until it is one
//! (`ReplicaNode::become_voter`).
//!
//! **Why the founding is safe.** Members that are empty cannot tell being new from having been
//! wiped. So a cluster is founded only when all its members have durably accepted it, none of which
//! has taken part in anything: with one of them away, the others might be the wiped ones, and what
//! it has would be left out of the new cluster. Nobody takes part in two foundings: a member that
//! has voted or stored an entry in one refuses all others. Several can be under way, if members see
//! different others at first: each is named at random and initialised by its founder only. Those
//! with a higher founder give way. A founder gives up for good what it has not initialised as soon
//! as it hears of a lower one's; a member that has accepted that one is free then, which it learns
//! by asking the founder. The price is that the first start of a cluster waits for every member;
//! later ones do not.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use futures::{StreamExt, stream::FuturesUnordered};
use openraft::{
    BasicNode,
    errors::{InitializeError, RaftError},
};
use tarpc::{client::RpcError, context::Context};

use super::{
    network::{CallError, PeerLink},
    node::ReplicaNode,
    notice::{Notice, gist},
    peer::{Admitted, Bootstrap, Joining, MembershipRefusal, PeerClient, PeerRefusal, PeerReport, ReplicaStage},
    replica::ReplicaStartError,
};
use crate::store::store_identity::{ClusterId, Participation, StoreIdentity};

/// How long a member is waited for that is to accept a founding.
const OFFER_TIMEOUT: Duration = Duration::from_secs(1);
/// Others are asked this often.
const POLL: Duration = Duration::from_millis(100);
/// Longest wait for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// Longest wait for the leader to change the membership.
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

    /// One look around.
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
                // Its founder will ask us too.
                ReplicaStage::Bootstrapping { cluster } if cluster.founder < self.config.id => {
                    return self.rest().await;
                }
                // Ours, from before we gave up or were wiped; or one that gives way to ours.
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

    /// Calls the leader, or who may know it; gives up when this replica is closed.
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

    /// Asks all other members where they stand; answers of those that answer.
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
            // What a running cluster was configured with does not matter any more: its own record
            // counts.
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

    /// Names a cluster; [`found`](Self::found) goes on.
    async fn begin_bootstrap(self: &Arc<Self>) -> Result<(), ReplicaStartError> {
        let _changing = self.membership_lock.lock().await;
        if self.identity().is_some() {
            return Ok(());
        }
        let cluster = ClusterId { founder: self.config.id, nonce: rand::random() };
        let standing = StoreIdentity {
            replica: self.config.id,
            cluster,
            root: self.config.root,
            participation: Participation::Bootstrapped,
        };
        tracing::info!(%cluster, "bootstrapping a new cluster");
        self.set_identity(Some(standing)).await.map_err(ReplicaStartError::Store)
    }

    /// Offers the founding to all; initialises the cluster if they have accepted.
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
        if self.identity().is_none_or(|standing| standing.cluster != cluster) {
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

    /// Gives up a founding that only we could have initialised, and have not.
    async fn abandon_bootstrap(&self, cluster: ClusterId, other: ClusterId) -> Result<(), ReplicaStartError> {
        let changing = self.membership_lock.lock().await;
        if self.identity().is_some_and(|standing| standing.cluster == cluster) && !self.has_participated() {
            tracing::info!(cluster = %other, "this replica bootstraps no cluster: another one exists already, or goes first");
            self.set_identity(None).await.map_err(ReplicaStartError::Store)?;
        }
        drop(changing);
        self.rest().await
    }

    /// Takes part in a founding, if this replica is free to.
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
        if let Some(standing) = self.identity() {
            if standing.cluster == cluster {
                return Ok(());
            }
            let refusal = PeerRefusal::OtherCluster { replica, got: standing.cluster, expected: cluster };
            if !self.may_leave(&standing, cluster).await {
                return Err(refusal);
            }
            // From here on no message of the old founding comes in; none that came in before may
            // have been heard.
            switching = Some(self.cluster_switch_lock.write().await);
            if !self.is_untouched().await {
                return Err(refusal);
            }
        }
        let standing =
            StoreIdentity { replica, cluster, root: bootstrap.root, participation: Participation::Bootstrapped };
        tracing::info!(%cluster, "taking part in the bootstrap of a new cluster");
        self.set_identity(Some(standing)).await.map_err(|error| stopped(&error))?;
        drop(switching);
        self.start_raft().await.map_err(|error| stopped(&error))?;
        Ok(())
    }

    /// Whether the founding that this replica has accepted is none any more, or gives way to
    /// `other`.
    async fn may_leave(&self, standing: &StoreIdentity, other: ClusterId) -> bool {
        let founder = standing.cluster.founder;
        if standing.participation != Participation::Bootstrapped {
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
                cluster != standing.cluster
            }
            Err(_) => false,
        }
    }

    /// Whether this replica has neither voted nor stored an entry, nor is about to: Raft's own
    /// word, given after all that it was told before.
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

    /// Asks to be let in again.
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
                let standing = StoreIdentity {
                    replica: newcomer,
                    cluster,
                    root,
                    participation: Participation::Rejoining { vote_floor },
                };
                tracing::info!(%cluster, "this replica rejoins its cluster: it is no voter yet");
                self.set_identity(Some(standing)).await.map_err(ReplicaStartError::Store)
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

    /// Asks to become a voter until it is one.
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
                        let Some(standing) = self.identity() else { return Ok(()) };
                        let returned = StoreIdentity { participation: Participation::Rejoined, ..standing };
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

/// What this replica waits for, for the log.
#[derive(Debug, Default)]
struct BootstrapWait {
    members: Notice<BTreeSet<u64>>,
    asks: Notice<()>,
    answer: Notice<String>,
    voter: Notice<String>,
}

impl BootstrapWait {
    /// Notes whether members are missing, and which have answered.
    fn members(&mut self, are_missing: bool, answered: BTreeSet<u64>) {
        if !are_missing {
            self.members.ends();
        } else if self.members.is_due(answered.clone(), Instant::now()) {
            tracing::warn!(?answered, "waiting for the other members: a new cluster begins when all of them are there");
        }
    }

    fn asks(&mut self, leader: &str) {
        if self.asks.is_due((), Instant::now()) {
            tracing::info!(leader, "this replica's data folder is empty: asking the cluster to let it rejoin");
        }
    }

    fn note_rejoin_refusal(&mut self, reason: &str) {
        if self.answer.is_due(gist(reason), Instant::now()) {
            tracing::warn!(reason, "this replica may not rejoin its cluster yet");
        }
    }

    fn note_not_voter(&mut self, reason: &str) {
        if self.voter.is_due(gist(reason), Instant::now()) {
            tracing::warn!(reason, "this replica is no voter yet");
        }
    }

    fn catches_up(&mut self, matched: Option<u64>, last: Option<u64>) {
        if self.voter.is_due("catching up".to_owned(), Instant::now()) {
            tracing::info!(matched, last, "this replica is no voter yet: it is catching up");
        }
    }
}

/// Asks a member where it stands.
pub(super) async fn ask(address: &str) -> Result<PeerReport, CallError> {
    let link = PeerLink::new(address);
    let asked = link.call(ANSWER_TIMEOUT, |client, context| async move { client.bootstrap_state(context).await });
    tokio::time::timeout(ANSWER_TIMEOUT, asked).await.unwrap_or(Err(CallError::Rpc(RpcError::DeadlineExceeded)))
}

async fn offer(address: &str, bootstrap: Bootstrap) -> Result<(), CallError> {
    let accepted = PeerLink::new(address)
        .call(OFFER_TIMEOUT, |client, context| async move { client.bootstrap(context, bootstrap).await })
        .await?;
    Ok(accepted?)
}
