//! The beginning of a world. Its nodes exist; its clients have connected, done their first writes,
//! and read their first objects. This happens in one fixed order: other worlds explore what can go
//! wrong here.

use std::time::Duration;

use leasehold_model::planting::{plant, planted};
use leasehold_protocol::{
    command::{Command, IntendedLeases, Proposal, Write},
    holder::HolderConfig,
    id::{Epoch, Revision, Sequence, SessionId},
    lessor::LessorInput,
    object::ObjectSet,
    path::NodePath,
    planted::Bug,
    state::State,
    time::ClusterTime,
};

use crate::{
    action::Action,
    client::Client,
    oracle::Oracle,
    part::Part,
    run::Run,
    situation::{Server, Situation},
    world::{World, settings},
};

/// More steps than any settling takes.
const STEPS_MAX: usize = 10_000;
/// How far time jumps at once while no client sends anything: a lessor counts all of it.
const JUMP: u64 = 190_000;

/// The first situation of a world.
///
/// # Errors
///
/// What is broken before the exploration begins.
pub(crate) fn begin(world: &World, bug: Option<Bug>) -> Result<Situation, String> {
    let truth = first_state(world, bug);
    let mut sealed = Part::new(truth);
    sealed.seal();
    let oracle = Oracle::new(&sealed, &world.objects());
    let situation = Situation {
        now: 0,
        moment: 0,
        left: Default::default(),
        leader: 0,
        term: 0,
        servers: world.servers.iter().map(|_| Part::new(Server::new(sealed.clone()))).collect(),
        clients: (0..world.members.len()).map(|place| Part::new(client(world, bug, place))).collect(),
        links: Vec::new(),
        truth: sealed,
        oracle: Part::new(oracle),
    };
    let mut run = Run::new(world, bug, situation, false);
    run.lead(0);
    run.settle(|_| false)?;
    run.at.clients.iter_mut().for_each(|client| client.change().seeks = true);
    run.settle(|_| false)?;
    for (place, member) in world.members.iter().enumerate() {
        for change in &member.first {
            run.write(place, None, change.clone());
            run.settle(|_| false)?;
            if !run.at.clients[place].shell.writes.is_empty() {
                return Err(format!("client {place} has not written {change:?} in the beginning"));
            }
        }
    }
    run.be_silent(world.age)?;
    for (place, member) in world.members.iter().enumerate() {
        for object in &member.warm {
            run.read(place, None, object.clone());
            run.settle(|_| false)?;
            if !run.at.clients[place].shell.cache.holds(object, world.client_clock(place, run.at.now)) {
                return Err(format!("client {place} has no usable copy of {object} in the beginning"));
            }
        }
    }
    run.be_silent(world.silence)?;
    run.at.now += world.moments[0] * 1000;
    run.at.left = world.faults;
    run.at.seal();
    Ok(run.at)
}

fn client(world: &World, bug: Option<Bug>, place: usize) -> Client {
    let config = HolderConfig {
        drift_allowance: world.drift(),
        planted: planted(bug),
        ..HolderConfig::new(format!("client {place}"))
    };
    Client::new(config, bug.is_some(), world.members[place].threads.len())
}

/// The state with the world's nodes and volumes, written by a session that was closed.
fn first_state(world: &World, bug: Option<Bug>) -> State {
    let mut state = State::new(world.settings);
    plant(&mut state, bug);
    let session = SessionId(1);
    let put = |(path, value): &(NodePath, &'static str)| Write::put(path.clone(), value.as_bytes().into());
    let volume = |path: &NodePath| Write::CreateVolume { path: path.clone(), settings: settings_of(world) };
    let writes = world.nodes.iter().map(put).chain(world.volumes.iter().map(volume));
    let mut commands = vec![Command::OpenSession { name: "the beginning".to_owned() }];
    commands.extend(writes.zip(1..).map(|(write, sequence)| Command::Write {
        session,
        sequence: Sequence(sequence),
        unanswered_from: Sequence(sequence),
        write,
        consented: vec![ObjectSet::Subtree(NodePath::root())],
        intended: IntendedLeases::default(),
        attached_through: Revision(0),
    }));
    commands.push(Command::CloseSession { session });
    state.apply(1, &Proposal { epoch: Epoch(0), number: 0, time: ClusterTime::ZERO, commands });
    state
}

fn settings_of(world: &World) -> leasehold_protocol::volume::VolumeSettings {
    settings(crate::world::TERM * 10, world.settings.tracking())
}

impl Run<'_> {
    /// Delivers everything in flight, in order, until nothing is left. `also` names other actions
    /// that happen by themselves.
    pub(crate) fn settle(&mut self, also: impl Fn(&Action) -> bool) -> Result<(), String> {
        for _ in 0..STEPS_MAX {
            let arrives = |action: &Action| {
                matches!(
                    action,
                    Action::Notice { .. }
                        | Action::Connect { .. }
                        | Action::Finish { .. }
                        | Action::Up { place: 0, .. }
                        | Action::UpConsent { .. }
                        | Action::Down { place: 0, .. }
                        | Action::DownRecall { .. }
                        | Action::Commit
                        | Action::Ask { .. }
                        | Action::Verdict { .. }
                        | Action::Learn { .. }
                )
            };
            let actions = self.at.actions(self.world);
            match actions.into_iter().find(|action| arrives(action) || also(action)) {
                Some(action) => self.act(action)?,
                None => return self.verdict(),
            }
        }
        Err(format!("nothing comes to rest in {STEPS_MAX} steps"))
    }

    /// No client sends anything for a while, but the leader's clock runs on.
    fn be_silent(&mut self, silence: Duration) -> Result<(), String> {
        let end = self.at.now + u64::try_from(silence.as_micros()).unwrap_or_default();
        while self.at.now < end {
            self.at.now = (self.at.now + JUMP).min(end);
            self.step_lessor(self.at.leader, LessorInput::Timeout);
            self.settle(|_| false)?;
        }
        self.verdict()
    }
}
