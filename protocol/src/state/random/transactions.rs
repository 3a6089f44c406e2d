//! Random transactions, compared with single writes of their operations.

use super::*;
use crate::{
    id::Token,
    object::NodeOwner,
    transaction::{Compare, CompareTarget, Operation, OperationResult, Relation, Transaction},
};

pub(super) fn random_transaction(random: &mut Random, state: &State) -> Transaction {
    let all = paths();
    let compares = (0..random.below(3)).map(|_| random_compare(random, state)).collect();
    let mut branch = |count| (0..random.below(count)).map(|_| random_operation(random, &all, state)).collect();
    Transaction { compares, then: branch(5), otherwise: branch(3) }
}

fn random_compare(random: &mut Random, state: &State) -> Compare {
    let path = random.pick(&paths());
    let relation = random.pick(&[Relation::Equal, Relation::NotEqual, Relation::Less, Relation::Greater]);
    let revision = Revision(random.below(state.revision().0 + 2));
    let target = match random.below(7) {
        6 => CompareTarget::Locked(random.one_in(2), Token(random.below(state.meta.last_lock_number + 2))),
        0 => CompareTarget::Value(relation, Value::from(vec![0; random.below(5) as usize])),
        1 => CompareTarget::Version(relation, random.below(4)),
        2 => CompareTarget::ModifyRevision(relation, revision),
        3 => CompareTarget::CreateRevision(relation, revision),
        _ => CompareTarget::Exists(random.one_in(2)),
    };
    Compare { path, target }
}

fn random_operation(random: &mut Random, all: &[NodePath], state: &State) -> Operation {
    let path = random.pick(all);
    if random.one_in(3) {
        // Usually an existing node, because a delete of any other is refused.
        let nodes: Vec<&NodePath> = state.nodes_from(&NodePath::root()).map(|(at, _)| at).collect();
        let path = if random.one_in(4) { path } else { random.pick(&nodes).clone() };
        return Operation::Delete { path, recursive: random.one_in(2) };
    }
    let attach = match random.below(8) {
        0 => Attach::Lease(LeaseId(random.below(3))),
        1 => Attach::Session,
        2 => Attach::Unchanged,
        _ => Attach::Nothing,
    };
    Operation::Put { path, value: Value::from(vec![0; random.below(5) as usize]), attach }
}

/// The visible tree, without revisions and versions.
fn tree(state: &State) -> Vec<(NodePath, Value, Option<NodeOwner>)> {
    let nodes = state.nodes_from(&NodePath::root());
    nodes.map(|(path, node)| (path.clone(), node.value.clone(), node.stat().owner)).collect()
}

/// Whether a comparison holds, according to etcd's documentation.
fn is_true(state: &State, compare: &Compare) -> bool {
    let related = |relation: &Relation, got: u64, than: u64| match relation {
        Relation::Equal => got == than,
        Relation::NotEqual => got != than,
        Relation::Less => got < than,
        Relation::Greater => got > than,
    };
    let node = state.node(&compare.path);
    match &compare.target {
        // All bytes of the values here are zero, so the values are ordered by length.
        CompareTarget::Value(relation, than) => {
            node.is_some_and(|node| related(relation, node.value.len() as u64, than.len() as u64))
        }
        CompareTarget::Version(relation, than) => related(relation, node.map_or(0, |node| node.version), *than),
        CompareTarget::ModifyRevision(relation, than) => {
            related(relation, node.map_or(0, |node| node.modify_revision.0), than.0)
        }
        CompareTarget::CreateRevision(relation, than) => {
            related(relation, node.map_or(0, |node| node.create_revision.0), than.0)
        }
        CompareTarget::Exists(exists) => node.is_some() == *exists,
        CompareTarget::Locked(is_locked, token) => {
            let mut locks = state.locks().filter(|(_, path, record)| {
                compare.path.contains(path) && record.token == Some(*token) && record.lease.session().is_some()
            });
            locks.next().is_some() == *is_locked
        }
    }
}

#[test]
fn transaction_equals_its_operations_in_sequence() {
    let (mut done, mut refused) = (0, 0);
    for seed in 1..=SEEDS {
        let mut random = Random::new(seed);
        let mut fixture = Fixture::new();
        let session = fixture.open();
        fixture.acquire(session, "/");
        fixture
            .write(session, Write::GrantLease { id: Some(LeaseId(1)), name: None, ttl: Duration::from_secs(9) })
            .expect("new");
        for step in 0..STEPS {
            let before = fixture.state.clone();
            let transaction = random_transaction(&mut random, &before);
            let place = format!("seed {seed}, step {step}: {transaction:?}");
            let failed = transaction.compares.iter().position(|compare| !is_true(&before, compare));
            let operations = if failed.is_none() { &transaction.then } else { &transaction.otherwise };
            let Ok(written) = fixture.write(session, Write::Transaction(transaction.clone())) else {
                assert_eq!((tree(&fixture.state), fixture.state.revision()), (tree(&before), before.revision()));
                refused += 1;
                continue;
            };
            let changes = u64::from(!operations.is_empty());
            assert_eq!(fixture.state.revision().0, before.revision().0 + changes, "{place}");
            let transacted = written.transaction.expect("a transaction's results");
            assert_eq!(transacted.failed.map(|failed| failed.index as usize), failed, "{place}");
            let mut twin = Fixture::of(before);
            for (operation, result) in operations.iter().zip(&transacted.results) {
                check_alone(&mut twin, session, operation, result, &place);
            }
            assert_eq!(
                (tree(&fixture.state), transacted.results.len()),
                (tree(&twin.state), operations.len()),
                "{place}"
            );
            done += changes;
        }
    }
    assert!(done > 1000 && refused > 1000, "{done} were done, {refused} refused");
}

/// Checks that an operation alone has the same effect as in the transaction.
fn check_alone(twin: &mut Fixture, session: SessionId, operation: &Operation, result: &OperationResult, place: &str) {
    let condition = Condition::Any;
    let alone = match operation.clone() {
        Operation::Put { path, value, attach } => Write::Put { path, value, condition, attach },
        Operation::Delete { path, recursive } => Write::Delete { path, recursive, condition },
    };
    let write = twin.command_after(session, alone);
    let Outcome::Written(Ok(alone)) = twin.run(write) else { panic!("{operation:?} is refused alone: {place}") };
    match result {
        OperationResult::Deleted(removed) => assert_eq!(alone.removed, *removed, "{place}"),
        OperationResult::Put(stat) => {
            let alone = alone.stat.expect("a put");
            assert_eq!((alone.value_len, alone.owner), (stat.value_len, stat.owner), "{place}");
        }
    }
}
