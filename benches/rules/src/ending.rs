//! The expiry of leases that are no longer renewed: how late it is proposed, and how late applied.
//!
//! A lease is *due* when its end and the margin (T3 in docs/PROTOCOL.md) have passed by the
//! leader's own clock. That clock does not count all of a long step (T4), so the report also says
//! how far it fell behind.

use std::{collections::BTreeMap, time::Duration};

use leasehold_protocol::{
    command::{AnyLease, Command, Proposal},
    id::LeaseId,
    lessor::key_lease_margin,
    state::State,
    time::{ClusterTime, DriftAllowance},
};

use crate::{
    Figures,
    leader::{Leader, Leases},
    spans::{Spans, shown},
};

/// A new leader expires all leases, each when it is due.
pub(crate) fn measure(state: State, leases: Leases, commit: Duration) -> Figures {
    let due = due(&state);
    let mut leader = Leader::elected(state, commit);
    leader.begin();
    leader.proposed.clear();
    let (mut proposed, mut applied, mut steps) = (Spans::default(), Spans::default(), Spans::default());
    // The lateness of the ends in flight and the time of their proposal; then the first and the
    // last reading of both clocks.
    let (mut on_their_way, mut begun, mut ended) = (None, None, (0, ClusterTime::ZERO));
    while (applied.len() as u64) < leases.count {
        let step = leader.run_next_event();
        steps.add(step.step + step.apply);
        if !step.apply.is_zero()
            && let Some((late, taken)) = on_their_way.take()
        {
            let since = Duration::from_nanos(leader.nanos() - taken);
            let late: Vec<Duration> = late;
            late.into_iter().for_each(|late| applied.add(late + since));
        }
        while let Some((proposal, taken)) = leader.proposed.pop_front() {
            let late = late(&proposal, &due);
            late.iter().for_each(|late| proposed.add(*late));
            on_their_way = Some((late, taken));
            begun.get_or_insert((taken, proposal.time));
            ended = (taken, proposal.time);
        }
    }
    assert_eq!(leader.state.key_leases_after(None).count(), 0, "all have ended");
    let begun = begun.unwrap_or_default();
    let held_back = Duration::from_nanos(ended.0 - begun.0).saturating_sub(ended.1.since(begun.1));
    let spread = leases.spread;
    vec![
        (format!("end proposed after it was due, ends spread over {spread:?}: p50 · p99 · max"), proposed.summary()),
        ("end applied after it was due: p50 · p99 · max".to_owned(), applied.summary()),
        ("a step meanwhile, with what it applied: p50 · p99 · max".to_owned(), steps.summary()),
        ("the leader's clock was held back by".to_owned(), shown(held_back)),
    ]
}

/// When each lease is due by cluster time. A new leader starts each lease at its horizon.
fn due(state: &State) -> BTreeMap<LeaseId, ClusterTime> {
    let due = state.key_leases_after(None).map(|(id, lease)| {
        let margin = key_lease_margin(lease.term(), state.tick(), DriftAllowance::DEFAULT);
        (id, lease.horizon.after(margin))
    });
    due.collect()
}

/// How late the proposed ends are. None may be early.
fn late(proposal: &Proposal, due: &BTreeMap<LeaseId, ClusterTime>) -> Vec<Duration> {
    let ended = proposal.commands.iter().filter_map(|command| match command {
        Command::Expire { lease: AnyLease::KeyLease(id), .. } => Some(due[id]),
        _ => None,
    });
    let late = ended.map(|due| {
        assert!(due <= proposal.time, "an end that is due at {due} was proposed at {}", proposal.time);
        proposal.time.since(due)
    });
    late.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leader::state_with;

    #[test]
    fn each_lease_ends_once_and_none_before_it_is_due() {
        let leases = Leases { count: 3000, first: Duration::from_secs(1), spread: Duration::from_secs(2) };
        let commit = Duration::from_millis(2);
        let figures = measure(state_with(leases), leases, commit);
        assert_eq!(figures[0].0, "end proposed after it was due, ends spread over 2s: p50 · p99 · max");
        assert_eq!(figures.len(), 4);
    }

    #[test]
    fn ends_are_spread_evenly() {
        let leases = Leases { count: 1000, first: Duration::from_secs(1), spread: Duration::from_secs(10) };
        let mut terms: Vec<Duration> = (0..leases.count).map(|number| leases.term(number)).collect();
        assert!(!terms.is_sorted(), "in no order");
        terms.sort_unstable();
        let expected: Vec<Duration> = (0..1000).map(|rank| Duration::from_millis(1000 + 10 * rank)).collect();
        assert_eq!(terms, expected);
    }
}
