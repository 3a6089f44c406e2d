//! A day with lost packets, with the default terms unless a test says otherwise.
//!
//! Sessions and key leases of 30 s survive the loss of a third of all packets. Key leases of 10 s
//! survive the loss of a fifth, but not of a third. When such a lease is renewed, 5 s of it are
//! left, in which TCP sends a packet ten times. All ten are lost about once in 60,000 renewals, and
//! a client sends 17,000 a day. In the 15 s that are left of a lease of 30 s, TCP sends a packet
//! twelve times.
//!
//! Volume leases may lapse on the client's clock. Then the client asks for new ones.

use super::*;
use crate::{command::AnyLease, holder::tests::random::Numbers, id::LeaseId};

/// When a lost packet is sent again (Linux' TCP).
const SENT_AGAIN_AFTER: u64 = 200_000;

/// How often it is sent again at that pace. Linux does so if the stream is marked as thin
/// (`TCP_THIN_LINEAR_TIMEOUTS`, set in `protocol/wire/src/socket.rs`). Each further interval is
/// twice as long.
const SENT_AGAIN_AT_PACE: u32 = 6;

/// The delay of a packet that is not lost.
pub(super) const WAY: u64 = 500;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// After this time a client abandons an attempt to connect, and tries again.
const CONNECT_TIMEOUT: u64 = 1_000_000;

/// Connections that lose packets. Each direction of a connection ttl its order.
pub(super) struct Lossy {
    lines: Vec<Line>,
    /// One packet in this many is lost.
    lost_one_of: u64,
    /// How many packets were lost.
    lost: std::cell::Cell<u64>,
}

#[derive(Clone, Copy)]
struct Line {
    connection: u64,
    /// When the last message arrives, in the direction up and down.
    last: [Instant; 2],
}

impl Lossy {
    pub(super) fn of(clients: usize, lost_one_of: u64) -> Self {
        Self {
            lines: vec![Line { connection: 0, last: [Instant::ZERO; 2] }; clients],
            lost_one_of,
            lost: Default::default(),
        }
    }

    fn is_lost(&self, numbers: &mut Numbers) -> bool {
        let is_lost = numbers.below(self.lost_one_of) == 0;
        self.lost.set(self.lost.get() + u64::from(is_lost));
        is_lost
    }

    /// The delay of a message.
    fn way(&self, numbers: &mut Numbers) -> u64 {
        let (mut way, mut times) = (WAY, 0_u32);
        while self.is_lost(numbers) {
            times += 1;
            way += SENT_AGAIN_AFTER << times.saturating_sub(SENT_AGAIN_AT_PACE);
        }
        way
    }

    /// The delay of a message on the client's present connection.
    fn send(&mut self, client: usize, direction: usize, now: Instant, numbers: &mut Numbers) -> u64 {
        let way = Duration::from_micros(self.way(numbers));
        let line = &mut self.lines[client];
        let comes = now.after(way).max(line.last[direction]);
        line.last[direction] = comes;
        comes.since(now).as_micros() as u64
    }

    pub(super) fn up(&mut self, client: usize, now: Instant, numbers: &mut Numbers) -> u64 {
        self.send(client, 0, now, numbers)
    }

    pub(super) fn down(&mut self, client: usize, now: Instant, numbers: &mut Numbers) -> (u64, u64) {
        (self.send(client, 1, now, numbers), self.lines[client].connection)
    }

    /// Starts another connection. Returns how long that takes: one exchange to connect, and one of
    /// greetings.
    pub(super) fn connect(&mut self, client: usize, numbers: &mut Numbers) -> u64 {
        self.lines[client] = Line { connection: self.lines[client].connection + 1, last: [Instant::ZERO; 2] };
        let mut took = 0;
        loop {
            // A lost first packet is sent again after a second: too late.
            let is_lost = self.is_lost(numbers) || self.is_lost(numbers);
            let greeted = 2 * WAY + self.way(numbers) + self.way(numbers);
            if !is_lost && greeted < CONNECT_TIMEOUT {
                return took + greeted;
            }
            took += CONNECT_TIMEOUT;
        }
    }

    pub(super) fn is_up(&self, client: usize, connection: u64) -> bool {
        self.lines[client].connection == connection
    }
}

/// Three clients read for a day, and sometimes write, while one in `lost_one_of` packets is lost.
/// Each renews a key lease of the given term, if any. Returns the leases of the state before and
/// after, without volume leases.
fn spend_a_day(lost_one_of: u64, ttl: Option<Duration>) -> [Vec<(AnyLease, Incarnation)>; 2] {
    let mut pair = Pair::new(1);
    pair.is_checked = false;
    pair.pass(Duration::from_secs(1));
    for (client, ttl) in ttl.into_iter().flat_map(|ttl| (0..3).map(move |client| (client, ttl))) {
        let id = LeaseId(client as u64);
        pair.write(client, Write::GrantLease { id: Some(id), name: None, ttl }, vec![]);
        pair.pass(Duration::from_secs(2));
        pair.client(client, HolderInput::KeepAlive(id));
    }
    pair.pass(Duration::from_secs(1));
    let leases = |pair: &Pair| {
        let lasting = pair.state.leases().filter(|(key, _)| !matches!(key, AnyLease::Volume(..)));
        lasting.map(|(key, lease)| (key.clone(), lease.incarnation)).collect::<Vec<_>>()
    };
    let before = leases(&pair);
    pair.lossy = Some(Lossy::of(3, lost_one_of));
    let (end, mut rounds) = (pair.now.after(DAY), 0_u64);
    while pair.now < end {
        pair.pass(TERM / 4);
        (0..3).for_each(|client| pair.read(client, data("/k")));
        rounds += 1;
        if rounds.is_multiple_of(100) {
            pair.write(0, put("/k"), vec![data("/k")]);
        }
    }
    let lossy = pair.lossy.as_ref().expect("a network that loses packets");
    let connections: u64 = lossy.lines.iter().map(|line| line.connection).sum();
    let lost = lossy.lost.get();
    println!(
        "{lost} packets lost, one of {lost_one_of}; {connections} times another connection; sent: {:?}",
        pair.sent
    );
    assert!(lost > 10_000, "{lost} packets were lost: too few to show anything");
    [before, leases(&pair)]
}

/// If a key lease or a session is lost, that is an effect that [`Pair`] does not expect.
#[test]
fn day_with_a_fifth_lost_ends_no_key_lease_of_10_s() {
    let [before, after] = spend_a_day(5, Some(TERM));
    assert_eq!(before.len(), 6, "of each client a session's and a key lease: {before:?}");
    assert_eq!(after, before);
}

#[test]
fn day_with_a_third_lost_ends_no_key_lease_of_30_s() {
    let [before, after] = spend_a_day(3, Some(3 * TERM));
    assert_eq!(before.len(), 6, "of each client a session's and a key lease: {before:?}");
    assert_eq!(after, before);
}

#[test]
fn day_with_a_third_lost_ends_no_session() {
    let [before, after] = spend_a_day(3, None);
    assert_eq!(before.len(), 3, "of each client a session's: {before:?}");
    assert_eq!(after, before);
}

/// Clients with this spread of their first renewals. The first renews a key lease of this term, and
/// the second has a lease on the root.
fn pair_with_leases(seed: u64, spread_permille: u16, ttl: Duration) -> Pair {
    let mut pair = Pair::new(seed);
    let config = |client| HolderConfig { spread_permille, ..HolderConfig::new(format!("client {client}")) };
    pair.holders = (0..3).map(|client| Holder::new(config(client))).collect();
    pair.is_checked = false;
    pair.pass(Duration::from_secs(1));
    pair.write(0, Write::GrantLease { id: Some(LeaseId(1)), name: None, ttl }, vec![]);
    pair.pass(Duration::from_secs(2));
    pair.client(0, HolderInput::KeepAlive(LeaseId(1)));
    pair.read(1, data("/k"));
    pair
}

/// The first renewal may be early by a quarter of a term. The next must be promised a whole term,
/// or each would be early.
#[test]
fn early_renewal_is_followed_by_no_other() {
    const TERMS: u32 = 2;
    let ttl = Duration::from_secs(6);
    for (seed, spread_permille) in (0..20).flat_map(|seed| [0, 500, 900, 1_000].map(|spread| (seed, spread))) {
        let mut pair = pair_with_leases(seed, spread_permille, ttl);
        pair.pass(TERMS * ttl);
        let sent = pair.sent[&(0, "keep alive")];
        // The first keep-alive, and the early one.
        let most = 2 + 2 * u64::from(TERMS);
        assert!(sent <= most, "{sent} in {TERMS} terms, spread by {spread_permille} permille (seed {seed})");
    }
}

/// A renewal that waits for the next tick is promised a whole term. So the next is due half a term
/// later.
#[test]
fn volume_and_key_lease_are_renewed_twice_a_term() {
    const TERMS: u64 = 1_000;
    const TTL: Duration = Duration::from_secs(6);
    let mut pair = pair_with_leases(1, 0, TTL);
    pair.pass(TERM);
    pair.sent.clear();
    for _ in 0..TERMS * 4 {
        pair.pass(TERM / 4);
        // From memory: no request that could carry a renewal.
        pair.read(1, data("/k"));
    }
    println!("in {TERMS} terms of 10 s: {:?}", pair.sent);
    let spent = (TERM * TERMS as u32).as_secs_f64();
    let a_term = |client, what, term: Duration| {
        pair.sent.get(&(client, what)).map_or(0.0, |sent| *sent as f64 * term.as_secs_f64() / spent)
    };
    let (volume, key) = (a_term(1, "heartbeat", TERM), a_term(0, "keep alive", TTL));
    // A few messages are so late that they are sent again.
    assert!((1.9..=2.05).contains(&volume), "{volume} renewals of a volume lease in a term");
    assert!((1.9..=2.05).contains(&key), "{key} renewals of a key lease in a term");
}
