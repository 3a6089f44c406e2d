//! The time from an election until the leader can promise leases.

use std::time::Duration;

use leasehold_protocol::{
    id::LeaseId,
    message::{Answer, Body, KeepAliveResult, KeyLeaseRenewal},
    state::State,
};

use crate::{Figures, leader::Leader, spans::shown};

/// A leader is elected, begins its epoch, and renews a lease.
pub(crate) fn measure(state: &State, commit: Duration) -> Figures {
    let mut leader = Leader::elected(state.clone(), commit);
    let elected = leader.nanos();
    let mut begin = Duration::ZERO;
    while leader.lessor.epoch().is_none() {
        begin = leader.run_next_event().step;
    }
    let begun = Duration::from_nanos(leader.nanos() - elected);
    leader.open();
    let leases = vec![KeyLeaseRenewal { id: LeaseId(0), incarnation: None }];
    let kept = leader.ask(Body::KeepAlive { leases });
    let Ok(Answer::KeptAlive(kept)) = kept else { panic!("a renewal is answered: {kept:?}") };
    assert!(
        kept.iter().all(|kept| matches!(kept.result, KeepAliveResult::Renewed(_))),
        "a new leader cuts no lease short: {kept:?}"
    );
    vec![
        ("new leader: the step that begins its epoch".to_owned(), shown(begin)),
        ("new leader: elected until it can promise, a commit included".to_owned(), shown(begun)),
    ]
}
