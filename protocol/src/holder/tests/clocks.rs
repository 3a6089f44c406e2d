//! Drift supervision: when clocks are compared, what stops beyond the allowance, and when it
//! resumes.

use super::*;
use crate::drift::{ClockAnswer, ClockQuestion, Excess, RESUME_WINDOW, SinceExchange};

/// The comparison that a heartbeat among the effects asks for.
fn clock_question(effects: &[HolderEffect]) -> Option<(SendId, ClockQuestion)> {
    sent(effects).into_iter().find_map(|(send_id, body)| match body {
        Body::Heartbeat(question) => Some((send_id, question)),
        _ => None,
    })
}

fn reported(effects: &[HolderEffect]) -> Vec<Option<Excess>> {
    let change = |effect: &HolderEffect| match effect {
        HolderEffect::ClockExcessChanged { excess } => Some(*excess),
        _ => None,
    };
    effects.iter().filter_map(change).collect()
}

/// A client with copies, and a leader whose clock runs at `permille` thousandths of the client's.
struct Pair {
    client: Client,
    /// When the leader dealt with each exchange, by the client's clock.
    noted: Vec<(u64, Instant)>,
    permille: u32,
}

impl Pair {
    /// A client that registered with send id 2 at 100 s, with a copy of `/a`.
    fn new(permille: u32) -> Self {
        let client = Client::new().connect().lease().cache("/a", 2);
        Self { noted: vec![(2, client.now)], client, permille }
    }

    /// Answers a heartbeat, and renews the lease on the root.
    fn answer(&mut self, send_id: SendId, question: &ClockQuestion) -> Vec<HolderEffect> {
        let answer = self.count(question);
        self.client.answer_renewing(send_id, Answer::Heartbeat(answer))
    }

    /// The leader's counts.
    fn count(&mut self, question: &ClockQuestion) -> ClockAnswer {
        let now = self.client.now;
        let compared = self.noted.iter().filter(|(mark, _)| question.references.contains(mark));
        let since = compared
            .map(|(mark, at)| SinceExchange { mark: *mark, span: now.since(*at) * self.permille / 1_000 })
            .collect();
        self.noted.push((question.mark, now));
        ClockAnswer { since, allowance: DriftAllowance::from_ppm(1_000).expect("within bounds"), delay: Duration::ZERO }
    }

    /// Runs until that time, and reads `/a` all the time. Returns the reports to the application.
    fn run_until(&mut self, until: Instant) -> Vec<(Instant, Option<Excess>)> {
        let mut all = Vec::new();
        while self.client.now < until {
            self.client.now = self.client.holder.next_deadline().map_or(until, |deadline| deadline.min(until));
            let mut effects = self.client.timeout(&["/"]);
            while let Some((send_id, question)) = clock_question(&effects) {
                effects = self.answer(send_id, &question);
                all.extend(reported(&effects).into_iter().map(|beyond| (self.client.now, beyond)));
            }
        }
        all
    }
}

#[test]
fn client_with_a_lease_compares_soon_after_registering() {
    let mut pair = Pair::new(1_000);
    let soon = at(100).after(Duration::from_millis(500));
    assert_eq!(pair.client.holder.next_deadline(), Some(soon));
    pair.client.now = soon;
    let effects = pair.client.timeout(&[]);
    let (send_id, question) = clock_question(&effects).expect("a heartbeat compares clocks");
    assert_eq!(question, ClockQuestion { mark: send_id.0, references: [2, 0, 0, 0], excess: None });
    pair.answer(send_id, &question);
    let again = soon.after(Duration::from_secs(2));
    assert_eq!(pair.client.holder.next_deadline(), Some(again));
    pair.client.now = again;
    let effects = pair.client.timeout(&[]);
    let (_, question) = clock_question(&effects).expect("the next heartbeat compares clocks");
    assert_eq!(question.references, [2, send_id.0, 0, 0]);
}

#[test]
fn client_without_a_lease_compares_only_when_it_renews() {
    let client = Client::new().connect();
    assert_eq!(client.holder.next_deadline(), Some(at(130)), "half of the session's term");
}

#[test]
fn leader_at_double_speed_stops_reads_from_memory() {
    let mut pair = Pair::new(2_000);
    assert!(pair.client.may_serve("/a"));
    let soon = at(100).after(Duration::from_millis(500));
    pair.client.now = soon;
    let effects = pair.client.timeout(&["/"]);
    let (send_id, question) = clock_question(&effects).expect("a heartbeat compares clocks");
    let effects = pair.answer(send_id, &question);
    let (client, server) = (Duration::from_millis(500), Duration::from_secs(1));
    let excess = Excess { client, server, allowed_ppm: 1_000 };
    assert_eq!(excess.ppm(), -500_000);
    let unusable =
        HolderEffect::VolumeValidityChanged { volume: NodePath::root(), validity: VolumeValidity::default() };
    let place = |effect: &HolderEffect| effects.iter().position(|other| other == effect);
    let (stopped, reported) = (place(&unusable), place(&HolderEffect::ClockExcessChanged { excess: Some(excess) }));
    assert!(stopped.is_some() && stopped < reported, "the cache is notified first: {effects:?}");
    assert_eq!(clock_question(&effects).expect("a heartbeat notifies the leader at once").1.excess, Some(excess));
    assert!(!pair.client.may_serve("/a"));
    assert_eq!(pair.client.holder.clock_excess(), Some(excess));
    assert_eq!(pair.client.holder.volume_remaining(&NodePath::root(), pair.client.now), Duration::ZERO);
}

#[test]
fn reads_beyond_the_allowance_go_to_the_server_each() {
    let mut pair = Pair::new(2_000);
    pair.run_until(at(101));
    for (read, sequence) in [(50, 10), (51, 11)] {
        let effects = pair.client.read(read, "/a");
        let (send_id, request) = pair.client.only(&effects);
        assert!(matches!(request.body, Body::Read { .. }), "{request:?}");
        let effects = pair.client.answer_renewing(send_id, answer(Some(value(10)), Some(grant(sequence))));
        assert!(effects.contains(&served(&[read], "/a", value(10), None)), "{effects:?}");
        assert!(!pair.client.may_serve("/a"));
    }
}

#[test]
fn leader_at_half_speed_stops_reads_from_memory_too() {
    let mut pair = Pair::new(500);
    let reported = pair.run_until(at(101));
    assert_eq!(reported.len(), 1);
    assert_eq!(reported[0].1.map(|excess| excess.ppm()), Some(1_000_000));
    assert!(!pair.client.may_serve("/a"));
}

#[test]
fn clock_excess_is_reported_once() {
    let mut pair = Pair::new(990);
    let reported = pair.run_until(at(200));
    assert!(matches!(reported[..], [(_, Some(_))]), "{reported:?}");
}

#[test]
fn reads_from_memory_resume_after_one_whole_window() {
    let mut pair = Pair::new(2_000);
    let reported = pair.run_until(at(101));
    let [(stopped, Some(_))] = reported[..] else { panic!("{reported:?}") };
    // Now the leader's clock is right. The client does not ask again for earlier counts.
    pair.permille = 1_000;
    let reported = pair.run_until(at(150));
    let [(resumed, None)] = reported[..] else { panic!("{reported:?}") };
    let waited = resumed.since(stopped);
    assert!(waited >= RESUME_WINDOW && waited <= RESUME_WINDOW + TERM, "{waited:?}");
    assert_eq!(pair.client.holder.clock_excess(), None);
    assert!(pair.client.holder.volume_remaining(&NodePath::root(), pair.client.now) > Duration::ZERO);
}

#[test]
fn new_leader_learns_excess_and_compares_own_exchanges() {
    let mut pair = Pair::new(2_000);
    pair.run_until(at(101));
    pair.client.step(HolderInput::Disconnected);
    let effects = pair.client.step(HolderInput::Connected);
    let (register, _) = pair.client.only(&effects);
    let result = Ok(Answer::Registered { coverings: vec![] });
    let response = Response { epoch: Epoch(9), promises: vec![], lapses: vec![], clocks: None, result };
    let effects = pair.client.respond(register, response);
    let (_, question) = clock_question(&effects).expect("a heartbeat notifies the leader");
    assert_eq!(question.references, [register.0, 0, 0, 0]);
    assert!(question.excess.is_some());
}

#[test]
fn comparisons_renew_no_unused_lease() {
    let mut pair = Pair::new(1_000);
    let mut compared = Vec::new();
    // Half of the session's term: then the session is renewed.
    let idle_until = at(129);
    while let Some(deadline) = pair.client.holder.next_deadline().filter(|deadline| *deadline < idle_until) {
        pair.client.now = deadline;
        let effects = pair.client.timeout(&[]);
        if let Some((_, renewals)) = keep_alive(&effects) {
            assert_eq!(renewals, [], "at {deadline}");
            let (send_id, question) = clock_question(&effects).expect("a keep-alive compares clocks");
            let answer = pair.count(&question);
            pair.client.answer(send_id, Answer::Heartbeat(answer));
            compared.push(deadline);
        }
    }
    assert!(!pair.client.may_serve("/a"), "the lease has lapsed");
    let expected = [500, 2_500, 9_500].map(|millis| at(100).after(Duration::from_millis(millis)));
    assert_eq!(compared, expected, "the client compares soon, then after seven tenths of a term, while it has a lease");
}

#[test]
fn connection_to_the_same_leader_forgets_no_exchange() {
    let mut pair = Pair::new(1_000);
    pair.client.now = at(101);
    pair.client.step(HolderInput::Disconnected);
    let effects = pair.client.step(HolderInput::Connected);
    let register = pair.client.only(&effects).0;
    pair.client.answer(register, Answer::Registered { coverings: vec![] });
    pair.client.now = at(102);
    let (_, question) = clock_question(&pair.client.timeout(&[])).expect("a heartbeat compares clocks");
    assert_eq!(question.references, [2, register.0, 0, 0]);
}

#[test]
fn clock_of_another_leader_is_not_compared() {
    let mut pair = Pair::new(2_000);
    pair.client.now = at(100).after(Duration::from_millis(500));
    let effects = pair.client.timeout(&["/"]);
    let (send_id, question) = clock_question(&effects).expect("a heartbeat compares clocks");
    let result = Ok(Answer::Heartbeat(pair.count(&question)));
    let epoch = Epoch(EPOCH.0 + 1);
    let effects =
        pair.client.respond(send_id, Response { epoch, promises: vec![], lapses: vec![], clocks: None, result });
    assert_eq!((reported(&effects), pair.client.holder.clock_excess()), (vec![], None));
}

/// Without a lease there is nothing to compare for. The next comparison belongs to the new lease.
#[test]
fn first_lease_after_a_while_is_compared_before_it_ends() {
    for (beats, span) in [(0, 10), (3, 10), (3, 2)] {
        let mut client = Client::new().connect();
        for _ in 0..beats {
            client.now = client.now.after(SESSION_TERM / 4);
            client.holder.send_heartbeat(client.now);
            std::mem::take(&mut client.holder.effects);
        }
        client.now = client.now.after(SESSION_TERM / 2);
        let effects = client.read(1, "/a");
        let acquire = client.only(&effects).0;
        let span = Duration::from_secs(span);
        let promise = Promise { span, ..promise("/", 1) };
        let lease = AcquiredVolume { promise, stamp: stamp(1), revival: Revival::None, read: None };
        client.answer(acquire, Answer::Acquired(lease));
        let due = client.holder.clocks_deadline().expect("while the lease holds");
        assert!(due > client.now && due < client.now.after(span), "{beats} heartbeats, {span:?}: {due}");
    }
}

/// A client that does not renew ahead, without a lease.
fn without_leases(mode: RenewalMode) -> Client {
    let mut client = Client::new();
    client.holder.config.renewal = mode;
    client.connect()
}

/// Answers the request for a lease on the root after a while. The leader's clock ran at `permille`
/// thousandths of the client's since the registration.
fn lease_with_comparison(client: &mut Client, permille: u32) -> Vec<HolderEffect> {
    client.now = client.now.after(Duration::from_secs(20));
    let effects = client.read(1, "/a");
    let (send_id, request) = client.only(&effects);
    let question = request.header.clocks.as_ref().expect("a request for a lease compares clocks");
    assert_eq!((question.mark, question.references[0]), (send_id.0, 2));
    let since = vec![SinceExchange { mark: 2, span: Duration::from_secs(20) * permille / 1_000 }];
    let allowance = DriftAllowance::from_ppm(1_000).expect("within bounds");
    let clocks = Some(Box::new(ClockAnswer { since, allowance, delay: Duration::ZERO }));
    let lease = AcquiredVolume { promise: promise("/", 1), stamp: stamp(1), revival: Revival::None, read: None };
    let result = Ok(Answer::Acquired(lease));
    client.respond(send_id, Response { epoch: EPOCH, promises: vec![], lapses: vec![], clocks, result })
}

#[test]
fn request_for_a_lease_compares_clocks_before_a_copy_is_used() {
    for mode in [RenewalMode::OnDemand, RenewalMode::Never] {
        let mut client = without_leases(mode);
        let effects = lease_with_comparison(&mut client, 1_500);
        assert!(matches!(reported(&effects)[..], [Some(_)]), "{mode:?}: {effects:?}");
        assert_eq!(client.holder.volume_remaining(&NodePath::root(), client.now), Duration::ZERO, "{mode:?}");
    }
}

#[test]
fn lease_that_is_not_renewed_needs_no_other_comparison() {
    for mode in [RenewalMode::OnDemand, RenewalMode::Never] {
        let mut client = without_leases(mode);
        client.holder.settle_clocks();
        lease_with_comparison(&mut client, 1_000);
        assert!(client.holder.volume_remaining(&NodePath::root(), client.now) > Duration::ZERO, "{mode:?}");
        assert_eq!(client.holder.clocks_deadline(), None, "{mode:?}: the lease ends before");
    }
}

#[test]
fn lease_that_reads_renew_is_compared_after_a_term() {
    let mut client = without_leases(RenewalMode::OnDemand);
    client.holder.settle_clocks();
    lease_with_comparison(&mut client, 1_000);
    let begun = client.now;
    client.now = begun.after(Duration::from_secs(6));
    let effects = client.read(2, "/b");
    let read = sent(&effects).pop().expect("it asks").0;
    client.answer_renewing(read, answer(Some(value(9)), None));
    assert_eq!(client.holder.clocks_deadline(), Some(begun.after(Duration::from_secs(12))));
}

#[test]
fn client_that_renews_ahead_compares_by_heartbeats_alone() {
    let mut client = without_leases(RenewalMode::Ahead);
    let effects = client.read(1, "/a");
    assert_eq!(client.only(&effects).1.header.clocks, None);
}

/// Their spans are too short to find anything.
#[test]
fn requests_for_leases_do_not_replace_the_early_comparisons() {
    let mut client = without_leases(RenewalMode::OnDemand);
    let early = at(100).after(Duration::from_millis(500));
    for (read, text) in [(1, "/a"), (2, "/b")] {
        client.read(read, text);
    }
    assert_eq!(client.holder.drift_due(), Some(early));
}

#[test]
fn refused_request_for_a_lease_postpones_no_comparison() {
    let mut client = without_leases(RenewalMode::OnDemand);
    client.holder.settle_clocks();
    lease_with_comparison(&mut client, 1_000);
    let due = client.holder.drift_due();
    client.now = client.now.after(Duration::from_secs(20));
    let effects = client.read(2, "/b");
    let acquire = client.only(&effects).0;
    client.refuse(acquire, Refusal::Retry);
    assert_eq!(client.holder.drift_due(), due);
}
