//! The fixture of the state's tests: a state in its first epoch, and short functions for commands.
//!
//! [`Fixture::apply`] checks the invariants after each entry. [`Fixture::apply_command`] also
//! checks that all changed rows were reported as changed.

use std::{collections::BTreeMap, time::Duration};

use super::{Applied, State};
use crate::{
    command::{Attach, Command, Condition, Outcome, Proposal, Write, WriteRefusal, Written},
    id::{Revision, Sequence, SessionId},
    object::{Object, ObjectSet, Value},
    path::NodePath,
    time::{ClusterTime, DriftAllowance},
    volume::{Tracking, VolumeSettings},
};

pub(super) fn path(text: &str) -> NodePath {
    NodePath::parse(text).expect("a valid path")
}

pub(super) fn seconds(seconds: u64) -> ClusterTime {
    ClusterTime::ZERO.after(Duration::from_secs(seconds))
}

pub(super) fn data(text: &str) -> ObjectSet {
    ObjectSet::One(Object::data(path(text)))
}

pub(super) fn children(text: &str) -> ObjectSet {
    ObjectSet::One(Object::children(path(text)))
}

pub(super) fn subtree(text: &str) -> ObjectSet {
    ObjectSet::Subtree(path(text))
}

/// Consents that cover any write.
pub(super) fn everything() -> Vec<ObjectSet> {
    vec![subtree("/")]
}

/// Settings with this term.
pub(super) fn settings(term: Duration) -> VolumeSettings {
    let hour = Duration::from_secs(3600);
    let margin = Duration::from_secs(1);
    VolumeSettings::new(term, hour, margin, Tracking::Objects, DriftAllowance::DEFAULT).expect("valid settings")
}

pub(super) fn put(at: &str, value: &str) -> Write {
    put_if(at, value, Condition::Any)
}

pub(super) fn put_if(at: &str, value: &str, condition: Condition) -> Write {
    let attach = Attach::Nothing;
    Write::Put { path: path(at), value: Value::copy_from_slice(value.as_bytes()), condition, attach }
}

pub(super) fn delete(at: &str, recursive: bool) -> Write {
    Write::Delete { path: path(at), recursive, condition: Condition::Any }
}

pub(super) fn create_volume(at: &str, term_seconds: u64) -> Write {
    Write::CreateVolume { path: path(at), settings: settings(Duration::from_secs(term_seconds)) }
}

pub(super) struct Fixture {
    pub(super) state: State,
    pub(super) rows: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The cluster time of the next proposal.
    pub(super) time: ClusterTime,
    sequences: BTreeMap<SessionId, Sequence>,
}

impl Fixture {
    /// A new state in its first epoch.
    pub(super) fn new() -> Self {
        let state = State::new(VolumeSettings::DEFAULT);
        let rows = state.rows().collect();
        let mut fixture = Self { state, rows, time: ClusterTime::ZERO, sequences: BTreeMap::new() };
        fixture.run(Command::BeginEpoch { replica: 1, attempt: 1 });
        fixture
    }

    /// A fixture for an existing state.
    pub(super) fn of(state: State) -> Self {
        let (rows, time) = (state.rows().collect(), state.cluster_time());
        Self { state, rows, time, sequences: BTreeMap::new() }
    }

    /// Applies an entry, stores its rows, and checks the invariants.
    pub(super) fn apply(&mut self, proposal: &Proposal) -> Applied {
        let applied = self.state.apply(self.state.applied_index() + 1, proposal);
        for key in &applied.changed_rows {
            match self.state.row(key) {
                Some(value) => self.rows.insert(key.encode(), value),
                None => self.rows.remove(&key.encode()),
            };
        }
        assert_eq!(self.state.check(), Ok(()), "after {proposal:?}");
        applied
    }

    pub(super) fn apply_command(&mut self, command: Command) -> Applied {
        let proposal = Proposal { epoch: self.state.epoch(), number: 1, time: self.time, commands: vec![command] };
        let applied = self.apply(&proposal);
        assert!(self.state.rows().eq(self.rows.clone()), "rows are missing in {:?}", applied.changed_rows);
        applied
    }

    pub(super) fn run(&mut self, command: Command) -> Outcome {
        self.apply_command(command).outcomes.remove(0)
    }

    pub(super) fn open(&mut self) -> SessionId {
        match self.run(Command::OpenSession { name: "tester".to_owned() }) {
            Outcome::SessionOpened { session } => session,
            other => panic!("expected a session, got {other:?}"),
        }
    }

    /// The session's next sequence. Counts only the sequences of this fixture.
    pub(super) fn next_sequence(&mut self, session: SessionId) -> Sequence {
        let sequence = self.sequences.entry(session).or_default();
        *sequence = sequence.next();
        *sequence
    }

    /// A new write of the session that arrives now. Its consents cover everything. Its
    /// `unanswered_from` is 1.
    pub(super) fn command(&mut self, session: SessionId, write: Write) -> Command {
        let (sequence, intended) = (self.next_sequence(session), self.state.intended(session, &write));
        Command::Write {
            session,
            sequence,
            unanswered_from: Sequence(1),
            write,
            consented: everything(),
            intended,
            attached_through: Revision(u64::MAX),
        }
    }

    /// Like `command`, with a sequence after all remembered outcomes of the session.
    pub(super) fn command_after(&mut self, session: SessionId, write: Write) -> Command {
        let answers = self.state.session(session).map(|session| session.answers.keys().next_back().copied());
        self.sequences.insert(session, answers.flatten().unwrap_or_default());
        self.command(session, write)
    }

    pub(super) fn put_command_of(&mut self, session: SessionId, at: &str, value: &str) -> Command {
        self.command(session, put(at, value))
    }

    pub(super) fn put_command(&mut self, at: &str, value: &str) -> Command {
        self.put_command_of(SessionId(1), at, value)
    }

    pub(super) fn write(&mut self, session: SessionId, write: Write) -> Result<Written, WriteRefusal> {
        let command = self.command(session, write);
        match self.run(command) {
            Outcome::Written(result) => result,
            other => panic!("expected a result, got {other:?}"),
        }
    }

    pub(super) fn put(&mut self, session: SessionId, at: &str, value: &str) -> Written {
        self.write(session, put(at, value)).expect("a put without conditions")
    }

    /// The footprint of a write that arrives now.
    pub(super) fn footprint(&self, session: SessionId, write: &Write) -> Result<Vec<ObjectSet>, WriteRefusal> {
        self.state.footprint(session, write, &self.state.intended(session, write))
    }

    pub(super) fn acquire(&mut self, session: SessionId, at: &str) -> Outcome {
        self.run(Command::AcquireVolume { session, path: path(at) })
    }
}
