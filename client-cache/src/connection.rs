//! The connection to the server that may lead: found, used, given up, found again.
//!
//! One connection at a time. Servers are tried in turn, beginning with the one that the last server
//! named as leader. While none that leads is found, each round through the endpoints is followed by
//! a longer pause, so that the clients of a cluster without a leader do not keep it from finding
//! one. A dead connection is not waited for: the rules say when a server has been silent for too
//! long.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt, stream::FuturesUnordered};
use leasehold_protocol::{
    holder::SendId,
    id::Epoch,
    message::{Consent, Recall, Refusal, Request, Response},
};
use leasehold_wire::{Callback, ClusterId, DialError, HandshakeError, LeaseholdClient, Role, client_connection};
use tarpc::{
    client::RpcError,
    context::Context,
    server::{BaseChannel, Channel},
};
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    driver::{ConnectionOrder, Driver},
    error::Unavailable,
    own_cluster::OwnCluster,
};

/// How long a connection and its handshake may take. A packet that is lost once would take longer;
/// then another server is as good.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the first connection waits for the other endpoints to name their clusters: a healthy
/// one takes a round trip or two. Each new client waits this long for one that is down.
const NAMES_WITHIN: Duration = Duration::from_millis(100);

/// The first pause after a round in which nobody was found that leads.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// How long one answer may take that waits for nobody's lease. The rules look for another server
/// long before.
const QUICK_ANSWER_MAX: Duration = Duration::from_secs(30);

/// How long the answer may take that waits for others' leases: the longest volume term and the
/// largest margin, and then some.
const LATE_ANSWER_MAX: Duration = Duration::from_secs(26 * 3600);

/// Finds the leader, is its connection, and begins anew when that ends, until the client is over.
pub(crate) async fn keep_connected(driver: Arc<Driver>) {
    let over = driver.closed.clone();
    over.run_until_cancelled(async {
        let mut search = LeaderSearch::new(driver.options.endpoints.clone());
        let mut own = OwnCluster::default();
        loop {
            let address = search.next().await;
            match reach(&address, &driver, &mut own).await {
                Ok(stream) => {
                    search.reached();
                    driver.status.no_leader(&format!("{address} has not answered yet"));
                    let end = serve(&driver, stream).await;
                    driver.status.no_leader(&format!("the connection to {address} is over"));
                    search.ended(end);
                }
                Err(why) => {
                    tracing::debug!(%why, "no connection");
                    if let Some(why) = search.failed(address, why) {
                        driver.status.nobody(why);
                    }
                }
            }
        }
    })
    .await;
}

/// Connects to a server of this client's cluster.
async fn reach(address: &str, driver: &Driver, own: &mut OwnCluster) -> Result<TcpStream, Unavailable> {
    match leasehold_wire::connect(address, Role::Client, CONNECT_TIMEOUT).await {
        Ok(introduced) => {
            if let Some(first) = introduced.cluster.filter(|_| own.is_open()) {
                let others = driver.options.endpoints.iter().filter(|endpoint| *endpoint != address);
                own.decide(first, &named_by(others).await);
            }
            own.check(address, introduced.cluster).map(|()| introduced.stream)
        }
        Err(error) => {
            if let DialError::Handshake { source: HandshakeError::Refused { .. }, .. } = &error {
                driver.status.refused(error.to_string());
            }
            Err(Unavailable::NoServer { endpoints: vec![address.to_owned()], reason: error.to_string() })
        }
    }
}

/// The clusters of the endpoints that name theirs at once.
async fn named_by(endpoints: impl Iterator<Item = &String>) -> Vec<(String, ClusterId)> {
    let asked = endpoints.map(|endpoint| async move {
        let introduced = leasehold_wire::connect(endpoint, Role::Client, NAMES_WITHIN).await;
        Some((endpoint.clone(), introduced.ok()?.cluster?))
    });
    futures::future::join_all(asked).await.into_iter().flatten().collect()
}

/// What came of a connection.
#[derive(Debug, Default)]
struct ConnectionEnd {
    /// It was to a leader.
    had_leader: bool,
    /// Where the leader is said to be.
    hint: Option<String>,
}

impl ConnectionEnd {
    fn note(&mut self, outcome: Option<Response>) -> Option<Response> {
        self.had_leader |= outcome.as_ref().is_some_and(|response| response.result.is_ok());
        outcome
    }
}

/// Where to look next.
#[derive(Debug)]
struct LeaderSearch {
    endpoints: Vec<String>,
    /// Those of the endpoints that this round has yet to try.
    round: VecDeque<String>,
    hint: Option<String>,
    /// Could not be connected to in this round: not worth a hint.
    dead: BTreeSet<String>,
    /// Connections that failed since one succeeded.
    failures: usize,
    /// Why, by address.
    reasons: BTreeMap<String, Unavailable>,
    /// Hints followed in this round.
    hints: usize,
    pause: Option<Duration>,
}

impl LeaderSearch {
    fn new(endpoints: Vec<String>) -> Self {
        Self {
            round: endpoints.iter().cloned().collect(),
            endpoints,
            hint: None,
            dead: BTreeSet::new(),
            failures: 0,
            reasons: BTreeMap::new(),
            hints: 0,
            pause: None,
        }
    }

    async fn next(&mut self) -> String {
        if let Some(hint) = self.hint.take() {
            return hint;
        }
        loop {
            if let Some(address) = self.round.pop_front() {
                return address;
            }
            let pause = self.next_pause();
            tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
            self.begin_round();
        }
    }

    /// Grows by half each time.
    fn next_pause(&mut self) -> Duration {
        let pause = self.pause.map_or(PAUSE_MIN, |pause| (pause * 3 / 2).min(PAUSE_MAX));
        self.pause = Some(pause);
        pause
    }

    fn begin_round(&mut self) {
        self.round = self.endpoints.iter().cloned().collect();
        self.dead.clear();
        self.hints = 0;
    }

    fn reached(&mut self) {
        self.failures = 0;
        self.reasons.clear();
    }

    /// Why, if no endpoint has been connected to for a whole round. What a server has said tells
    /// more than that another one does not answer.
    fn failed(&mut self, address: String, why: Unavailable) -> Option<Unavailable> {
        self.reasons.insert(address.clone(), why.clone());
        self.dead.insert(address);
        self.failures += 1;
        if self.failures < self.endpoints.len() {
            return None;
        }
        let is_other = |why: &&Unavailable| matches!(why, Unavailable::OtherCluster { .. });
        let has_said = |why: &&Unavailable| !matches!(why, Unavailable::NoServer { .. });
        let said = self.reasons.values().find(is_other).or_else(|| self.reasons.values().find(has_said)).cloned();
        Some(match (said, why) {
            (Some(said), _) => said,
            (None, Unavailable::NoServer { reason, .. }) => {
                Unavailable::NoServer { endpoints: self.endpoints.clone(), reason }
            }
            (None, why) => why,
        })
    }

    fn ended(&mut self, end: ConnectionEnd) {
        if end.had_leader {
            // The round goes on, and so there is a pause before the same server is tried again, if
            // a short one.
            self.pause = None;
            self.dead.clear();
            self.hints = 0;
        }
        // Servers may send a client around among themselves while they elect.
        let is_fresh = self.hints < self.endpoints.len();
        self.hint = end.hint.filter(|hint| is_fresh && !self.dead.contains(hint));
        self.hints += usize::from(self.hint.is_some());
    }
}

/// Serves recalls in place: they wait for nothing but the driver's lock, and the next request of
/// ours may depend on them.
#[derive(Clone)]
struct RecallService(Arc<Driver>);

impl Callback for RecallService {
    async fn recall(self, _: Context, recall: Recall) -> Consent {
        self.0.recalled(recall)
    }
}

/// Is the connection until it ends.
async fn serve(driver: &Arc<Driver>, stream: TcpStream) -> ConnectionEnd {
    let (leasehold, recalls, work) = client_connection(stream);
    let _work = AbortOnDropHandle::new(tokio::spawn(work));
    let recalls = BaseChannel::with_defaults(recalls).execute(RecallService(Arc::clone(driver)).serve());
    let mut recalls = std::pin::pin!(recalls.for_each(|recall| recall));
    let mut calls = FuturesUnordered::new();
    let mut orders = driver.connected();
    driver.connection.send_replace(Some(leasehold.clone()));
    let mut end = ConnectionEnd::default();
    loop {
        tokio::select! {
            () = &mut recalls => break,
            Some((ticket, outcome)) = calls.next() => match end.note(outcome) {
                Some(response) => driver.answered(ticket, response),
                None => break,
            },
            order = orders.recv() => match order {
                Some(ConnectionOrder::Send(ticket, request)) => calls.push(call(leasehold.clone(), ticket, request)),
                Some(ConnectionOrder::Leave(hint)) => {
                    end.hint = hint;
                    break;
                }
                None => break,
            },
        }
    }
    driver.connection.send_replace(None);
    driver.disconnected();
    end
}

/// Sends a request. None if the connection is over.
async fn call(leasehold: LeaseholdClient, ticket: SendId, request: Request) -> (SendId, Option<Response>) {
    let mut context = tarpc::context::current();
    let longest = if request.body.is_nonblocking() { QUICK_ANSWER_MAX } else { LATE_ANSWER_MAX };
    context.deadline = Instant::now() + longest;
    let response = match leasehold.call(context, request).await {
        Ok(response) => Some(response),
        Err(RpcError::Shutdown | RpcError::Channel(_)) => None,
        // This request alone failed: as if the server had asked to try again, under the same
        // number.
        Err(error @ (RpcError::Send(_) | RpcError::DeadlineExceeded | RpcError::Server(_))) => {
            tracing::warn!(%error, "a request failed: it is sent again");
            Some(Response {
                epoch: Epoch::default(),
                promises: Vec::new(),
                lapses: Vec::new(),
                result: Err(Refusal::Retry),
            })
        }
    };
    (ticket, response)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silent(address: &str) -> Unavailable {
        Unavailable::NoServer { endpoints: vec![address.to_owned()], reason: format!("{address} is silent") }
    }

    #[test]
    fn servers_of_another_cluster_are_named_before_silent_ones() {
        let mut search = LeaderSearch::new(vec!["a".to_owned(), "b".to_owned()]);
        let other = Unavailable::OtherCluster { endpoint: "a".to_owned(), got: "1".into(), expected: "2".into() };
        assert_eq!(search.failed("a".to_owned(), other.clone()), None);
        assert_eq!(search.failed("b".to_owned(), silent("b")), Some(other));
        let why = search.failed("a".to_owned(), silent("a"));
        assert!(matches!(why, Some(Unavailable::NoServer { endpoints, .. }) if endpoints.len() == 2));
    }

    #[tokio::test(start_paused = true)]
    async fn server_search_tries_each_in_turn_with_growing_pauses() {
        let mut search = LeaderSearch::new(vec!["a".to_owned(), "b".to_owned()]);
        let mut pauses = Vec::new();
        for round in 0..16 {
            let began = tokio::time::Instant::now();
            assert_eq!(search.next().await, "a");
            pauses.push(began.elapsed());
            assert!(search.failed("a".to_owned(), silent("a")).is_some() == (round > 0));
            assert_eq!(search.next().await, "b");
            let reason = search.failed("b".to_owned(), silent("b")).expect("a whole round").to_string();
            assert_eq!(reason, "no server answers at a, b: b is silent");
        }
        assert_eq!(pauses[0], Duration::ZERO);
        assert!(pauses[1] >= PAUSE_MIN / 2 && pauses[1] <= PAUSE_MIN + Duration::from_millis(1), "{pauses:?}");
        assert!(pauses[15] >= PAUSE_MAX / 2 && pauses[15] <= PAUSE_MAX, "{pauses:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn hints_are_followed_unless_they_lead_nowhere_or_in_circles() {
        let mut search = LeaderSearch::new(vec!["a".to_owned(), "b".to_owned()]);
        let hint = |to: &str| ConnectionEnd { had_leader: false, hint: Some(to.to_owned()) };
        assert_eq!(search.next().await, "a");
        search.ended(hint("c"));
        assert_eq!(search.next().await, "c");
        search.failed("c".to_owned(), silent("c"));
        assert_eq!(search.next().await, "b");
        search.ended(hint("c"));
        assert_eq!(search.next().await, "a", "a new round: c had failed in this one");
        search.ended(hint("b"));
        assert_eq!(search.next().await, "b");
        search.ended(hint("a"));
        assert_eq!(search.next().await, "a");
        search.ended(hint("b"));
        assert_eq!(search.next().await, "b", "the rest of the round: enough hints were followed");
        search.ended(ConnectionEnd { had_leader: true, hint: None });
        assert_eq!(search.pause, None);
    }
}
