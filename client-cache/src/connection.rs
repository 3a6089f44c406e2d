//! Finds the leader, serves the connection to it, and searches again when that ends.
//!
//! A client has one connection at a time. It tries servers in turn, and begins with the one that
//! the last server named as leader. After each round through the endpoints without a leader, it
//! pauses longer. So the clients of a cluster without a leader do not hinder the election. This
//! module does not detect dead connections: the rules decide when a server has been silent for too
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
    message::{Push, Recall, RecallReply, Refusal, Request, Response},
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

/// How long a connection and its handshake may take. After a lost packet they take longer than
/// this, and the client tries the next server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the first connection waits for the other endpoints to name their clusters. A healthy
/// server needs a round trip or two. If one is down, each new client waits this long.
const NAMES_WITHIN: Duration = Duration::from_millis(100);

/// The first pause after a round without a leader.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// How long a request that waits for no other client's lease may take. Long before that, the rules
/// look for another server.
const QUICK_ANSWER_MAX: Duration = Duration::from_secs(30);

/// How long a request that waits for other clients' leases may take: longer than the longest volume
/// term and the largest margin together.
const LATE_ANSWER_MAX: Duration = Duration::from_secs(26 * 3600);

/// Finds the leader and serves the connection to it, again and again, until the client is closed.
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
                    driver.status.no_leader(&format!("the connection to {address} has ended"));
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

/// The endpoints that name their cluster in time, each with its cluster.
async fn named_by(endpoints: impl Iterator<Item = &String>) -> Vec<(String, ClusterId)> {
    let asked = endpoints.map(|endpoint| async move {
        let introduced = leasehold_wire::connect(endpoint, Role::Client, NAMES_WITHIN).await;
        Some((endpoint.clone(), introduced.ok()?.cluster?))
    });
    futures::future::join_all(asked).await.into_iter().flatten().collect()
}

/// The result of a connection.
#[derive(Debug, Default)]
struct ConnectionEnd {
    /// Whether the server led: it answered a request.
    had_leader: bool,
    /// The leader's address, as the server named it.
    hint: Option<String>,
}

impl ConnectionEnd {
    fn note(&mut self, outcome: Option<Response>) -> Option<Response> {
        self.had_leader |= outcome.as_ref().is_some_and(|response| response.result.is_ok());
        outcome
    }
}

/// Which server to try next.
#[derive(Debug)]
struct LeaderSearch {
    endpoints: Vec<String>,
    /// The endpoints that are still to be tried in this round.
    round: VecDeque<String>,
    hint: Option<String>,
    /// The servers that could not be reached in this round: hints to them are ignored.
    dead: BTreeSet<String>,
    /// The connections that have failed since one succeeded.
    failures: usize,
    /// Why they failed, by address.
    reasons: BTreeMap<String, Unavailable>,
    /// The hints that were followed in this round.
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

    /// Each pause is 1.5 times the previous one, and at most [`PAUSE_MAX`].
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

    /// Records a failed connection. Returns the reason if a whole round has failed. An answer of
    /// one server is a better reason than the silence of another.
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
            // The search continues with the rest of the round. So there is a pause, a short one,
            // before it tries the same server again.
            self.pause = None;
            self.dead.clear();
            self.hints = 0;
        }
        // During an election, servers may name each other as leader in a circle.
        let is_fresh = self.hints < self.endpoints.len();
        self.hint = end.hint.filter(|hint| is_fresh && !self.dead.contains(hint));
        self.hints += usize::from(self.hint.is_some());
    }
}

/// Handles recalls and pushes on the connection's own task. They wait only for the driver's lock,
/// and the next request may depend on them.
#[derive(Clone)]
struct CallbackService(Arc<Driver>);

impl Callback for CallbackService {
    async fn recall(self, _: Context, recall: Recall) -> RecallReply {
        self.0.recalled(recall)
    }

    async fn push(self, _: Context, push: Push) {
        self.0.pushed(push);
    }
}

/// Serves the connection until it ends.
async fn serve(driver: &Arc<Driver>, stream: TcpStream) -> ConnectionEnd {
    let (leasehold, recalls, task) = client_connection(stream);
    let _task = AbortOnDropHandle::new(tokio::spawn(task));
    let recalls = BaseChannel::with_defaults(recalls).execute(CallbackService(Arc::clone(driver)).serve());
    // A call is handled when it is first polled, so calls are handled in order. But the reply may
    // have to wait for the network. Other calls do not wait for that.
    let mut recalls = std::pin::pin!(recalls.for_each_concurrent(None, |call| call));
    let mut calls = FuturesUnordered::new();
    let mut orders = driver.connected();
    driver.connection.send_replace(Some(leasehold.clone()));
    let mut end = ConnectionEnd::default();
    loop {
        tokio::select! {
            () = &mut recalls => break,
            Some((send_id, outcome)) = calls.next() => match end.note(outcome) {
                Some(response) => driver.answered(send_id, response),
                None => break,
            },
            order = orders.recv() => match order {
                // The future of a call is large, so it is boxed at once. `push` would copy it
                // twice more.
                Some(ConnectionOrder::Send(send_id, request)) => {
                    calls.push(Box::pin(call(leasehold.clone(), send_id, request)));
                }
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

/// Sends a request. The response is `None` if the connection has ended.
async fn call(leasehold: LeaseholdClient, send_id: SendId, request: Request) -> (SendId, Option<Response>) {
    let mut context = tarpc::context::current();
    let longest = if request.body.is_nonblocking() { QUICK_ANSWER_MAX } else { LATE_ANSWER_MAX };
    context.deadline = Instant::now() + longest;
    let response = match leasehold.call(context, request).await {
        Ok(response) => Some(response),
        Err(RpcError::Shutdown | RpcError::Channel(_)) => None,
        // The request failed, but the connection lives. As after a server's `Retry`, the rules send
        // it again under the same number.
        Err(error @ (RpcError::Send(_) | RpcError::DeadlineExceeded | RpcError::Server(_))) => {
            tracing::warn!(%error, "a request failed: it is sent again");
            Some(Response {
                epoch: Epoch::default(),
                promises: Vec::new(),
                lapses: Vec::new(),
                clocks: None,
                result: Err(Refusal::Retry),
            })
        }
    };
    (send_id, response)
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
