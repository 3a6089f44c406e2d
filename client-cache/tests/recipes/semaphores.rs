//! Semaphores: never more than N permits by the owners' clocks, in the order of arrival, even if
//! some owners cancel or are cut off.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use futures::future::join_all;
use leasehold_client_cache::{
    Client, Compare, Operation, Token, Transaction,
    recipes::{Permit, RecipeError, Semaphore},
};
use leasehold_protocol::command::Write;
use parking_lot::Mutex;
use tokio::{sync::mpsc, task::JoinHandle};

use super::{TERM, clients, proxy::Proxy, until_children};
use crate::common::{SHORT_TERM, Server, path, until, within};

const PERMITS: u32 = 2;

fn semaphore(client: &Client) -> Semaphore {
    client.semaphore("/s", PERMITS)
}

async fn acquire(client: &Client) -> Permit {
    within(semaphore(client).acquire()).await.unwrap()
}

fn waits(client: &Client) -> JoinHandle<Permit> {
    let client = client.clone();
    tokio::spawn(async move { acquire(&client).await })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_are_granted_in_the_order_of_arrival_and_tokens_grow() {
    let server = Server::start(TERM).await;
    let clients: [Client; 8] = clients(&server).await;
    let (granted, mut grants) = mpsc::unbounded_channel();
    for (place, client) in clients.iter().enumerate() {
        let (granted, client) = (granted.clone(), client.clone());
        tokio::spawn(async move { granted.send((place, acquire(&client).await)) });
        until_children(&clients[0], "/s", place + 1).await;
    }
    let mut held = Vec::new();
    for _ in 0..PERMITS {
        held.push(within(grants.recv()).await.unwrap());
    }
    held.sort_by_key(|(place, _)| *place);
    let mut tokens: Vec<Token> = Vec::new();
    for next in PERMITS as usize..clients.len() {
        assert!(grants.try_recv().is_err(), "no permit is left");
        // A token later than the arrival of all waiters, and than all earlier grants.
        let mark = within(clients[0].mutex("/mark").lock()).await.unwrap().token();
        // Alternates between the older and the younger permit.
        let (_, permit) = held.remove(next % 2);
        permit.release().await.unwrap();
        let (place, permit) = within(grants.recv()).await.unwrap();
        assert_eq!(place, next);
        assert!(permit.remaining() > TERM / 2 && permit.token() > mark);
        tokens.push(permit.token());
        held.push((place, permit));
    }
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    assert_eq!(server.asked("List"), clients.len() as u64, "nobody looks twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_tries_is_told_that_there_is_none_and_leaves_nothing() {
    let server = Server::start(TERM).await;
    let [one, two] = clients(&server).await;
    let first = within(semaphore(&one).try_acquire()).await.unwrap().unwrap();
    let second = within(semaphore(&two).try_acquire()).await.unwrap().unwrap();
    assert!(within(semaphore(&two).try_acquire()).await.unwrap().is_none());
    assert!(within(semaphore(&two).acquire_timeout(Duration::from_millis(30))).await.unwrap().is_none());
    until_children(&one, "/s", 2).await;
    first.release().await.unwrap();
    assert!(within(semaphore(&two).acquire_timeout(TERM)).await.unwrap().is_some());
    drop(second);
    until_children(&one, "/s", 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_permits_are_waited_for_too() {
    const MANY: usize = 12;
    let server = Server::start(TERM).await;
    let [one, two] = clients(&server).await;
    let many = one.semaphore("/s", MANY as u32);
    let permits = within(join_all((0..MANY).map(|_| many.acquire()))).await;
    let mut permits: Vec<Permit> = permits.into_iter().map(Result::unwrap).collect();
    let waiting = [&one, &two].map(|client| {
        let semaphore = client.semaphore("/s", MANY as u32);
        tokio::spawn(async move { semaphore.acquire().await.unwrap() })
    });
    until_children(&one, "/s", MANY + 2).await;
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
    permits.truncate(MANY - 2);
    within(join_all(waiting)).await.into_iter().for_each(|permit| drop(permit.unwrap()));
    until_children(&one, "/s", MANY - 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whenever_an_acquisition_is_given_up_it_leaves_nothing() {
    let server = Server::start(TERM).await;
    let [one, two, other] = clients(&server).await;
    for step in 0..60 {
        // Once with a free permit, and once with none.
        let held = if step % 2 == 0 { None } else { Some((acquire(&two).await, acquire(&two).await)) };
        let given_up = tokio::time::timeout(Duration::from_micros(step * 100), semaphore(&one).acquire()).await;
        drop((given_up, held));
    }
    until_children(&other, "/s", 0).await;
    for step in 0..30 {
        let permit = acquire(&one).await;
        drop(tokio::time::timeout(Duration::from_micros(step * 50), permit.release()).await);
    }
    until_children(&other, "/s", 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_with_lost_answer_takes_one_permit_and_leaves_none() {
    let mut server = Server::start(TERM).await;
    let [one, other] = clients(&server).await;
    for step in 0..20 {
        let asked = waits(&one);
        drop(tokio::time::timeout(Duration::from_micros(step * 150), std::future::pending::<()>()).await);
        server.stop().await;
        if step % 2 == 0 {
            asked.abort();
            server.lead();
        } else {
            server.lead();
            drop(within(asked).await.unwrap());
        }
    }
    until_children(&other, "/s", 0).await;
    drop((acquire(&other).await, acquire(&other).await));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_off_permit_owner_knows_first_and_its_token_is_refused() {
    let server = Server::start(SHORT_TERM).await;
    let [one, two] = clients(&server).await;
    let proxy = Proxy::before(&server).await;
    let cut = proxy.client().await;
    let (lost, _kept) = (acquire(&cut).await, acquire(&one).await);
    let waiting = waits(&two);
    until_children(&one, "/s", 3).await;
    proxy.cut(true);
    let late =
        |token| Transaction::new().when(Compare::locked(path("/s"), token)).then(Operation::put(path("/work"), "done"));
    assert!(within(one.transaction(late(lost.token()))).await.unwrap().succeeded());
    within(lost.on_lost().cancelled()).await;
    assert_eq!(lost.remaining(), Duration::ZERO);
    let next = within(waiting).await.unwrap();
    assert!(next.token() > lost.token());
    assert!(!within(one.transaction(late(lost.token()))).await.unwrap().succeeded());
    assert!(within(one.transaction(late(next.token()))).await.unwrap().succeeded());
    proxy.cut(false);
    assert!(within(lost.release()).await.is_err(), "it was over");
    until_children(&one, "/s", 2).await;
}

/// Otherwise another client could own the permit while the token of this one still counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn released_permit_ends_its_token_before_its_node() {
    let server = Server::start(TERM).await;
    let [one, two] = clients(&server).await;
    for is_dropped in [false, true] {
        let permit = acquire(&one).await;
        let token = permit.token();
        let asked = server.asked("Write");
        server.hold_writes(|write| matches!(write, Write::Unlock { .. }));
        let releasing = if is_dropped {
            drop(permit);
            None
        } else {
            Some(tokio::spawn(permit.release()))
        };
        until(|| server.asked("Write") > asked).await;
        // What the client has sent before these reads has arrived with them.
        for _ in 0..3 {
            within(one.stat("/s")).await.unwrap();
        }
        assert_eq!(server.asked("Write"), asked + 1, "only the release of the lock was sent");
        until_children(&two, "/s", 1).await;
        server.hold_writes(|_| false);
        until_children(&two, "/s", 0).await;
        let late =
            Transaction::new().when(Compare::locked(path("/s"), token)).then(Operation::put(path("/work"), "done"));
        assert!(!within(two.transaction(late)).await.unwrap().succeeded());
        if let Some(releasing) = releasing {
            within(releasing).await.unwrap().unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_have_to_give_the_same_number() {
    let server = Server::start(TERM).await;
    let [one, two] = clients(&server).await;
    // As the topmost node of a volume: without a value.
    one.put("/s", "").await.unwrap();
    let _permit = acquire(&one).await;
    let differs = within(two.semaphore("/s", 3).acquire()).await.unwrap_err();
    let RecipeError::CountMismatch { expected, found, .. } = differs else { panic!("{differs:?}") };
    assert_eq!((expected.as_str(), found.as_str()), ("3", "2"));
    let none = within(two.semaphore("/s", 0).acquire()).await.unwrap_err();
    assert!(matches!(none, RecipeError::InvalidCount { got: 0, .. }), "{none:?}");
    until_children(&two, "/s", 1).await;
}

/// From when to when a client was certain of a permit, by its samples.
#[derive(Debug, Clone, Copy)]
struct Certain {
    from: Instant,
    until: Instant,
}

#[derive(Debug, Default)]
struct Seen {
    spans: Mutex<Vec<Certain>>,
    /// Samples of permits whose clients are cut off, or soon will be.
    held: AtomicUsize,
    grants: AtomicUsize,
    lost: AtomicUsize,
    is_over: AtomicBool,
}

impl Seen {
    /// Samples a permit this often. If the client is cut off meanwhile, until the permit has ended.
    async fn use_up(&self, permit: &Permit, samples: usize, is_cut: &AtomicBool) {
        let mut every = tokio::time::interval(Duration::from_millis(1));
        let (mut span, mut left) = (None, samples);
        while left > 0 || is_cut.load(SeqCst) {
            let now = Instant::now();
            if permit.remaining().is_zero() {
                self.lost.fetch_add(1, SeqCst);
                break;
            }
            let from = span.map_or(now, |span: Certain| span.from);
            if is_cut.load(SeqCst) {
                self.held.fetch_add(1, SeqCst);
            }
            span = Some(Certain { from, until: now });
            left = left.saturating_sub(1);
            every.tick().await;
        }
        self.spans.lock().extend(span);
        self.grants.fetch_add(1, SeqCst);
    }

    /// The most clients that were certain of a permit at one moment.
    fn most(&self) -> usize {
        let spans = self.spans.lock();
        let at = |moment: Instant| spans.iter().filter(|span| span.from <= moment && moment <= span.until).count();
        spans.iter().map(|span| at(span.from)).max().unwrap_or_default()
    }

    async fn churn(&self, client: &Client, is_cut: &AtomicBool) {
        let mut turn = 0;
        while !self.is_over.load(SeqCst) {
            turn += 1;
            // A client that is cut off gets no answer, and tries again.
            let Ok(Some(permit)) = semaphore(client).acquire_timeout(TERM / 4).await else { continue };
            self.use_up(&permit, 1 + turn % 5, is_cut).await;
            if turn % 2 == 0 {
                let _ = permit.release().await;
            }
        }
    }
}

fn is_lapsed(client: &Client) -> bool {
    client.volume_remaining(&path("/s")).is_zero()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_are_never_more_than_so_many_by_their_own_clocks() {
    let mut server = Server::start(Duration::from_millis(400)).await;
    let proxies = [Proxy::before(&server).await, Proxy::before(&server).await];
    let [one, two, three] = clients(&server).await;
    let clients = [proxies[0].client().await, proxies[1].client().await, one, two, three.clone()];
    let (seen, cut) = (Arc::new(Seen::default()), Arc::new([const { AtomicBool::new(false) }; 5]));
    let work: Vec<JoinHandle<()>> = (0..5)
        .map(|at| {
            let (seen, cut, client) = (Arc::clone(&seen), Arc::clone(&cut), clients[at].clone());
            tokio::spawn(async move { seen.churn(&client, &cut[at]).await })
        })
        .collect();
    for trouble in 0..6 {
        let (at, before) = (trouble / 2 % 2, seen.grants.load(SeqCst));
        until(|| seen.grants.load(SeqCst) >= before + 20).await;
        let (held, lost) = (seen.held.load(SeqCst), seen.lost.load(SeqCst));
        // Cuts the client off while it has a permit, or at any point.
        cut[at].store(trouble % 2 == 0, SeqCst);
        until(|| trouble % 2 == 1 || seen.held.load(SeqCst) > held).await;
        proxies[at].cut(true);
        until(|| if trouble % 2 == 0 { seen.lost.load(SeqCst) > lost } else { is_lapsed(&clients[at]) }).await;
        let before = seen.grants.load(SeqCst);
        until(|| seen.grants.load(SeqCst) >= before + 20).await;
        if trouble % 3 == 2 {
            server.stop().await;
            server.lead();
        }
        proxies[at].cut(false);
        cut[at].store(false, SeqCst);
    }
    seen.is_over.store(true, SeqCst);
    within(join_all(work)).await.into_iter().for_each(Result::unwrap);
    assert_eq!(seen.most(), PERMITS as usize);
    until_children(&three, "/s", 0).await;
}
