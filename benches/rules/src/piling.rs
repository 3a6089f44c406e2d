//! Very many pending or past items: unanswered recalls, copies in one subtree, writes that wait for
//! silent sessions, changes, closed sessions. It measures single steps while these exist.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant as Wall},
};

use leasehold_protocol::{
    command::{Attach, Condition, Write},
    id::{LeaseId, SessionId, Stamp},
    lease_policy::LeaseRequest,
    lessor::{LessorBounds, LessorEffect, LessorInput},
    limits::Limits,
    message::{Answer, Body, Consent, KEEP_ALIVES_MAX, KeyLeaseRenewal, LastValid, Recall},
    object::Object,
    path::NodePath,
    state::State,
};

use crate::{
    Figures,
    leader::{Leader, Leases, settings, state_with},
    spans::{Spans, shown},
};

/// Objects that each of many sessions caches.
const OBJECTS_EACH: u64 = 500;

/// The maximum number of nodes in one list: more names would not fit an answer.
const LIST_NODES: u64 = 100_000;

/// Covering sessions that answer nothing.
const SILENT: u64 = 100;

/// Measured steps of a kind.
const STEPS: u64 = 200;

/// Measures all kinds, each with `count` items.
pub(crate) fn measure(count: u64, commit: Duration) -> Figures {
    let mut figures = consents(count, commit);
    figures.extend(subtree(count, commit));
    figures.extend(timeouts(count, commit));
    figures.extend(changes(count, commit));
    figures.extend(endings(count, commit));
    figures.extend(closed(count));
    figures.extend(kept(3 * count, commit));
    figures
}

fn path(text: &str) -> NodePath {
    NodePath::parse(text).expect("a valid path")
}

/// A leader with bounds so high that it refuses nothing.
fn leading(state: State, commit: Duration) -> Leader {
    let many = usize::MAX >> 1;
    let bounds = LessorBounds {
        writes_max: many,
        writes_bytes_max: many,
        sessions_max: many,
        key_leases_max: many,
        requests_waiting_max: many,
        renewals_per_second_max: 1 << 30,
        ..LessorBounds::DEFAULT
    };
    // A session with more objects would be tracked as covering. Other sessions' writes would wait
    // for it, longer than their own sessions last.
    let limits = Limits { session_objects_max: many, ..Limits::default() };
    let mut leader = Leader::elected_with(state, commit, bounds, limits);
    leader.begin();
    leader
}

fn put(at: &str) -> Write {
    Write::Put { path: path(at), value: "there".into(), condition: Condition::Any, attach: Attach::Nothing }
}

fn body(write: Write) -> Body {
    Body::Write { write, dropped: Vec::new(), seen: Stamp::default() }
}

/// Begins a write that waits. Returns its recalls and the time of its first step.
fn begin(leader: &mut Leader, write: Write) -> (Vec<Recall>, Duration) {
    let request = leader.request(body(write));
    let step = leader.step(request);
    let recall = |effect| if let LessorEffect::Recall(recall) = effect { Some(recall) } else { None };
    (step.effects.into_iter().filter_map(recall).collect(), step.step)
}

fn consent(leader: &mut Leader, Recall { session, stamp, .. }: &Recall) -> Duration {
    leader.step(LessorInput::Consent(Consent { session: *session, stamp: *stamp })).step
}

fn register(leader: &mut Leader, session: SessionId) {
    leader.act_for(session);
    leader.ask(Body::Register).expect("it is registered");
}

/// Runs until nothing is left to propose.
fn settle(leader: &mut Leader) {
    while leader.lessor.has_proposal() {
        leader.run_next_event();
    }
}

/// Writes recall one covering session, which then consents to one recall after another.
fn consents(count: u64, commit: Duration) -> Figures {
    let mut leader = leading(State::new(settings()), commit);
    let holder = leader.join();
    let mut leader = leading(leader.state, commit);
    register(&mut leader, holder);
    leader.open();
    let (mut arrivals, mut recalls, mut consents) = (Spans::default(), Vec::new(), Spans::default());
    for number in 0..count {
        let (recalled, took) = begin(&mut leader, put(&format!("/{number}")));
        arrivals.add(took);
        recalls.extend(recalled);
    }
    recalls.iter().for_each(|recall| consents.add(consent(&mut leader, recall)));
    vec![
        (format!("c1: a write beside up to {count} unanswered recalls: p50 · p99 · max"), arrivals.summary()),
        (format!("c1: a consent to one of {} recalls: p50 · p99 · max", consents.len()), consents.summary()),
    ]
}

fn read_all(leader: &mut Leader, objects: u64) {
    for number in 0..objects {
        read(leader, Object::data(path(&format!("/held/{number}"))));
    }
}

/// Reads an object. The session then caches it.
fn read(leader: &mut Leader, object: Object) {
    let request = leader.request(Body::Read { object, known: None, lease: LeaseRequest::Implicit });
    let proves = |effect: &LessorEffect| if let LessorEffect::Prove { round } = effect { Some(*round) } else { None };
    let mut effects = leader.step(request).effects;
    if let Some(round) = effects.iter().find_map(proves) {
        effects = leader.step(LessorInput::Proven { round }).effects;
    }
    let is_read =
        |effect: &LessorEffect| matches!(effect, LessorEffect::Reply { response, .. } if response.result.is_ok());
    assert!(effects.iter().any(is_read), "{effects:?}");
}

/// Changes a volume whose objects many sessions cache.
fn subtree(count: u64, commit: Duration) -> Figures {
    let mut leader = leading(State::new(settings()), commit);
    for _ in 0..count / OBJECTS_EACH {
        leader.join();
        read_all(&mut leader, OBJECTS_EACH);
    }
    leader.open();
    let (recalls, gathering) = begin(&mut leader, Write::SetVolume { path: NodePath::root(), settings: settings() });
    let mut consents = Spans::default();
    recalls.iter().for_each(|recall| consents.add(consent(&mut leader, recall)));
    vec![
        (format!("c2: {count} copies of {} sessions are recalled as one subtree", recalls.len()), shown(gathering)),
        ("c2: a consent to that: p50 · p99 · max".to_owned(), consents.summary()),
    ]
}

/// Measures timeouts while writes wait for silent sessions.
fn timeouts(count: u64, commit: Duration) -> Figures {
    let mut leader = leading(State::new(settings()), commit);
    for _ in 0..SILENT {
        leader.join();
    }
    let mut leader = leading(leader.state, commit);
    leader.open();
    let mut arrivals = Spans::default();
    for number in 0..count / SILENT {
        arrivals.add(begin(&mut leader, put(&format!("/{number}"))).1);
    }
    let mut timeouts = Spans::default();
    (0..STEPS).for_each(|_| timeouts.add(leader.step(LessorInput::Timeout).step));
    vec![
        (format!("c3: a write that {SILENT} silent sessions are asked for: p50 · p99 · max"), arrivals.summary()),
        (format!("c3: a timeout beside {count} waits: p50 · p99 · max"), timeouts.summary()),
    ]
}

/// A session returns after it missed very many changes: of another volume, then of its own.
fn changes(count: u64, commit: Duration) -> Figures {
    let mut leader = leading(State::new(settings()), commit);
    let writer = leader.open();
    leader.write(Write::CreateVolume { path: path("/other"), settings: settings() });
    let session = leader.join();
    let missed = count.min(State::HISTORY_MAX as u64) / 10 * 9;
    let mut figures = Figures::new();
    for (place, what) in [("/other", "of another volume"), ("", "of 1,000 nodes of its own")] {
        leader.act_for(session);
        let (acquired, _) = leader.acquire(None);
        leader.act_for(writer);
        for number in 0..missed {
            leader.write(put(&format!("{place}/{}", number % 1000)));
        }
        let (incarnation, generation) = (acquired.promise.incarnation, acquired.promise.generation);
        let valid_at = LastValid { incarnation, generation, revision: acquired.promise.revision };
        leader.act_for(session);
        let (_, took) = leader.acquire(Some(valid_at));
        figures.push((format!("c4: a session returns that missed {missed} changes {what}"), shown(took)));
    }
    figures
}

/// A session caches very many objects. An empty volume is created elsewhere, then the session ends.
fn endings(count: u64, commit: Duration) -> Figures {
    let mut leader = leading(State::new(settings()), commit);
    let writer = leader.open();
    let holder = leader.join();
    read_all(&mut leader, 2 * count);
    leader.act_for(writer);
    let made = leader.write(Write::CreateVolume { path: path("/new"), settings: settings() });
    leader.act_for(holder);
    let (closed, ended) = leader.time(Body::Close);
    assert!(matches!(closed, Ok(Answer::Closed)), "{closed:?}");
    let mut after = Spans::default();
    (0..STEPS).for_each(|_| after.add(leader.step(LessorInput::Timeout).step));
    vec![
        (format!("c4: an empty volume is made beside {} object leases", 2 * count), shown(made)),
        (format!("c4: a session with {} objects ends", 2 * count), shown(ended)),
        ("c4: a step after that: p50 · p99 · max".to_owned(), after.summary()),
    ]
}

/// Writes while the attached nodes of very many closed sessions wait for another session's consent.
fn closed(count: u64) -> Figures {
    // With slower commits, the first sessions would expire before all have joined.
    let mut leader = leading(State::new(settings()), Duration::ZERO);
    let holder = leader.join();
    let sessions: Vec<SessionId> = (0..count).map(|_| leader.join()).collect();
    for session in &sessions {
        leader.act_for(*session);
        let (path, value) = (path(&format!("/list-{}/{}", session.0 / LIST_NODES, session.0)), "here".into());
        leader.write(Write::Put { path, value, condition: Condition::Any, attach: Attach::Session });
    }
    leader.act_for(holder);
    let lists: BTreeSet<u64> = sessions.iter().map(|session| session.0 / LIST_NODES).collect();
    let begin = Wall::now();
    for list in &lists {
        read(&mut leader, Object::children(path(&format!("/list-{list}"))));
    }
    let took = begin.elapsed();
    for session in sessions {
        leader.act_for(session);
        let request = leader.request(Body::Close);
        leader.step(request);
    }
    settle(&mut leader);
    leader.open();
    let mut entries = Spans::default();
    for number in 0..STEPS {
        entries.add(leader.write(put(&format!("/elsewhere/{}", number % 16))));
    }
    let orphans = leader.state.orphans().count();
    let meta = leader.state.row(&leasehold_protocol::state::RowKey::Meta).map_or(0, |row| row.len());
    vec![
        (format!("{count} nodes are read, in lists of {LIST_NODES} at most"), shown(took)),
        (format!("c5: a write beside {orphans} orphans of closed sessions: p50 · p99 · max"), entries.summary()),
        ("c5: the row that each entry stores".to_owned(), format!("{meta} bytes")),
    ]
}

/// Key leases of 10 s, each renewed every 3 s for 30 s.
fn kept(count: u64, commit: Duration) -> Figures {
    let leases = Leases { count, first: Duration::from_secs(10), spread: Duration::ZERO };
    let mut leader = leading(state_with(leases), commit);
    register(&mut leader, SessionId(1));
    let all: Vec<KeyLeaseRenewal> =
        (0..count).map(|id| KeyLeaseRenewal { id: LeaseId(id), incarnation: None }).collect();
    let part = all.len().div_ceil(30);
    let start = leader.nanos();
    for tenth in 0..300 {
        let until = start + tenth * 100_000_000;
        while leader.next() < until {
            leader.run_next_event();
        }
        leader.wait_until(until);
        let part = all.chunks(part).nth(tenth as usize % 30).unwrap_or_default();
        for chunk in part.chunks(KEEP_ALIVES_MAX) {
            let request = leader.request(Body::KeepAlive { leases: chunk.to_vec() });
            leader.step(request);
        }
    }
    let left = leader.state.key_leases_after(None).count();
    vec![(format!("h6: of {count} key leases of 10 s, kept every 3 s, are left after 30 s"), left.to_string())]
}
