//! Candidates that compete for a node, in virtual time, with the default terms. The elected leader
//! has an exclusive lock, and the others wait in its queue. A message takes 0.5 ms, a commit 2 ms.

use super::*;
use crate::{
    id::{LockId, Token},
    lock::{LockMode, LockStatus},
};

/// A fault ends the lead of a client. Another leads within a term and this allowance.
const ALLOWANCE: Duration = Duration::from_secs(1);

/// The fault of a candidate.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Well,
    /// Until then its messages are lost in both directions, and it cannot connect.
    CutUntil(Instant),
    /// The process is paused until then.
    StopsUntil(Instant),
    /// The process has died.
    Dead,
}

pub(super) struct Contest {
    fates: Vec<Fate>,
    /// The lock of each client, granted or waiting.
    locks: Vec<Option<LockId>>,
    /// The owner of the lock in the state, and since when.
    granted: Option<(LockId, Instant)>,
    /// The clients that were elected since the last fault.
    elected: Vec<Elected>,
    last_token: Token,
    /// When the elected leader was notified that others wait.
    wanted_at: Option<Instant>,
    /// Requests for the lock that are in flight.
    writes: BTreeMap<WriteId, usize>,
}

#[derive(Clone, Copy, Debug)]
struct Elected {
    client: usize,
    at: Instant,
    after_commit: Duration,
}

impl Contest {
    /// Whether messages reach the client and leave it.
    pub(super) fn is_reached(&self, client: usize) -> bool {
        matches!(self.fates.get(client), Some(Fate::Well | Fate::StopsUntil(_)))
    }
}

impl Pair {
    /// Clients without a lock request. `count` is at least three.
    fn of_clients(seed: u64, count: usize) -> Self {
        let mut pair = Self::new(seed);
        pair.is_checked = false;
        pair.lossy = Some(day::Lossy::of(count, u64::MAX));
        pair.contest = Some(Contest {
            fates: vec![Fate::Well; count],
            locks: vec![None; count],
            granted: None,
            elected: Vec::new(),
            last_token: Token(0),
            wanted_at: None,
            writes: BTreeMap::new(),
        });
        for client in pair.holders.len()..count {
            pair.holders.push(Holder::new(HolderConfig::new(format!("client {client}"))));
            pair.users.push(User::default());
            pair.later(10_000, Event::ToClient(client, HolderInput::Connected));
        }
        pair.pass(ALLOWANCE);
        pair
    }

    fn of_candidates(seed: u64, count: usize) -> Self {
        let mut pair = Self::of_clients(seed, count);
        for client in 0..count {
            pair.campaign(client);
            pair.pass(Duration::from_millis(10));
        }
        pair
    }

    fn contest(&mut self) -> &mut Contest {
        self.contest.as_mut().expect("the run has a contest")
    }

    fn campaign(&mut self, client: usize) {
        let change = Write::Lock { path: path("/k"), mode: LockMode::Exclusive, wait: true, delay: Duration::ZERO };
        self.ask_in_contest(client, change);
    }

    fn resign(&mut self, client: usize) {
        let lock = self.contest().locks[client].take().expect("the client leads");
        self.ask_in_contest(client, Write::Unlock { path: path("/k"), lock });
    }

    /// A lock is lost for the client, and perhaps not for the server. It is released, as the client
    /// library does.
    fn release(&mut self, client: usize, lock: LockId) {
        self.count += 1;
        let (write, change) = (WriteId(self.count), Write::Unlock { path: path("/k"), lock });
        self.contest().writes.insert(write, client);
        self.later(0, Event::ToClient(client, HolderInput::Write { write, change }));
    }

    fn ask_in_contest(&mut self, client: usize, change: Write) {
        self.count += 1;
        let write = WriteId(self.count);
        self.contest().writes.insert(write, client);
        self.client(client, HolderInput::Write { write, change });
    }

    /// Whether the client's process runs.
    pub(super) fn runs(&self, client: usize) -> bool {
        let Some(contest) = &self.contest else { return true };
        match contest.fates[client] {
            Fate::Well | Fate::CutUntil(_) => true,
            Fate::StopsUntil(until) => until <= self.now,
            Fate::Dead => false,
        }
    }

    /// Delays messages to a paused process, and connections of a client that is cut off.
    pub(super) fn unless_put_off(&mut self, event: Event) -> Option<Event> {
        let (Event::ToClient(client, _) | Event::OnConnection(client, ..)) = &event else { return Some(event) };
        let client = *client;
        let Some(contest) = &mut self.contest else { return Some(event) };
        let until = match contest.fates[client] {
            Fate::Well => return Some(event),
            Fate::Dead => return None,
            Fate::StopsUntil(until) if until <= self.now => {
                contest.fates[client] = Fate::Well;
                return Some(event);
            }
            Fate::StopsUntil(until) => until,
            Fate::CutUntil(until) => match event {
                Event::ToClient(_, HolderInput::Connected) if until > self.now => until,
                Event::ToClient(_, HolderInput::Connected) => {
                    contest.fates[client] = Fate::Well;
                    return Some(event);
                }
                _ => return Some(event),
            },
        };
        self.count += 1;
        self.events.insert((until, self.count), event);
        None
    }

    /// Notes the owner of the lock, after an entry was applied.
    pub(super) fn note_who_holds(&mut self) {
        let Some(contest) = &mut self.contest else { return };
        let holder = self.state.locks().find(|(_, _, lock)| lock.token.is_some()).map(|(id, ..)| id);
        if contest.granted.map(|(id, _)| id) != holder {
            contest.granted = holder.map(|id| (id, self.now));
        }
    }

    /// Whether the effect is about the contest, or does not matter to it.
    pub(super) fn note_of_contest(&mut self, client: usize, effect: &HolderEffect) -> bool {
        match effect {
            HolderEffect::WriteDone { write, result } => {
                assert_eq!(self.contest().writes.remove(write), Some(client));
                if let Ok(Some(taken)) = result.as_ref().map(|written| written.lock.as_deref()) {
                    self.contest().locks[client] = Some(taken.lock);
                    if let Some(token) = taken.token {
                        self.elected(client, taken.lock, token);
                    }
                }
            }
            HolderEffect::LockChanged { lock, status: LockStatus::Granted { token, is_contended, .. } } => {
                assert_eq!(self.contest().locks[client], Some(*lock));
                // This can only mean that another waits for the leader's lock.
                if *token == self.contest().last_token {
                    assert!(is_contended, "a lock changes twice only by contention");
                    self.contest().wanted_at = Some(self.now);
                } else {
                    self.elected(client, *lock, *token);
                }
            }
            HolderEffect::LocksLost { locks, .. } => {
                self.contest().locks[client] = None;
                locks.iter().for_each(|lock| self.release(client, *lock));
            }
            HolderEffect::Connection(_) => {}
            _ => return false,
        }
        true
    }

    /// A candidate is notified that it is elected. No other may count on the lock.
    fn elected(&mut self, client: usize, lock: LockId, token: Token) {
        let now = self.now;
        let contest = self.contest.as_mut().expect("the run has a contest");
        assert!(token > contest.last_token, "{token} after {}", contest.last_token);
        let (granted, since) = contest.granted.expect("the state has an owner of the node");
        assert_eq!(granted, lock, "the reported owner is the owner in the state");
        (contest.last_token, contest.wanted_at) = (token, None);
        contest.elected.push(Elected { client, at: now, after_commit: now.since(since) });
        for (other, holder) in self.holders.iter().enumerate().filter(|(other, _)| *other != client) {
            if let (Some(lock), false) = (contest.locks[other], contest.fates[other] == Fate::Dead) {
                assert_eq!(holder.lock_remaining(lock, now), Duration::ZERO, "{other} leads beside {client}");
            }
        }
    }

    /// All clients with a running process, the elected leader first.
    fn in_line(&self) -> Vec<usize> {
        let contest = self.contest.as_ref().expect("the run has a contest");
        let client = |id| contest.locks.iter().position(|lock| *lock == Some(id));
        self.state.locks().filter_map(|(id, ..)| client(id)).filter(|client| self.runs(*client)).collect()
    }

    /// Runs until no candidate has a fault, all are in the queue, and one leads. Those that have
    /// lost their position campaign again.
    fn settle(&mut self) {
        let until = self.now.after(TERM * 100);
        loop {
            assert!(self.now < until, "not all clients have recovered");
            self.pass(Duration::from_millis(200));
            for client in 0..self.holders.len() {
                let contest = self.contest();
                let is_idle =
                    contest.locks[client].is_none() && !contest.writes.values().any(|writer| *writer == client);
                match contest.fates[client] {
                    Fate::Well if is_idle => self.campaign(client),
                    Fate::Dead => self.replace(client),
                    _ => {}
                }
            }
            let (count, now, line) = (self.holders.len(), self.now, self.in_line());
            let contest = self.contest();
            let are_well = contest.fates.iter().all(|fate| *fate == Fate::Well) && line.len() == count;
            let leads = line.first().and_then(|leader| contest.locks[*leader].map(|lock| (*leader, lock)));
            if are_well && leads.is_some_and(|(leader, lock)| !self.holders[leader].lock_remaining(lock, now).is_zero())
            {
                self.contest().elected.clear();
                return;
            }
        }
    }

    /// Replaces a process that died. The new one does not get messages to the old one.
    fn replace(&mut self, client: usize) {
        for (sender, _) in self.in_flight.values_mut().filter(|(sender, _)| *sender == client) {
            *sender = usize::MAX;
        }
        self.contest().writes.retain(|_, writer| *writer != client);
        self.contest().fates[client] = Fate::Well;
        self.contest().locks[client] = None;
        self.holders[client] = Holder::new(HolderConfig::new(format!("client {client}")));
        self.users[client] = User::default();
        let delay = self.lossy.as_mut().map_or(0, |lossy| lossy.connect(client, &mut self.numbers));
        self.later(delay, Event::ToClient(client, HolderInput::Connected));
        self.pass(Duration::from_millis(10));
        self.campaign(client);
    }

    /// Runs until a candidate is elected, or `most` has passed.
    fn until_elected(&mut self, most: Duration) -> Option<Elected> {
        let until = self.now.after(most);
        while self.contest().elected.is_empty() && self.now < until {
            self.pass(Duration::from_millis(50));
        }
        self.contest().elected.first().copied()
    }
}

/// Row A16 of docs/verification.md: 50 candidates, 200 leaders that die.
#[test]
fn only_the_next_of_fifty_is_notified_within_100_ms() {
    let mut pair = Pair::of_candidates(1, 50);
    let mut slowest = Duration::ZERO;
    for kill in 0..200 {
        pair.settle();
        let line = pair.in_line();
        let some_time = Duration::from_millis(pair.numbers.below(TERM.as_millis() as u64));
        pair.pass(some_time);
        pair.contest().fates[line[0]] = Fate::Dead;
        let killed = pair.now;
        let elected =
            pair.until_elected(TERM + ALLOWANCE).unwrap_or_else(|| panic!("no client leads after kill {kill}"));
        assert_eq!(elected.client, line[1], "the next in line, after kill {kill}");
        assert!(elected.after_commit <= Duration::from_millis(100), "{elected:?} after kill {kill}");
        slowest = slowest.max(elected.at.since(killed));
        pair.pass(Duration::from_millis(100));
        assert_eq!(pair.contest().elected.len(), 1, "no other client got a report");
    }
    println!("the slowest of 200 elections: {slowest:?} after the kill");
}

/// Row A21 of docs/verification.md: 1,000 faults of leaders. In some, the next in the queue fails
/// too.
#[test]
fn another_leads_within_a_term_and_a_second_of_a_fault() {
    let mut pair = Pair::of_candidates(2, 10);
    let (mut took, mut stayed) = (Vec::new(), 0);
    for fault in 0..1_000 {
        pair.settle();
        let line = pair.in_line();
        let some_time = Duration::from_millis(pair.numbers.below(TERM.as_millis() as u64));
        pair.pass(some_time);
        let (leader, next) = (line[0], line[1]);
        let begun = pair.now;
        let longest = if pair.numbers.below(2) == 0 { TERM / 2 } else { TERM * 3 };
        let span = Duration::from_millis(100 + pair.numbers.below(longest.as_millis() as u64));
        let kind = pair.numbers.below(4);
        let lasts = match kind {
            0 => Duration::MAX,
            3 => Duration::ZERO,
            _ => span,
        };
        pair.contest().fates[leader] = match kind {
            0 => Fate::Dead,
            1 => Fate::CutUntil(begun.after(span)),
            2 => Fate::StopsUntil(begun.after(span)),
            _ => Fate::Well,
        };
        let heir_dies = kind != 3 && pair.numbers.below(4) == 0;
        if heir_dies {
            pair.contest().fates[next] = Fate::Dead;
        }
        if kind == 3 {
            pair.resign(leader);
        }
        match pair.until_elected(TERM + ALLOWANCE * 2) {
            Some(elected) => {
                let heir = if heir_dies { line[2] } else { next };
                assert_eq!(elected.client, heir, "after fault {fault} of {leader}: {elected:?}");
                took.push(elected.at.since(begun));
            }
            None => {
                assert!(lasts < TERM, "no client leads after fault {fault}, which lasts {lasts:?}");
                assert_eq!(pair.in_line().first(), Some(&leader), "the leader still leads");
                stayed += 1;
            }
        }
    }
    took.sort_unstable();
    let p99 = took[took.len() * 99 / 100];
    println!("{} elections, p99 {p99:?}, the slowest {:?}; the leader stayed {stayed} times", took.len(), took.last());
    assert!(took.len() > 500 && stayed > 50, "{} elections, the leader stayed {stayed} times", took.len());
    assert!(p99 <= TERM + ALLOWANCE, "{p99:?}");
}

/// Row A69 of docs/verification.md: a leader is notified at once that another candidate waits. When
/// it releases the lock, the other has it after one exchange of messages and a commit.
#[test]
fn contended_lock_is_handed_over_in_a_round_trip() {
    let exchange = Duration::from_micros(2 * day::WAY) + Duration::from_millis(2);
    let mut pair = Pair::of_clients(3, 3);
    pair.campaign(0);
    for round in 0..100 {
        pair.pass(ALLOWANCE);
        let (leader, another) = (round % 2, (round + 1) % 2);
        assert_eq!(pair.in_line(), [leader], "elected in the last round");
        // The other has a lease on the volume when it campaigns.
        pair.read(another, data("/k"));
        pair.pass(ALLOWANCE);
        pair.contest().elected.clear();
        let requested_at = pair.now;
        pair.campaign(another);
        let wanted_at = loop {
            pair.pass(Duration::from_millis(1));
            if let Some(wanted_at) = pair.contest().wanted_at {
                break wanted_at;
            }
        };
        assert_eq!(wanted_at.since(requested_at), exchange, "in round {round}");
        let resigned = pair.now;
        pair.resign(leader);
        let elected = pair.until_elected(ALLOWANCE).expect("the other client waits");
        assert_eq!((elected.client, elected.at.since(resigned)), (another, exchange), "in round {round}");
    }
}
