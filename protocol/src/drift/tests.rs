//! Comparisons of two clocks: which are certain, and that delays never raise an alarm.

use super::*;

const MS: u64 = 1_000;
const S: u64 = 1_000_000;

fn span(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

fn at(micros: u64) -> Instant {
    Instant::from_micros(micros)
}

fn ppm(ppm: u32) -> DriftAllowance {
    DriftAllowance::from_ppm(ppm).expect("within bounds")
}

fn counted(client_least: u64, client_most: u64, server: u64) -> ElapsedPair {
    ElapsedPair { client_least: span(client_least), client_most: span(client_most), server: span(server) }
}

fn judge(client_least: u64, client_most: u64, server: u64) -> DriftVerdict {
    counted(client_least, client_most, server).judge(ppm(1_000), ppm(1_000))
}

fn is_beyond(verdict: DriftVerdict) -> bool {
    matches!(verdict, DriftVerdict::Beyond(_))
}

#[test]
fn slow_client_is_beyond_just_past_its_bound() {
    // The server may show S (1 + 0.001), the client at least S (1 - 0.001). The grain adds 1 ms.
    let most = 10 * S;
    let server = (most + MS) * 1_001_000 / 999_000;
    assert!(!is_beyond(judge(most - 2 * MS, most, server)));
    assert!(is_beyond(judge(most - 2 * MS, most, server + 1)));
}

#[test]
fn fast_client_is_beyond_just_past_its_bound() {
    let server = 10 * S;
    let least = (server + MS) * 1_001_000 / 999_000;
    assert!(!is_beyond(judge(least, least + 2 * MS, server)));
    assert!(is_beyond(judge(least + 1, least + 2 * MS, server)));
}

#[test]
fn client_at_half_speed_tells_what_both_counted() {
    let excess = Excess { client: span(500 * MS), server: span(S), allowed_ppm: 2_000 };
    assert_eq!(judge(499 * MS, 501 * MS, S), DriftVerdict::Beyond(excess));
    assert_eq!(excess.ppm(), -500_000);
    let text = "client counted 500ms, server counted 1s: -500000 ppm, the limit is ±2000";
    assert_eq!(excess.to_string(), text);
    assert_eq!(Excess { client: span(2 * S), ..excess }.ppm(), 1_000_000);
}

#[test]
fn slow_round_trips_are_unclear_and_quick_ones_within() {
    // 20 ms are allowed in 10 s. The middle may be off by that, and each bound may be that far from
    // it.
    assert_eq!(judge(9_980 * MS, 10_020 * MS, 10 * S), DriftVerdict::Within);
    assert_eq!(judge(9_979 * MS, 10_021 * MS, 10 * S), DriftVerdict::Unclear, "the bounds are too far apart");
    assert_eq!(judge(9_980 * MS, 9_980 * MS, 10 * S), DriftVerdict::Within);
    assert_eq!(judge(9_979_500, 9_979_500, 10 * S), DriftVerdict::Unclear, "not yet beyond: the grain is 1 ms");
    assert!(is_beyond(judge(9_979 * MS, 9_979 * MS, 10 * S)));
}

#[test]
fn nothing_overflows() {
    let huge = Duration::MAX;
    for (least, most, server) in [(huge, huge, huge), (span(0), huge, huge), (huge, huge, span(0))] {
        let counted = ElapsedPair { client_least: least, client_most: most, server };
        if let DriftVerdict::Beyond(excess) = counted.judge(ppm(0), ppm(0)) {
            assert!(excess.ppm() > 0);
        }
    }
    let never = Excess { client: span(0), server: huge, allowed_ppm: u32::MAX };
    assert_eq!(never.ppm(), -1_000_000);
}

#[test]
fn leader_answers_what_it_noted_and_forgets_the_rest() {
    let (mut marks, allowance) = (Marks::default(), ppm(7));
    marks.note(3, at(10));
    let ask = |mark, references: [u64; REFERENCES_MAX]| ClockQuestion { mark, references, excess: None };
    let answer = |since: &[(u64, u64)]| ClockAnswer {
        since: since.iter().map(|(mark, micros)| SinceExchange { mark: *mark, span: span(*micros) }).collect(),
        allowance,
        delay: Duration::ZERO,
    };
    assert_eq!(marks.answer(&ask(5, [3, 0, 0, 0]), allowance, at(30)), answer(&[(3, 20)]));
    assert_eq!(marks.answer(&ask(6, [5, 4, 0, 0]), allowance, at(40)), answer(&[(5, 10)]), "4 is not known");
    assert_eq!(marks.answer(&ask(7, [3, 5, 6, 0]), allowance, at(50)), answer(&[(5, 20), (6, 10)]), "3 is forgotten");
}

#[test]
fn doubled_exchange_counts_from_its_first_dealing() {
    let (mut marks, allowance) = (Marks::default(), ppm(7));
    let ask = |mark, against| ClockQuestion { mark, references: [against, 0, 0, 0], excess: None };
    marks.answer(&ask(5, 0), allowance, at(10));
    marks.answer(&ask(5, 0), allowance, at(900));
    let answer = marks.answer(&ask(6, 5), allowance, at(1_000));
    assert_eq!(answer.since, [SinceExchange { mark: 5, span: span(990) }]);
    marks.answer(&ask(4, 6), allowance, at(1_100));
    assert_eq!(marks.answer(&ask(7, 4), allowance, at(1_200)).since, [], "a straggler is not noted");
}

#[test]
fn leader_remembers_a_bounded_number_of_exchanges() {
    let mut marks = Marks::default();
    (1..100).for_each(|mark| marks.note(mark, at(mark)));
    assert_eq!(marks.noted.len(), REFERENCES_MAX + 2);
}

#[test]
fn references_are_few_and_their_ages_differ_by_powers() {
    let mut references = References::default();
    for exchange in 1..=200 {
        let now = exchange * 5 * S;
        references.remember(exchange, at(now), at(now + MS));
        let ages: Vec<u64> = references.entries.iter().map(|it| at(now).since(it.sent).as_secs()).collect();
        assert!(ages.len() <= REFERENCES_MAX && ages[0] <= REFERENCE_AGE_MAX.as_secs(), "{ages:?}");
        if exchange > 70 {
            assert!(ages[0] >= 40 && ages[1..].iter().any(|age| (1..=30).contains(age)), "{exchange}: {ages:?}");
        }
    }
}

#[test]
fn reference_that_the_leader_does_not_know_is_forgotten() {
    let mut references = References::default();
    references.remember(1, at(0), at(MS));
    references.remember(2, at(S), at(S + MS));
    let answer = ClockAnswer {
        since: vec![SinceExchange { mark: 2, span: span(9 * S) }],
        allowance: ppm(0),
        delay: Duration::ZERO,
    };
    assert_eq!(
        references.elapsed_pairs(&answer, at(10 * S), at(10 * S + MS)),
        [counted(9 * S - MS, 9 * S + MS, 9 * S)]
    );
    assert_eq!(references.marks(), [2, 0, 0, 0]);
}

/// A deterministic generator of numbers (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % most
    }

    /// Mostly a short delay, sometimes as long as a stopped process or a suspended machine.
    fn delay(&mut self) -> u64 {
        match self.below(8) {
            0 => self.below(100 * S),
            1 => self.below(S),
            _ => self.below(5 * MS),
        }
    }
}

/// A client and a leader, each with its own clock, in true time in microseconds.
struct Pair {
    numbers: Numbers,
    /// The rate of each clock: parts per million of true time.
    rates: [u64; 2],
    allowances: [DriftAllowance; 2],
    references: References,
    marks: Marks,
    mark: u64,
    now: u64,
}

impl Pair {
    fn new(seed: u64, rates: [u64; 2], allowances: [DriftAllowance; 2]) -> Self {
        let (references, marks) = (References::default(), Marks::default());
        Self { numbers: Numbers(seed), rates, allowances, references, marks, mark: 0, now: S }
    }

    fn clock(&self, whose: usize) -> Instant {
        let shown = u128::from(self.now) * u128::from(self.rates[whose]) / 1_000_000;
        at(u64::try_from(shown).expect("not that long"))
    }

    /// One exchange with these delays in the two directions.
    fn exchange(&mut self, there: u64, back: u64) -> Vec<DriftVerdict> {
        self.mark += 1;
        let sent = self.clock(0);
        let question = ClockQuestion { mark: self.mark, references: self.references.marks(), excess: None };
        self.now += there;
        let answer = self.marks.answer(&question, self.allowances[1], self.clock(1));
        self.now += back;
        let answered = self.clock(0);
        let counted = self.references.elapsed_pairs(&answer, sent, answered);
        self.references.remember(self.mark, sent, answered);
        counted.iter().map(|counted| counted.judge(self.allowances[0], self.allowances[1])).collect()
    }
}

#[test]
fn clocks_within_their_allowances_never_raise_an_alarm() {
    for seed in 0..2_000 {
        let mut numbers = Numbers(seed);
        let allowances = [0; 2].map(|_| ppm([0, 100, 1_000, 50_000, 100_000][numbers.below(5) as usize]));
        // Usually at one end of the allowance.
        let rates = allowances.map(|it| {
            let most = u64::from(it.ppm());
            [MILLION as u64 - most, MILLION as u64 + most, MILLION as u64 - most + numbers.below(2 * most + 1)]
                [numbers.below(3) as usize]
        });
        let mut pair = Pair::new(seed, rates, allowances);
        for _ in 0..60 {
            let (there, back, pause) = (pair.numbers.delay(), pair.numbers.delay(), pair.numbers.delay());
            let verdicts = pair.exchange(there, back);
            assert!(!verdicts.into_iter().any(is_beyond), "seed {seed}: {rates:?} within {allowances:?}");
            pair.now += pause;
        }
    }
}

/// Makes exchanges every 5 s. Returns the true seconds from the first one to the alarm.
fn found_after(seed: u64, rates: [u64; 2], delay_most: u64) -> Option<u64> {
    let mut pair = Pair::new(seed, rates, [ppm(1_000); 2]);
    let began = pair.now;
    for exchange in 0..60 {
        let (there, back) = (pair.numbers.below(delay_most), pair.numbers.below(delay_most));
        if pair.exchange(there, back).into_iter().any(is_beyond) {
            return Some((pair.now - began) / S);
        }
        // Clients make their first exchanges early.
        pair.now += [500 * MS, 2 * S].get(exchange).copied().unwrap_or(5 * S);
    }
    None
}

#[test]
fn clocks_beyond_their_allowances_are_found_in_time() {
    for seed in 0..500 {
        // One clock is twice or half as fast as the other. Round trips take up to 50 ms.
        for rates in [[500_000, 1_000_000], [2_000_000, 1_000_000], [1_000_000, 500_000], [1_000_000, 2_000_000]] {
            assert_eq!(found_after(seed, rates, 25 * MS), Some(0), "seed {seed}: {rates:?}");
        }
        // The clocks differ by 1 %. The 8,000 ppm beyond the allowance outweigh two round trips of
        // 10 ms and the grain after 2.7 s.
        let found = found_after(seed, [990_000, 1_000_000], 5 * MS);
        assert!(found.is_some_and(|after| after <= 7), "seed {seed}: {found:?}");
        // The clocks differ by 0.3 %, of which 0.2 % are allowed. The alarm comes after 21 s.
        let found = found_after(seed, [1_003_000, 1_000_000], 5 * MS);
        assert!(found.is_some_and(|after| after <= 27), "seed {seed}: {found:?}");
    }
}

#[test]
fn drift_that_begins_late_is_found_by_the_youngest_reference() {
    let mut pair = Pair::new(1, [1_000_000; 2], [ppm(1_000); 2]);
    for _ in 0..100 {
        assert!(!pair.exchange(MS, MS).into_iter().any(is_beyond));
        pair.now += 5 * S;
    }
    // From now on the leader's clock is 2 % fast.
    let shown = pair.clock(1).as_micros();
    let answer_at = |now: u64, began: u64| at(shown + (now - began) * 102 / 100);
    let began = pair.now;
    pair.now += 5 * S;
    let (sent, question) =
        (pair.clock(0), ClockQuestion { mark: 999, references: pair.references.marks(), excess: None });
    let answer = pair.marks.answer(&question, ppm(1_000), answer_at(pair.now, began));
    pair.now += 2 * MS;
    let counted = pair.references.elapsed_pairs(&answer, sent, pair.clock(0));
    let verdicts: Vec<bool> = counted.iter().map(|it| is_beyond(it.judge(ppm(1_000), ppm(1_000)))).collect();
    assert_eq!((verdicts.first(), verdicts.last()), (Some(&false), Some(&true)), "{counted:?}");
}

#[test]
fn reference_older_than_the_bound_is_dropped() {
    let age = u64::try_from(REFERENCE_AGE_MAX.as_micros()).expect("it fits");
    let mut references = References::default();
    references.remember(1, at(S), at(S + MS));
    references.remember(2, at(age), at(age + S));
    assert_eq!(references.marks()[..2], [1, 2], "it is as old as may be");
    references.remember(3, at(age + 2 * S), at(age + 2 * S));
    assert_eq!(references.marks()[..3], [2, 3, 0]);
}
