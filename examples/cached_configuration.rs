//! Strongly consistent client caching: many programs read one configuration from their own memory,
//! and never read an old value.
//!
//! Run it with `cargo run --example cached_configuration`. It starts a server in this process, with
//! its data in a temporary folder, and two clients. One client reads a setting over and over; the
//! other changes it. Each write returns only after the reader has dropped its cached copy. So the
//! reader's next read has the new value.

mod local;

use local::{Failure, LocalServer};

const SETTING: &str = "/config/web/max-connections";
const READS: u32 = 10_000;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let server = LocalServer::start().await?;
    let reader = server.client("reader").await?;
    let writer = server.client("writer").await?;

    for value in ["100", "200", "400"] {
        let before = reader.stats().hits;
        let written = writer.put(SETTING, value).await?;
        for _ in 0..READS {
            let entry = reader.get(SETTING).await?.ok_or("the setting was just written")?;
            assert_eq!(&entry.value[..], value.as_bytes(), "an acknowledged write is seen by every later read");
        }
        let from_memory = reader.stats().hits - before;
        assert!(from_memory > u64::from(READS) * 9 / 10, "{from_memory} of {READS} reads came from memory");
        println!("{SETTING} = {value} at revision {}: {from_memory} of {READS} reads from memory", written.revision);
    }

    reader.close().await;
    writer.close().await;
    server.stop().await?;
    Ok(())
}

#[cfg(test)]
#[test]
fn it_runs() {
    main().expect("it ends well");
}
