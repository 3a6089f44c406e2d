//! Shows and changes the replicas. It asks each server separately, so it works without a leader,
//! and shows the servers that do not answer.
//!
//! Endpoints may belong to two clusters. It shows the cluster that most servers name; a server of
//! another cluster gets an error that names that cluster.
//!
//! A server leads if it says so itself. A server that does not answer leads if a majority of the
//! voters follow it. Without a leader, or if no majority of the voters answers, this command sees
//! no quorum and exits with status 3.

use std::{collections::BTreeMap, time::Duration};

use clap::{Args, Subcommand};
use futures::future::join_all;
use leasehold_client_cache::{ClockInfo, ClusterId, ClusterInfo, InspectError, ServerStatus, Unavailable};
use leasehold_server::raft::replacement::{self, ReplaceError};
use serde::Serialize;

use crate::{
    arguments,
    context::Context,
    duration::{self, duration_text},
    exit::{CliStatus, CommandFailure},
    failure::inspect_failure,
    output::{Table, Text, visible},
};

/// Time limit of one server's answer, so that one that hangs does not hide the others.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// `cluster …`
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Show the replicas: leader, voters, progress, and which do not answer
    Status,
    /// Give a replica that has stopped or is lost another address
    ///
    /// The replica has no vote from then on. Start it at the new address with an empty folder and
    /// the new address in --cluster. The others admit it, and it votes again once it has their
    /// data.
    Replace(ReplaceArgs),
}

/// `cluster replace REPLICA ADDRESS`
#[derive(Debug, Args)]
pub(crate) struct ReplaceArgs {
    /// Number of the replica, as shown by `cluster status`
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    replica: u64,
    /// Address where it will listen, HOST:PORT
    #[arg(value_parser = arguments::endpoint)]
    address: String,
}

/// The membership contains the replica's new address.
#[derive(Debug, Serialize)]
pub(crate) struct ReplaceAnswer {
    replica: u64,
    address: String,
}

impl Text for ReplaceAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        let Self { replica, address } = self;
        let text = format!("replica {replica}: recorded at {address}; start it there with an empty folder\n");
        out.extend_from_slice(text.as_bytes());
    }
}

impl ReplaceArgs {
    /// The subject of this command's errors.
    pub(crate) fn subject(&self) -> String {
        format!("replica {}", self.replica)
    }

    pub(crate) async fn run(self, context: &Context) -> Result<ReplaceAnswer, CommandFailure> {
        let Self { replica, address } = self;
        let endpoints = context.endpoints();
        match replacement::replace(endpoints, replica, &address, context.timeout()).await {
            Ok(()) => Ok(ReplaceAnswer { replica, address }),
            Err(error @ ReplaceError::Refused { .. }) => Err(CommandFailure::refused("replace", error)),
            Err(ReplaceError::Unavailable { within, reason }) => {
                let within = duration_text(within);
                Err(CommandFailure::unknown(format!("no leader recorded the new address within {within}: {reason}")))
            }
        }
    }
}

/// The cluster, by the answers of its replicas.
#[derive(Debug, Serialize)]
pub(crate) struct StatusAnswer {
    /// The cluster's id. `None` if no server is in a cluster yet.
    cluster: Option<String>,
    /// The server that says that it leads, or that a majority follows.
    leader: Option<u64>,
    /// Whether there is a leader and a majority of the voters answers.
    quorum: bool,
    epoch: u64,
    revision: u64,
    members: Vec<MemberRow>,
    /// The errors of endpoints that are not the address of a member.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    strangers: Vec<String>,
    /// The number of clients whose clocks differ from the leader's by more than the drift
    /// allowance.
    clocks_beyond: u64,
    /// Some of those clients.
    clocks: Vec<ClockRow>,
}

/// A client whose clock differs from the leader's by more than the drift allowance. It serves
/// nothing from memory.
#[derive(Debug, Serialize)]
struct ClockRow {
    session: u64,
    name: String,
    /// How much faster the client's clock runs than the leader's.
    ppm: i64,
    /// The drift allowance for both clocks.
    allowed_ppm: u32,
    /// One interval by the client's clock and by the leader's.
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

#[derive(Debug, Serialize)]
struct MemberRow {
    replica: u64,
    address: String,
    voter: bool,
    leader: bool,
    /// Its leader. `None` if it knows none or does not answer.
    follows: Option<u64>,
    answers: bool,
    /// The last log index that is on its disk, as the leader knows.
    matched: Option<u64>,
    /// From its own answer. `None` if it does not answer.
    applied: Option<u64>,
    epoch: Option<u64>,
    revision: Option<u64>,
    /// Why it does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

type AskedServer<T> = (String, Result<T, String>);

/// Asks the endpoints, then the members that they name.
pub(crate) async fn status(context: &Context) -> Result<StatusAnswer, CommandFailure> {
    let endpoints = context.endpoints().to_vec();
    let named = ask_all(context, endpoints.clone()).await;
    let cluster = most_named(&named);
    let mut answers: Vec<_> = named.into_iter().map(|asked| of(cluster, asked)).collect();
    let known = answers.iter().map(|(address, _)| address.clone()).collect::<Vec<_>>();
    let infos = || answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
    let heard: Vec<u64> = infos().map(|info| info.replica).collect();
    // A server's address in the cluster may differ from the endpoint that was asked.
    let others: BTreeMap<u64, String> = infos()
        .flat_map(|info| &info.members)
        .filter(|member| !heard.contains(&member.replica) && !known.contains(&member.address))
        .map(|member| (member.replica, member.address.clone()))
        .collect();
    let others = ask_all(context, others.into_values().collect()).await;
    answers.extend(others.into_iter().map(|asked| of(cluster, asked)));
    merge(&endpoints, cluster, answers)
}

/// The cluster that most servers name. In a tie, the one that was named first.
fn most_named(answers: &[AskedServer<ServerStatus>]) -> Option<ClusterId> {
    let named: Vec<ClusterId> = answers.iter().filter_map(|(_, answer)| answer.as_ref().ok()?.cluster).collect();
    let count = |id: &ClusterId| named.iter().filter(|named| *named == id).count();
    // `max_by_key` returns the last maximum.
    named.iter().rev().max_by_key(|id| count(id)).copied()
}

/// A server's answer about this cluster. A server of another cluster gets an error.
fn of(cluster: Option<ClusterId>, (address, answer): AskedServer<ServerStatus>) -> AskedServer<ClusterInfo> {
    let info = answer.and_then(|status| match (status.cluster, cluster) {
        (Some(got), Some(expected)) if got != expected => {
            Err(format!("{address}: belongs to another cluster, {got}; this is {expected}"))
        }
        _ => Ok(status.info),
    });
    (address, info)
}

async fn ask_all(context: &Context, addresses: Vec<String>) -> Vec<AskedServer<ServerStatus>> {
    join_all(addresses.into_iter().map(|address| async move {
        let answer = ask(context, &address).await;
        (address, answer)
    }))
    .await
}

/// Asks one server. An error omits the address, which the caller already knows.
pub(super) async fn ask(context: &Context, address: &str) -> Result<ServerStatus, String> {
    let answer = leasehold_client_cache::server_status(address, context.timeout().min(ANSWER_TIMEOUT)).await;
    answer.map_err(|error| match error {
        InspectError::Unavailable { source: Unavailable::NoServer { reason, .. }, .. } => reason,
        other => inspect_failure(&other).message,
    })
}

/// Merges the answers: the members from the most advanced server, each member's state from itself.
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
    // A follower may still name a leader that has stopped or lost its disk.
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
    // Endpoints that are no members have no row for their errors.
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

/// The numbers of answering voters and of voters.
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
            let text = format!("replica {}: the others follow it, but it does not answer\n", leader.replica);
            out.extend_from_slice(text.as_bytes());
        }
        if answering * 2 <= voters {
            out.extend_from_slice(format!("no quorum: {answering} of {voters} voters answer\n").as_bytes());
        } else if self.leader.is_none() {
            out.extend_from_slice(b"no leader: an election is under way\n");
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

        // The leader may have no room for this command's connection.
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
        assert!(error.contains("h:3: belongs to another cluster") && error.contains("this is"), "{error}");
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
