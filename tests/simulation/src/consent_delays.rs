//! Clients that delay their consents, and their notices. The draws use random streams of their own,
//! so that everything else in a world is drawn as it would be without them.
//!
//! A notice replies to a recall, like a consent. In half of the worlds with such notices none
//! arrives, so that those worlds stay as they were. In the others, some are lost, and some are
//! lies. The rules must not use a notice. So the lessor must be as if only the time had passed.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use leasehold_model::rng::Rng;
use leasehold_protocol::{
    holder::HolderConfig,
    lessor::{Lessor, LessorInput},
    message::{DelayNotice, DelayReason},
};

use crate::{
    event::{Event, Up},
    profile::MS,
    world::World,
};

/// How many of a thousand worlds have such clients.
const WORLDS: u64 = 250;

/// How many of a thousand worlds have notices that arrive.
const WORLDS_WITH_NOTICES: u64 = 500;

/// How many of a thousand notices are lost, and how many are lies.
const LOST: u64 = 100;
const LIES: u64 = 200;

/// A round that no lessor has begun. Its failure changes nothing.
const NO_ROUND: u64 = u64::MAX;

/// How many of a thousand worlds keep few consents for requests, after their replies.
const WORLDS_WITH_FEW_WAITING: u64 = 250;

/// Select the random streams of delayed consents, of their notices, and of consents that wait.
const CONSENTS: u64 = 0x63_6f_6e_73_65_6e_74;
const NOTICES: u64 = 0x6e_6f_74_69_63_65;
const WAITING: u64 = 0x77_61_69_74_69_6e_67;

/// The draws of delayed consents in one world, from random streams of their own.
#[derive(Debug)]
pub(crate) struct ConsentDelays {
    delays: Option<Rng>,
    notices: Option<Rng>,
    waiting: Option<Rng>,
}

impl ConsentDelays {
    pub(crate) fn new(seed: u64) -> Self {
        let one_of = |stream, worlds| {
            let mut rng = Rng::new(seed ^ stream);
            rng.chance(worlds).then_some(rng)
        };
        Self {
            delays: one_of(CONSENTS, WORLDS),
            notices: one_of(NOTICES, WORLDS_WITH_NOTICES),
            waiting: one_of(WAITING, WORLDS_WITH_FEW_WAITING),
        }
    }

    /// Draws the bounds of a client that begins, and delays its consents, or not.
    pub(crate) fn draw(&mut self, config: &mut HolderConfig) {
        if let Some(rng) = &mut self.waiting {
            config.bounds.consents_waiting_max = *rng.pick(&[1, 3]);
        }
        let Some(rng) = &mut self.delays else { return };
        config.consent_delay = Duration::from_millis(*rng.pick(&[0, 5, 40, 300, 60_000]));
        if rng.chance(300) {
            config.bounds.delayed_consents_max = 1;
        }
    }

    /// What arrives of a notice, and after how long. `None` if it is lost.
    fn arrival(&mut self, notice: DelayNotice) -> Option<(u64, DelayNotice)> {
        let rng = self.notices.as_mut()?;
        if rng.chance(LOST) {
            return None;
        }
        let lie = DelayReason::InUse { at_most: *rng.pick(&[Duration::ZERO, Duration::MAX]) };
        let reason = if rng.chance(LIES) { lie } else { notice.reason };
        Some((rng.between(1, 30) * MS, DelayNotice { reason, ..notice }))
    }
}

impl World {
    /// A client replies to a recall that its consent comes later.
    pub(crate) fn send_notice(&mut self, connection: usize, notice: DelayNotice) {
        self.tally.add("consents delayed");
        if let Some((late, notice)) = self.consent_delays.arrival(notice) {
            self.after(late, Event::Up { connection, message: Up::ConsentDelayed(notice) });
        }
    }

    /// The notice arrives at the server.
    pub(crate) fn note_delay(&mut self, place: usize, notice: DelayNotice) {
        let server = &self.servers[place];
        let Some(lessor) = server.shell.lessor.as_ref() else { return };
        let (state, clock) = (&server.state, server.machine.clock.read(self.now));
        let (mut with, mut without) = (lessor.clone(), lessor.clone());
        let effects = with.step(LessorInput::ConsentDelayed(notice), state, clock);
        let expected = without.step(LessorInput::NotProven { round: NO_ROUND }, state, clock);
        let is_equal = effects == expected && hash(&with) == hash(&without);
        self.tally.add("notices of delayed consents");
        self.demand(if is_equal { Ok(()) } else { Err(format!("a notice had an effect: {notice:?}")) });
        self.step_lessor(place, LessorInput::ConsentDelayed(notice));
    }
}

/// The hash of all that the rules use.
fn hash(lessor: &Lessor) -> u64 {
    let mut hasher = DefaultHasher::new();
    lessor.hash(&mut hasher);
    hasher.finish()
}
