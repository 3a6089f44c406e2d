//! Very many sessions with a lease on one volume. It measures writes of nodes that no session has
//! cached, and how a new leader handles the registration and the holder report of each session.

use std::time::Duration;

use leasehold_protocol::{
    command::{Attach, Condition, Write},
    id::SessionId,
    message::{Answer, Body, HolderReportPart},
    path::NodePath,
    state::State,
};

use crate::{
    Figures,
    leader::{Leader, settings},
    spans::Spans,
};

/// Measured writes.
const WRITES: u64 = 2000;

/// All sessions have a lease on the root, and another session writes. Then another leader is
/// elected, and all sessions register with it and send it empty holder reports.
pub(crate) fn measure(sessions: u64, commit: Duration) -> Figures {
    let mut leader = Leader::elected(State::new(settings()), commit);
    leader.begin();
    let sessions: Vec<SessionId> = (0..sessions).map(|_| leader.join()).collect();
    // The writer's session has no volume lease. With one, it would cache the nodes that it writes.
    leader.open();
    let mut writes = Spans::default();
    for number in 0..WRITES {
        let path = NodePath::parse(&format!("/{}", number % 16)).expect("a valid path");
        let (value, condition) = ("there".into(), Condition::Any);
        writes.add(leader.write(Write::Put { path, value, condition, attach: Attach::Nothing }));
    }
    let mut leader = Leader::elected(leader.state, commit);
    leader.begin();
    let mut found = Spans::default();
    for session in &sessions {
        leader.act_for(*session);
        found.add(register_with_leases(&mut leader));
    }
    let count = sessions.len();
    vec![
        (format!("a write, {count} sessions in its volume: p50 · p99 · max"), writes.summary()),
        (
            format!("one of {count} sessions finds a new leader, and tells what it holds: p50 · p99 · max"),
            found.summary(),
        ),
    ]
}

/// Registers the session and sends the holder reports that the leader asks for.
fn register_with_leases(leader: &mut Leader) -> Duration {
    let (registered, mut took) = leader.time(Body::Register);
    let Ok(Answer::Registered { coverings }) = registered else { panic!("a session is registered: {registered:?}") };
    assert_eq!(coverings.len(), 1, "the leader does not know what is held under its lease");
    for covering in coverings {
        let (volume, incarnation, covering) = (covering.volume, covering.incarnation, covering.number);
        let piece = HolderReportPart { volume, incarnation, covering, part: 0, parts: 1, objects: Vec::new() };
        let (noted, more) = leader.time(Body::HolderReport(piece));
        assert!(matches!(noted, Ok(Answer::ReportReceived)), "{noted:?}");
        took += more;
    }
    took
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_session_is_found_again_and_every_write_counted() {
        let figures = measure(3, Duration::from_millis(2));
        assert_eq!(figures[0].0, "a write, 3 sessions in its volume: p50 · p99 · max");
        assert!(figures.iter().all(|(_, figure)| !figure.starts_with("0.00")), "{figures:?}");
    }
}
