//! *A revocation by name ends the lease that had the name when its request arrived, or nothing*
//! (S7b). Judged by the leases before and after it, and by the leases that had the name at each
//! server to which the request came. *A revocation that names an incarnation ends no other lease.*

use std::collections::{BTreeMap, BTreeSet};

use leasehold_model::committed::WriteKey;
use leasehold_protocol::{
    command::{Command, Outcome, Proposal, Write},
    id::{Incarnation, LeaseId},
    lease_name::LeaseName,
    state::{RequestStatus, State},
};

/// The revocations by name.
#[derive(Debug, Default)]
pub(crate) struct NamedRevocations {
    /// For each, the leases that had the name when its request arrived. The client may have sent it
    /// several times, to several servers.
    named: BTreeMap<WriteKey, BTreeSet<Option<Incarnation>>>,
    /// The leases that revocations by name have ended, since somebody took this list.
    pub(crate) ended: Vec<LeaseId>,
}

/// Whether an entry has revocations by name, or of an incarnation.
pub(crate) fn has_any(proposal: &Proposal) -> bool {
    let is_one = |command: &Command| match command {
        Command::Write { write, .. } => {
            matches!(write, Write::RevokeLeaseNamed { .. } | Write::RevokeLease { incarnation: Some(_), .. })
        }
        _ => false,
    };
    proposal.commands.iter().any(is_one)
}

impl NamedRevocations {
    /// A write arrives at a leader with this state.
    pub(crate) fn arrived(&mut self, key: WriteKey, write: &Write, state: &State) {
        if let Write::RevokeLeaseNamed { name } = write {
            self.named.entry(key).or_default().insert(lease_named(state, name));
        }
    }

    /// Checks the revocations of an entry that had these outcomes: `twin` applies the commands
    /// again, one by one.
    pub(crate) fn check(&mut self, mut twin: State, proposal: &Proposal, outcomes: &[Outcome]) -> Result<(), String> {
        if proposal.commands.iter().any(|command| matches!(command, Command::BeginEpoch { .. })) {
            return Ok(());
        }
        for (command, outcome) in proposal.commands.iter().zip(outcomes) {
            let before = twin.clone();
            let alone = Proposal { commands: vec![command.clone()], ..proposal.clone() };
            twin.apply(twin.applied_index() + 1, &alone);
            let Command::Write { session, sequence, write, .. } = command else { continue };
            if let Write::RevokeLease { id, incarnation: Some(incarnation) } = write {
                let changed = ended(&before, &twin)?;
                if changed.iter().any(|(_, ended)| ended != incarnation) {
                    return Err(format!("a revocation of {incarnation} of lease {id} has ended {changed:?}"));
                }
            }
            let Write::RevokeLeaseNamed { name } = write else { continue };
            let is_new = matches!(before.request_status(*session, *sequence), Some(RequestStatus::Unanswered));
            let changed = ended(&before, &twin)?;
            let intended = self.named.get(&(*session, *sequence)).cloned().unwrap_or_default();
            let held = judge((is_new, outcome), lease_named(&before, name), &intended, &changed);
            held.map_err(|what| format!("revocation {session}/{sequence} of {name:?}, {outcome:?}: {what}"))?;
            self.ended.extend(changed.into_iter().map(|(id, _)| id));
        }
        Ok(())
    }
}

fn judge(
    (is_new, outcome): (bool, &Outcome),
    present: Option<Incarnation>,
    intended: &BTreeSet<Option<Incarnation>>,
    ended: &[(LeaseId, Incarnation)],
) -> Result<(), String> {
    let all: Vec<Incarnation> = ended.iter().map(|(_, incarnation)| *incarnation).collect();
    match outcome {
        Outcome::Written(Ok(_)) if is_new && (present.is_none() || all != Vec::from_iter(present)) => {
            Err(format!("it ended {all:?}, and {present:?} had the name"))
        }
        Outcome::Written(Ok(_)) if is_new && !intended.contains(&present) => {
            Err(format!("it ended {all:?}, and {intended:?} had the name when the request arrived"))
        }
        Outcome::Written(Ok(_)) if is_new => Ok(()),
        _ if !all.is_empty() => Err(format!("it ended {all:?}")),
        Outcome::Written(Err(_)) if is_new && present.is_some() && intended.iter().eq([&present]) => {
            Err(format!("it did not end {present:?}, which had the name all the time"))
        }
        _ => Ok(()),
    }
}

/// The key leases that ended between the two states. None may have begun.
fn ended(before: &State, after: &State) -> Result<Vec<(LeaseId, Incarnation)>, String> {
    let leases = |state: &State| -> BTreeSet<(LeaseId, Incarnation)> {
        state.key_leases_after(None).map(|(id, lease)| (id, lease.incarnation)).collect()
    };
    let (before, after) = (leases(before), leases(after));
    match after.difference(&before).next() {
        Some(begun) => Err(format!("a revocation made lease {begun:?}")),
        None => Ok(before.difference(&after).copied().collect()),
    }
}

/// The lease that has the name.
fn lease_named(state: &State, name: &LeaseName) -> Option<Incarnation> {
    let mut leases = state.key_leases_after(None);
    leases.find(|(_, lease)| lease.name.as_ref() == Some(name)).map(|(_, lease)| lease.incarnation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_protocol::{
        command::{WriteRefusal, Written},
        id::Revision,
    };

    fn at(incarnation: u64) -> Option<Incarnation> {
        Some(Incarnation(incarnation))
    }

    #[test]
    fn each_wrong_end_is_found() {
        let done = Outcome::Written(Ok(Written { revision: Revision(5), ..Written::default() }));
        let refused = Outcome::Written(Err(WriteRefusal::LeaseNameNotFound {
            name: LeaseName::parse("lease-1").expect("a name"),
        }));
        let judged = |outcome: &Outcome, present, intended: &[Option<Incarnation>], ended: &[u64]| {
            let ended: Vec<_> = ended.iter().map(|number| (LeaseId(*number), Incarnation(*number))).collect();
            judge((true, outcome), present, &intended.iter().copied().collect(), &ended).is_ok()
        };
        assert!(judged(&done, at(3), &[at(3)], &[3]));
        assert!(judged(&done, at(3), &[at(2), at(3)], &[3]), "it was sent again, and the name stood for another lease");
        assert!(!judged(&done, at(3), &[at(2)], &[3]), "the lease that replaced the intended one has ended");
        assert!(!judged(&done, at(3), &[None], &[3]), "nothing was intended");
        assert!(!judged(&done, at(3), &[at(3)], &[]), "nothing has ended");
        assert!(!judged(&done, at(3), &[at(3)], &[2]), "another lease has ended");
        assert!(!judged(&done, at(3), &[at(3)], &[2, 3]), "another lease has ended too");
        assert!(judged(&refused, at(3), &[at(2)], &[]), "the intended lease was replaced");
        assert!(judged(&refused, None, &[at(3)], &[]) && judged(&refused, None, &[None], &[]));
        assert!(!judged(&refused, at(3), &[at(3)], &[]), "the intended lease is there");
        assert!(!judged(&refused, at(3), &[at(2)], &[3]), "it was refused, and has an effect");
        assert!(!judged(&Outcome::MissingConsents, at(3), &[at(3)], &[3]));
        assert!(judged(&Outcome::MissingConsents, at(3), &[at(3)], &[]));
    }
}
