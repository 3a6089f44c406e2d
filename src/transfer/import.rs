//! `import DIR PATH`: writes a directory to the tree.
//!
//! It checks names, links, and the server's limits on values and paths before it writes anything.
//! If a later file fails, the nodes written before stay. To import again is harmless: each file is
//! a node of its own. Existing nodes get new values; none is removed.

use std::{fs, io, path::PathBuf};

use clap::Args;
use futures::{StreamExt, TryStreamExt, stream};
use indicatif::ProgressBar;
use leasehold_client_cache::{Client, NodePath, Refusal, Revision, WriteError};
use leasehold_protocol::limits::{LimitError, Limits};
use serde::Serialize;

use super::{
    FILES_AT_ONCE, progress,
    scan::{Scan, ScannedNode, scan},
};
use crate::{
    arguments,
    context::Context,
    exit::CommandFailure,
    failure::write_failure,
    output::{Output, Text, visible},
};

/// `import DIR PATH`
#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// Directory to import
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Node below which the files go
    #[arg(value_parser = arguments::path)]
    pub(crate) path: NodePath,
}

/// The result of an import.
#[derive(Debug, Serialize)]
pub(crate) struct ImportAnswer {
    path: NodePath,
    files: u64,
    directories: u64,
    bytes: u64,
    skipped: Vec<String>,
}

impl Text for ImportAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        let path = visible(self.path.as_str());
        let text =
            format!("{} files, {} directories, {} bytes into {path}\n", self.files, self.directories, self.bytes);
        out.extend_from_slice(text.as_bytes());
    }
}

impl ImportArgs {
    pub(crate) async fn run(self, context: &Context) -> Result<ImportAnswer, CommandFailure> {
        let (directory, top) = (self.directory, self.path.clone());
        let scan = blocking(move || scan(&directory, &top)).await?;
        for file in &scan.skipped {
            Output::notice(&format!("{}: skipped; not a file or a directory", visible(&file.to_string_lossy())));
        }
        let client = context.client().await?;
        check_limits(client, &scan).await?;
        let files = scan.entries.iter().filter(|entry| entry.file.is_some()).count() as u64;
        let bar = progress(context.output, "import", files);
        let written = stream::iter(scan.entries).map(|entry| put(client, entry, &bar)).buffer_unordered(FILES_AT_ONCE);
        let bytes = written.try_fold(0, |sum, bytes| async move { Ok(sum + bytes) }).await;
        bar.finish_and_clear();
        Ok(ImportAnswer {
            path: self.path,
            files,
            directories: scan.directories,
            bytes: bytes?,
            skipped: scan.skipped.iter().map(|file| file.to_string_lossy().into_owned()).collect(),
        })
    }
}

/// Returns the length of the value, which may differ from the scan's if the file has changed.
async fn put(client: &Client, entry: ScannedNode, bar: &ProgressBar) -> Result<u64, CommandFailure> {
    let ScannedNode { path, file, .. } = entry;
    let Some(file) = file else {
        client.put(&path, Vec::new()).await.map_err(|error| write_failure(&error).with_subject(path.as_str()))?;
        return Ok(0);
    };
    let name = file.display().to_string();
    let value = blocking(move || fs::read(&file).map_err(|error| CommandFailure::io(file.display(), &error))).await?;
    let bytes = value.len() as u64;
    client.put(&path, value).await.map_err(|error| write_failure(&error).with_subject(&name))?;
    bar.inc(1);
    Ok(bytes)
}

/// Asks the server whether it accepts the longest value, path and component, by writes whose
/// condition cannot hold.
async fn check_limits(client: &Client, scan: &Scan) -> Result<(), CommandFailure> {
    let component = |entry: &&ScannedNode| entry.path.as_str().split('/').map(str::len).max();
    let longest = [
        scan.entries.iter().max_by_key(|entry| entry.bytes),
        scan.entries.iter().max_by_key(|entry| entry.path.as_str().len()),
        scan.entries.iter().max_by_key(component),
    ];
    for entry in longest.into_iter().flatten() {
        if let Err(error) = probe(client, entry).await {
            let name = entry.file.as_ref().map_or_else(|| entry.path.to_string(), |file| file.display().to_string());
            return Err(error.with_subject(&name));
        }
    }
    Ok(())
}

async fn probe(client: &Client, entry: &ScannedNode) -> Result<(), CommandFailure> {
    // No server accepts a longer value. A server with a lower limit reports it in its refusal.
    let bytes = usize::try_from(entry.bytes).unwrap_or(usize::MAX).min(Limits::VALUE_MAX_BYTES);
    let too_long = |most: usize| {
        let text = format!("{} bytes exceed the limit of {most}; nothing was imported", entry.bytes);
        Err(CommandFailure::refused("limit", text))
    };
    match client.put(&entry.path, vec![0; bytes]).if_revision(Revision(u64::MAX)).await {
        Err(WriteError::Refused(Refusal::Limit(LimitError::Value { expected, .. }))) => too_long(expected),
        Err(WriteError::Refused(Refusal::Write(_))) | Ok(_) if entry.bytes > bytes as u64 => too_long(bytes),
        Err(WriteError::Refused(Refusal::Write(_))) | Ok(_) => Ok(()),
        Err(error) => Err(write_failure(&error)),
    }
}

/// Runs work on files outside the threads that keep the session alive.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CommandFailure> + Send + 'static,
) -> Result<T, CommandFailure> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(CommandFailure::io("file task ended early", &io::Error::other(error))))
}
