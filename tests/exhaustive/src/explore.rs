//! The exploration is breadth first. So the first violation found has a shortest path.
//!
//! Several threads expand all situations of one depth before the next depth. Only hashes are kept
//! of known situations, and for each the step that reached it first. To print a path, the explorer
//! repeats it from the beginning.

use std::{
    collections::HashSet,
    fmt,
    hash::{BuildHasherDefault, Hasher},
    sync::Mutex,
    time::{Duration, Instant},
};

use leasehold_model::threads::spread;
use leasehold_protocol::planted::Bug;

use crate::{beginning, ending, part::fingerprint, run::Run, situation::Situation, world::World};

/// The number of sets of hashes, each with its own mutex.
const SHARDS: usize = 64;
/// How many situations a thread takes at a time.
const PORTION: usize = 32;

/// The parameters of an exploration.
#[derive(Debug, Clone, Copy)]
pub struct Search {
    /// The mistake to put back, if any.
    pub bug: Option<Bug>,
    /// How many threads explore.
    pub threads: usize,
    /// The exploration stops beyond this many situations.
    pub most: usize,
}

/// The result of an exploration.
#[derive(Debug, Clone)]
pub struct Report {
    /// The number of different situations.
    pub situations: usize,
    /// The number of steps between situations, including steps to a known situation.
    pub steps: usize,
    /// The number of situations in which nothing more can happen by itself.
    pub ends: usize,
    /// The number of steps to the most distant situation, by a shortest path.
    pub depth: usize,
    /// Whether everything was explored.
    pub is_complete: bool,
    /// The violation, if there is one.
    pub violation: Option<Violation>,
    /// How long it took.
    pub took: Duration,
}

/// A broken invariant.
#[derive(Debug, Clone)]
pub struct Violation {
    /// What does not hold.
    pub what: String,
    /// The number of steps to it: no path is shorter.
    pub depth: usize,
    /// The steps of the path, as text.
    pub path: String,
}

/// The identity hash of a value that is a hash already.
#[derive(Default)]
struct Known(u64);

impl Hasher for Known {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {}

    fn write_u128(&mut self, mark: u128) {
        self.0 = (mark >> 64) as u64;
    }
}

type Marks = HashSet<u128, BuildHasherDefault<Known>>;

/// How a situation was first reached: from which one, and by which of its actions.
#[derive(Debug, Clone, Copy)]
struct Origin {
    from: u32,
    action: u16,
}

/// The results of one thread at one depth.
#[derive(Default)]
struct Haul {
    next: Vec<(Origin, Situation)>,
    steps: usize,
    ends: usize,
    broken: Vec<(Option<Origin>, u32, String)>,
}

struct Explorer<'a> {
    world: &'a World,
    search: Search,
    shards: Vec<Mutex<Marks>>,
}

/// Explores a world.
pub fn explore(world: &World, search: Search) -> Report {
    let began = Instant::now();
    let shards = (0..SHARDS).map(|_| Mutex::new(Marks::default())).collect();
    let explorer = Explorer { world, search, shards };
    let mut report = Report {
        situations: 1,
        steps: 0,
        ends: 0,
        depth: 0,
        is_complete: false,
        violation: None,
        took: Duration::ZERO,
    };
    match beginning::begin(world, search.bug) {
        Ok(mut first) => {
            explorer.is_new(first.seal());
            explorer.go(first, &mut report);
        }
        Err(what) => {
            let path = "in the beginning".to_owned();
            report.violation = Some(Violation { what, depth: 0, path });
        }
    }
    report.took = began.elapsed();
    report
}

/// One path through a world as text, to its end or to a violation. `choice` selects the path.
pub fn walk(world: &World, bug: Option<Bug>, choice: u64) -> String {
    let first = match beginning::begin(world, bug) {
        Ok(first) => first,
        Err(what) => return format!("in the beginning: {what}"),
    };
    let mut run = Run::new(world, bug, first, true);
    let mut lines = Vec::new();
    for step in 0.. {
        let actions = run.at.actions(world);
        let Some(last) = actions.len().checked_sub(1) else { break };
        let chance = fingerprint(&(choice, step)) % (last as u128 + 1);
        let held = run.act(actions[usize::try_from(chance).unwrap_or_default()]);
        run.at.seal();
        lines.extend(run.take_lines());
        if let Err(what) = held {
            lines.push(format!("VIOLATION: {what}"));
            return lines.join("\n");
        }
    }
    lines.extend(run.end().err());
    lines.extend(run.take_lines());
    lines.join("\n")
}

impl Explorer<'_> {
    fn go(&self, first: Situation, report: &mut Report) {
        let mut origins = vec![Origin { from: 0, action: 0 }];
        let mut level = vec![first];
        while !level.is_empty() {
            let offset = origins.len() - level.len();
            let hauls = self.level(&level, offset);
            level.clear();
            let mut broken = Vec::new();
            for haul in hauls {
                report.steps += haul.steps;
                report.ends += haul.ends;
                broken.extend(haul.broken);
                for (origin, situation) in haul.next {
                    origins.push(origin);
                    level.push(situation);
                }
            }
            report.situations = origins.len();
            broken.sort_by_key(|(origin, at, _)| (origin.is_some(), *at));
            if let Some((origin, at, what)) = broken.into_iter().next() {
                report.violation = Some(self.violation(&origins, at, origin, what));
                return;
            }
            if level.is_empty() {
                report.is_complete = true;
                return;
            }
            report.depth += 1;
            if origins.len() > self.search.most {
                return;
            }
        }
    }

    /// Expands all situations of one depth.
    fn level(&self, level: &[Situation], offset: usize) -> Vec<Haul> {
        let portions = level.len().div_ceil(PORTION) as u64;
        spread(self.search.threads, 0..portions, |haul: &mut Haul, portion| {
            let begin = portion as usize * PORTION;
            for (place, situation) in level.iter().enumerate().skip(begin).take(PORTION) {
                let at = u32::try_from(offset + place).unwrap_or(u32::MAX);
                self.expand(situation, at, haul);
            }
            true
        })
    }

    /// Takes every possible action in one situation.
    fn expand(&self, situation: &Situation, at: u32, haul: &mut Haul) {
        let actions = situation.actions(self.world);
        if actions.is_empty() {
            haul.ends += 1;
            if let Err(what) = ending::end(self.world, self.search.bug, situation) {
                haul.broken.push((None, at, what));
            }
        }
        for (number, action) in actions.into_iter().enumerate() {
            let origin = Origin { from: at, action: u16::try_from(number).unwrap_or(u16::MAX) };
            let mut run = Run::new(self.world, self.search.bug, situation.clone(), false);
            haul.steps += 1;
            if let Err(what) = run.act(action) {
                haul.broken.push((Some(origin), at, what));
            } else if self.is_new(run.at.seal()) {
                haul.next.push((origin, run.at));
            }
        }
    }

    fn is_new(&self, mark: u128) -> bool {
        let shard = &self.shards[usize::try_from(mark % SHARDS as u128).unwrap_or_default()];
        let mut marks = shard.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        marks.insert(mark)
    }

    /// Repeats the path to a violation, and records it as text.
    fn violation(&self, origins: &[Origin], at: u32, last: Option<Origin>, what: String) -> Violation {
        let mut actions: Vec<u16> = last.map(|last| last.action).into_iter().collect();
        let mut place = at as usize;
        while place > 0 {
            actions.push(origins[place].action);
            place = origins[place].from as usize;
        }
        actions.reverse();
        let depth = actions.len();
        let mut lines = Vec::new();
        if let Ok(first) = beginning::begin(self.world, self.search.bug) {
            let mut run = Run::new(self.world, self.search.bug, first, true);
            for number in actions {
                let Some(action) = run.at.actions(self.world).get(usize::from(number)).copied() else { break };
                let held = run.act(action);
                run.at.seal();
                lines.extend(run.take_lines());
                if held.is_err() {
                    break;
                }
            }
            if last.is_none() {
                lines.push("nothing more happens by itself; time goes by".to_owned());
                let ended = run.end();
                lines.extend(run.take_lines());
                lines.extend(ended.err());
            }
        }
        lines.push(format!("VIOLATION after {depth} steps: {what}"));
        Violation { what, depth, path: lines.join("\n") }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { situations, steps, ends, depth, is_complete, violation, took } = self;
        let all = if *is_complete { "all of it" } else { "not all of it" };
        write!(
            f,
            "{situations} situations, {steps} steps, {ends} ends, depth {depth}, {all}, {:.1} s",
            took.as_secs_f64()
        )?;
        match violation {
            Some(violation) => write!(f, "; broken after {} steps: {}", violation.depth, violation.what),
            None => Ok(()),
        }
    }
}
