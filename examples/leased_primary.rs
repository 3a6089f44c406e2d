//! A leased primary: it orders operations for other servers by itself while it leads. Leasehold
//! elects the primary and renews its lease. It sees none of the operations.
//!
//! Run it with `cargo run --example leased_primary`. It starts a server in this process, with its
//! data in a temporary folder, two clients that campaign to be primary, and two followers. Each
//! follower is a process that runs this program with [`FOLLOWS`] set. It knows neither the server
//! nor the clients.
//!
//! - While the primary's lease has time `remaining`, no other process orders operations. If time
//!   remains when all followers have an operation, its order is final. That needs no request to the
//!   server.
//! - An order of a former primary may arrive after its lease ended. Only the fencing token stops
//!   it: a follower refuses a token lower than the highest that it has seen. It also refuses a gap.

mod local;

use std::{
    env, io,
    net::Ipv4Addr,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use leasehold_client_cache::{Client, Leadership, NodePath, Token, VolumeSettings};
use local::{Failure, LocalServer};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader, BufWriter},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    process::{Child, Command},
    task::JoinSet,
    time::timeout,
};

const OPERATIONS: u64 = 100_000;

/// Operations in flight, which are acknowledged together.
const BATCH: u64 = 1000;

const FOLLOWERS: usize = 2;

/// Makes this program a follower. The value is the address of the overseer.
const FOLLOWS: &str = "LEASED_PRIMARY_OVERSEER";

/// Time limit for a follower to start, to send its log, and to exit.
const PATIENCE: Duration = Duration::from_secs(60);

type Outcome<T> = Result<T, Failure>;

/// An operation, its position in the order, and the token of the primary that ordered it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Order {
    token: Token,
    number: u64,
    operation: u64,
}

impl Order {
    fn new(token: Token, number: u64) -> Self {
        // The value does not matter. All followers must have the same one.
        Self { token, number, operation: number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ token.0 }
    }

    async fn send(self, to: &mut BufWriter<OwnedWriteHalf>) -> io::Result<()> {
        for number in [self.token.0, self.number, self.operation] {
            to.write_u64(number).await?;
        }
        Ok(())
    }

    /// `None` if there are no more.
    async fn receive(from: &mut BufReader<OwnedReadHalf>) -> io::Result<Option<Self>> {
        let token = match from.read_u64().await {
            Ok(token) => Token(token),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(Some(Self { token, number: from.read_u64().await?, operation: from.read_u64().await? }))
    }
}

/// A follower's answer to an order, one byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Verdict {
    Accepted,
    /// Another primary has a higher token.
    Late,
    /// It is not the next order.
    Gap,
}

impl Verdict {
    fn of(byte: u8) -> io::Result<Self> {
        let verdicts = [Self::Accepted, Self::Late, Self::Gap];
        let verdict = verdicts.into_iter().find(|verdict| *verdict as u8 == byte);
        verdict.ok_or_else(|| io::Error::other(format!("verdict {byte}: expected 0 to 2")))
    }
}

/// The orders that a follower has accepted.
#[derive(Debug, Default)]
struct Log {
    /// The highest token that it has seen.
    token: Option<Token>,
    orders: Vec<Order>,
}

impl Log {
    fn take(&mut self, order: Order) -> Verdict {
        if Some(order.token) < self.token {
            return Verdict::Late;
        }
        self.token = Some(order.token);
        if order.number != self.orders.len() as u64 + 1 {
            return Verdict::Gap;
        }
        self.orders.push(order);
        Verdict::Accepted
    }
}

/// A follower's process. It accepts orders on any connection, and exits when the overseer closes
/// its connection. The kernel closes it if the overseer dies.
async fn follow(overseer: &str) -> Outcome<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let (mut asked, told) = TcpStream::connect(overseer).await?.into_split();
    let mut told = BufWriter::new(told);
    told.write_u16(listener.local_addr()?.port()).await?;
    told.flush().await?;
    let log = Arc::new(Mutex::new(Log::default()));
    let mut primaries = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                primaries.spawn(take_orders(accepted?.0, Arc::clone(&log)));
            }
            question = asked.read_u8() => match question {
                Ok(_) => tell(&log, &mut told).await?,
                Err(_) => return Ok(()),
            },
        }
    }
}

/// Answers each order of a primary with a [`Verdict`].
async fn take_orders(primary: TcpStream, log: Arc<Mutex<Log>>) -> io::Result<()> {
    let (orders, verdicts) = primary.into_split();
    let (mut orders, mut verdicts) = (BufReader::new(orders), BufWriter::new(verdicts));
    while let Some(order) = Order::receive(&mut orders).await? {
        let verdict = log.lock().unwrap_or_else(PoisonError::into_inner).take(order);
        verdicts.write_u8(verdict as u8).await?;
        if orders.buffer().is_empty() {
            verdicts.flush().await?;
        }
    }
    Ok(())
}

/// Sends the log to the overseer: its length, then each order.
async fn tell(log: &Mutex<Log>, to: &mut BufWriter<OwnedWriteHalf>) -> io::Result<()> {
    let orders = log.lock().unwrap_or_else(PoisonError::into_inner).orders.clone();
    to.write_u64(orders.len() as u64).await?;
    for order in orders {
        order.send(to).await?;
    }
    to.flush().await
}

/// The overseer's handle of a follower's process. The process is killed on drop.
struct Follower {
    process: Child,
    port: u16,
    told: BufReader<OwnedReadHalf>,
    asks: OwnedWriteHalf,
}

impl Follower {
    async fn start() -> Outcome<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let mut command = Command::new(env::current_exe()?);
        if cfg!(test) {
            // This program is a test binary then, and its one test calls `main`.
            command.args(["it_runs", "--exact", "--nocapture"]);
        }
        command.env(FOLLOWS, listener.local_addr()?.to_string()).stdin(Stdio::null()).stdout(Stdio::null());
        let mut process = command.kill_on_drop(true).spawn()?;
        let accepted = tokio::select! {
            accepted = timeout(PATIENCE, listener.accept()) => accepted??.0,
            status = process.wait() => return Err(format!("a follower has ended: {}", status?).into()),
        };
        let (told, asks) = accepted.into_split();
        let mut told = BufReader::new(told);
        let port = timeout(PATIENCE, told.read_u16()).await??;
        Ok(Self { process, port, told, asks })
    }

    /// All orders that it has accepted.
    async fn log(&mut self) -> Outcome<Vec<Order>> {
        self.asks.write_u8(0).await?;
        let receive = async {
            let length = self.told.read_u64().await?;
            let mut orders = Vec::new();
            for _ in 0..length {
                orders.push(Order::receive(&mut self.told).await?.ok_or(io::ErrorKind::UnexpectedEof)?);
            }
            io::Result::Ok(orders)
        };
        Ok(timeout(PATIENCE, receive).await??)
    }

    /// Stops it and waits for its exit.
    async fn stop(mut self) -> Outcome<()> {
        drop((self.told, self.asks));
        let status = timeout(PATIENCE, self.process.wait()).await??;
        if status.success() { Ok(()) } else { Err(format!("a follower has failed: {status}").into()) }
    }
}

/// A primary's connection to a follower.
struct Line {
    orders: BufWriter<OwnedWriteHalf>,
    verdicts: BufReader<OwnedReadHalf>,
}

impl Line {
    async fn to(follower: &Follower) -> io::Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, follower.port)).await?;
        stream.set_nodelay(true)?;
        let (verdicts, orders) = stream.into_split();
        Ok(Self { orders: BufWriter::new(orders), verdicts: BufReader::new(verdicts) })
    }

    /// Sends orders and returns the follower's verdict on each.
    async fn send(&mut self, batch: &[Order]) -> io::Result<Vec<Verdict>> {
        let send = async {
            for order in batch {
                order.send(&mut self.orders).await?;
            }
            self.orders.flush().await
        };
        let receive = async {
            let mut verdicts = vec![0; batch.len()];
            self.verdicts.read_exact(&mut verdicts).await?;
            verdicts.into_iter().map(Verdict::of).collect::<io::Result<Vec<_>>>()
        };
        Ok(tokio::try_join!(send, receive)?.1)
    }
}

/// Orders operations while it leads.
struct Primary {
    leadership: Leadership,
    lines: Vec<Line>,
}

impl Primary {
    async fn elected(client: &Client, name: &str, followers: &[Follower]) -> Outcome<Self> {
        let path: NodePath = "/primary".parse()?;
        let leadership = client.campaign(&path, name).await?;
        let mut lines = Vec::new();
        for follower in followers {
            lines.push(Line::to(follower).await?);
        }
        Ok(Self { leadership, lines })
    }

    /// Orders this many operations after those of `acknowledged`, and appends them.
    async fn order(&mut self, operations: u64, acknowledged: &mut Vec<Order>) -> Outcome<()> {
        let token = self.leadership.token();
        let end = acknowledged.len() as u64 + operations;
        while (acknowledged.len() as u64) < end {
            let last = acknowledged.len() as u64;
            let numbers = last + 1..=end.min(last + BATCH);
            let batch: Vec<Order> = numbers.map(|number| Order::new(token, number)).collect();
            let verdicts = futures::future::try_join_all(self.lines.iter_mut().map(|line| line.send(&batch)));
            if let Some(refused) = verdicts.await?.concat().iter().find(|verdict| **verdict != Verdict::Accepted) {
                return Err(format!("a follower refuses an order: {refused:?}").into());
            }
            // Acknowledge only after this check: until then, no other primary has ordered anything.
            if self.leadership.remaining().is_zero() {
                return Err("the lease is over: the next primary says whether the last orders count".into());
            }
            acknowledged.extend(batch);
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Outcome<()> {
    match env::var(FOLLOWS) {
        Ok(overseer) => follow(&overseer).await,
        Err(_) => oversee().await,
    }
}

async fn oversee() -> Outcome<()> {
    let server = LocalServer::start().await?;
    let [one, two] = [server.client("host-1").await?, server.client("host-2").await?];
    let mut followers = Vec::new();
    for _ in 0..FOLLOWERS {
        followers.push(Follower::start().await?);
    }
    let mut acknowledged = Vec::new();

    let mut first = Primary::elected(&one, "host-1", &followers).await?;
    let (before, began) = (one.stats(), Instant::now());
    first.order(OPERATIONS, &mut acknowledged).await?;
    let (after, took) = (one.stats(), began.elapsed());
    let token = first.leadership.token();
    println!("host-1 has ordered {OPERATIONS} operations for {FOLLOWERS} processes in {took:.1?}, under token {token}");
    let (reads, writes) = (after.server_reads - before.server_reads, after.writes - before.writes);
    let renewals = after.messages_sent - before.messages_sent;
    println!("the core was sent {reads} reads and {writes} writes for them, and {renewals} renewals in that time");
    assert_eq!((reads, writes), (0, 0), "an operation needs no request");
    // Renewals need requests, but no operation does: a renewal comes a quarter of a term after the
    // last at the soonest.
    let terms = took.as_secs_f64() / VolumeSettings::DEFAULT.longest_term().as_secs_f64();
    assert!(renewals as f64 <= 4.0 * terms + 2.0, "{renewals} requests in {took:.1?}");

    let Primary { leadership, lines: mut old_lines } = first;
    leadership.resign().await?;
    let mut second = Primary::elected(&two, "host-2", &followers).await?;
    second.order(1, &mut acknowledged).await?;
    println!("host-2 has ordered another, under token {}", second.leadership.token());

    // The followers cannot know whether the first primary sent this before its lease ended.
    let next = acknowledged.len() as u64 + 1;
    for line in &mut old_lines {
        assert_eq!(line.send(&[Order::new(token, next)]).await?, [Verdict::Late]);
    }
    println!("what comes late from host-1 is refused by its token");
    for line in &mut second.lines {
        assert_eq!(line.send(&[Order::new(second.leadership.token(), next + 1)]).await?, [Verdict::Gap]);
    }

    for follower in &mut followers {
        let log = follower.log().await?;
        let differs = log.iter().zip(&acknowledged).find(|(had, expected)| had != expected);
        assert_eq!((log.len(), differs), (acknowledged.len(), None), "a follower's log");
    }
    println!("both followers have the same log: {} operations, in one order", acknowledged.len());

    second.leadership.resign().await?;
    for follower in followers {
        follower.stop().await?;
    }
    for client in [one, two] {
        client.close().await;
    }
    server.stop().await?;
    Ok(())
}

#[cfg(test)]
#[test]
fn it_runs() {
    main().expect("it ends well");
}
