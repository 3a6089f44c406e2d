//! A single consumer with stand-bys (A49 in docs/verification.md): one of three works at a time. It
//! is killed, paused for longer than its lease or for about as long, or cut off in both directions
//! or in one. Sometimes the leading server is killed too. Before the next consumer begins, the old
//! one has stopped by its own deadline on its own clock. Each gap between the two is measured.
//!
//! `LEASEHOLD_STANDBY_ROUNDS=500 cargo test --test processes standbys -- --nocapture` makes more
//! changes. `LEASEHOLD_STANDBY_SEED` draws the same faults again.

use std::{collections::BTreeMap, time::Duration};

use rand::{Rng, SeedableRng, rngs::SmallRng, seq::IndexedRandom};

use crate::{
    alone,
    candidate::{self, Candidate},
    clocks::{at_rate, faketime},
    common::{Place, Shell, eventually},
    figures::Figures,
    number,
    reigns::Reigns,
    worker::boottime_ns,
    world::{World, server},
};

/// How often the consumer changes by default.
const ROUNDS: u64 = 30;

const HOSTS: [&str; 3] = ["c1", "c2", "c3"];

/// The node that they campaign for, and the term of its volume.
const NODE: &str = "/queue/consumer";
const TERM: Duration = Duration::from_millis(400);

/// A fault of the consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Trouble {
    /// It is paused until another consumer has begun.
    Paused,
    /// It is paused until about the end of its lease.
    PausedForATerm,
    CutOff,
    Unheard,
    Deaf,
    Killed,
    /// It is paused, and the leading server is killed.
    PausedWithoutServer,
}

impl Trouble {
    const DRAWN: [Self; 12] = [
        Self::Paused,
        Self::Paused,
        Self::Paused,
        Self::PausedForATerm,
        Self::PausedForATerm,
        Self::CutOff,
        Self::CutOff,
        Self::Unheard,
        Self::Deaf,
        Self::Killed,
        Self::Killed,
        Self::PausedWithoutServer,
    ];
}

/// A consumer and its stand-bys.
struct Queue {
    consumers: BTreeMap<&'static str, Candidate>,
    /// For questions about the lock queue.
    shell: Shell,
    world: World,
    started: u32,
    reigns: Reigns,
    random: SmallRng,
    /// How often each fault led to a change.
    changes: BTreeMap<Trouble, u64>,
    /// How often the consumer went on after a pause of about a term.
    went_on: u64,
    longest: Duration,
}

impl Queue {
    /// A queue without consumers.
    fn of(seed: u64) -> Option<Self> {
        let world = World::of(HOSTS.len())?;
        let cli = world.cluster.cli();
        let term = format!("{}ms", TERM.as_millis());
        cli.done(["volume", "create", "/queue", "--term", &term, "--skew-margin", "5ms"]);
        Some(Self {
            consumers: BTreeMap::new(),
            shell: cli.shell(),
            world,
            started: 0,
            reigns: Reigns::default(),
            random: SmallRng::seed_from_u64(seed),
            changes: BTreeMap::new(),
            went_on: 0,
            longest: Duration::ZERO,
        })
    }

    fn start_consumer(&mut self, host: &'static str) {
        self.start_consumer_at(host, &self.world.place(host));
    }

    /// The same, at another place of that host.
    fn start_consumer_at(&mut self, host: &'static str, place: &Place) {
        self.started += 1;
        let name = format!("{host}-{}", self.started);
        let consumer = candidate::start(place, &self.world.cluster, &name, NODE);
        self.consumers.insert(host, consumer);
    }

    fn gather(&mut self) {
        for consumer in self.consumers.values_mut() {
            let name = consumer.name.clone();
            self.reigns.add(&name, consumer.news());
        }
    }

    /// Waits until one consumer works and the others are in the lock queue. Returns its token and
    /// its host.
    fn settled(&mut self) -> (u64, &'static str) {
        let since = boottime_ns();
        eventually("one works and the others stand by", || {
            let line = self.shell.ask(&format!("holders {NODE}"));
            self.gather();
            let (token, reign) = self.reigns.latest().ok_or_else(|| line.to_string())?;
            let holds = line["locks"].as_array().filter(|holds| holds.len() == HOSTS.len());
            let leads = holds.is_some_and(|holds| holds[0]["token"] == token) && reign.acted > since;
            let host = HOSTS.into_iter().find(|host| self.consumers[host].name == reign.name);
            host.filter(|_| leads).map(|host| (token, host)).ok_or_else(|| format!("{reign:?}, {line}"))
        })
    }

    /// Waits until another consumer works.
    fn until_next(&mut self, token: u64) {
        eventually("the next one works", || {
            self.gather();
            (self.reigns.latest()?.0 > token).then_some(())
        });
    }

    /// Waits until the consumer works again, or another one does.
    fn until_someone_works(&mut self, token: u64) {
        let since = boottime_ns();
        eventually("someone works", || {
            self.gather();
            let (latest, reign) = self.reigns.latest()?;
            (latest > token || reign.acted > since).then_some(())
        });
    }

    fn cut_off(&self, host: &str, is_heard: bool, hears: bool) {
        for server in self.world.cluster.ids().into_iter().map(server) {
            if !is_heard {
                self.world.network.cut(host, &server);
            }
            if !hears {
                self.world.network.cut(&server, host);
            }
        }
    }

    fn befall(&mut self, trouble: Trouble, token: u64, host: &'static str) {
        match trouble {
            Trouble::Paused | Trouble::PausedWithoutServer => {
                let server = (trouble == Trouble::PausedWithoutServer).then(|| self.world.cluster.leader());
                self.consumers[host].process.pause(true);
                if let Some(server) = server {
                    self.world.cluster.kill(server);
                    self.world.cluster.spawn(server);
                }
                self.until_next(token);
                self.consumers[host].process.pause(false);
            }
            Trouble::PausedForATerm => {
                let goes_on = boottime_ns() + TERM.mul_f64(self.random.random_range(0.3..1.1)).as_nanos() as u64;
                self.consumers[host].process.pause(true);
                eventually("it has stood still for so long", || (boottime_ns() >= goes_on).then_some(()));
                self.consumers[host].process.pause(false);
                self.until_someone_works(token);
            }
            Trouble::CutOff | Trouble::Unheard | Trouble::Deaf => {
                self.cut_off(host, trouble == Trouble::Deaf, trouble == Trouble::Unheard);
                self.until_next(token);
                self.world.network.heal_all();
            }
            Trouble::Killed => {
                let mut killed = self.consumers.remove(host).expect("it is there");
                killed.process.kill();
                let (name, news) = (killed.name.clone(), killed.news());
                self.reigns.add(&name, news);
                self.until_next(token);
                self.start_consumer(host);
            }
        }
    }

    /// Causes one fault. Another consumer follows, or this one goes on after a pause.
    fn round(&mut self) {
        let (token, host) = self.settled();
        let trouble = *Trouble::DRAWN.choose(&mut self.random).expect("some");
        let struck = boottime_ns();
        self.befall(trouble, token, host);
        match self.reigns.after(token).next().map(|(_, next)| next.elected) {
            Some(next) => {
                *self.changes.entry(trouble).or_default() += 1;
                self.longest = self.longest.max(Duration::from_nanos(next.saturating_sub(struck)));
            }
            None => self.went_on += 1,
        }
    }

    /// The times from a consumer's last act to the election of the next.
    fn idle(&self) -> Figures {
        let reigns: Vec<_> = self.reigns.iter().map(|(_, reign)| reign).collect();
        let idle = |two: &[&crate::reigns::Reign]| Duration::from_nanos(two[1].elected.saturating_sub(two[0].acted));
        reigns.windows(2).map(idle).collect()
    }
}

#[test]
fn consumer_stops_by_own_deadline_before_standby_begins() {
    let _alone = alone();
    let rounds = number("LEASEHOLD_STANDBY_ROUNDS", ROUNDS);
    let seed = number("LEASEHOLD_STANDBY_SEED", rand::random());
    println!("LEASEHOLD_STANDBY_SEED={seed}");
    let Some(mut queue) = Queue::of(seed) else { return };
    HOSTS.into_iter().for_each(|host| queue.start_consumer(host));
    // `gaps` checks them in every round.
    while (queue.reigns.gaps().len() as u64) < rounds {
        queue.round();
    }
    let gaps: Figures = queue.reigns.gaps().into_iter().collect();
    println!("changes after {:?}; {} times the consumer went on", queue.changes, queue.went_on);
    println!("from the old one's deadline to the next one's beginning: {gaps}");
    println!("from what the old one did last: {}", queue.idle());
    println!("the longest that there was none after something befell one: {:?}", queue.longest);
    queue.world.cluster.caught_up(&queue.world.cluster.ids());
    queue.world.cluster.assert_all_run();
}

#[test]
fn consumers_with_too_slow_clocks_are_found_overlapping() {
    let _alone = alone();
    let Some(library) = faketime() else { return };
    let Some(mut queue) = Queue::of(0) else { return };
    for host in HOSTS {
        let place = at_rate(&library, &queue.world.place(host), 0.2);
        queue.start_consumer_at(host, &place);
    }
    let violation = eventually("two work at once, each by its own clock", || {
        queue.gather();
        queue.reigns.check().err().ok_or_else(|| format!("{:?}", queue.reigns))
    });
    println!("as expected: {}", violation.lines().next().expect("a line"));
}
