//! `edit PATH`: a node's value in a file, while an editor runs on it.
//!
//! It works like `crontab -e` and `kubectl edit`, but under an exclusive lock, so no other lock
//! owner or `edit` intervenes. Each save is written as soon as it is seen, by one transaction. The
//! transaction takes effect only if the lock is not lost and the node is as read or last saved. So
//! a write without the lock is not undone, and a process that was stopped past its lease is
//! refused. Readers never wait for a person.
//!
//! A lost lock kills a command of `lock`, but not the editor: only the death of this process does.
//! The editor writes nothing but the file, and killing it would discard unsaved work. What could
//! not be written stays in the file.

use std::{
    convert::Infallible,
    env,
    ffi::OsString,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path as File, PathBuf},
    time::Duration,
};

use clap::Args;
use leasehold_client_cache::{
    Attach, Client, Compare, LockGuard, NodePath, Operation, Relation, Revision, Token, Transaction, Value,
};
use leasehold_protocol::limits::Limits;
use serde::Serialize;

use super::{lock, waits};
use crate::{
    arguments,
    child::{self, Child, ChildEnd},
    context::Context,
    duration,
    exit::{CliStatus, CommandFailure},
    failure::{lock_lost_failure, read_failure, write_failure},
    output::{Text, visible},
};

/// How often to check for a save. A file that has not changed between two checks is a whole save.
const CHECK_EVERY: Duration = Duration::from_millis(100);

/// `edit PATH [-- COMMAND…]`
#[derive(Debug, Args)]
pub(crate) struct EditArgs {
    /// Node to edit; the first save creates one that does not exist
    #[arg(value_parser = arguments::path)]
    pub(crate) path: NodePath,
    /// Fail if the node does not exist
    #[arg(long)]
    must_exist: bool,
    /// Fail if another session has locked the node
    #[arg(long = "try", conflicts_with = "wait")]
    tries: bool,
    /// Wait no longer than this for the lock: 500ms, 10s, 2m, 1h
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    wait: Option<Duration>,
    /// Editor, which gets the file as its last argument and in LEASEHOLD_FILE [default: $VISUAL,
    /// $EDITOR or vi]
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl EditArgs {
    /// Edits the node. Returns the editor's status.
    pub(crate) async fn run(self, context: &Context) -> Result<CliStatus, CommandFailure> {
        let subject = self.path.to_string();
        self.edit(context).await.map_err(|failure| failure.with_subject(&subject))
    }

    async fn edit(self, context: &Context) -> Result<CliStatus, CommandFailure> {
        let client = context.client().await?;
        let taking = client.lock(&self.path).wait(lock::wait(self.tries, self.wait));
        let lock = waits::lock(context, &self.path, taking).await?;
        let there = client.get(&self.path).await.map_err(|error| read_failure(&error))?;
        if self.must_exist && there.is_none() {
            // If the release is lost, the lease expires by itself.
            let _ = lock.release().await;
            return Err(CommandFailure::not_found());
        }

        let cannot = |error: io::Error| CommandFailure::io("cannot create a temporary file", &error);
        let folder = tempfile::Builder::new().prefix("leasehold-").tempdir().map_err(cannot)?;
        // Editors choose a file type by the end of the name.
        let file = folder.path().join(self.path.name().unwrap_or("root"));
        let text = there.as_ref().map(|there| there.value.clone()).unwrap_or_default();
        fs::write(&file, &text).map_err(cannot)?;
        let variables = [
            ("LEASEHOLD_FILE", file.as_os_str().to_owned()),
            ("LEASEHOLD_TOKEN", lock.token().to_string().into()),
            ("LEASEHOLD_ENDPOINTS", context.endpoints().join(",").into()),
        ];
        let mut editor = Child::start(&self.editor(&file), &variables, context.output)?;
        // From here on the folder survives this process until everything is written.
        let folder = folder.keep();
        let token = lock.token();
        let there = there.as_ref().map(|there| there.stat.modify_revision);
        let mut copy = WorkingCopy { client, lock, token, file, text, there, saves: 0, sent: Vec::new(), seen: None };
        let ended = tokio::select! {
            biased;
            ended = editor.wait(|| child::UNLIMITED) => ended,
            never = copy.follow() => match never {},
        };
        context.output.answer(&copy.finish().await?);
        // The folder now has only a copy of the node's value.
        let _ = fs::remove_dir_all(folder);
        match ended? {
            ChildEnd::Status(code) => Ok(CliStatus::of_command(code)),
            // Only after a whole [`child::UNLIMITED`] without a message to the guard.
            ChildEnd::Overdue => Err(lock_lost_failure(&self.path)),
        }
    }

    fn editor(&self, file: &File) -> Vec<OsString> {
        let mut command = if self.command.is_empty() { usual_editor() } else { self.command.clone() };
        command.push(file.into());
        command
    }
}

/// What an edit did.
#[derive(Debug, Serialize)]
struct EditAnswer {
    path: NodePath,
    /// The number of saves that were written.
    saves: u64,
    /// The revision of the last one.
    revision: Option<u64>,
}

impl Text for EditAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        let path = visible(self.path.as_str());
        let line = match self.revision {
            Some(revision) => format!("saved {path} at revision {revision}\n"),
            None => format!("{path} is unchanged\n"),
        };
        out.extend_from_slice(line.as_bytes());
    }
}

/// The editor of the environment. It may contain arguments, and the shell runs it, as git does.
fn usual_editor() -> Vec<OsString> {
    let named = ["VISUAL", "EDITOR"].into_iter().find_map(|name| env::var_os(name).filter(|value| !value.is_empty()));
    let editor = named.unwrap_or_else(|| "vi".into());
    let mut script = editor.clone();
    script.push(" \"$@\"");
    vec!["sh".into(), "-c".into(), script, editor]
}

/// The node's value in a file.
struct WorkingCopy<'a> {
    client: &'a Client,
    lock: LockGuard,
    token: Token,
    file: PathBuf,
    /// The value as read or last saved.
    text: Value,
    /// The revision of that value. `None` if the node did not exist.
    there: Option<Revision>,
    /// The number of saves that were written.
    saves: u64,
    /// Values sent since then that may have taken effect.
    sent: Vec<Value>,
    /// The state of the file at the last attempt to write it.
    seen: Option<FileVersion>,
}

/// Differs after each save: modification time in seconds and nanoseconds, length, inode.
type FileVersion = (i64, i64, u64, u64);

impl WorkingCopy<'_> {
    /// Writes each save as soon as it is seen. Errors are not shown during the edit; `finish`
    /// reports what could not be written.
    async fn follow(&mut self) -> Infallible {
        let mut checks = tokio::time::interval(CHECK_EVERY);
        let mut last = None;
        loop {
            checks.tick().await;
            // Some editors remove the file before they rename the next one into its place.
            let version =
                fs::metadata(&self.file).ok().map(|file| (file.mtime(), file.mtime_nsec(), file.len(), file.ino()));
            if version.is_some() && version == last && version != self.seen {
                let is_late =
                    |failure: &CommandFailure| matches!(failure.status, CliStatus::Unavailable | CliStatus::Unknown);
                // A refused value is not tried again before the file changes.
                if !self.save().await.is_err_and(|failure| is_late(&failure)) {
                    self.seen = version;
                }
            }
            last = version;
        }
    }

    /// Writes the file's content, if the node does not have it.
    async fn save(&mut self) -> Result<(), CommandFailure> {
        let text = self.read()?;
        while text != self.text || !self.sent.is_empty() {
            // Recorded first: the editor may end, and drop this future, before the answer arrives.
            self.sent.push(text.clone());
            match self.put(text.clone()).await {
                Ok(Some(revision)) => self.is_there(text.clone(), revision),
                Ok(None) => {
                    // This write did not take effect.
                    self.sent.pop();
                    self.find_sent().await?;
                }
                Err(failure) => {
                    if failure.status != CliStatus::Unknown {
                        self.sent.pop();
                    }
                    return Err(failure);
                }
            }
        }
        Ok(())
    }

    /// Puts the node if the lock is not lost and the node is unchanged. `None` if another client
    /// has changed it.
    async fn put(&self, value: Value) -> Result<Option<Revision>, CommandFailure> {
        let path = self.lock.path().clone();
        let unchanged = match self.there {
            Some(revision) => Compare::modify_revision(path.clone(), Relation::Equal, revision),
            None => Compare::absent(path.clone()),
        };
        let put = Operation::Put { path: path.clone(), value, attach: Attach::Unchanged };
        let transaction = Transaction::new().when(Compare::locked(path.clone(), self.token)).when(unchanged).then(put);
        let outcome = self.client.transaction(transaction).await.map_err(|error| write_failure(&error))?;
        match outcome.failed {
            None => Ok(Some(outcome.revision)),
            Some(failed) if failed.index == 0 => Err(lock_lost_failure(&path)),
            Some(_) => Ok(None),
        }
    }

    /// Finds out why the node has changed: an unanswered write of this process took effect, or
    /// another client wrote the node.
    async fn find_sent(&mut self) -> Result<(), CommandFailure> {
        let path = self.lock.path().clone();
        let found = self.client.get(&path).await.map_err(|error| read_failure(&error))?;
        match found.filter(|found| self.sent.contains(&found.value)) {
            Some(found) => {
                self.is_there(found.value.clone(), found.stat.modify_revision);
                Ok(())
            }
            None => Err(CommandFailure::refused("changed", "modified by another client since it was read or saved")),
        }
    }

    fn is_there(&mut self, text: Value, revision: Revision) {
        self.saves += 1;
        (self.text, self.there) = (text, Some(revision));
        self.sent.clear();
    }

    fn read(&self) -> Result<Value, CommandFailure> {
        let cannot = |error: io::Error| CommandFailure::io("cannot read the saved file", &error);
        let (got, expected) = (fs::metadata(&self.file).map_err(cannot)?.len(), Limits::VALUE_MAX_BYTES);
        if got > expected as u64 {
            let text = format!("value: {got} bytes exceed the limit of {expected}");
            return Err(CommandFailure::refused("limit", text));
        }
        fs::read(&self.file).map(Value::from).map_err(cannot)
    }

    /// Writes the last save and releases the lock. If that fails, the error names the file.
    async fn finish(mut self) -> Result<EditAnswer, CommandFailure> {
        if let Err(failure) = self.save().await {
            let kept = format!("the last save is in {}", self.file.display());
            return Err(if self.file.exists() { failure.and(&kept) } else { failure });
        }
        // Everything is written. If the release is lost, the lease expires by itself.
        let revision = self.there.filter(|_| self.saves > 0).map(|revision| revision.0);
        let answer = EditAnswer { path: self.lock.path().clone(), saves: self.saves, revision };
        let _ = self.lock.release().await;
        Ok(answer)
    }
}
