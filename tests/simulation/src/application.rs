//! What the applications of clients do: they read, write, cancel requests, and leave.

use std::time::Duration;

use leasehold_model::client::OpenWrite;
use leasehold_protocol::{
    command::{Attach, Condition, Write, Written},
    holder::{HolderInput, WriteFailure, WriteId},
    id::LeaseId,
    object::{Content, Object},
    path::NodePath,
    volume::Tracking,
};

use crate::{
    event::Event,
    invariants::{self, registrations::Registrations},
    locks,
    profile::MS,
    world::World,
};

/// The most requests that one client has open at once. The load is meant for the servers.
const OPEN_MAX: usize = 12;

impl World {
    /// The application does one thing, and schedules the next.
    pub(crate) fn act(&mut self, place: usize) {
        if self.is_healing {
            return;
        }
        let next = self.rng.wait(self.profile.act_every);
        self.after(next, Event::Act { client: place });
        let client = &self.clients[place];
        if !client.shell.is_open {
            return;
        }
        if self.act_widely(place) {
            return;
        }
        let client = &self.clients[place];
        if client.shell.reads.len() + client.shell.writes.len() > OPEN_MAX {
            return;
        }
        if self.rng.chance(20) {
            self.give_up(place);
        } else if !self.clients[place].write_leased.is_empty() && self.rng.chance(500) {
            self.use_any_write_lease(place);
        } else if self.rng.chance(self.profile.locks) {
            self.lock_or_unlock(place);
        } else if self.rng.chance(self.profile.watches) {
            self.watch_something(place);
        } else if self.rng.chance(self.profile.lease_writes) {
            self.keep_or_let_go(place);
        } else if self.rng.chance(self.profile.writes) {
            let change = self.change(place);
            self.write(place, change);
        } else {
            let object = self.rng.pick(&self.profile.objects).clone();
            self.read(place, object);
        }
    }

    pub(crate) fn write(&mut self, place: usize, change: Write) {
        let change = self.lease_names.rename(change);
        let client = &mut self.clients[place];
        // The log could not tell two equal writes of one client apart.
        if client.shell.open_write(&change).is_some() {
            return;
        }
        let (_, input) = client.shell.begin_write(change, self.steps);
        self.step_holder(place, input);
    }

    /// A random write. Every value is unique.
    fn change(&mut self, place: usize) -> Write {
        if self.rng.chance(self.profile.volume_writes) {
            return self.change_of_volume();
        }
        if self.rng.chance(self.profile.lease_writes) {
            return self.change_of_lease();
        }
        if self.rng.chance(self.profile.transactions) {
            return self.change_of_many(place);
        }
        let object = self.rng.pick(&self.profile.objects).clone();
        // An application changes a list of children by adding or removing a child.
        let path = match object {
            Object { path, kind: leasehold_protocol::object::ObjectKind::Data } => path,
            Object { path, .. } => {
                let names = ["a", "x", "y"];
                child(&path, names[self.rng.index(names.len())])
            }
        };
        let client = &self.clients[place];
        let known = client.last_read.get(&Object::data(path.clone())).and_then(Content::modify_revision);
        let condition = match (self.rng.below(10), known) {
            (0, _) => Condition::Absent,
            (1 | 2, Some(revision)) => Condition::Revision(revision),
            _ => Condition::Any,
        };
        if !path.is_root() && self.rng.chance(250) {
            return Write::Delete { path, recursive: self.rng.chance(400), condition };
        }
        let value = format!("{}.{}", client.life, client.shell.numbers).into_bytes();
        let attach = self.attach(&path);
        Write::Put { path, value: value.into(), condition, attach }
    }

    /// Where a put attaches its node. Never the nodes whose histories are judged: no client
    /// operation records the end of a lease.
    pub(crate) fn attach(&mut self, path: &NodePath) -> Attach {
        if invariants::linearizability::KEYS.contains(&path.as_str()) || !self.rng.chance(self.profile.lease_writes * 3)
        {
            return Attach::Nothing;
        }
        match (self.rng.below(4), self.leases.last()) {
            (0, _) => Attach::Unchanged,
            (1, _) => Attach::Session,
            (_, Some(_)) => Attach::Lease(*self.rng.pick(&self.leases)),
            (_, None) => Attach::Nothing,
        }
    }

    /// Grants or revokes a key lease. Leases that have ended are tried too.
    fn change_of_lease(&mut self) -> Write {
        if self.leases.is_empty() || self.rng.chance(500) {
            let ttl = Duration::from_micros(self.rng.between(200 * MS, 3 * self.term()));
            let id = self.rng.chance(200).then(|| LeaseId(self.rng.below(8)));
            return Write::GrantLease { id, name: None, ttl };
        }
        Write::RevokeLease { id: *self.rng.pick(&self.leases), incarnation: None }
    }

    /// The application starts or stops keep-alives of a key lease.
    fn keep_or_let_go(&mut self, place: usize) {
        if self.leases.is_empty() {
            return;
        }
        let id = *self.rng.pick(&self.leases);
        if self.rng.chance(600) {
            self.keep(place, id);
        } else {
            self.let_go(place, id);
        }
    }

    /// The application stops the keep-alives of a key lease.
    pub(crate) fn let_go(&mut self, place: usize, id: LeaseId) {
        self.step_holder(place, HolderInput::StopKeepAlive(id));
        let client = &mut self.clients[place];
        client.shell.key_leases.renewed.remove(&id);
        client.shell.key_leases.until.remove(&id);
    }

    fn change_of_volume(&mut self) -> Write {
        let path = NodePath::parse("/v").expect("a path");
        if self.profile.inner.is_empty() {
            return Write::RemoveVolume { path };
        }
        let settings = *self.rng.pick(&self.profile.inner);
        let settings = self.quotas.draw(settings);
        match self.rng.below(4) {
            0 | 1 => Write::CreateVolume { path, settings },
            2 => Write::RemoveVolume { path },
            _ => {
                let tracking = *self.rng.pick(&[Tracking::Objects, Tracking::Covering]);
                Write::SetVolume { path, settings: settings.with_tracking(tracking) }
            }
        }
    }

    pub(crate) fn write_done(
        &mut self,
        place: usize,
        write: WriteId,
        open: Option<OpenWrite>,
        result: &Result<Written, WriteFailure>,
    ) {
        if let Err(WriteFailure::OutcomeUnknown) = result {
            self.tally.add("writes of unknown outcome");
        }
        let name = (self.clients[place].life, write);
        let change = open.as_ref().map(|open| open.change.clone());
        let held = match open {
            Some(open) => {
                let span = (open.since, self.steps);
                invariants::linearizability::wrote(&mut self.observations, &open.change, span, Some(result));
                self.oracle.once.ended(name, result)
            }
            // The client lost a lock at the very end. The histories were judged before its release
            // was answered.
            None if self.is_judged => Ok(()),
            None => Err(format!("write {write:?} ended twice: {result:?}")),
        };
        if let Ok(Written { lease: Some(granted), .. }) = result {
            self.leases.push(granted.id);
            self.granted(place, granted.id);
        }
        if let Ok(Written { lock: Some(grant), .. }) = result {
            self.lock_answered(place, change.as_ref(), grant);
        }
        invariants::registrations::wrote(&mut self.clients[place], change.as_ref(), result);
        if let Ok(written) = result {
            self.handed_over(place, change.as_ref());
            self.oracle.acknowledge(written.revision);
        }
        self.demand(held.map_err(|what| format!("client {place}: {what}")));
    }

    fn give_up(&mut self, place: usize) {
        let client = &mut self.clients[place];
        let read = client.shell.reads.keys().next().copied();
        let write = client.shell.writes.iter().find(|(_, open)| may_cancel(open)).map(|(write, _)| *write);
        if let Some(read) = read {
            client.shell.reads.remove(&read);
            self.tally.add("reads given up");
            self.step_holder(place, HolderInput::CancelRead(read));
        } else if let Some(write) = write {
            self.tally.add("writes given up");
            self.step_holder(place, HolderInput::CancelWrite(write));
        }
    }

    /// Cancels several of the client's writes before its next request: its earliest ones, which the
    /// leader then drops (S9), or any.
    pub(crate) fn give_up_writes(&mut self, place: usize) {
        let open = self.clients[place].shell.writes.iter();
        let mut writes: Vec<WriteId> = open.filter(|(_, open)| may_cancel(open)).map(|(write, _)| *write).collect();
        if self.rng.chance(500) {
            writes.truncate(1 + self.rng.index(writes.len().max(1)));
        } else {
            writes.retain(|_| self.rng.chance(500));
        }
        if writes.len() > 1 {
            self.tally.add("drawn: several writes given up at once");
        }
        for write in writes {
            self.step_holder(place, HolderInput::CancelWrite(write));
        }
    }

    /// The cache drops a copy, as if it lacked room.
    pub(crate) fn evict(&mut self, place: usize) {
        let client = &mut self.clients[place];
        let at = self.rng.index(client.shell.cache.copies.len());
        let object = client.shell.cache.copies.keys().nth(at).cloned();
        if let Some(input) = object.and_then(|object| client.shell.evict(object)) {
            self.step_holder(place, input);
        }
    }

    pub(crate) fn close_client(&mut self, place: usize) {
        self.step_holder(place, HolderInput::Close);
    }

    /// The client abandons its writes. Each may have taken effect, or may still do so.
    pub(crate) fn forget_writes(&mut self, place: usize) {
        for open in std::mem::take(&mut self.clients[place].shell.writes).into_values() {
            invariants::linearizability::wrote(&mut self.observations, &open.change, (open.since, self.steps), None);
        }
    }

    /// The client's process ends, and another one starts. Nobody waits for the old one's requests.
    pub(crate) fn restart_client(&mut self, place: usize) {
        self.forget_write_leases(place);
        self.forget_writes(place);
        let client = &mut self.clients[place];
        client.shell.end();
        client.registrations = Registrations::default();
        client.locks.clear();
        client.watches = Default::default();
        let life = client.life;
        if let Some(connection) = client.connection.take() {
            self.connections[connection].is_broken = true;
        }
        // The connection belongs to the old process: the new one must not receive what is in flight
        // on it.
        let after = self.rng.between(10 * MS, 500 * MS);
        self.after(after, Event::Open { client: place, life });
    }
}

/// Whether the application may cancel the write. Never one about locks: nobody would release the
/// lock that it may grant.
fn may_cancel(open: &OpenWrite) -> bool {
    !locks::is_about_locks(&open.change)
}

fn child(path: &NodePath, name: &str) -> NodePath {
    let parent = if path.is_root() { "" } else { path.as_str() };
    NodePath::parse(&format!("{parent}/{name}")).expect("a path")
}
