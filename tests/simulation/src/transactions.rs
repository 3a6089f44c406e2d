//! The transactions of applications, over a few nodes, with comparisons against what was last read.

use leasehold_protocol::{
    command::Write,
    id::Token,
    lock::LockStatus,
    object::{Content, Object},
    path::NodePath,
    transaction::{Compare, CompareTarget, Operation, Relation, Transaction},
};

use crate::{invariants::linearizability::KEYS, world::World};

impl World {
    /// A random transaction. Every value is unique.
    pub(crate) fn change_of_many(&mut self, place: usize) -> Write {
        let mut transaction = Transaction::new();
        for _ in 0..self.rng.below(3) {
            let compare = self.compare(place);
            transaction.compares.push(compare);
        }
        for part in 0..2 + self.rng.below(3) {
            let operation = self.operation(place, part);
            transaction.then.push(operation);
        }
        for part in 0..self.rng.below(3) {
            let operation = self.operation(place, 10 + part);
            transaction.otherwise.push(operation);
        }
        if !self.rng.chance(50) {
            keep_independent(&mut transaction);
        }
        Write::Transaction(transaction)
    }

    /// A node whose history is judged, or one of the nodes that applications use.
    fn node(&mut self) -> NodePath {
        if self.rng.chance(500) {
            let key: &str = KEYS[self.rng.index(KEYS.len())];
            return NodePath::parse(key).expect("a path");
        }
        self.rng.pick(&self.profile.objects).path.clone()
    }

    fn operation(&mut self, place: usize, part: u64) -> Operation {
        let path = self.node();
        if !path.is_root() && self.rng.chance(150) {
            return Operation::Delete { path, recursive: self.rng.chance(400) };
        }
        let client = &self.clients[place];
        let value = format!("{}.{}.{part}", client.life, client.shell.numbers).into_bytes();
        let attach = self.attach(&path);
        Operation::Put { path, value: value.into(), attach }
    }

    /// A comparison, mostly with what was last read, so that both branches are chosen.
    fn compare(&mut self, place: usize) -> Compare {
        let path = self.node();
        let tokens = self.clients[place].locks.values().filter_map(|(held, status)| match status {
            LockStatus::Granted { token, .. } => Some((held.clone(), *token)),
            _ => None,
        });
        let tokens: Vec<(NodePath, Token)> = tokens.collect();
        if !tokens.is_empty() && self.rng.chance(300) {
            let (path, token) = self.rng.pick(&tokens).clone();
            return Compare::locked(path, token);
        }
        let known = match self.clients[place].last_read.get(&Object::data(path.clone())) {
            Some(Content::Data(Some(data))) => data.clone(),
            Some(_) => return Compare::absent(path),
            None => return Compare { path, target: CompareTarget::Exists(self.rng.chance(700)) },
        };
        let stat = known.stat;
        let relation = *self.rng.pick(&[Relation::Equal, Relation::Equal, Relation::Less, Relation::Greater]);
        match self.rng.below(5) {
            0 => Compare::value(path, relation, known.value),
            1 => Compare::version(path, relation, stat.version),
            2 => Compare::create_revision(path, Relation::Equal, stat.create_revision),
            _ => Compare::modify_revision(path, relation, stat.modify_revision),
        }
    }
}

/// Removes operations that conflict with others of their branch.
fn keep_independent(transaction: &mut Transaction) {
    let Transaction { then, otherwise, .. } = transaction.clone();
    transaction.then.clear();
    transaction.otherwise.clear();
    for operation in then {
        let more = transaction.clone().then(operation);
        if more.check_overlaps().is_ok() {
            *transaction = more;
        }
    }
    for operation in otherwise {
        let more = transaction.clone().otherwise(operation);
        if more.check_overlaps().is_ok() {
            *transaction = more;
        }
    }
}
