//! One client of the demo. It is a process of its own, so that the demo can kill it as a whole.
//!
//! It reads orders from standard input and reports on standard output. It exits when its input
//! ends, because the demo may have been killed.

use std::{
    error::Error,
    iter::successors,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

use futures::{StreamExt, TryStreamExt, stream};
use leasehold_client_cache::{Client, NodePath};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines, Stdin},
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
    task,
};

use crate::{
    error::ClientError,
    reader::Reader,
    session::connect,
    talk::{Task, Word, WorkerOrder},
    writer::DemoWriter,
};

/// Reads in flight before the start.
const READS_AT_ONCE: usize = 16;

/// Runs a client of the demo, in a process that the demo has started with
/// [`DemoOptions::client`]. The client takes orders on standard input, and reports on standard
/// output, until it is ordered to stop.
///
/// An error means that no demo has started this process. A client that fails later reports that to
/// the demo.
///
/// [`DemoOptions::client`]: crate::DemoOptions::client
pub async fn run_client() -> Result<(), ClientError> {
    let mut orders = Orders(BufReader::new(tokio::io::stdin()).lines());
    let Some(WorkerOrder::Task(task)) = orders.next().await? else {
        return Err(ClientError::NoTask);
    };
    let (words, said) = mpsc::unbounded_channel();
    let printer = task::spawn(print_all(said));
    if let Err(error) = work(&mut orders, task, &words).await {
        let _ = words.send(Word::Failed { message: with_causes(&error) });
    }
    drop(words);
    // The printer ends with the last message, or when nobody reads it.
    let _ = printer.await;
    Ok(())
}

/// The error and its causes, in one line.
fn with_causes(error: &ClientError) -> String {
    let causes = successors(Some(error as &dyn Error), |error| (*error).source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The orders of the demo.
struct Orders(Lines<BufReader<Stdin>>);

impl Orders {
    /// `None` when the demo has ended.
    async fn next(&mut self) -> Result<Option<WorkerOrder>, ClientError> {
        let line = self.0.next_line().await.map_err(ClientError::Input)?;
        line.map(|line| serde_json::from_str(&line)).transpose().map_err(ClientError::Order)
    }
}

async fn print_all(mut said: UnboundedReceiver<Word>) {
    let mut out = tokio::io::stdout();
    while let Some(word) = said.recv().await {
        // Each of our messages can be encoded as JSON.
        let Ok(mut line) = serde_json::to_vec(&word) else { continue };
        line.push(b'\n');
        if out.write_all(&line).await.is_err() || out.flush().await.is_err() {
            return;
        }
    }
}

/// The part of a client that works in the background.
enum Worker {
    Reader(JoinHandle<()>),
    Writer(task::JoinHandle<()>),
}

impl Worker {
    /// Waits until it ends.
    async fn end(self) {
        // The worker fails only by a panic, which is reported already.
        let _ = match self {
            Self::Reader(thread) => task::spawn_blocking(|| thread.join().is_ok()).await.unwrap_or(false),
            Self::Writer(task) => task.await.is_ok(),
        };
    }
}

async fn work(orders: &mut Orders, task: Task, words: &UnboundedSender<Word>) -> Result<(), ClientError> {
    let files: Result<Arc<[NodePath]>, _> = task.files.iter().map(|file| NodePath::parse(file)).collect();
    let files = files?;
    let client = connect(&task.endpoints, &task.name).await?;
    let stop = Arc::new(AtomicBool::new(false));
    let (words, seed) = (words.clone(), task.seed);
    let writer = if task.writes.is_empty() {
        warm(&client, &files).await?;
        None
    } else {
        Some(DemoWriter::new(client.clone(), &files, &task.writes, words.clone(), Arc::clone(&stop)).await?)
    };
    let _ = words.send(Word::Ready);
    let Some(WorkerOrder::Go) = orders.next().await? else { return Ok(()) };
    let mut worker = Some(match writer {
        Some(writer) => Worker::Writer(tokio::spawn(writer.run(seed))),
        None => {
            let reader = Reader::new(client.clone(), Arc::clone(&files), words.clone(), Arc::clone(&stop));
            Worker::Reader(std::thread::spawn(move || reader.run(seed)))
        }
    });
    loop {
        let order = orders.next().await?;
        stop.store(true, Relaxed);
        if let Some(worker) = worker.take() {
            worker.end().await;
        }
        let Some(WorkerOrder::Hold { file }) = order else { break };
        let path = files.get(file as usize).ok_or(ClientError::NoFile(file))?;
        hold(&client, path, &words).await?;
    }
    client.close().await;
    Ok(())
}

/// Gets a valid cached copy of the file, and reports it.
async fn hold(client: &Client, path: &NodePath, words: &UnboundedSender<Word>) -> Result<(), ClientError> {
    loop {
        let read = client.read(path).await?;
        if let Some(certain) = read.valid_for {
            let certain_ms = u64::try_from(certain.as_millis()).unwrap_or(u64::MAX);
            let _ = words.send(Word::Holding { certain_ms });
            return Ok(());
        }
        // A write of the file was pending. It ends soon.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Reads each file once.
async fn warm(client: &Client, files: &[NodePath]) -> Result<(), ClientError> {
    let reads = stream::iter(files).map(|file| client.get(file).into_future()).buffer_unordered(READS_AT_ONCE);
    Ok(reads.try_for_each(|_| async { Ok(()) }).await?)
}
