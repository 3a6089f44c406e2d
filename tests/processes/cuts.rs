//! Short cuts of the network: a registration and a lock outlive each cut that is shorter than half
//! of their term.
//!
//! Each round waits for a renewal, then for a part of the time until the next renewal, and cuts a
//! client off. The parts are spread evenly, so the cuts begin at all times of a renewal's cycle.
//!
//! `LEASEHOLD_CUTS=100 cargo test --test processes cuts -- --nocapture` makes more rounds.
//! `LEASEHOLD_CUT_MS=800` makes the cuts longer, which shows the boundary.

use std::{collections::BTreeMap, fmt, path::PathBuf, time::Duration};

use leasehold_client_cache::{Client, LockGuard, Options, Registration};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::{MissedTickBehavior, interval};

use crate::{
    alone,
    common::{ALLOWANCE, eventually, stall::Stalls},
    figures::Figures,
    number,
    worker::{self, Notes, Role, boottime_ns, until_told_to_stop},
    world::{TERM, World},
};

/// The number of cuts by default.
const ROUNDS: u64 = 4;

/// The length of a cut by default: well below half of the term.
const CUT: Duration = Duration::from_millis(600);

/// How a process learns that it must be the keeper.
const KEEPER: Role =
    Role { variable: "LEASEHOLD_TEST_KEEPER", test: "cuts::cut_shorter_than_half_a_term_ends_nothing" };

/// How much longer than intended a cut may take: a process is started to end it.
const CUT_LATE_MAX: Duration = Duration::from_millis(50);

/// How often the keeper notes the time left of its leases.
const PACE: Duration = Duration::from_millis(5);

/// A step of the golden ratio, which spreads any number of parts evenly.
const SPREAD: f64 = 0.618_033_988_749_895;

const HOST: &str = "c1";
const SERVICE: &str = "/n/service";
const LOCK: &str = "/n/lock";

/// The task of a keeper.
#[derive(Debug, Serialize, Deserialize)]
struct Task {
    endpoints: Vec<String>,
    notes: PathBuf,
}

/// A note of a keeper. Times are in nanoseconds on the clock by which leases are counted.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Note {
    /// It has both: the registration's epoch and the lock's token.
    Has { epoch: u64, token: u64 },
    /// The time left of the registration and of the lock.
    Left { at: u64, registration: u64, lock: u64 },
    /// One of them or both are lost.
    Lost { at: u64, registration: bool, lock: bool },
}

/// Registers and locks, again and again, and notes what it has.
async fn keep(task: Task) {
    let options = Options::new(task.endpoints).name("keeper");
    let client = Client::connect(options).await.expect("the cluster serves");
    let notes = Notes::open(&task.notes);
    loop {
        let registered = client.register(SERVICE, "here").await;
        let locked = client.lock(LOCK).await;
        // After a long cut, one attempt may come too early.
        if let (Ok(registration), Ok(lock)) = (registered, locked) {
            notes.note(&Note::Has { epoch: registration.epoch().0, token: lock.token().0 });
            until_lost(&registration, &lock, &notes).await;
            // The next registration is a new node. This one may be gone already.
            let _ = registration.leave().await;
        }
    }
}

async fn until_lost(registration: &Registration, lock: &LockGuard, notes: &Notes) {
    let mut checks = interval(PACE);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        checks.tick().await;
        let at = boottime_ns();
        let left = [registration.remaining(), lock.remaining()].map(|left| left.as_nanos() as u64);
        notes.note(&Note::Left { at, registration: left[0], lock: left[1] });
        let lost = [registration.on_lost().is_cancelled(), lock.on_lost().is_cancelled()];
        if lost.contains(&true) {
            return notes.note(&Note::Lost { at, registration: lost[0], lock: lost[1] });
        }
    }
}

/// What the test knows of the keeper.
#[derive(Debug, Default)]
struct Seen {
    /// The epoch and the token of what it has. `None` after a loss.
    has: Option<(u64, u64)>,
    /// The time left by the last note: the registration's or the lock's, whichever is less.
    left: Duration,
    /// The time of the last note.
    at: u64,
    /// The time of the last note with more time left than before: after a renewal.
    renewed: u64,
    /// The least time left since the last reset of this field.
    least: Duration,
    lost: Vec<String>,
}

impl Seen {
    fn add(&mut self, notes: Vec<Note>) {
        for note in notes {
            match note {
                Note::Has { epoch, token } => self.has = Some((epoch, token)),
                Note::Left { at, registration, lock } => {
                    let left = Duration::from_nanos(registration.min(lock));
                    if left > self.left {
                        self.renewed = at;
                    }
                    (self.at, self.left, self.least) = (at, left, self.least.min(left));
                }
                Note::Lost { registration, lock, .. } => {
                    let what = if registration { "the registration" } else { "the lock" };
                    self.lost.push(if registration && lock { "both".to_owned() } else { what.to_owned() });
                    (self.has, self.left) = (None, Duration::ZERO);
                }
            }
        }
    }
}

/// The world, with a keeper in it.
struct Setting {
    // Dropped before the world in which it runs.
    keeper: worker::Worker<Note>,
    world: World,
    seen: Seen,
}

impl Setting {
    /// `None` if the test is skipped.
    fn new() -> Option<Self> {
        let world = World::of(1)?;
        let notes = worker::notes(&world.cluster.directory(""), "keeper");
        let task = Task { endpoints: world.cluster.endpoints(), notes };
        let keeper = worker::Worker::start(&world.place(HOST), KEEPER, "keeper", &task, &task.notes);
        Some(Self { keeper, world, seen: Seen::default() })
    }

    /// Reads the keeper's notes until they meet a condition.
    fn until(&mut self, what: &str, fits: impl Fn(&Seen) -> bool) {
        let (keeper, seen) = (&mut self.keeper, &mut self.seen);
        eventually(what, || {
            seen.add(keeper.news());
            if fits(seen) { Ok(()) } else { Err(format!("{seen:?}")) }
        });
    }

    /// Waits for the next renewal. Returns its time, as the keeper noted it.
    fn renewed(&mut self) -> u64 {
        let since = boottime_ns();
        self.until("the keeper has both, and renews", |seen| seen.has.is_some() && seen.renewed > since);
        self.seen.renewed
    }

    /// The registration's epoch and the lock's token, as the servers have them.
    fn at_the_servers(&self) -> (Option<u64>, Option<u64>) {
        let cli = self.world.cluster.cli();
        let node: Value = cli.run(["--json", "--timeout", "30s", "get", SERVICE]).json();
        let holds: Value = cli.done(["--timeout", "30s", "holders", LOCK]);
        (node["revision"].as_u64(), holds["locks"][0]["token"].as_u64())
    }

    /// Cuts the keeper off. Returns how long packets could be lost.
    fn cut(&self, long: Duration) -> Duration {
        let began = boottime_ns();
        self.world.network.cut_off(HOST);
        let ends = began + long.as_nanos() as u64;
        eventually("the cut is over", || (boottime_ns() >= ends).then_some(()));
        self.world.network.plug_in(HOST);
        Duration::from_nanos(boottime_ns() - began)
    }
}

/// The result of one round.
#[derive(Debug)]
struct Round {
    /// From the last renewal to the cut.
    after: Duration,
    /// How long packets could be lost.
    cut: Duration,
    /// The time left when the cut began.
    left: Duration,
    /// The least time left during the cut and until the next renewal.
    least: Duration,
    /// What was lost. `None` if nothing was.
    lost: Option<String>,
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { after, cut, left, least, lost } = self;
        write!(f, "{after:.3?} after a renewal, with {left:.3?} left, cut for {cut:.3?}: least {least:.3?}; ")?;
        match lost {
            Some(what) => write!(f, "lost: {what}"),
            None => write!(f, "nothing lost"),
        }
    }
}

impl Setting {
    /// Makes one cut, at this part of a renewal's cycle.
    fn round(&mut self, part: f64, long: Duration) -> Round {
        // After a loss, the keeper may at once lose what it was just granted.
        let before = eventually("the keeper and the servers agree", || {
            self.renewed();
            let (has, found) = (self.seen.has.ok_or("lost again")?, self.at_the_servers());
            if found == (Some(has.0), Some(has.1)) {
                Ok(has)
            } else {
                Err(format!("{found:?} at the servers: expected {has:?}"))
            }
        });
        // A new cycle, because the answers of the servers took time.
        let renewed = self.renewed();
        let begins = renewed + (TERM / 2).mul_f64(part).as_nanos() as u64;
        eventually("the cut begins", || (boottime_ns() >= begins).then_some(()));
        let began = boottime_ns();
        let (lost_before, whole) = (self.seen.lost.len(), self.cut(long));
        self.seen.least = Duration::MAX;
        // The notes before the cut are read too, because they say how much was left.
        let since = began + whole.as_nanos() as u64;
        let mut left = self.seen.left;
        let (keeper, seen) = (&mut self.keeper, &mut self.seen);
        eventually("the keeper renews after the cut, or has lost something", || {
            for note in keeper.news() {
                seen.add(vec![note]);
                if seen.at <= began {
                    (left, seen.least) = (seen.left, seen.left);
                }
            }
            let is_over = seen.lost.len() > lost_before || seen.renewed > since;
            if is_over { Ok(()) } else { Err(format!("{seen:?}")) }
        });
        let mut lost = self.seen.lost.get(lost_before).cloned();
        if lost.is_none() {
            let found = self.at_the_servers();
            let is_same = found == (Some(before.0), Some(before.1));
            lost = (!is_same).then(|| format!("{found:?} at the servers: expected {before:?}"));
        }
        Round { after: Duration::from_nanos(began - renewed), cut: whole, left, least: self.seen.least, lost }
    }

    /// The least time left in a term without a cut.
    fn steady(&mut self) -> Duration {
        self.renewed();
        self.seen.least = Duration::MAX;
        let until = boottime_ns() + TERM.as_nanos() as u64;
        self.until("a term has passed", |seen| seen.at > until);
        self.seen.least
    }
}

/// If the process must be the keeper, this runs the keeper.
#[test]
fn cut_shorter_than_half_a_term_ends_nothing() {
    if let Some(task) = KEEPER.task() {
        until_told_to_stop(keep(task));
        return;
    }
    let _alone = alone();
    let Some(mut setting) = Setting::new() else { return };
    let (rounds, long) = (number("LEASEHOLD_CUTS", ROUNDS), number("LEASEHOLD_CUT_MS", CUT.as_millis() as u64));
    let long = Duration::from_millis(long);
    println!("without a cut, {:.3?} of {TERM:?} are left at least", setting.steady());
    let mut tally: BTreeMap<bool, Vec<Round>> = BTreeMap::new();
    let mut set_aside = 0;
    for number in 0..rounds {
        let stalls = Stalls::watched();
        let round = setting.round((SPREAD * number as f64).fract(), long);
        let stall = stalls.sum();
        println!("{number:3}: {round}");
        if round.lost.is_some() && (stall > ALLOWANCE || round.cut > long + CUT_LATE_MAX) {
            println!("     not counted: the machine stood still for {stall:.3?}, or the cut was too long");
            set_aside += 1;
        } else {
            tally.entry(round.lost.is_some()).or_default().push(round);
        }
    }
    let of = |lost: bool| tally.get(&lost).map_or(&[][..], |rounds| rounds);
    let least: Figures = of(false).iter().map(|round| round.least).collect();
    let cuts: Figures = tally.values().flatten().map(|round| round.cut).collect();
    let (lost, kept) = (of(true).len(), of(false).len());
    println!("cuts of {long:?}, which took {cuts}: {lost} lost, {kept} nothing, {set_aside} not counted");
    println!("where nothing was lost, at least this was left: {least}");
    assert!(of(true).is_empty(), "{lost} of {} cuts of {long:?} ended something: {:#?}", lost + kept, of(true));
    assert!(set_aside * 2 <= rounds, "the machine stood still in {set_aside} of {rounds} rounds: nothing was shown");
    setting.keeper.stop();
}
