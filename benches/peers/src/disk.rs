//! The folder of all servers: checks that it is on a disk, and measures a small sync. No durable
//! write can be faster than that.

use std::{
    fs::File,
    io::Write,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};

/// The number of syncs for the median.
const SYNCS: usize = 200;

/// The data before each sync: a block, for a small entry and its header.
const BLOCK: [u8; 4096] = [0; 4096];

/// Fails if files in this folder never reach a disk.
pub(crate) fn check(dir: &Path) -> Result<()> {
    let kind = statfs(dir).with_context(|| dir.display().to_string())?.filesystem_type();
    if kind == TMPFS_MAGIC {
        bail!("{} is in memory, where a sync costs nothing: name a folder on a disk with --dir", dir.display());
    }
    Ok(())
}

/// The median of an append and its `fdatasync`, in milliseconds.
pub(crate) fn sync_ms(dir: &Path) -> Result<f64> {
    let path = dir.join("sync");
    let mut file = File::create(&path)?;
    let mut times = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        let begin = Instant::now();
        file.write_all(&BLOCK)?;
        file.sync_data()?;
        times.push(begin.elapsed());
    }
    std::fs::remove_file(path)?;
    times.sort_unstable();
    Ok(times.get(SYNCS / 2).map_or(0.0, Duration::as_secs_f64) * 1e3)
}
