//! `export PATH DIR`: writes a subtree to a directory.
//!
//! Nodes that are attached to leases are left out: they show what is alive now, and an import would
//! make them permanent.
//!
//! Each file has the value that its node had at some moment during the export, and is written
//! atomically. Files of an earlier export stay, even if their nodes were removed. Nothing is
//! written through symbolic links.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Write as _},
    os::unix::fs::PermissionsExt,
    path::{Path as File, PathBuf},
};

use bytes::Bytes;
use clap::Args;
use futures::{StreamExt, TryStreamExt, stream};
use indicatif::ProgressBar;
use leasehold_client_cache::{Client, Content, NodeOwner, NodePath};
use serde::Serialize;

use super::{DIRECTORY_MARK, FILES_AT_ONCE, VALUE_FILE, import::blocking, progress};
use crate::{
    arguments,
    commands::tree::{Lists, walk},
    context::Context,
    exit::CommandFailure,
    failure::{inspect_failure, read_failure},
    output::Text,
};

/// The permissions of a new file, before the umask.
const FILE_MODE: u32 = 0o666;

/// `export PATH DIR`
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Node whose children become files and directories
    #[arg(value_parser = arguments::path)]
    pub(crate) path: NodePath,
    /// Directory; created if it does not exist
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Also write into a directory that is not empty, and replace files of the same names
    #[arg(long)]
    force: bool,
    /// Also export nodes that are attached to leases; an import restores them as nodes that stay
    #[arg(long)]
    attached: bool,
}

/// The result of an export.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ExportAnswer {
    path: Option<NodePath>,
    directory: PathBuf,
    files: u64,
    directories: u64,
    bytes: u64,
    /// The number of nodes that were left out because they are attached to leases.
    attached_skipped: u64,
    /// The number of volumes whose settings were left out. The root is always one, and not counted.
    volumes_skipped: u64,
    /// The number of leases that nodes are attached to. An import grants none.
    leases_skipped: u64,
}

impl Text for ExportAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        let directory = self.directory.display();
        let text =
            format!("{} files, {} directories, {} bytes into {directory}\n", self.files, self.directories, self.bytes);
        out.extend_from_slice(text.as_bytes());
        if self.attached_skipped > 0 {
            let nodes = counted(self.attached_skipped, "node");
            let text = format!("skipped {nodes} attached to leases; --attached includes them\n");
            out.extend_from_slice(text.as_bytes());
        }
        let left_out = [(self.volumes_skipped, "volume"), (self.leases_skipped, "lease")];
        let left_out = left_out.into_iter().filter(|(count, _)| *count > 0).map(|(count, thing)| counted(count, thing));
        let left_out = left_out.collect::<Vec<_>>().join(" and ");
        if !left_out.is_empty() {
            out.extend_from_slice(format!("skipped {left_out}; only names and values are exported\n").as_bytes());
        }
    }
}

fn counted(count: u64, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// A node and the file or directory that it becomes.
#[derive(Debug, Clone)]
struct ExportTarget {
    path: NodePath,
    file: PathBuf,
    /// The node has children. Its value, if not empty, goes into a file of its own.
    is_directory: bool,
}

impl ExportArgs {
    pub(crate) async fn run(self, context: &Context) -> Result<ExportAnswer, CommandFailure> {
        let client = context.client().await?;
        let lists = walk(client, &self.path).await?;
        let targets = targets(&lists, &self.path, &self.directory)?;
        check_top(client, &lists, &self.path).await?;
        let volumes = client.admin().volumes(&self.path).await.map_err(|error| inspect_failure(&error))?;
        let volumes = volumes.iter().filter(|volume| volume.path != NodePath::root()).count() as u64;
        let directories: Vec<PathBuf> =
            targets.iter().filter(|target| target.is_directory).map(|target| target.file.clone()).collect();
        let mut answer =
            ExportAnswer { path: Some(self.path), directory: self.directory.clone(), ..Default::default() };
        answer.volumes_skipped = volumes;
        answer.directories = directories.len().saturating_sub(1) as u64;
        let (top, force, attached) = (self.directory, self.force, self.attached);
        blocking(move || make_directories(&top, force, &directories)).await?;
        let bar = progress(context.output, "export", targets.iter().filter(|it| !it.is_directory).count() as u64);
        let written = stream::iter(targets).map(|target| write(client, target, attached, &bar));
        let begin = (answer, BTreeSet::new());
        let all = written.buffer_unordered(FILES_AT_ONCE).try_fold(begin, |all, (owner, done)| async move {
            let (mut answer, mut leases) = all;
            leases.extend(owner);
            match done {
                ExportedNode::File { bytes } => {
                    answer.files += 1;
                    answer.bytes += bytes;
                }
                ExportedNode::Attached => answer.attached_skipped += 1,
                ExportedNode::NoFile => {}
            }
            Ok((answer, leases))
        });
        let all = all.await;
        bar.finish_and_clear();
        all.map(|(answer, leases)| ExportAnswer { leases_skipped: leases.len() as u64, ..answer })
    }
}

/// The target of each node. A directory stands before its contents.
fn targets(lists: &Lists, top: &NodePath, directory: &File) -> Result<Vec<ExportTarget>, CommandFailure> {
    let mut targets = Vec::new();
    for (path, children) in lists {
        let is_top = path == top;
        let name = path.name().unwrap_or_default();
        if !is_top && name == DIRECTORY_MARK && children.is_empty() {
            continue;
        }
        if !is_top && (name == DIRECTORY_MARK || name == VALUE_FILE) {
            let text = format!("reserved name; exports give {DIRECTORY_MARK} and {VALUE_FILE} a meaning of their own");
            return Err(CommandFailure::refused("name", text).with_subject(path.as_str()));
        }
        let below = path.as_str().strip_prefix(&top.prefix_below()).unwrap_or_default();
        let file = if below.is_empty() { directory.to_owned() } else { directory.join(below) };
        targets.push(ExportTarget { path: path.clone(), file, is_directory: is_top || !children.is_empty() });
    }
    Ok(targets)
}

/// Refuses a node that has a value and no children: it would be one file.
async fn check_top(client: &Client, lists: &Lists, top: &NodePath) -> Result<(), CommandFailure> {
    if lists.get(top).is_some_and(|children| !children.is_empty()) {
        return Ok(());
    }
    let entry = client.get(top).await.map_err(|error| read_failure(&error))?;
    match entry.map(|entry| entry.value.len()) {
        Some(bytes) if bytes > 0 => {
            let text = format!("a value of {bytes} bytes and no children; read it with get --raw");
            Err(CommandFailure::refused("not_a_directory", text).with_subject(top.as_str()))
        }
        _ => Ok(()),
    }
}

fn make_directories(top: &File, force: bool, directories: &[PathBuf]) -> Result<(), CommandFailure> {
    match fs::read_dir(top).map(|mut entries| entries.next().is_some()) {
        Ok(true) if !force => {
            let failure = CommandFailure::refused("not_empty", "not empty; name another directory, or use --force");
            return Err(failure.with_subject(&top.display().to_string()));
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir_all(top).map_err(|error| CommandFailure::io(top.display(), &error))?;
        }
        Err(error) => return Err(CommandFailure::io(top.display(), &error)),
    }
    for directory in directories.iter().filter(|directory| *directory != top) {
        match fs::symlink_metadata(directory) {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => {
                let failure = CommandFailure::refused("in_the_way", "not a directory; remove it first");
                return Err(failure.with_subject(&directory.display().to_string()));
            }
            Err(_) => fs::create_dir(directory).map_err(|error| CommandFailure::io(directory.display(), &error))?,
        }
    }
    Ok(())
}

/// What became of a node.
enum ExportedNode {
    /// A file with its value.
    File { bytes: u64 },
    /// Nothing: it is attached to a lease.
    Attached,
    /// A directory without a value, or a node that was removed after it was listed.
    NoFile,
}

/// Writes a node's file. Returns the owner of the lease that the node is attached to, too.
async fn write(
    client: &Client,
    target: ExportTarget,
    attached: bool,
    bar: &ProgressBar,
) -> Result<(Option<NodeOwner>, ExportedNode), CommandFailure> {
    let ExportTarget { path, file, is_directory } = target;
    let read = client.read(&path).await.map_err(|error| read_failure(&error).with_subject(path.as_str()))?;
    let Content::Data(Some(data)) = &*read.content else { return Ok((None, ExportedNode::NoFile)) };
    let owner = read.owner;
    if owner.is_some() && !attached {
        return Ok((owner, ExportedNode::Attached));
    }
    let value = data.value.clone();
    if is_directory && value.is_empty() {
        return Ok((owner, ExportedNode::NoFile));
    }
    let file = if is_directory { file.join(VALUE_FILE) } else { file };
    let bytes = value.len() as u64;
    blocking(move || replace(&file, &value).map_err(|error| CommandFailure::io(file.display(), &error))).await?;
    bar.inc(u64::from(!is_directory));
    Ok((owner, ExportedNode::File { bytes }))
}

/// Replaces a file atomically.
fn replace(file: &File, value: &Bytes) -> io::Result<()> {
    let directory = file.parent().unwrap_or(File::new("."));
    let mut builder = tempfile::Builder::new();
    let mode = fs::Permissions::from_mode(FILE_MODE);
    let mut temporary = builder.prefix(".leasehold-").permissions(mode).tempfile_in(directory)?;
    temporary.write_all(value)?;
    temporary.persist(file).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> NodePath {
        NodePath::parse(text).expect("a valid path")
    }

    fn lists(list: &[(&str, &[&str])]) -> Lists {
        list.iter().map(|(top, below)| (path(top), below.iter().map(|&child| path(child)).collect())).collect()
    }

    #[test]
    fn nodes_with_children_become_directories_and_marks_nothing() {
        let mark = format!("/t/empty/{DIRECTORY_MARK}");
        let lists =
            lists(&[("/t", &["/t/a", "/t/empty"]), ("/t/a", &[]), ("/t/empty", &[mark.as_str()]), (&mark, &[])]);
        let targets = targets(&lists, &path("/t"), File::new("d")).expect("targets");
        let seen: Vec<_> = targets.iter().map(|it| (it.file.to_str().unwrap_or_default(), it.is_directory)).collect();
        assert_eq!(seen, [("d", true), ("d/a", false), ("d/empty", true)]);
    }

    #[test]
    fn a_node_with_a_name_that_means_something_else_is_refused() {
        let value = format!("/t/{VALUE_FILE}");
        let lists = lists(&[("/t", &[value.as_str()]), (&value, &[])]);
        let failure = targets(&lists, &path("/t"), File::new("d")).expect_err("refused");
        assert!(failure.message.contains(VALUE_FILE));
    }

    #[test]
    fn export_needs_force_for_nonempty_directory_and_no_links() {
        let dir = tempfile::tempdir().expect("a directory");
        let (top, elsewhere) = (dir.path().join("top"), dir.path().join("elsewhere"));
        fs::create_dir(&top).expect("made");
        fs::create_dir(&elsewhere).expect("made");
        std::os::unix::fs::symlink(&elsewhere, top.join("sub")).expect("linked");
        let wanted = [top.clone(), top.join("sub")];
        assert_eq!(make_directories(&top, false, &wanted).expect_err("not empty").kind, "not_empty");
        assert_eq!(make_directories(&top, true, &wanted).expect_err("a link").kind, "in_the_way");
    }
}
