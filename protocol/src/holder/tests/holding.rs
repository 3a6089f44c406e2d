//! Holds: held only under their own lease and only by this clock, asked after while they last, told once when they are over.

use super::*;
use crate::{
    command::{WriteRefusal, Written},
    hold::{HoldMode, HoldStatus, Taken},
    id::{HoldId, Token},
    message::{AWAIT_HOLDS_MAX, AwaitHold, CONSENTS_MAX, Lapse, RENEWALS_MAX, RETURNS_MAX},
    path::PATH_MAX_BYTES,
};

const HOLD: HoldId = HoldId(4);

fn lock() -> Write {
    Write::Lock { path: path("/a"), mode: HoldMode::Exclusive, wait: true, delay: Duration::ZERO }
}

fn taken(token: Option<u64>, incarnation: u64) -> Answer {
    let taken = Taken {
        path: path("/a"),
        hold: HOLD,
        mode: HoldMode::Exclusive,
        token: token.map(Token),
        volume: Path::root(),
        incarnation: Incarnation(incarnation),
    };
    let written = Written { taken: Some(Box::new(taken)), ..Written::default() };
    Answer::Written { written, stamp: stamp(40), grant: None, applied: Revision(30), kept: None, cached: None }
}

fn held(token: u64, is_wanted: bool) -> HoldStatus {
    HoldStatus::Held { token: Token(token), mode: HoldMode::Exclusive, is_wanted }
}

fn awaits(known: HoldStatus) -> Body {
    Body::AwaitHolds { holds: vec![AwaitHold { path: path("/a"), hold: HOLD, known }] }
}

fn over() -> Effect {
    Effect::HoldsOver { holds: vec![HOLD] }
}

impl Client {
    /// Asks for a hold, and is told this.
    fn lock(&mut self, token: Option<u64>, incarnation: u64) -> Vec<Effect> {
        let effects = self.write(5, lock());
        let ticket = self.only(&effects).0;
        self.answer(ticket, taken(token, incarnation))
    }

    fn certain(&self) -> Duration {
        self.holder.hold_certain_for(HOLD, self.now)
    }
}

/// One that waits for the hold, and its request to be told.
fn waiting() -> (Client, Ticket) {
    let mut client = Client::leased();
    let effects = client.lock(None, 1);
    let (ticket, body) = sent(&effects).pop().expect("it asks");
    assert_eq!(body, awaits(HoldStatus::Waiting));
    assert_eq!(client.certain(), Duration::ZERO);
    (client, ticket)
}

#[test]
fn a_lock_waits_for_a_lease_on_its_volume() {
    let mut client = Client::registered();
    let effects = client.write(5, lock());
    let (acquire, request) = client.only(&effects);
    assert!(matches!(request.body, Body::Acquire { .. }));
    let effects = client.answer(acquire, acquired("/", 1, 1));
    assert!(matches!(client.only(&effects).1.body, Body::Write { write: Write::Lock { .. }, .. }));
}

#[test]
fn lock_in_unknown_volume_is_resent_once_with_new_sequence() {
    let mut client = Client::leased();
    let effects = client.write(5, lock());
    let (ticket, first) = client.only(&effects);
    let refusal = |volume: &str| Refusal::Write(WriteRefusal::NoVolumeLease { path: path("/a"), volume: path(volume) });
    let effects = client.refuse(ticket, refusal("/a"));
    let (acquire, request) = client.only(&effects);
    assert!(matches!(request.body, Body::Acquire { .. }));
    let effects = client.answer(acquire, acquired("/a", 2, 50));
    let (ticket, second) = client.only(&effects);
    assert!(second.header.sequence > first.header.sequence && !matches!(second.body, Body::KeepAlive(_)));
    let effects = client.refuse(ticket, refusal("/a"));
    let error = Err(WriteError::Refused(refusal("/a")));
    assert!(effects.contains(&Effect::WriteDone { write: WriteId(5), result: error }), "{effects:?}");
}

#[test]
fn lock_whose_volume_lease_was_replaced_is_sent_again_once() {
    let mut client = Client::leased();
    let effects = client.write(5, lock());
    let (ticket, first) = client.only(&effects);
    let refusal = || Refusal::Write(WriteRefusal::NoVolumeLease { path: path("/a"), volume: path("/") });
    let effects = client.refuse(ticket, refusal());
    let (ticket, second) = client.only(&effects);
    assert!(second.header.sequence > first.header.sequence, "the first number has its outcome");
    let effects = client.refuse(ticket, refusal());
    let told = Effect::WriteDone { write: WriteId(5), result: Err(WriteError::Refused(refusal())) };
    assert!(effects.contains(&told), "{effects:?}");
}

#[test]
fn a_hold_is_certain_for_as_long_as_its_lease_on_this_clock() {
    let mut client = Client::leased();
    client.lock(Some(9), 1);
    assert_eq!(client.certain(), TERM);
    client.now = at(110).before(Duration::from_micros(1));
    assert!(client.certain() > Duration::ZERO);
    client.now = at(110);
    assert_eq!(client.certain(), Duration::ZERO, "whatever the connection does");
    assert!(client.timeout(&[]).contains(&over()), "though nothing was heard");
    assert!(!client.timeout(&[]).contains(&over()), "once");
}

#[test]
fn waiter_outlives_local_lease_end_but_late_grant_is_unused() {
    let (mut client, ticket) = waiting();
    client.now = at(110);
    assert!(!client.timeout(&[]).contains(&over()), "the lease may be renewed yet");
    let effects = client.answer(ticket, Answer::Holds(vec![(HOLD, held(9, false))]));
    assert_eq!(effects, [], "nobody knows whether it is still held");
    assert_eq!(client.certain(), Duration::ZERO);
}

#[test]
fn downgrade_counts_as_shared_from_request_on() {
    let mut client = Client::leased();
    client.lock(Some(9), 1);
    client.now = at(100).after(Duration::from_millis(100));
    let effects = client.timeout(&[]);
    let asked = client.only(&effects).0;
    let lower = Write::Convert { path: path("/a"), hold: HOLD, mode: HoldMode::Shared, wait: true };
    client.write(6, lower.clone());
    let done = Effect::WriteDone { write: WriteId(7), result: Err(WriteError::NotSent) };
    assert_eq!(client.write(7, lower), [done], "one thing at a time");
    let effects = client.answer(asked, Answer::Holds(vec![(HOLD, held(9, true))]));
    let status = HoldStatus::Held { token: Token(9), mode: HoldMode::Shared, is_wanted: true };
    assert!(effects.contains(&Effect::HoldChanged { hold: HOLD, status }), "the leader did not know: {effects:?}");
}

#[test]
fn grant_under_other_lease_is_lost_at_once() {
    let mut client = Client::leased();
    let effects = client.lock(Some(9), 8);
    assert_eq!(effects.last(), Some(&over()));
    assert_eq!(client.certain(), Duration::ZERO);
}

#[test]
fn one_that_waits_is_told_its_turn_and_asks_on() {
    let (mut client, ticket) = waiting();
    let effects = client.answer(ticket, Answer::Holds(vec![(HOLD, held(9, false))]));
    assert!(effects.contains(&Effect::HoldChanged { hold: HOLD, status: held(9, false) }));
    assert_eq!(client.certain(), TERM);
    let (ticket, body) = sent(&effects).pop().expect("it asks on");
    assert_eq!(body, awaits(held(9, false)));
    let effects = client.answer(ticket, Answer::Holds(vec![(HOLD, held(9, true))]));
    assert!(effects.contains(&Effect::HoldChanged { hold: HOLD, status: held(9, true) }), "somebody waits");
}

#[test]
fn what_is_past_is_not_taken_for_news() {
    let (mut client, ticket) = waiting();
    let effects = client.answer(ticket, Answer::Holds(vec![(HOLD, held(9, false))]));
    let (ticket, _) = sent(&effects).pop().expect("it asks on");
    for past in [HoldStatus::Waiting, held(8, true), held(9, false)] {
        assert!(!super::super::holding::is_newer(held(9, false), past), "{past:?}");
    }
    let shared = HoldStatus::Held { token: Token(9), mode: HoldMode::Shared, is_wanted: false };
    assert!(super::super::holding::is_newer(held(9, false), shared), "alone first, then with others");
    assert!(!super::super::holding::is_newer(shared, held(9, false)));
    let effects = client.answer(ticket, Answer::Holds(vec![(HOLD, HoldStatus::Waiting)]));
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::HoldChanged { .. })), "{effects:?}");
}

#[test]
fn owned_lock_is_queried_only_after_a_while() {
    let mut client = Client::leased();
    let effects = client.lock(Some(9), 1);
    assert_eq!(sent(&effects), []);
    let due = client.holder.next_deadline().expect("it is to be asked after");
    assert_eq!(due, at(100).after(Duration::from_millis(100)));
    client.now = due;
    assert_eq!(
        client.only(&client.holder.clone().step(Input::Timeout { used: BTreeSet::new() }, due)).1.body,
        awaits(held(9, false))
    );
    client.write(6, Write::Unlock { path: path("/a"), hold: HOLD });
    let asks = |effects: &[Effect]| sent(effects).iter().any(|(_, body)| matches!(body, Body::AwaitHolds { .. }));
    assert!(!asks(&client.timeout(&[])), "it was given back");
}

#[test]
fn released_lock_ends_at_once_and_is_never_reported_lost() {
    let mut client = Client::leased();
    client.lock(Some(9), 1);
    client.write(6, Write::Unlock { path: path("/a"), hold: HOLD });
    assert_eq!(client.certain(), Duration::ZERO, "before the server knows");
    let effects = client.step(Input::Close);
    assert!(!effects.contains(&over()));
}

#[test]
fn locks_are_lost_once_with_lease_session_or_client() {
    let gone = |client: &mut Client| {
        let effects = client.read(9, "/z");
        client.only(&effects).0
    };
    let mut client = Client::leased();
    client.lock(Some(9), 1);
    let read = gone(&mut client);
    let lapses = vec![Lapse { volume: Path::root(), incarnation: Incarnation(1) }];
    let result = Ok(answer(Some(value(9)), None));
    let effects = client.respond(read, Response { epoch: EPOCH, promises: vec![], lapses, result });
    assert!(effects.contains(&over()));
    assert!(!client.step(Input::Close).contains(&over()));

    let mut client = Client::leased();
    client.lock(Some(9), 1);
    let read = gone(&mut client);
    assert!(client.refuse(read, Refusal::SessionGone { session: SESSION }).contains(&over()));

    let mut client = Client::leased();
    client.lock(Some(9), 1);
    assert!(client.step(Input::Close).contains(&over()));
}

#[test]
fn lease_with_locks_is_renewed_without_reads() {
    let mut client = Client::leased();
    client.lock(Some(9), 1);
    let mut renewals = 0;
    for _ in 0..20 {
        client.now = client.holder.next_deadline().expect("always something").max(client.now);
        for (ticket, request) in requests(&client.timeout(&[])) {
            match request.body {
                Body::KeepAlive(_) => {
                    renewals += usize::from(!request.header.renew.is_empty());
                    client.renew(ticket, promise("/", 1));
                }
                Body::AwaitHolds { .. } => assert!(request.header.renew.is_empty(), "its answer is long in coming"),
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(renewals >= 3 && client.certain() > Duration::ZERO);
}

#[test]
fn a_request_that_waits_for_long_is_made_anew() {
    let (mut client, first) = waiting();
    let asked = |effects: &[Effect]| {
        let mut asked = sent(effects).into_iter().filter(|(_, body)| matches!(body, Body::AwaitHolds { .. }));
        asked.next().map(|(ticket, _)| ticket)
    };
    let mut second = None;
    while second.is_none() {
        client.now = client.holder.next_deadline().expect("always something").max(client.now);
        let effects = client.timeout(&[]);
        second = asked(&effects);
        for (ticket, request) in requests(&effects) {
            if matches!(request.body, Body::KeepAlive(_)) {
                client.renew(ticket, promise("/", 1));
            }
        }
    }
    assert_eq!(client.now, at(120));
    let told = || Answer::Holds(vec![(HOLD, held(9, false))]);
    assert_eq!(client.answer(first, Answer::Holds(vec![])), [], "it has been overtaken");
    let effects = client.answer(second.expect("asked"), told());
    assert!(effects.contains(&Effect::HoldChanged { hold: HOLD, status: held(9, false) }), "{effects:?}");
}

/// The holds that the step's request names, and its ticket.
fn asked_after(effects: &[Effect]) -> Option<(Ticket, Vec<HoldId>)> {
    requests(effects).into_iter().find_map(|(ticket, request)| match request.body {
        Body::AwaitHolds { holds } => Some((ticket, holds.into_iter().map(|hold| hold.hold).collect())),
        _ => None,
    })
}

#[test]
fn holds_beyond_one_request_are_asked_after_in_turn() {
    let mut client = Client::leased();
    let count = AWAIT_HOLDS_MAX as u64 + 10;
    for number in 1..=count {
        let hold = Taken {
            path: path("/a"),
            hold: HoldId(number),
            mode: HoldMode::Exclusive,
            token: (number != count).then_some(Token(number)),
            volume: Path::root(),
            incarnation: Incarnation(1),
        };
        client.holder.taken(&lock(), &Written { taken: Some(Box::new(hold)), ..Written::default() }, client.now);
    }
    // After a reconnection the leader knows of none of them.
    client.step(Input::Disconnected);
    let register = client.step(Input::Connected);
    let register = client.only(&register).0;
    let effects = client.answer(register, Answer::Registered { coverings: vec![] });
    let (_, first) = asked_after(&effects).expect("it asks at once");
    assert_eq!(first.len(), AWAIT_HOLDS_MAX);
    client.now = client.now.after(Duration::from_secs(1));
    let effects = client.timeout(&[]);
    let (ticket, second) = asked_after(&effects).expect("the others have their turn");
    assert_eq!(second.len(), AWAIT_HOLDS_MAX);
    let named: BTreeSet<HoldId> = first.into_iter().chain(second).collect();
    assert_eq!(named, (1..=count).map(HoldId).collect());
    let granted = held(count, false);
    let effects = client.answer(ticket, Answer::Holds(vec![(HoldId(count), granted)]));
    assert!(effects.contains(&Effect::HoldChanged { hold: HoldId(count), status: granted }), "{effects:?}");
}

/// `FRAME_MAX_BYTES` of the wire.
const FRAME_BYTES_MAX: usize = 16 << 20;

fn encoded_bytes(value: &impl serde::Serialize) -> usize {
    postcard::to_allocvec(value).expect("plain data").len()
}

#[test]
fn holds_with_long_paths_are_asked_after_in_turn() {
    let mut client = Client::leased();
    let dirs = format!("/{}", "d".repeat(255)).repeat(15);
    for number in 1..=AWAIT_HOLDS_MAX as u64 {
        let path = path(&format!("{dirs}/{number:0>255}"));
        assert_eq!(path.as_str().len(), PATH_MAX_BYTES);
        let (hold, mode, token) = (HoldId(number), HoldMode::Exclusive, Some(Token(number)));
        let taken = Taken { path, hold, mode, token, volume: Path::root(), incarnation: Incarnation(1) };
        client.holder.taken(&lock(), &Written { taken: Some(Box::new(taken)), ..Written::default() }, client.now);
    }
    client.step(Input::Disconnected);
    let register = client.step(Input::Connected);
    let register = client.only(&register).0;
    let mut effects = client.answer(register, Answer::Registered { coverings: vec![] });
    let mut named = BTreeSet::new();
    for _ in 0..2 {
        let longest = requests(&effects).iter().map(|(_, request)| encoded_bytes(request)).max();
        // What a header carries at most: renewals and returns, each with the longest path.
        let header = (RENEWALS_MAX + RETURNS_MAX) * (PATH_MAX_BYTES + 100) + CONSENTS_MAX * 20;
        assert!(longest.is_some_and(|longest| longest + header < FRAME_BYTES_MAX), "{longest:?}");
        named.extend(asked_after(&effects).expect("the next have their turn").1);
        client.now = client.now.after(Duration::from_secs(1));
        effects = client.timeout(&[]);
    }
    assert_eq!(named, (1..=AWAIT_HOLDS_MAX as u64).map(HoldId).collect());
    let told = (0..AWAIT_HOLDS_MAX as u64).map(|_| (HoldId(u64::MAX), held(u64::MAX, true))).collect();
    let promises = RENEWALS_MAX * (PATH_MAX_BYTES + 100);
    assert!(encoded_bytes(&Answer::Holds(told)) + promises < FRAME_BYTES_MAX, "the answer fits too");
}

#[test]
fn another_connection_is_asked_anew() {
    let (mut client, ticket) = waiting();
    client.step(Input::Disconnected);
    assert_eq!(client.answer(ticket, Answer::Holds(vec![(HOLD, held(9, false))])), [], "nobody listens there");
    let effects = client.step(Input::Connected);
    let register = client.only(&effects).0;
    let effects = client.answer(register, Answer::Registered { coverings: vec![] });
    let asked: Vec<Body> = sent(&effects).into_iter().map(|(_, body)| body).collect();
    assert!(asked.contains(&awaits(HoldStatus::Waiting)), "{asked:?}");
}

#[test]
fn a_leader_that_cannot_tell_is_asked_again_later() {
    let (mut client, ticket) = waiting();
    assert_eq!(sent(&client.refuse(ticket, Refusal::Retry)), []);
    client.now = at(100).after(Duration::from_millis(100));
    let (_, body) = sent(&client.timeout(&[])).pop().expect("it asks again");
    assert_eq!(body, awaits(HoldStatus::Waiting));
}

#[test]
fn handed_over_lock_ends_at_once_and_returns_only_if_refused() {
    let hand_over = || Write::HandOver { path: path("/a"), hold: HOLD, to: HoldId(5) };
    let mut client = Client::leased();
    client.lock(Some(9), 1);
    let effects = client.write(6, hand_over());
    let ticket = client.only(&effects).0;
    assert_eq!(client.certain(), Duration::ZERO, "before the server knows");
    let effects = client.write(7, hand_over());
    assert!(matches!(effects[..], [Effect::WriteDone { result: Err(WriteError::NotSent), .. }]), "{effects:?}");
    let refusal = Refusal::Write(WriteRefusal::NoSuccessor { path: path("/a"), to: HoldId(5) });
    client.refuse(ticket, refusal);
    assert!(client.certain() > Duration::ZERO, "it is held as before");

    let effects = client.write(8, hand_over());
    let ticket = client.only(&effects).0;
    let written = Written::default();
    let effects = client.answer(
        ticket,
        Answer::Written { written, stamp: stamp(41), grant: None, applied: Revision(31), kept: None, cached: None },
    );
    assert_eq!(client.certain(), Duration::ZERO);
    assert!(!effects.contains(&over()), "whoever has given it away knows");
    assert!(client.holder.holding.holds.is_empty(), "it is nobody's business any more");

    let mut client = Client::leased();
    client.lock(Some(9), 1);
    client.write(6, hand_over());
    client.step(Input::GiveUpWrite(WriteId(6)));
    assert_eq!(client.certain(), Duration::ZERO, "nobody knows");
}

/// What a step tells of the connection.
fn told(effects: &[Effect]) -> Vec<&Connection> {
    let states = effects.iter().filter_map(|effect| match effect {
        Effect::Connection(state) => Some(state),
        _ => None,
    });
    states.collect()
}

/// A client that waits for a hold, and has stood still past its term with no renewal under way: what it sends then to renew, and to be told.
fn stood_still() -> (Client, Ticket, Ticket) {
    let (mut client, _) = waiting();
    client.now = at(150);
    let effects = client.timeout(&[]);
    assert_eq!(told(&effects), [&Connection::Jeopardy]);
    let (alive, renew) = keep_alive(&effects).expect("it asks whether it still has its place");
    assert_eq!(renew, [root(1)]);
    let asked = sent(&effects).into_iter().find(|(_, body)| *body == awaits(HoldStatus::Waiting));
    (client, alive, asked.expect("it asks on").0)
}

#[test]
fn paused_client_stays_in_lock_queue_if_servers_still_have_it() {
    let (mut client, alive, asked) = stood_still();
    let effects = client.renew(alive, promise("/", 1));
    assert_eq!(told(&effects), [&Connection::Connected { session: SESSION }]);
    assert!(!effects.contains(&over()));
    let effects = client.answer(asked, Answer::Holds(vec![(HOLD, held(9, false))]));
    assert!(effects.contains(&Effect::HoldChanged { hold: HOLD, status: held(9, false) }), "{effects:?}");
    assert_eq!(client.certain(), TERM);
}

#[test]
fn grant_during_client_pause_counts_after_lease_renewal() {
    let (mut client, alive, asked) = stood_still();
    let granted = || Answer::Holds(vec![(HOLD, held(9, false))]);
    assert_eq!(client.answer(asked, granted()), [], "not by this clock");
    client.renew(alive, promise("/", 1));
    client.now = client.holder.next_deadline().expect("it asks again");
    let effects = client.timeout(&[]);
    let (asked, request) = client.only(&effects);
    assert_eq!(request.body, awaits(HoldStatus::Waiting));
    let effects = client.answer(asked, granted());
    assert!(effects.contains(&Effect::HoldChanged { hold: HOLD, status: held(9, false) }), "{effects:?}");
    assert!(client.certain() > Duration::ZERO);
}

#[test]
fn paused_client_is_in_jeopardy_until_its_lease_is_renewed() {
    let (mut client, ticket) = waiting();
    client.now = at(150);
    let effects = client.answer(ticket, Answer::Holds(vec![(HOLD, held(9, false))]));
    assert_eq!(told(&effects), [&Connection::Jeopardy], "{effects:?}");
    let (alive, _) = keep_alive(&client.timeout(&[])).expect("it asks whether it still has its place");
    assert_eq!(told(&client.renew(alive, promise("/", 1))), [&Connection::Connected { session: SESSION }]);
}

#[test]
fn paused_client_is_notified_if_servers_lost_its_position() {
    let (mut client, alive, _) = stood_still();
    let lapses = vec![Lapse { volume: Path::root(), incarnation: Incarnation(1) }];
    let effects = client.respond(alive, Response { epoch: EPOCH, promises: vec![], lapses, result: Ok(Answer::Noted) });
    assert!(effects.contains(&over()));
    assert_eq!(told(&effects), [&Connection::Connected { session: SESSION }]);
}

#[test]
fn paused_client_without_leader_asks_next_for_its_position() {
    let (mut client, _) = waiting();
    client.step(Input::Disconnected);
    client.now = client.holder.next_deadline().expect("its end is noted");
    assert_eq!((client.now, told(&client.timeout(&[]))), (at(110), vec![&Connection::Jeopardy]));
    client.now = at(120);
    let effects = client.step(Input::Connected);
    let (_, request) = client.only(&effects);
    assert_eq!((request.body, request.header.renew), (Body::Register, vec![root(1)]));
}
