//! How many nodes one entry reclaims when very many leases have tombstones.

use super::*;

/// More than [`RECLAIMED_PER_ENTRY`] leases of three nodes each are purged with one entry. That
/// entry reclaims two nodes for each lease.
#[test]
fn entry_buries_two_nodes_for_each_of_many_leases() {
    let mut fixture = Fixture::new();
    let session = fixture.open();
    let count = RECLAIMED_PER_ENTRY as u64 + 1;
    let apply = |fixture: &mut Fixture, commands| {
        let (epoch, time) = (fixture.state.epoch(), fixture.time);
        fixture.apply(&Proposal { epoch, number: 1, time, commands });
    };
    let commands = |fixture: &mut Fixture, writes: Vec<Write>| {
        let command = |write| match fixture.command(session, write) {
            Command::Write { session, sequence, write, consented, intended, attached_through, .. } => Command::Write {
                session,
                sequence,
                unanswered_from: sequence,
                write,
                consented,
                intended,
                attached_through,
            },
            other => other,
        };
        writes.into_iter().map(command).collect()
    };
    let granted = commands(&mut fixture, (1..=count).map(|id| grant(LeaseId(id))).collect());
    apply(&mut fixture, granted);
    let nodes = (1..=count).flat_map(|id| (0..3).map(move |number| to(&format!("/{id:05}-{number}"), LeaseId(id))));
    let put = commands(&mut fixture, nodes.collect());
    apply(&mut fixture, put);
    let end = |id| {
        let lease = AnyLease::KeyLease(LeaseId(id));
        let LeaseRecord { incarnation, horizon, .. } = *fixture.state.lease(&lease).expect("granted");
        Command::Expire { lease, incarnation, horizon }
    };
    let ends = (1..=count).map(end).collect();
    apply(&mut fixture, ends);
    assert_eq!(fixture.state.nodes.len() as u64, 1 + 3 * count);
    let leases = fixture.state.orphans().collect();
    apply(&mut fixture, vec![Command::Purge { leases }]);
    assert_eq!(fixture.state.nodes.len() as u64, 1 + count, "the root, and the nodes that later entries reclaim");
}
