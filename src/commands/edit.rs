//! `edit PATH`: a node's value in a file, for as long as an editor runs on it.
//!
//! In the manner of `crontab -e` and `kubectl edit`, but under a hold: nobody else who locks the
//! node, or edits it, comes between. Each save is written when it is seen, not only the last one,
//! by one transaction that takes effect only if the hold is not over and the node is as it was
//! read, or saved last. So who writes or removes it without locking it is not undone, and what a
//! process writes that stood still past its lease is refused. Readers never wait for a person.
//!
//! The editor is not killed when the hold is over, as a command of `lock` is, but only when this
//! process dies: it touches nothing but the file, and what it has yet to save would be gone with
//! it. What could not be written stays in the file.

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
    Attach, Client, Compare, LockGuard, LockOptions, NodePath, Operation, Relation, Revision, Token, Transaction, Value,
};
use leasehold_protocol::limits::Limits;

use super::{lock, read_failure, write_failure};
use crate::{
    child::{self, Child, ChildEnd},
    cli,
    context::Context,
    duration,
    exit::{CliStatus, CommandFailure},
    output::visible,
};

/// How often it is looked whether something has been saved. What has not changed from one look to
/// the next is a whole save.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// `edit PATH [-- COMMAND…]`
#[derive(Debug, Args)]
pub(crate) struct EditArgs {
    /// The node; one that does not exist is made with the first save
    #[arg(value_parser = cli::path)]
    pub(crate) path: NodePath,
    /// Fail if it does not exist
    #[arg(long)]
    must_exist: bool,
    /// Fail if somebody else holds it now
    #[arg(long = "try", conflicts_with = "wait")]
    tries: bool,
    /// Wait no longer than this for whoever holds it: 500ms, 10s, 2m, 1h
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    wait: Option<Duration>,
    /// The editor, which gets the file as its last argument, and as LEASEHOLD_FILE; $VISUAL,
    /// $EDITOR or vi without one
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl EditArgs {
    /// Edits the node. The status is the editor's.
    pub(crate) async fn run(self, context: &Context) -> Result<CliStatus, CommandFailure> {
        let asked = format!("edit {}", visible(self.path.as_str()));
        self.edit(context).await.map_err(|failure| failure.with_subject(&asked))
    }

    async fn edit(self, context: &Context) -> Result<CliStatus, CommandFailure> {
        let client = context.client().await?;
        let options = LockOptions { wait: lock::wait(self.tries, self.wait), ..LockOptions::default() };
        let lock = client.lock(&self.path, options).await.map_err(|error| lock::lock_failure(&error))?;
        let there = client.get(&self.path).await.map_err(|error| read_failure(&error))?;
        if self.must_exist && there.is_none() {
            // If nobody hears of it, the lease ends by itself.
            let _ = lock.release().await;
            return Err(CommandFailure::not_found());
        }

        let cannot = |error: io::Error| CommandFailure::io("cannot make a file to be edited", &error);
        let folder = tempfile::Builder::new().prefix("leasehold-").tempdir().map_err(cannot)?;
        // Editors go by how a name ends.
        let file = folder.path().join(self.path.name().unwrap_or("root"));
        let text = there.as_ref().map(|there| there.value.clone()).unwrap_or_default();
        fs::write(&file, &text).map_err(cannot)?;
        let variables = [
            ("LEASEHOLD_FILE", file.as_os_str().to_owned()),
            ("LEASEHOLD_TOKEN", lock.token().to_string().into()),
            ("LEASEHOLD_ENDPOINTS", context.endpoints().join(",").into()),
        ];
        let mut editor = Child::start(&self.editor(&file), &variables)?;
        // From here on it stays, whatever happens to this process, until all is written.
        let folder = folder.keep();
        let token = lock.token();
        let there = there.as_ref().map(|there| there.stat.modify_revision);
        let mut copy = WorkingCopy { client, lock, token, file, text, there, sent: Vec::new(), seen: None };
        let ended = tokio::select! {
            biased;
            ended = editor.wait(|| child::UNLIMITED) => ended,
            never = copy.follow() => match never {},
        };
        copy.finish().await?;
        // What is left behind is a copy of what is there.
        let _ = fs::remove_dir_all(folder);
        match ended? {
            ChildEnd::Status(code) => Ok(CliStatus::of_command(code)),
            // As if this process had not looked after it for all of that time.
            ChildEnd::Overdue => Err(lock::lost_failure(&self.path)),
        }
    }

    fn editor(&self, file: &File) -> Vec<OsString> {
        let mut command = if self.command.is_empty() { usual_editor() } else { self.command.clone() };
        command.push(file.into());
        command
    }
}

/// What the environment says; it may have arguments of its own, and is run as git runs it.
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
    /// What was read, or saved last.
    text: Value,
    /// The change that put it there; none if the node did not exist.
    there: Option<Revision>,
    /// What was sent since, and may have taken effect.
    sent: Vec<Value>,
    /// The file when it was last tried to write what it has.
    seen: Option<NodeLook>,
}

/// What changes with each save: when the file was modified, in seconds and nanoseconds, its length,
/// and which file it is.
type NodeLook = (i64, i64, u64, u64);

impl WorkingCopy<'_> {
    /// Writes each save when it is seen. What goes wrong is not told while somebody edits; what is
    /// left to be written at the end is.
    async fn follow(&mut self) -> Infallible {
        let mut looks = tokio::time::interval(LOOK_EVERY);
        let mut last = None;
        loop {
            looks.tick().await;
            // Some editors take the file away before they put the next one in its place.
            let look =
                fs::metadata(&self.file).ok().map(|file| (file.mtime(), file.mtime_nsec(), file.len(), file.ino()));
            if look.is_some() && look == last && look != self.seen {
                let is_late =
                    |failure: &CommandFailure| matches!(failure.status, CliStatus::Unavailable | CliStatus::Unknown);
                // What was refused is not tried again before it has changed.
                if !self.save().await.is_err_and(|failure| is_late(&failure)) {
                    self.seen = look;
                }
            }
            last = look;
        }
    }

    /// Writes what the file has, if that is not there.
    async fn save(&mut self) -> Result<(), CommandFailure> {
        let text = self.read()?;
        while text != self.text || !self.sent.is_empty() {
            // Noted first: the editor may end, and this future with it, before anything is heard.
            self.sent.push(text.clone());
            match self.put(text.clone()).await {
                Ok(Some(revision)) => self.is_there(text.clone(), revision),
                Ok(None) => {
                    // This one has not taken effect.
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

    /// Puts the node if the hold is not over and nobody has written or removed the node meanwhile;
    /// none if somebody has.
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
            Some(failed) if failed.index == 0 => Err(lock::lost_failure(&path)),
            Some(_) => Ok(None),
        }
    }

    /// The node is not as it was: by what was sent from here, of which nothing was heard, or by
    /// somebody else.
    async fn find_sent(&mut self) -> Result<(), CommandFailure> {
        let path = self.lock.path().clone();
        let found = self.client.get(&path).await.map_err(|error| read_failure(&error))?;
        match found.filter(|found| self.sent.contains(&found.value)) {
            Some(found) => {
                self.is_there(found.value.clone(), found.stat.modify_revision);
                Ok(())
            }
            None => {
                let (path, expected) = (visible(path.as_str()), "expected it as it was read, or saved last");
                Err(CommandFailure::refused(
                    "changed",
                    format!("somebody else has written {path} meanwhile: {expected}"),
                ))
            }
        }
    }

    fn is_there(&mut self, text: Value, revision: Revision) {
        (self.text, self.there) = (text, Some(revision));
        self.sent.clear();
    }

    fn read(&self) -> Result<Value, CommandFailure> {
        let cannot = |error: io::Error| CommandFailure::io("cannot read what was saved", &error);
        let (got, expected) = (fs::metadata(&self.file).map_err(cannot)?.len(), Limits::VALUE_MAX_BYTES);
        if got > expected as u64 {
            return Err(CommandFailure::refused(
                "limit",
                format!("the value has {got} bytes: expected at most {expected}"),
            ));
        }
        fs::read(&self.file).map(Value::from).map_err(cannot)
    }

    /// Writes what is left, and gives the node back. If that cannot be, says where it is.
    async fn finish(mut self) -> Result<(), CommandFailure> {
        if let Err(mut failure) = self.save().await {
            if self.file.exists() {
                let (message, file) = (failure.message, self.file.display());
                failure.message = format!("{message}; what was saved is kept in {file}");
            }
            return Err(failure);
        }
        // All is there. If nobody hears of it, the lease ends by itself.
        let _ = self.lock.release().await;
        Ok(())
    }
}
