//! The servers. Each is asked by itself, so that they answer without a leader too, and those that do not are seen.

use std::collections::BTreeMap;

use clap::Subcommand;
use futures::future::join_all;
use leasehold_client_cache::{ClockInfo, ClusterInfo, InspectError, Unavailable};
use serde::Serialize;

use crate::{
    context::Context,
    duration,
    exit::Failure,
    output::{Table, Text, visible},
};

/// `cluster …`
#[derive(Debug, Subcommand)]
pub(crate) enum Cluster {
    /// Show the replicas: who leads, who votes, how far each is, and who does not answer
    Status,
}

/// The cluster, as its replicas see it.
#[derive(Debug, Serialize)]
pub(crate) struct StatusAnswer {
    leader: Option<u64>,
    epoch: u64,
    revision: u64,
    members: Vec<Member>,
    /// How many clients' clocks and the leader's differ by more than they are allowed to.
    clocks_beyond: u64,
    /// Some of those clients.
    clocks: Vec<Clock>,
}

/// A client whose clock and the leader's differ by more than they are allowed to: it serves nothing from memory.
#[derive(Debug, Serialize)]
struct Clock {
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

impl From<&ClockInfo> for Clock {
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
struct Member {
    replica: u64,
    address: String,
    voter: bool,
    leader: bool,
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

type Asked = (String, Result<ClusterInfo, String>);

/// Asks the endpoints, and then the members that they name.
pub(crate) async fn status(context: &Context) -> Result<StatusAnswer, Failure> {
    let endpoints = context.endpoints().to_vec();
    let mut answers = ask_all(context, endpoints.clone()).await;
    let known = answers.iter().map(|(address, _)| address.clone()).collect::<Vec<_>>();
    let infos = || answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
    let heard: Vec<u64> = infos().map(|info| info.replica).collect();
    // A server may be known to its cluster by another address than the one that it was asked at.
    let others: BTreeMap<u64, String> = infos()
        .flat_map(|info| &info.members)
        .filter(|member| !heard.contains(&member.replica) && !known.contains(&member.address))
        .map(|member| (member.replica, member.address.clone()))
        .collect();
    answers.extend(ask_all(context, others.into_values().collect()).await);
    merge(&endpoints, answers)
}

async fn ask_all(context: &Context, addresses: Vec<String>) -> Vec<Asked> {
    join_all(addresses.into_iter().map(|address| async move {
        let answer = leasehold_client_cache::cluster(&address, context.timeout()).await;
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

/// One picture from what each said: of the members from whoever has come furthest, of each from itself.
fn merge(endpoints: &[String], answers: Vec<Asked>) -> Result<StatusAnswer, Failure> {
    let infos = || answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
    let Some(newest) = infos().max_by_key(|info| (info.epoch, info.leader == Some(info.replica), info.revision)) else {
        let reasons: Vec<String> = answers.iter().filter_map(|(_, answer)| answer.as_ref().err().cloned()).collect();
        let text = format!("no server answers at {}: {}", endpoints.join(", "), reasons.join("; "));
        return Err(Failure::unavailable(text));
    };
    let members = newest.members.iter().map(|member| {
        let own = infos().find(|info| info.replica == member.replica);
        let error = answers.iter().find(|(address, _)| *address == member.address).map(|(_, answer)| answer);
        let error = error.and_then(|answer| answer.as_ref().err().cloned());
        Member {
            replica: member.replica,
            address: member.address.clone(),
            voter: member.is_voter,
            leader: newest.leader == Some(member.replica),
            answers: own.is_some(),
            matched: member.matched,
            applied: own.and_then(|own| own.members.iter().find(|it| it.replica == own.replica)?.applied),
            epoch: own.map(|own| own.epoch.0),
            revision: own.map(|own| own.revision.0),
            error: error.filter(|_| own.is_none()),
        }
    });
    Ok(StatusAnswer {
        leader: newest.leader,
        epoch: newest.epoch.0,
        revision: newest.revision.0,
        members: members.collect(),
        clocks_beyond: newest.clocks_beyond,
        clocks: newest.clocks.iter().map(Clock::from).collect(),
    })
}

impl Text for StatusAnswer {
    fn text(&self, out: &mut Vec<u8>) {
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
        if self.leader.is_none() {
            out.extend_from_slice(b"no leader is known: an election is under way, or there is no quorum\n");
        }
        self.write_clocks(out);
    }

    fn note(&self) -> Option<String> {
        let errors = self.members.iter().filter_map(|member| member.error.clone()).collect::<Vec<_>>();
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
        for Clock { session, name, ppm, allowed_ppm, .. } in &self.clocks {
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
        let status = merge(&endpoints, answers).expect("two answer");
        assert_eq!((status.leader, status.epoch), (Some(2), 7));
        let seen: Vec<_> =
            status.members.iter().map(|m| (m.replica, m.leader, m.answers, m.applied, m.epoch)).collect();
        let expected =
            [(1, false, true, Some(10), Some(4)), (2, true, true, Some(20), Some(7)), (3, false, false, None, None)];
        assert_eq!(seen, expected);
        assert_eq!(status.members[2].error.as_deref(), Some("cannot connect to h:3"));
    }

    #[test]
    fn nobody_answering_is_unavailable_with_the_reasons() {
        let failure =
            merge(&["h:1".to_owned()], vec![("h:1".to_owned(), Err("refused".to_owned()))]).expect_err("none");
        assert_eq!(failure.kind, "unavailable");
        assert!(failure.message.contains("no server answers at h:1: refused"), "{}", failure.message);
    }
}
