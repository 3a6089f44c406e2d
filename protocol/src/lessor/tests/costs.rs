//! The cost of applying a request is bounded when the request arrives (S10b).

use super::*;
use crate::{
    command::Attach,
    id::LeaseId,
    lease_policy::LeaseRequest,
    limits::LimitError,
    transaction::{Operation, Transaction},
};

fn deep(branch: usize, depth: usize) -> NodePath {
    path(&format!("/{branch}{}", "/x".repeat(depth - 1)))
}

fn puts(branches: usize, depth: usize) -> Write {
    let then = (0..branches).map(|branch| Operation::put(deep(branch, depth), "")).collect();
    Write::Transaction(Transaction { then, ..Transaction::new() })
}

fn too_much(what: &str, got: usize, expected: usize) -> Result<Answer, Refusal> {
    Err(LimitError::Transaction { what: what.to_owned(), got, expected }.into())
}

impl World {
    /// Applies one entry of puts, without the lessor.
    pub(super) fn fill(&mut self, session: SessionId, puts: impl Iterator<Item = (NodePath, Attach)>) {
        let put = |(path, attach)| Write::Put { path, value: Bytes::new(), condition: Condition::Any, attach };
        self.fill_with(session, puts.map(put));
    }

    /// Applies these writes in one entry that the lessor does not see.
    pub(super) fn fill_with(&mut self, session: SessionId, writes: impl Iterator<Item = Write>) {
        let command = |write| {
            self.sequence += 1;
            let (sequence, consented) = (Sequence(self.sequence), vec![ObjectSet::Subtree(NodePath::root())]);
            let intended = self.state.intended(session, &write);
            Command::Write {
                session,
                sequence,
                unanswered_from: sequence,
                write,
                intended,
                consented,
                attached_through: Revision(u64::MAX),
            }
        };
        let commands = writes.map(command).collect();
        self.index += 1;
        let (epoch, time) = (self.state.epoch(), self.state.cluster_time());
        self.state.apply(self.index, &Proposal { epoch, number: 1 << 40, time, commands });
    }
}

#[test]
fn requests_with_paths_too_deep_are_refused() {
    let mut world = World::new();
    let session = world.session();
    let error = || LimitError::Depth { got: 65, expected: 64 };
    let beyond = deep(0, 65);
    let bodies = [
        Body::Read { object: Object::data(beyond.clone()), known: None, lease: LeaseRequest::Implicit },
        Body::Acquire { path: beyond.clone(), last_valid: None, read: None },
    ];
    for body in bodies {
        assert_eq!(result(&world.request(session, body)), Err(error().into()));
    }
    for write in [Write::put(beyond.clone(), Bytes::new()), puts(1, 65)] {
        assert_eq!(result(&world.write(session, write)), Err(error().into()));
    }
    assert!(!world.lessor.has_proposal());
    assert_eq!(world.write(session, puts(1, 64)), []);
}

#[test]
fn transaction_that_makes_too_many_nodes_is_refused() {
    let mut world = World::new();
    let session = world.session();
    let most = Transaction::NODES_MADE_MAX;
    let refused = result(&world.write(session, puts(65, 64)));
    assert_eq!(refused, too_much("nodes to make, with those above them", 65 * 64, most));
    assert!(!world.lessor.has_proposal());
    assert_eq!(world.write(session, puts(64, 64)), []);
    world.commit();
    assert_eq!(world.state.nodes_from(&NodePath::root()).count(), 1 + most);
    // Existing nodes cost nothing. Operations do not count each other's new nodes.
    assert_eq!(world.write(session, puts(65, 64)), []);
    let siblings = (0..128).map(|number| Operation::put(path(&format!("/new{}/{number}", "/y".repeat(60))), ""));
    let write = Write::Transaction(Transaction { otherwise: siblings.collect(), ..Transaction::new() });
    assert_eq!(world.write(session, write), []);
}

#[test]
fn transaction_whose_new_paths_are_too_long_is_refused() {
    let mut world = World::new();
    let session = world.session();
    let long = |number: usize| path(&format!("/{number:0>62}{}", format!("/{}", "x".repeat(62)).repeat(63)));
    let write = |count| {
        let then = (0..count).map(|number| Operation::put(long(number), "")).collect();
        Write::Transaction(Transaction { then, ..Transaction::new() })
    };
    let bytes = 63 * (64 * 65 / 2);
    let most = Transaction::MADE_PATHS_MAX_BYTES;
    let fits = most / bytes;
    let refused = result(&world.write(session, write(fits + 1)));
    assert_eq!(refused, too_much("bytes of paths of nodes to make", (fits + 1) * bytes, most));
    assert_eq!(world.write(session, write(fits)), []);
}

#[test]
fn delete_of_too_many_nodes_is_refused() {
    let mut world = World::new();
    let session = world.session();
    let most = State::REMOVED_NODES_MAX;
    let node = |top: &str, number: usize| (path(&format!("{top}/{number}")), Attach::Nothing);
    world.fill(session, (1..most / 2).map(|number| node("/a", number)));
    world.fill(session, (1..=most / 2).map(|number| node("/b/c", number)));
    let delete = |at: &str| Operation::Delete { path: path(at), recursive: true };
    let both = Transaction::new().then(delete("/a")).then(delete("/b/c"));
    world.write(session, Write::Transaction(both));
    let refusal = result(&world.commit()).expect_err("one more than the bound");
    let text = format!(
        "operation 2 of branch then: /b/c: a delete of {} or more nodes exceeds the limit of {most}; \
         delete the subtree in parts",
        most + 1
    );
    assert_eq!(refusal.to_string(), text);
    // As many as one command removes.
    world.fill(session, (1..most / 2).map(|number| node("/b/d", number)));
    world.write(session, Write::Delete { path: path("/b"), recursive: true, condition: Condition::Any });
    assert!(result(&world.commit()).is_err(), "with /b, /b/c and /b/d themselves");
    world.write(session, Write::Delete { path: path("/b/d"), recursive: true, condition: Condition::Any });
    world.commit();
    world.write(session, Write::Delete { path: path("/b"), recursive: true, condition: Condition::Any });
    assert!(result(&world.commit()).is_ok());
}

#[test]
fn full_lease_refuses_one_more_node() {
    let mut world = World::new();
    let session = world.session();
    for id in [1, 2] {
        world.write(session, Write::GrantLease { id: Some(LeaseId(id)), name: None, ttl: TERM });
        world.commit();
    }
    let most = State::REMOVED_NODES_MAX;
    let attach = || Attach::Lease(LeaseId(1));
    world.fill(session, (0..most).map(|number| (path(&format!("/a/{number}")), attach())));
    let put =
        |text: &str, attach| Write::Put { path: path(text), value: Bytes::new(), condition: Condition::Any, attach };
    world.write(session, put("/a/more", attach()));
    let refusal = result(&world.commit()).expect_err("it is full");
    let text = format!(
        "/a/more: the lease has {most} attached nodes or locks, the limit of each is {most}; use another lease"
    );
    assert_eq!(refusal.to_string(), text);
    for write in [put("/a/more", Attach::Lease(LeaseId(2))), put("/a/0", attach())] {
        world.write(session, write);
        assert!(result(&world.commit()).is_ok());
    }
}

/// One command removes the nodes of several leases, up to a bound.
#[test]
fn leases_too_large_for_one_command_go_one_by_one() {
    let most = State::REMOVED_NODES_MAX;
    for (counts, rounds) in
        [([most / 2, most / 2], vec![2]), ([most / 2, most / 2 + 1], vec![1, 1]), ([most, 1], vec![1, 1])]
    {
        let mut world = World::new();
        world.is_checked = false;
        let session = world.session();
        for id in [1, 2] {
            world.write(session, Write::GrantLease { id: Some(LeaseId(id)), name: None, ttl: TERM });
        }
        world.commit();
        for (id, count) in (1..).zip(counts) {
            let attach = || Attach::Lease(LeaseId(id));
            world.fill(session, (0..count).map(|number| (path(&format!("/{id}/{number}")), attach())));
        }
        let mut removed = Vec::new();
        let until = world.now.after(TERM * 2);
        while world.now < until {
            world.now = world.now.after(clock::STEP_EVERY);
            world.step(LessorInput::Timeout);
            while let Some(proposal) = world.lessor.take_proposal(world.now) {
                removed.extend(proposal.commands.iter().filter_map(|command| match command {
                    Command::Purge { leases } => Some(leases.len()),
                    _ => None,
                }));
                world.apply(&proposal);
            }
        }
        assert_eq!((removed, world.state.node(&path("/1/0"))), (rounds, None), "{counts:?}");
        world.check();
    }
}
