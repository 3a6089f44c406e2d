//! Elections among many candidates, each in its own process (A16 in docs/verification.md). Leaders
//! are killed one after the other, and servers with them.
//!
//! A leader is replaced within its term and a second, apart from the time in which no server led
//! (A21).
//!
//! `LEASEHOLD_ELECTION_KILLS=1000 cargo test --test processes elections -- --nocapture` kills more.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use leasehold_client_cache::{Client, ElectedLeader, LockInfo};

use crate::{
    alone,
    candidate::{self, Candidate, ready},
    changes::leading,
    common::{ALLOWANCE, Cluster, Place, soon, stall::Stalls},
    figures::Figures,
    number, path,
    reigns::Reigns,
    worker::boottime_ns,
};

/// How many processes are killed by default.
const KILLS: u64 = 30;

const CANDIDATES: usize = 50;

/// The node that they campaign for, in a volume whose lost leaders are replaced soon.
const NODE: &str = "/jobs/leader";

/// The term of the volume.
const TERM: Duration = Duration::from_secs(2);

/// How much longer than a term there is no elected leader, in 99 of 100 cases.
const VACANT_BEYOND_TERM: Duration = Duration::from_secs(1);

/// The most time from the answer to a leader until an observer is notified, in 95 of 100 cases. In
/// half of the cases it is the most time from the leader's request.
const TOLD_WITHIN: Duration = Duration::from_millis(100);

/// The processes that are killed at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Strike {
    Leader,
    LeadingServer,
    Both,
}

/// Repeated in this order.
const STRIKES: [Strike; 8] = [
    Strike::Leader,
    Strike::Leader,
    Strike::LeadingServer,
    Strike::Leader,
    Strike::Both,
    Strike::Leader,
    Strike::Leader,
    Strike::Leader,
];

/// A position in the lock queue: the lock's id and its session's name. Ids grow with the arrivals.
type InLine<'a> = (u64, &'a str);

fn line_of(holds: &[LockInfo]) -> Vec<InLine<'_>> {
    holds.iter().map(|one| (one.lock.0, one.name.as_str())).collect()
}

/// Checks that candidates lead in the order of the queue. `led` are those elected since the first
/// of `before`, and the first of `after` leads now. Returns the position that this one had in
/// `before`, or `None` if all have lost their positions and queued anew.
fn turn(before: &[InLine<'_>], after: &[InLine<'_>], led: &[&str]) -> Result<Option<usize>, String> {
    if !after.is_sorted_by_key(|(hold, _)| *hold) {
        return Err("the line is not in the order of arrival".to_owned());
    }
    let (leading, name) = after.first().ok_or("nobody is in line")?;
    let place = before.iter().position(|(hold, _)| hold == leading);
    let ahead = &before[..place.unwrap_or(before.len())];
    if let Some(passed) = ahead.iter().find(|one| after.contains(one)) {
        return Err(format!("{name} leads, but {passed:?} came before"));
    }
    let behind = |one: &&&str| **one != *name && ahead.iter().all(|(_, other)| other != *one);
    match led.iter().find(behind).filter(|_| place.is_some()) {
        Some(early) => Err(format!("{early} has led, but {name} was before it in line")),
        None => Ok(place),
    }
}

/// The leaders that an observer was notified of, and when.
type Observed = Arc<Mutex<Vec<(ElectedLeader, u64)>>>;

/// The candidates of one election.
struct Election {
    candidates: BTreeMap<String, Candidate>,
    started: usize,
    reigns: Reigns,
    client: Client,
    observed: Observed,
    cluster: Cluster,
    stalls: Stalls,
    /// From a leader's death to the next leader, without the time in which no server led, and
    /// without stalls of the machine.
    vacant: Vec<Duration>,
    /// The times in which no server led.
    out: Vec<(u64, u64)>,
    /// The number of elections that the next in the queue won. In the others it had ended too.
    next_in_line: u64,
    /// How often all sessions lost their positions, because the machine stalled and no process
    /// could renew.
    lost_lines: u64,
}

impl Election {
    async fn start() -> Self {
        let cluster = Cluster::start(3);
        let term = format!("{}s", TERM.as_secs());
        cluster.cli().done(["volume", "create", "/jobs", "--term", &term, "--skew-margin", "10ms"]);
        let client = cluster.client("observer").await;
        let observed = Observed::default();
        tokio::spawn(observe(client.clone(), Arc::clone(&observed)));
        let mut election = Self {
            candidates: BTreeMap::new(),
            started: 0,
            reigns: Reigns::default(),
            client,
            observed,
            cluster,
            stalls: Stalls::watched(),
            vacant: Vec::new(),
            out: Vec::new(),
            next_in_line: 0,
            lost_lines: 0,
        };
        (0..CANDIDATES).for_each(|_| election.start_candidate());
        election
    }

    fn start_candidate(&mut self) {
        self.started += 1;
        let name = format!("candidate-{}", self.started);
        let candidate = candidate::start(&Place::default(), &self.cluster, &name, NODE);
        self.candidates.insert(name, candidate);
    }

    fn gather(&mut self) {
        for (name, candidate) in &mut self.candidates {
            self.reigns.add(name, candidate.news());
        }
    }

    /// Waits until all candidates are in the queue and the first one leads, with at least the token
    /// `least`, and has acted as the leader after `since`. Returns the queue.
    async fn line(&mut self, least: u64, since: u64) -> Vec<LockInfo> {
        let (client, node) = (self.client.clone(), path(NODE));
        let election = RefCell::new(self);
        soon("everyone is in line and the first leads", || async {
            let line = client.locks(&node).await.expect("the cluster serves");
            let mut election = election.borrow_mut();
            election.gather();
            let first = line.first().and_then(|first| first.token);
            let reign = election.reigns.latest().filter(|(token, _)| first.is_some_and(|first| first.0 == *token));
            let acts = reign.is_some_and(|(token, reign)| token >= least && reign.acted > since);
            if acts && line.len() == CANDIDATES { Ok(line) } else { Err(format!("{reign:?}, {line:?}")) }
        })
        .await
    }

    /// Kills the leader, or the leading server, or both, and waits until a candidate leads again.
    /// Returns the queue.
    async fn strike(&mut self, strike: Strike, line: &[LockInfo]) -> Vec<LockInfo> {
        let (token, name) = (line[0].token.expect("it leads").0, line[0].name.clone());
        let all = self.cluster.ids();
        let server = if strike == Strike::Leader {
            None
        } else {
            self.cluster.caught_up(&all);
            Some(leading(&self.cluster, &all, 0).await)
        };
        let struck = boottime_ns();
        if let Some((server, _)) = server {
            self.cluster.kill(server);
        }
        if strike != Strike::LeadingServer {
            let mut killed = self.candidates.remove(&name).expect("it is one of ours");
            killed.process.kill();
            self.reigns.add(&name, killed.news());
            self.start_candidate();
        }
        let mut out = Duration::ZERO;
        if let Some((server, epoch)) = server {
            self.cluster.spawn(server);
            leading(&self.cluster, &all, epoch).await;
            self.out.push((struck, boottime_ns()));
            out = Duration::from_nanos(boottime_ns() - struck);
        }
        let least = if strike == Strike::LeadingServer { token } else { token + 1 };
        let after = self.line(least, struck).await;
        self.check_turn(token, line, &after, self.stood_still(struck, boottime_ns()));
        if let Some((_, next)) = self.reigns.after(token).next() {
            let vacant = Duration::from_nanos(next.elected.saturating_sub(struck));
            self.vacant.push(vacant.saturating_sub(out + self.stood_still(struck, next.elected).min(ALLOWANCE)));
        }
        after
    }

    /// How long the machine stalled between two times.
    fn stood_still(&self, from: u64, to: u64) -> Duration {
        let (now, now_ns) = (Instant::now(), boottime_ns());
        let ago = |time: u64| now - Duration::from_nanos(now_ns.saturating_sub(time));
        self.stalls.during(ago(from), ago(to))
    }

    /// Checks that the leader is the first of those left in the old queue, and that nobody behind
    /// it has led.
    fn check_turn(&mut self, token: u64, before: &[LockInfo], after: &[LockInfo], stall: Duration) {
        self.gather();
        // Others may have led since the old queue was read.
        let leading = after[0].token.expect("it leads").0;
        let until_then = self.reigns.after(token).take_while(|(token, _)| *token <= leading);
        let led: Vec<&str> = until_then.map(|(_, reign)| reign.name.as_str()).collect();
        let place = turn(&line_of(before), &line_of(after), &led)
            .unwrap_or_else(|wrong| panic!("{wrong}\nhave led since: {led:?}\nbefore: {before:?}\nafter: {after:?}"));
        self.next_in_line += u64::from(place == Some(1));
        if place.is_none() {
            assert!(
                stall > ALLOWANCE,
                "everyone in line has lost its place; the machine stood still for {stall:.2?} only"
            );
            self.lost_lines += 1;
        }
    }

    /// Checks all notes of the candidates and of the observer.
    async fn finish(mut self) {
        let reigns = {
            self.gather();
            std::mem::take(&mut self.reigns)
        };
        let gaps: Figures = reigns.gaps().into_iter().collect();
        let last = reigns.latest().expect("some have led").0;
        let observed = Arc::clone(&self.observed);
        soon("the observer has been told of the last leader", || async {
            observed.lock().expect("nobody panics").iter().any(|(leader, _)| leader.token.0 == last).then_some(())
        })
        .await;
        let observed = observed.lock().expect("nobody panics").clone();
        let in_order = observed.is_sorted_by(|(one, _), (other, _)| one.token <= other.token);
        assert!(in_order, "the observer is told of tokens that do not grow: {observed:?}");
        let (mut after_asked, mut after_answered) = (Vec::new(), Vec::new());
        for (token, reign) in reigns.iter() {
            let when = |value: &str| {
                let mut of_it = observed.iter().filter(|(leader, _)| leader.token.0 == token && leader.value == value);
                let first = of_it.next().map(|(_, at)| *at);
                assert!(of_it.next().is_none(), "{value:?} was told twice");
                first
            };
            assert!(when(&reign.name).is_some(), "the observer was not told of {reign:?}");
            if let Some((asked, answered)) = reign.proclaimed.filter(|_| token != last) {
                let at = when(&ready(&reign.name)).unwrap_or_else(|| panic!("{reign:?} was not told to be ready"));
                let has_leader = self.out.iter().all(|(from, to)| at < *from || asked > *to);
                if has_leader {
                    let late = |since: u64| {
                        let stall = self.stood_still(since, at).min(ALLOWANCE);
                        Duration::from_nanos(at.saturating_sub(since)).saturating_sub(stall)
                    };
                    after_asked.push(late(asked));
                    after_answered.push(late(answered));
                }
            }
        }
        println!("{} reigns, of which {} fell to the next in line at once", reigns.iter().count(), self.next_in_line);
        println!("everyone in line had lost its place: {} times", self.lost_lines);
        assert!(self.next_in_line > 0, "nobody's turn was ever seen to come");
        println!("campaigns that came to nothing: {}", reigns.failed);
        println!("from the end that a leader counted on to the next leader's beginning: {gaps}");
        let vacant: Figures = self.vacant.iter().copied().collect();
        println!("without a leader after a kill, beside times in which no server led: {vacant}");
        let after_asked: Figures = after_asked.into_iter().collect();
        let after_answered: Figures = after_answered.into_iter().collect();
        println!("told after a leader asked to proclaim something: {after_asked}");
        println!("told after it was answered: {after_answered}");
        assert!(after_asked.count() > 0, "nothing was proclaimed while a server led");
        // The commit lies between the request and the answer.
        assert!(after_answered.at(0.95) <= TOLD_WITHIN, "told after a leader was answered: {after_answered}");
        assert!(after_asked.at(0.5) <= TOLD_WITHIN, "told after a leader asked, commit included: {after_asked}");
        let most = TERM + VACANT_BEYOND_TERM;
        assert!(vacant.at(0.99) <= most, "without a leader: {vacant}; expected {most:?} at most at p99");
    }
}

/// Records each leader.
async fn observe(client: Client, observed: Observed) {
    let mut leaders = client.observe(NODE);
    while let Ok(leader) = leaders.next().await {
        let at = boottime_ns();
        observed.lock().expect("nobody panics").push((leader, at));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_candidates_lead_one_at_a_time_whoever_is_killed() {
    let _alone = alone();
    let kills = number("LEASEHOLD_ELECTION_KILLS", KILLS);
    let mut election = Election::start().await;
    let mut line = election.line(0, 0).await;
    let (mut leaders, mut servers) = (0, 0);
    for strike in STRIKES.into_iter().cycle() {
        leaders += u64::from(strike != Strike::LeadingServer);
        servers += u64::from(strike != Strike::Leader);
        line = election.strike(strike, &line).await;
        if leaders + servers >= kills {
            break;
        }
    }
    println!("killed: {leaders} leaders and {servers} leading servers, of {CANDIDATES} candidates and 3 servers");
    election.finish().await;
}

#[test]
fn who_is_not_the_next_in_line_is_found() {
    let before = [(3, "a"), (5, "b"), (7, "c")];
    assert_eq!(turn(&before, &[(3, "a"), (5, "b"), (7, "c")], &[]), Ok(Some(0)), "it leads still");
    assert_eq!(turn(&before, &[(5, "b"), (7, "c"), (9, "d")], &["b"]), Ok(Some(1)));
    assert_eq!(turn(&before, &[(7, "c"), (9, "b")], &["b", "c"]), Ok(Some(2)), "b led, and has lost its place");
    assert_eq!(turn(&before, &[(9, "d"), (11, "a")], &["a", "d"]), Ok(None), "nobody has kept its place");
    let wrong = |after: &[InLine<'_>], led: &[&str]| turn(&before, after, led).expect_err("it is wrong");
    assert!(wrong(&[(7, "c"), (5, "b")], &["c"]).contains("order of arrival"));
    assert!(wrong(&[(7, "c"), (9, "d"), (3, "a")], &["c"]).contains("order of arrival"));
    assert!(wrong(&[(4, "d"), (5, "b")], &["d"]).contains("came before"), "d is new, and b has its place");
    assert!(wrong(&[(5, "b"), (7, "c")], &["c", "b"]).contains("c has led"));
    assert!(wrong(&[], &[]).contains("nobody"));
}
