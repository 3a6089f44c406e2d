//! The process that runs a history on a disk that may fail.

use std::{fs::File, io::Write, path::Path, process};

use super::{
    calls::{self, Stores},
    history::{self, Expected, Step},
};

/// Marks this process as the child, and names its data folder.
pub(crate) const DIR: &str = "LEASEHOLD_CRASH_DIR";
/// The name of the history.
pub(crate) const HISTORY: &str = "LEASEHOLD_CRASH_HISTORY";
/// The seed of the history.
pub(crate) const SEED: &str = "LEASEHOLD_CRASH_HISTORY_SEED";
/// The file of acknowledged steps, one line each.
pub(crate) const ACKNOWLEDGED: &str = "LEASEHOLD_CRASH_ACKNOWLEDGED";

/// If it is set, the child only starts the server again.
pub(crate) const RESTART: &str = "LEASEHOLD_CRASH_RESTART";

/// The exit status after a store has failed and refuses everything, as it must.
pub(crate) const FAILED: i32 = 40;
/// The exit status when a store could not be opened.
pub(crate) const NOT_OPENED: i32 = 41;
/// The exit status when a store has failed but still accepts calls.
pub(crate) const ACCEPTED: i32 = 42;

/// Begins the line of the standard error that says what the log had after a restart.
pub(crate) const RESTARTED: &str = "restarted with ";

/// Returns the history with this name.
pub(crate) fn history(name: &str, seed: u64) -> Vec<Step> {
    match name {
        "first" => vec![Step::Begin],
        "ordinary" => history::ordinary(seed),
        "heavy" => history::heavy(seed),
        other => panic!("no history is called {other}"),
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}

fn end(status: i32, reason: impl std::fmt::Display) -> ! {
    eprintln!("{reason}");
    process::exit(status)
}

/// Run by itself, this runs a history on a good disk. As the child, it runs the history and uses
/// the folder that the environment names.
#[tokio::test]
async fn a_history_is_gone_through() {
    if std::env::var_os(RESTART).is_some() {
        start_again(Path::new(&variable(DIR)));
    }
    if std::env::var_os(DIR).is_some() {
        let steps = history(&variable(HISTORY), variable(SEED).parse().expect("a number"));
        let acknowledged = File::options().create(true).append(true).open(variable(ACKNOWLEDGED)).expect("opens");
        go_through(Path::new(&variable(DIR)), &steps, acknowledged).await;
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let steps = history::ordinary(1);
    let acknowledged = tempfile::tempfile().expect("a file");
    go_through(&dir.path().join("data"), &steps, acknowledged).await;
    super::judge::judge(&dir.path().join("data"), &steps, steps.len(), 1).await.expect("all of it is there");
}

async fn go_through(dir: &Path, steps: &[Step], mut acknowledged: File) {
    let mut stores: Option<Stores> = None;
    let mut expected = Expected::default();
    for step in steps {
        let opened = match (step, stores.take()) {
            (Step::Begin, _) => calls::begin(dir).await,
            (Step::Reopen, Some(open)) => match open.close().await {
                Ok(()) => Stores::open(dir),
                Err(error) => end(FAILED, error),
            },
            (_, Some(mut open)) => {
                if let Err(error) = open.carry_out(dir, &expected, step).await {
                    fail(dir, open, &error).await;
                }
                Ok(open)
            }
            (_, None) => unreachable!("a history begins with opening"),
        };
        stores = Some(opened.unwrap_or_else(|error| end(NOT_OPENED, error)));
        expected = expected.after(step);
        acknowledged.write_all(b"done\n").expect("written");
    }
    let closed = stores.expect("opened").close().await;
    closed.unwrap_or_else(|error| end(FAILED, error));
}

/// Opens the stores of a server that was killed, and reports what the log has. Raft may acknowledge
/// that without a further fsync, so it must be there after a crash. The stores are not closed,
/// because that fsyncs the journal.
fn start_again(dir: &Path) -> ! {
    match Stores::open(dir) {
        Ok(stores) => end(0, format!("{RESTARTED}{}", stores.content())),
        Err(error) => end(NOT_OPENED, error),
    }
}

/// A failed store must stay failed, and give the reason. Then the server is started again before
/// the machine crashes, as in [`start_again`].
async fn fail(dir: &Path, mut stores: Stores, error: &std::io::Error) -> ! {
    let accepted = stores.accepted().await;
    if !accepted.is_empty() {
        end(ACCEPTED, format!("after {error}: still accepted: {accepted:?}"));
    }
    match stores.poison.check() {
        Err(poisoned) => {
            // A failed store may not close well.
            let _ = stores.close().await;
            let restarted = Stores::open(dir);
            match &restarted {
                Ok(stores) => eprintln!("{RESTARTED}{}", stores.content()),
                Err(error) => eprintln!("not restarted: {error}"),
            }
            end(FAILED, poisoned)
        }
        Ok(()) => end(ACCEPTED, format!("after {error}: refused, but the node has not ended")),
    }
}
