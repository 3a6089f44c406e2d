//! A ZooKeeper session, by the part of its protocol that is needed here. Requests are pipelined on
//! one connection and answered in order.
//!
//! The available client crate leaves Nagle's algorithm on. With many requests in flight on one
//! connection, a request may wait for the TCP acknowledgement of another. Then the figures would
//! measure the client. This module sends all waiting requests together.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, oneshot},
};

/// How long a session outlives its connection, and how often it sends a ping.
const SESSION_TIMEOUT_MS: u32 = 20_000;
const PING_EVERY: Duration = Duration::from_secs(5);

/// Time limit for a server to open a session.
const OPEN_TIMEOUT: Duration = Duration::from_millis(500);

/// The maximum number of requests that are sent together.
const SENT_TOGETHER: usize = 256;

/// The longest answer: a value and its metadata.
const ANSWER_MAX_BYTES: usize = 1 << 20;

const PING: i32 = 11;
const PING_XID: i32 = -2;

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask<'a> {
    Create(&'a [u8]),
    GetData,
    SetData(&'a [u8]),
    Sync,
}

impl Ask<'_> {
    fn code(self) -> i32 {
        match self {
            Self::Create(_) => 1,
            Self::GetData => 4,
            Self::SetData(_) => 5,
            Self::Sync => 9,
        }
    }

    /// Encodes a request without its length and number, which stand before it.
    fn encode(self, path: &str) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64 + path.len());
        bytes.extend(self.code().to_be_bytes());
        buffer(&mut bytes, path.as_bytes());
        match self {
            Self::Create(value) => {
                buffer(&mut bytes, value);
                // One ACL with all permissions for everybody; no flags.
                bytes.extend(1_i32.to_be_bytes());
                bytes.extend(31_i32.to_be_bytes());
                buffer(&mut bytes, b"world");
                buffer(&mut bytes, b"anyone");
                bytes.extend(0_i32.to_be_bytes());
            }
            Self::GetData => bytes.push(0),
            Self::SetData(value) => {
                buffer(&mut bytes, value);
                // Any version.
                bytes.extend((-1_i32).to_be_bytes());
            }
            Self::Sync => {}
        }
        bytes
    }
}

fn buffer(bytes: &mut Vec<u8>, content: &[u8]) {
    bytes.extend((content.len() as u32).to_be_bytes());
    bytes.extend(content);
}

struct Call {
    request: Vec<u8>,
    answer: oneshot::Sender<Vec<u8>>,
}

/// The callers that wait for an answer, in the order of the requests. `None` when the connection
/// has ended.
type Waiting = Arc<Mutex<Option<VecDeque<oneshot::Sender<Vec<u8>>>>>>;

/// A session. Its connection closes on drop.
#[derive(Clone)]
pub(super) struct Session(mpsc::UnboundedSender<Call>);

impl Session {
    /// Opens a session with this server.
    pub(super) async fn open(endpoint: &str) -> Result<Self> {
        let opened = tokio::time::timeout(OPEN_TIMEOUT, Self::connect(endpoint)).await;
        opened.with_context(|| format!("{endpoint} opened no session in {OPEN_TIMEOUT:?}"))?
    }

    async fn connect(endpoint: &str) -> Result<Self> {
        let mut stream = TcpStream::connect(endpoint).await?;
        stream.set_nodelay(true)?;
        // Version, last change seen, timeout, no session yet, its password, not read-only.
        let mut open = vec![0; 12];
        open.extend(SESSION_TIMEOUT_MS.to_be_bytes());
        open.extend([0; 8]);
        buffer(&mut open, &[0; 16]);
        open.push(0);
        stream.write_all(&(open.len() as u32).to_be_bytes()).await?;
        stream.write_all(&open).await?;
        let (reader, writer) = stream.into_split();
        let mut reader = BufReader::new(reader);
        let opened = frame(&mut reader).await?;
        ensure!(opened.get(4..8).is_some_and(|timeout| timeout != [0; 4]), "{endpoint} opened no session");
        let waiting: Waiting = Arc::new(Mutex::new(Some(VecDeque::new())));
        let (calls, taken) = mpsc::unbounded_channel();
        tokio::spawn(read_all(reader, Arc::clone(&waiting)));
        tokio::spawn(write_all(writer, taken, waiting));
        Ok(Self(calls))
    }

    /// Whether its connection has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Sends a request at once. Returns the answer without its header.
    pub(super) fn ask(&self, ask: Ask<'_>, path: &str) -> impl Future<Output = Result<Vec<u8>>> + Send + use<> {
        let (sender, answer) = oneshot::channel();
        // If the connection has ended, the receiver fails too.
        let _ = self.0.send(Call { request: ask.encode(path), answer: sender });
        async move {
            let mut answer = answer.await.context("the connection to ZooKeeper ended")?;
            ensure!(answer.len() >= 16, "an answer of {} bytes: expected at least 16", answer.len());
            let code = i32::from_be_bytes([answer[12], answer[13], answer[14], answer[15]]);
            ensure!(code == 0, "ZooKeeper answered with error {code}");
            Ok(answer.split_off(16))
        }
    }
}

async fn frame(reader: &mut BufReader<OwnedReadHalf>) -> Result<Vec<u8>> {
    let length = reader.read_u32().await? as usize;
    ensure!(length <= ANSWER_MAX_BYTES, "an answer of {length} bytes: expected at most {ANSWER_MAX_BYTES}");
    let mut bytes = vec![0; length];
    reader.read_exact(&mut bytes).await?;
    Ok(bytes)
}

async fn read_all(mut reader: BufReader<OwnedReadHalf>, waiting: Waiting) {
    // The calls that fail report how it ended.
    while let Ok(answer) = frame(&mut reader).await {
        if answer.get(..4) == Some(&PING_XID.to_be_bytes()) {
            continue;
        }
        let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).as_mut().and_then(VecDeque::pop_front);
        if let Some(next) = next {
            // The caller may have gone.
            let _ = next.send(answer);
        }
    }
    waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
}

async fn write_all(mut writer: OwnedWriteHalf, mut calls: mpsc::UnboundedReceiver<Call>, waiting: Waiting) {
    let (mut taken, mut bytes, mut xid) = (Vec::new(), Vec::new(), 0_i32);
    loop {
        bytes.clear();
        match tokio::time::timeout(PING_EVERY, calls.recv_many(&mut taken, SENT_TOGETHER)).await {
            Ok(0) => return,
            Ok(_) => {
                let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(waiting) = waiting.as_mut() else { return };
                for Call { request, answer } in taken.drain(..) {
                    xid = xid.wrapping_add(1) & i32::MAX;
                    bytes.extend((request.len() as u32 + 4).to_be_bytes());
                    bytes.extend(xid.to_be_bytes());
                    bytes.extend(request);
                    waiting.push_back(answer);
                }
            }
            Err(_) => {
                bytes.extend(8_u32.to_be_bytes());
                bytes.extend(PING_XID.to_be_bytes());
                bytes.extend(PING.to_be_bytes());
            }
        }
        if writer.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn requests_have_the_bytes_that_zookeeper_expects() {
        assert_eq!(Ask::GetData.encode("/a"), [0, 0, 0, 4, 0, 0, 0, 2, b'/', b'a', 0]);
        assert_eq!(Ask::Sync.encode("/a"), [0, 0, 0, 9, 0, 0, 0, 2, b'/', b'a']);
        let set = [0, 0, 0, 5, 0, 0, 0, 2, b'/', b'a', 0, 0, 0, 1, b'v', 255, 255, 255, 255];
        assert_eq!(Ask::SetData(b"v").encode("/a"), set);
    }

    /// Opens a session, reads two requests, answers both (the second with an error), and ends.
    async fn serve(listener: TcpListener) {
        let (mut stream, _) = listener.accept().await.expect("a client");
        let mut open = [0; 48 + 1];
        stream.read_exact(&mut open[..49]).await.expect("opens");
        let mut opened = vec![0, 0, 0, 37, 0, 0, 0, 0, 0, 0, 78, 32];
        opened.resize(41, 0);
        stream.write_all(&opened).await.expect("opened");
        let mut requests = [0; 2 * 19];
        stream.read_exact(&mut requests[..19 + 18]).await.expect("both requests, before any answer");
        for (xid, code, rest) in [(1_u8, 0_u8, &b"xyz"[..]), (2, 154, b"")] {
            let mut answer = vec![0, 0, 0, 16 + rest.len() as u8, 0, 0, 0, xid, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, code];
            answer.extend(rest);
            stream.write_all(&answer).await.expect("answered");
        }
    }

    #[tokio::test]
    async fn requests_are_pipelined_and_answered_in_order() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let endpoint = listener.local_addr().expect("an address").to_string();
        let server = tokio::spawn(serve(listener));
        let session = Session::open(&endpoint).await.expect("opens");
        let (one, other) = (session.ask(Ask::GetData, "/a"), session.ask(Ask::Sync, "/a"));
        assert_eq!(one.await.expect("answered"), b"xyz");
        assert!(other.await.expect_err("refused").to_string().contains("error 154"));
        server.await.expect("no panic");
        assert!(session.ask(Ask::Sync, "/a").await.is_err(), "it has hung up");
    }
}
