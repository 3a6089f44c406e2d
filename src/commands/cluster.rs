//! The servers. Each is asked by itself, so that they answer without a leader too, and those that
//! do not are seen.
//!
//! Endpoints may belong to two clusters. The one that most of the servers name is shown; the others
//! are named with theirs.
//!
//! A server leads if it says so itself, or if it does not answer here and a majority of the voters
//! say that they follow it. If none leads, or if no majority of the voters answers, there is no
//! quorum as far as this command can tell: its exit status is 3.

use std::{collections::BTreeMap, time::Duration};

use clap::{Args, Subcommand};
use futures::future::join_all;
use leasehold_client_cache::{ClockInfo, ClusterId, ClusterInfo, InspectError, ServerStatus, Unavailable};
use leasehold_server::raft::replacement::{self, ReplaceError};
use serde::Serialize;

use crate::{
    cli,
    context::Context,
    duration,
    exit::{CliStatus, CommandFailure},
    output::{Table, Text, visible},
};

/// How long one server may take to answer: one that hangs does not keep the others from being seen.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// `cluster …`
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Show the replicas: who leads, who votes, how far each is, and who does not answer
    Status,
    /// Say that a replica which has stopped, or is lost, comes back at another address
    ///
    /// It has no vote from then on. Start it at the new address with an empty folder and the new
    /// address in --cluster: the others let it in, and it has its vote again once it has their
    /// data.
    Replace(ReplaceArgs),
}

/// `cluster replace REPLICA ADDRESS`
#[derive(Debug, Args)]
pub(crate) struct ReplaceArgs {
    /// The replica, as `cluster status` shows it
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    replica: u64,
    /// Where it will listen, HOST:PORT
    #[arg(value_parser = cli::endpoint)]
    address: String,
}

/// The membership has a replica's new address.
#[derive(Debug, Serialize)]
pub(crate) struct ReplaceAnswer {
    replica: u64,
    address: String,
}

impl Text for ReplaceAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        let Self { replica, address } = self;
        let text = format!("replica {replica} comes back at {address}: start it there with an empty folder\n");
        out.extend_from_slice(text.as_bytes());
    }
}

impl ReplaceArgs {
    pub(crate) fn subject(&self) -> String {
        format!("replace {} {}", self.replica, self.address)
    }

    pub(crate) async fn run(self, context: &Context) -> Result<ReplaceAnswer, CommandFailure> {
        let Self { replica, address } = self;
        let endpoints = context.endpoints();
        match replacement::replace(endpoints, replica, &address, context.timeout()).await {
            Ok(()) => Ok(ReplaceAnswer { replica, address }),
            Err(error @ ReplaceError::Refused { .. }) => Err(CommandFailure::refused("replace", error)),
            Err(error @ ReplaceError::Unavailable { .. }) => Err(CommandFailure::unknown(error)),
        }
    }
}

/// The cluster, as its replicas see it.
#[derive(Debug, Serialize)]
pub(crate) struct StatusAnswer {
    /// The cluster, as its servers name it; none if none of them takes part in one yet.
    cluster: Option<String>,
    /// The server that says of itself that it leads, or that a majority follows.
    leader: Option<u64>,
    /// Whether there is one, and a majority of the voters answers.
    quorum: bool,
    epoch: u64,
    revision: u64,
    members: Vec<MemberRow>,
    /// Why endpoints that no member has as its address do not answer for this cluster.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    strangers: Vec<String>,
    /// How many clients' clocks and the leader's differ by more than they are allowed to.
    clocks_beyond: u64,
    /// Some of those clients.
    clocks: Vec<ClockRow>,
}

/// A client whose clock and the leader's differ by more than they are allowed to: it serves nothing
/// from memory.
#[derive(Debug, Serialize)]
struct ClockRow {
    session: u64,
    name: String,
    /// By how much the client's clock is fast compared with the leader's.
    ppm: i64,
    /// What both may differ by.
    allowed_ppm: u32,
    /// What the client counted, and what the leader counted meanwhile.
    client_ms: u64,
    server_ms: u64,
}

impl From<&ClockInfo> for ClockRow {
    fn from(info: &ClockInfo) -> Self {
        let ClockInfo { session, name, excess } = info;
        Self {
            session: session.0,
            name: name.clone(),
            ppm: excess.ppm(),
            allowed_ppm: excess.allowed_ppm,
            client_ms: duration::millis(excess.client),
            server_ms: duration::millis(excess.server),
        }
    }
}

/// A replica.
#[derive(Debug, Serialize)]
struct MemberRow {
    replica: u64,
    address: String,
    voter: bool,
    leader: bool,
    /// The server that it takes for the leader; none if it knows none, or does not answer.
    follows: Option<u64>,
    answers: bool,
    /// The last log index that the leader knows to be on its disk.
    matched: Option<u64>,
    /// What it says of itself; none if it does not answer.
    applied: Option<u64>,
    epoch: Option<u64>,
    revision: Option<u64>,
    /// Why it does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

type AskedServer<T> = (String, Result<T, String>);

/// Asks the endpoints, and then the members that they name.
pub(crate) async fn status(context: &Context) -> Result<StatusAnswer, CommandFailure> {
    let endpoints = context.endpoints().to_vec();
    let named = ask_all(context, endpoints.clone()).await;
    let cluster = most_named(&named);
    let mut answers: Vec<_> = named.into_iter().map(|asked| of(cluster, asked)).collect();
    let known = answers.iter().map(|(address, _)| address.clone()).collect::<Vec<_>>();
    let infos = || answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
    let heard: Vec<u64> = infos().map(|info| info.replica).collect();
    // A server may be known to its cluster by another address than the one that it was asked at.
    let others: BTreeMap<u64, String> = infos()
        .flat_map(|info| &info.members)
        .filter(|member| !heard.contains(&member.replica) && !known.contains(&member.address))
        .map(|member| (member.replica, member.address.clone()))
        .collect();
    let others = ask_all(context, others.into_values().collect()).await;
    answers.extend(others.into_iter().map(|asked| of(cluster, asked)));
    merge(&endpoints, cluster, answers)
}

/// The cluster that most of them name; of two that are named equally often, the one named first.
fn most_named(answers: &[AskedServer<ServerStatus>]) -> Option<ClusterId> {
    let named: Vec<ClusterId> = answers.iter().filter_map(|(_, answer)| answer.as_ref().ok()?.cluster).collect();
    let count = |id: &ClusterId| named.iter().filter(|named| *named == id).count();
    // The last of several maxima wins.
    named.iter().rev().max_by_key(|id| count(id)).copied()
}

/// What a server says of this cluster. One of another cluster says nothing of it.
fn of(cluster: Option<ClusterId>, (address, answer): AskedServer<ServerStatus>) -> AskedServer<ClusterInfo> {
    let info = answer.and_then(|status| match (status.cluster, cluster) {
        (Some(got), Some(expected)) if got != expected => {
            Err(format!("{address} serves another cluster, {got}: expected {expected}"))
        }
        _ => Ok(status.info),
    });
    (address, info)
}

async fn ask_all(context: &Context, addresses: Vec<String>) -> Vec<AskedServer<ServerStatus>> {
    join_all(addresses.into_iter().map(|address| async move {
        let answer = leasehold_client_cache::server_status(&address, context.timeout().min(ANSWER_TIMEOUT)).await;
        (address, answer.map_err(reason))
    }))
    .await
}

/// Who was asked is known already.
fn reason(error: InspectError) -> String {
    match error {
        InspectError::Unavailable { source: Unavailable::NoServer { reason, .. }, .. } => reason,
        other => other.to_string(),
    }
}

/// One picture from what each said: of the members from whoever has come furthest, of each from
/// itself.
fn merge(
    endpoints: &[String],
    cluster: Option<ClusterId>,
    answers: Vec<AskedServer<ClusterInfo>>,
) -> Result<StatusAnswer, CommandFailure> {
    let infos = || answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
    let Some(newest) = infos().max_by_key(|info| (info.epoch, info.leader == Some(info.replica), info.revision)) else {
        let reasons: Vec<String> = answers.iter().filter_map(|(_, answer)| answer.as_ref().err().cloned()).collect();
        let text = format!("no server answers at {}: {}", endpoints.join(", "), reasons.join("; "));
        return Err(CommandFailure::unavailable(text));
    };
    // Others may take one for the leader that has stopped, or was wiped.
    let voters: Vec<u64> =
        newest.members.iter().filter(|member| member.is_voter).map(|member| member.replica).collect();
    let leads = |replica: u64| match infos().find(|info| info.replica == replica) {
        Some(own) => own.leader == Some(replica),
        None => {
            let follow = infos().filter(|info| voters.contains(&info.replica) && info.leader == Some(replica));
            follow.count() * 2 > voters.len()
        }
    };
    let leader = newest.leader.filter(|leader| leads(*leader));
    let members = newest.members.iter().map(|member| {
        let own = infos().find(|info| info.replica == member.replica);
        let error = answers.iter().find(|(address, _)| *address == member.address).map(|(_, answer)| answer);
        let error = error.and_then(|answer| answer.as_ref().err().cloned());
        MemberRow {
            replica: member.replica,
            address: member.address.clone(),
            voter: member.is_voter,
            leader: leader == Some(member.replica),
            follows: own.and_then(|own| own.leader).filter(|leader| *leader != member.replica),
            answers: own.is_some(),
            matched: member.matched,
            applied: own.and_then(|own| own.members.iter().find(|it| it.replica == own.replica)?.applied),
            epoch: own.map(|own| own.epoch.0),
            revision: own.map(|own| own.revision.0),
            error: error.filter(|_| own.is_none()),
        }
    });
    let members: Vec<MemberRow> = members.collect();
    let (answering, voters) = votes(&members);
    // Servers that are no members: their errors have no row.
    let is_member = |address: &String| members.iter().any(|member| member.address == *address);
    let strangers = answers.iter().filter(|(address, _)| !is_member(address));
    let strangers = strangers.filter_map(|(_, answer)| answer.as_ref().err().cloned()).collect();
    Ok(StatusAnswer {
        cluster: cluster.map(|id| id.to_string()),
        strangers,
        leader,
        quorum: leader.is_some() && answering * 2 > voters,
        epoch: newest.epoch.0,
        revision: newest.revision.0,
        members,
        clocks_beyond: newest.clocks_beyond,
        clocks: newest.clocks.iter().map(ClockRow::from).collect(),
    })
}

/// How many voters answer, and how many there are.
fn votes(members: &[MemberRow]) -> (usize, usize) {
    let voters = || members.iter().filter(|member| member.voter);
    (voters().filter(|voter| voter.answers).count(), voters().count())
}

impl Text for StatusAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        if let Some(cluster) = &self.cluster {
            out.extend_from_slice(format!("cluster {cluster}\n").as_bytes());
        }
        let mut table =
            Table::new(&["REPLICA", "ADDRESS", "ROLE", "LEADER", "MATCHED", "APPLIED", "EPOCH", "REVISION", "ANSWERS"]);
        let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        for member in &self.members {
            table.row([
                member.replica.to_string(),
                member.address.clone(),
                if member.voter { "voter" } else { "learner" }.to_owned(),
                if member.leader { "*" } else { "" }.to_owned(),
                number(member.matched),
                number(member.applied),
                number(member.epoch),
                number(member.revision),
                if member.answers { "yes" } else { "no" }.to_owned(),
            ]);
        }
        table.write(out);
        let (answering, voters) = votes(&self.members);
        let silent = self.members.iter().find(|member| member.leader && !member.answers);
        if let Some(leader) = silent {
            let text = format!("the others follow replica {}, which does not answer here\n", leader.replica);
            out.extend_from_slice(text.as_bytes());
        }
        if answering * 2 <= voters {
            out.extend_from_slice(format!("no quorum: {answering} of {voters} voters answer\n").as_bytes());
        } else if self.leader.is_none() {
            out.extend_from_slice(b"no server leads: an election is under way\n");
        }
        self.write_clocks(out);
    }

    fn status(&self) -> CliStatus {
        if self.quorum { CliStatus::Done } else { CliStatus::Unavailable }
    }

    fn note(&self) -> Option<String> {
        let errors = self.members.iter().filter_map(|member| member.error.clone());
        let errors: Vec<String> = errors.chain(self.strangers.iter().cloned()).collect();
        (!errors.is_empty()).then(|| errors.join("; "))
    }
}

impl StatusAnswer {
    fn write_clocks(&self, out: &mut Vec<u8>) {
        if self.clocks_beyond == 0 {
            return;
        }
        let (count, shown) = (self.clocks_beyond, self.clocks.len());
        let heading = format!(
            "clocks beyond the drift allowance, compared with the leader's: {count}, of which {shown} are shown; these \
             clients serve nothing from memory\n"
        );
        out.extend_from_slice(heading.as_bytes());
        let mut table = Table::new(&["SESSION", "NAME", "DRIFT", "ALLOWED"]);
        for ClockRow { session, name, ppm, allowed_ppm, .. } in &self.clocks {
            let (drift, allowed) = (format!("{ppm:+} ppm"), format!("{allowed_ppm} ppm"));
            table.row([session.to_string(), visible(name), drift, allowed]);
        }
        table.write(out);
    }
}

#[cfg(test)]
mod tests {
    use leasehold_protocol::{
        id::{Epoch, Revision},
        message::MemberInfo,
    };

    use super::*;

    const CLUSTER: Option<ClusterId> = Some(ClusterId { founder: 1, nonce: 7 });

    fn info(replica: u64, leader: Option<u64>, epoch: u64) -> ClusterInfo {
        let member = |of: u64| MemberInfo {
            replica: of,
            address: format!("h:{of}"),
            is_voter: true,
            matched: (leader == Some(replica)).then_some(9),
            applied: (of == replica).then_some(of * 10),
        };
        ClusterInfo {
            replica,
            leader,
            epoch: Epoch(epoch),
            revision: Revision(epoch),
            members: [1, 2, 3].map(member).into(),
            clocks_beyond: 0,
            clocks: Vec::new(),
        }
    }

    #[test]
    fn each_replica_speaks_for_itself_and_the_silent_are_seen() {
        let endpoints = ["h:1".to_owned()];
        let answers = vec![
            ("h:1".to_owned(), Ok(info(1, None, 4))),
            ("h:2".to_owned(), Ok(info(2, Some(2), 7))),
            ("h:3".to_owned(), Err("cannot connect to h:3".to_owned())),
        ];
        let status = merge(&endpoints, CLUSTER, answers).expect("two answer");
        assert_eq!((status.leader, status.epoch, status.quorum), (Some(2), 7, true));
        assert_eq!((status.members[0].follows, status.members[1].follows), (None, None));
        let seen: Vec<_> =
            status.members.iter().map(|m| (m.replica, m.leader, m.answers, m.applied, m.epoch)).collect();
        let expected =
            [(1, false, true, Some(10), Some(4)), (2, true, true, Some(20), Some(7)), (3, false, false, None, None)];
        assert_eq!(seen, expected);
        assert_eq!(status.members[2].error.as_deref(), Some("cannot connect to h:3"));
    }

    #[test]
    fn leader_that_does_not_say_so_itself_is_none() {
        let endpoints = ["h:1".to_owned()];
        let silent = |of: u64| (format!("h:{of}"), Err(format!("cannot connect to h:{of}")));
        let (wiped, follower) = (("h:2".to_owned(), Ok(info(2, None, 0))), ("h:1".to_owned(), Ok(info(1, Some(2), 7))));
        let status = merge(&endpoints, CLUSTER, vec![follower, wiped, silent(3)]).expect("two answer");
        assert_eq!((status.leader, status.quorum), (None, false));
        assert_eq!((status.members[0].follows, status.members[1].leader), (Some(2), false));
        assert_eq!(status.status(), CliStatus::Unavailable);

        // It has no room for this command's connection, perhaps.
        let follower = |of: u64| (format!("h:{of}"), Ok(info(of, Some(2), 7)));
        let status = merge(&endpoints, CLUSTER, vec![follower(1), silent(2), follower(3)]).expect("two answer");
        assert_eq!((status.leader, status.quorum, status.members[1].answers), (Some(2), true, false));

        let status =
            merge(&endpoints, CLUSTER, vec![("h:1".to_owned(), Ok(info(1, Some(1), 7))), silent(2), silent(3)]);
        let status = status.expect("one answers");
        assert_eq!((status.leader, status.quorum), (Some(1), false));
        let mut text = Vec::new();
        status.text(&mut text);
        assert!(String::from_utf8_lossy(&text).ends_with("no quorum: 1 of 3 voters answer\n"));
    }

    #[test]
    fn cluster_that_most_servers_name_is_shown_and_others_are_named() {
        let other = Some(ClusterId { founder: 3, nonce: 9 });
        let named =
            |address: &str, cluster, of| (address.to_owned(), Ok(ServerStatus { cluster, info: info(of, Some(1), 4) }));
        let asked =
            vec![named("h:3", other, 3), named("h:1", CLUSTER, 1), named("h:9", None, 9), named("h:2", CLUSTER, 2)];
        assert_eq!(most_named(&asked), CLUSTER);
        assert_eq!(most_named(&asked[..2]), other, "of two that are named equally often, the first");
        let answers: Vec<_> = asked.into_iter().map(|asked| of(CLUSTER, asked)).collect();
        let status = merge(&["h:3".to_owned()], CLUSTER, answers).expect("two answer");
        assert_eq!((status.leader, status.quorum, status.members[2].answers), (Some(1), true, false));
        let error = status.members[2].error.clone().expect("it serves another cluster");
        assert!(error.contains("h:3 serves another cluster") && error.contains("expected"), "{error}");
        let mut text = Vec::new();
        status.text(&mut text);
        let text = String::from_utf8_lossy(&text);
        assert!(text.starts_with("cluster 00000000000000000000000000000007 (founded by replica 1)\n"), "{text}");
    }

    #[test]
    fn nobody_answering_is_unavailable_with_the_reasons() {
        let failure =
            merge(&["h:1".to_owned()], None, vec![("h:1".to_owned(), Err("refused".to_owned()))]).expect_err("none");
        assert_eq!(failure.kind, "unavailable");
        assert!(failure.message.contains("no server answers at h:1: refused"), "{}", failure.message);
    }
}
