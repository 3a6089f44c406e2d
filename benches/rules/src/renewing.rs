//! Renewals of all leases: the cost of a renewal, and of a tick, which moves the horizons of all
//! leases renewed since the last tick.

use std::time::Duration;

use leasehold_protocol::{
    command::Command,
    id::LeaseId,
    lessor::LessorEffect,
    message::{Answer, Body, KEEP_ALIVES_MAX, KeepAliveResult, KeyLeaseRenewal},
    state::State,
};

use crate::{
    Figures,
    leader::{Leader, LeaderStep, Leases},
    spans::{Spans, shown},
};

/// The interval between two renewals of a lease: a third of a term of a minute, as clients do it.
const ROUND: Duration = Duration::from_secs(20);

/// How long renewals are measured: several ticks.
const MEASURED: Duration = Duration::from_secs(8);

/// The steps, by their kind.
#[derive(Debug, Default)]
struct Steps {
    /// One renewal and nothing else.
    renewals: Spans,
    /// The step that proposed a tick; the application of a tick; the step after that.
    proposing: Spans,
    applying: Spans,
    after: Spans,
    /// The most renewals in a tick.
    largest: usize,
}

impl Steps {
    fn note(&mut self, leader: &mut Leader, step: &LeaderStep, is_renewal: bool) {
        let mut ticks = 0;
        for (proposal, _) in leader.proposed.drain(..) {
            for command in proposal.commands {
                if let Command::Tick { renewals } = command {
                    ticks += 1;
                    self.largest = self.largest.max(renewals.len());
                }
            }
        }
        if !step.apply.is_zero() {
            self.applying.add(step.apply);
            self.after.add(step.step);
        } else if ticks > 0 {
            self.proposing.add(step.step);
        } else if is_renewal {
            self.renewals.add(step.step);
        }
    }
}

/// Renews leases one per request, evenly spread over time; then as many as fit in one request.
pub(crate) fn measure(state: &State, leases: Leases, commit: Duration) -> Figures {
    let mut leader = Leader::elected(state.clone(), commit);
    leader.begin();
    leader.open();
    leader.proposed.clear();
    let apart = (ROUND.as_nanos() as u64 / leases.count).max(1);
    let (first, count) = (leader.nanos(), MEASURED.as_nanos() as u64 / apart);
    let mut steps = Steps::default();
    for number in 0..count {
        let at = first + number * apart;
        while leader.next() <= at {
            let step = leader.run_next_event();
            steps.note(&mut leader, &step, false);
        }
        leader.wait_until(at);
        // A pseudorandom lease.
        let id = LeaseId(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % leases.count);
        let step = keep(&mut leader, vec![KeyLeaseRenewal { id, incarnation: None }]);
        steps.note(&mut leader, &step, true);
    }
    let together = KEEP_ALIVES_MAX.min(leases.count as usize) as u64;
    let step =
        keep(&mut leader, (0..together).map(|id| KeyLeaseRenewal { id: LeaseId(id), incarnation: None }).collect());
    let Steps { mut renewals, mut proposing, mut applying, mut after, largest } = steps;
    vec![
        (format!("renewal, one in a request, {} a second: p50 · p99 · max", 1_000_000_000 / apart), renewals.summary()),
        (format!("renewal, {together} in a request: each"), shown(step.step / together as u32)),
        (format!("tick, {largest} renewals at most: the step that proposes it"), proposing.summary()),
        ("tick: applying it".to_owned(), applying.summary()),
        ("tick: the step after that".to_owned(), after.summary()),
    ]
}

/// Renews leases that all exist.
fn keep(leader: &mut Leader, leases: Vec<KeyLeaseRenewal>) -> LeaderStep {
    let count = leases.len();
    let request = leader.request(Body::KeepAlive { leases });
    let step = leader.step(request);
    let answered = step.effects.iter().find_map(|effect| match effect {
        LessorEffect::Reply { response, .. } => Some(&response.result),
        LessorEffect::Recall(_) | LessorEffect::Prove { .. } | LessorEffect::ClockChanged { .. } => None,
    });
    match answered {
        Some(Ok(Answer::KeptAlive(kept))) => assert!(
            kept.len() == count && kept.iter().all(|kept| matches!(kept.result, KeepAliveResult::Renewed(_))),
            "none of them is gone: {kept:?}"
        ),
        // The renewal waits for its tick.
        None => {}
        Some(other) => panic!("leases are kept: {other:?}"),
    }
    step
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leader::state_with;

    #[test]
    fn renewals_are_counted_with_the_ticks_that_they_bring_about() {
        let leases = Leases { count: 800, first: Duration::from_secs(20), spread: Duration::from_secs(1) };
        let figures = measure(&state_with(leases), leases, Duration::from_millis(2));
        assert_eq!(figures[0].0, "renewal, one in a request, 40 a second: p50 · p99 · max");
        // Horizons move four times per second, or later if a step takes long. There are 320
        // renewals.
        let largest = figures[2].0.split(' ').find_map(|word| word.parse::<u64>().ok());
        assert!(largest.is_some_and(|largest| (5..320).contains(&largest)), "{figures:?}");
        assert!(figures.iter().all(|(_, figure)| !figure.starts_with("0.00")), "{figures:?}");
    }
}
