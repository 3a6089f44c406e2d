//! A mutex: two workers append to a ledger, one at a time. The ledger knows nothing of locks, but
//! refuses old fencing tokens.
//!
//! Run it with `cargo run --example mutex`. It starts a server in this process, with its data in a
//! temporary folder, and two clients.
//!
//! - While a guard has time `remaining`, no other client owns the mutex. The owner's own clock
//!   cancels `on_lost` before another client can own it (after a suspension of the machine, up to a
//!   second later).
//! - A request of a former owner may arrive after its lock ended. Only the fencing token stops it.
//!   Here a worker writes with the token of a lock that it has released, and the ledger refuses.

mod local;

use leasehold_client_cache::Token;
use local::{Failure, LocalServer};

const LOCK: &str = "/locks/ledger";
const TURNS: u32 = 5;

/// The resource that the lock protects. It accepts a token that is not lower than the highest one
/// that it has seen.
#[derive(Default)]
struct Ledger {
    highest: Token,
    lines: Vec<String>,
}

impl Ledger {
    fn append(&mut self, token: Token, line: String) -> Result<(), String> {
        if token < self.highest {
            return Err(format!("token {token} is older than {}", self.highest));
        }
        self.highest = token;
        self.lines.push(line);
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let server = LocalServer::start().await?;
    let workers = [server.client("one").await?, server.client("two").await?];

    let mut ledger = Ledger::default();
    let mut last = Token::default();
    for turn in 0..TURNS {
        for (number, worker) in workers.iter().enumerate() {
            let guard = worker.mutex(LOCK).lock().await?;
            assert!(worker.mutex(LOCK).try_lock().await?.is_none(), "nobody else can have it");
            assert!(guard.token() > last, "tokens grow");
            last = guard.token();
            ledger.append(guard.token(), format!("turn {turn} of worker {number} under token {last}"))?;
            guard.release().await?;
        }
    }

    let guard = workers[0].mutex(LOCK).lock().await?;
    let old = guard.token();
    guard.release().await?;
    let guard = workers[1].mutex(LOCK).lock().await?;
    ledger.append(guard.token(), "the last line".to_owned())?;
    let refused = ledger.append(old, "too late".to_owned()).err().ok_or("the old token was taken")?;
    println!("{}", ledger.lines.join("\n"));
    println!("a late request was refused: {refused}");

    drop(guard);
    for worker in workers {
        worker.close().await;
    }
    server.stop().await?;
    Ok(())
}

#[cfg(test)]
#[test]
fn it_runs() {
    main().expect("it ends well");
}
