//! Scans the directory of an import before anything is written.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path as File, PathBuf},
};

use leasehold_protocol::path::NodePath;

use super::{DIRECTORY_MARK, VALUE_FILE};
use crate::exit::CommandFailure;

/// The maximum number of entries. The list is in memory, and links can make a small directory
/// endless.
const ENTRIES_MAX: usize = 1_000_000;

/// A node to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScannedNode {
    pub(super) path: NodePath,
    /// The file with its value. `None` for the mark of an empty directory.
    pub(super) file: Option<PathBuf>,
    /// The value's length.
    pub(super) bytes: u64,
}

/// The nodes that an import writes, and the files that it skips.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// In the order in which the scan found them.
    pub(super) entries: Vec<ScannedNode>,
    /// The number of directories without the top.
    pub(super) directories: u64,
    /// Entries that are neither files nor directories.
    pub(super) skipped: Vec<PathBuf>,
    /// The directories that lead to the current one, by device and inode.
    above: Vec<((u64, u64), PathBuf)>,
}

/// Scans everything below `directory`, to be written below `top`.
pub(super) fn scan(directory: &File, top: &NodePath) -> Result<Scan, CommandFailure> {
    let metadata = fs::metadata(directory).map_err(|error| CommandFailure::io(directory.display(), &error))?;
    if !metadata.is_dir() {
        let failure = CommandFailure::refused("not_a_directory", "not a directory");
        return Err(failure.with_subject(&directory.display().to_string()));
    }
    let mut scan = Scan::default();
    scan.directory(directory, &metadata, top)?;
    Ok(scan)
}

impl Scan {
    fn directory(&mut self, directory: &File, metadata: &fs::Metadata, node: &NodePath) -> Result<(), CommandFailure> {
        let id = (metadata.dev(), metadata.ino());
        if let Some((_, above)) = self.above.iter().find(|(other, _)| *other == id) {
            let text = format!("a symbolic link to {}, which contains it", above.display());
            return Err(CommandFailure::refused("cycle", text).with_subject(&directory.display().to_string()));
        }
        self.above.push((id, directory.to_owned()));
        let mut children = 0;
        for name in names(directory)? {
            children += usize::from(self.child(directory, &name, node)?);
        }
        if children == 0 {
            self.entry(ScannedNode { path: child(node, DIRECTORY_MARK, directory)?, file: None, bytes: 0 })?;
        }
        self.above.pop();
        Ok(())
    }

    /// Returns true if the entry becomes a child of the node.
    fn child(&mut self, directory: &File, name: &std::ffi::OsStr, node: &NodePath) -> Result<bool, CommandFailure> {
        let file = directory.join(name);
        let Some(name) = name.to_str() else {
            let failure = CommandFailure::refused("name", "name is not UTF-8; rename the file");
            return Err(failure.with_subject(&file.display().to_string()));
        };
        let metadata = fs::metadata(&file).map_err(|error| unreadable(&file, &error))?;
        if !metadata.is_file() && !metadata.is_dir() {
            self.skipped.push(file);
            return Ok(false);
        }
        if name == DIRECTORY_MARK || (name == VALUE_FILE && (metadata.is_dir() || metadata.len() == 0)) {
            let text = format!("reserved name; only a file {VALUE_FILE} that is not empty can be imported");
            return Err(CommandFailure::refused("name", text).with_subject(&file.display().to_string()));
        }
        if name == VALUE_FILE {
            self.entry(ScannedNode { path: node.clone(), file: Some(file), bytes: metadata.len() })?;
            return Ok(false);
        }
        let path = child(node, name, &file)?;
        if metadata.is_dir() {
            self.directories += 1;
            self.directory(&file, &metadata, &path)?;
        } else {
            self.entry(ScannedNode { path, file: Some(file), bytes: metadata.len() })?;
        }
        Ok(true)
    }

    fn entry(&mut self, entry: ScannedNode) -> Result<(), CommandFailure> {
        if self.entries.len() == ENTRIES_MAX {
            let text = format!("too many files; the limit of one import is {ENTRIES_MAX}");
            return Err(CommandFailure::refused("limit", text));
        }
        self.entries.push(entry);
        Ok(())
    }
}

/// The names in a directory, sorted so that two imports do the same.
fn names(directory: &File) -> Result<Vec<std::ffi::OsString>, CommandFailure> {
    let unreadable = |error| CommandFailure::io(directory.display(), &error);
    let entries = fs::read_dir(directory).map_err(unreadable)?;
    let names: io::Result<Vec<_>> = entries.map(|entry| entry.map(|entry| entry.file_name())).collect();
    let mut names = names.map_err(unreadable)?;
    names.sort_unstable();
    Ok(names)
}

fn child(node: &NodePath, name: &str, file: &File) -> Result<NodePath, CommandFailure> {
    node.child(name).map_err(|error| CommandFailure::refused("name", error).with_subject(&file.display().to_string()))
}

fn unreadable(file: &File, error: &io::Error) -> CommandFailure {
    if !file.is_symlink() {
        return CommandFailure::io(file.display(), error);
    }
    let text = format!("broken symbolic link: {error}");
    CommandFailure::refused("broken_link", text).with_subject(&file.display().to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::{ffi::OsStrExt, fs::symlink};

    use super::*;

    fn paths(scan: &Scan) -> Vec<(&str, u64)> {
        scan.entries.iter().map(|entry| (entry.path.as_str(), entry.bytes)).collect()
    }

    fn top() -> NodePath {
        NodePath::parse("/t").expect("a valid path")
    }

    #[test]
    fn files_directories_and_what_links_point_to_are_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("sub/empty")).expect("made");
        fs::write(at("sub/file"), "12345").expect("written");
        fs::write(at("sub").join(VALUE_FILE), "12").expect("written");
        symlink(at("sub"), at("linked")).expect("linked");
        symlink(at("sub/file"), at("file")).expect("linked");
        let scan = scan(dir.path(), &top()).expect("a tree");
        let below = |name: &str| {
            [
                (format!("/t/{name}"), 2),
                (format!("/t/{name}/empty/{DIRECTORY_MARK}"), 0),
                (format!("/t/{name}/file"), 5),
            ]
        };
        let mut expected = vec![("/t/file".to_owned(), 5)];
        expected.extend(below("linked"));
        expected.extend(below("sub"));
        assert_eq!(paths(&scan), expected.iter().map(|(path, bytes)| (path.as_str(), *bytes)).collect::<Vec<_>>());
        assert_eq!(scan.directories, 4);
    }

    #[test]
    fn scan_refuses_cycles_broken_links_and_bad_names() {
        let refuses = |make: &dyn Fn(&File), kind: &str, named: &str| {
            let dir = tempfile::tempdir().expect("a directory");
            make(dir.path());
            let failure = scan(dir.path(), &top()).expect_err(kind);
            assert_eq!(failure.kind, kind);
            assert!(
                failure.message.starts_with(&dir.path().display().to_string()) && failure.message.contains(named),
                "{}",
                failure.message
            );
        };
        refuses(&|dir| symlink(dir, dir.join("back")).expect("linked"), "cycle", "/back");
        refuses(&|dir| symlink("nowhere", dir.join("broken")).expect("linked"), "broken_link", "/broken");
        let not_text = std::ffi::OsStr::from_bytes(b"caf\xe9");
        refuses(&|dir| fs::write(dir.join(not_text), "").expect("written"), "name", "/caf");
        refuses(&|dir| fs::write(dir.join(DIRECTORY_MARK), "").expect("written"), "name", DIRECTORY_MARK);
        refuses(&|dir| fs::write(dir.join(VALUE_FILE), "").expect("written"), "name", VALUE_FILE);
    }

    #[test]
    fn what_is_neither_file_nor_directory_is_skipped() {
        let dir = tempfile::tempdir().expect("a directory");
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).expect("bound");
        let scan = scan(dir.path(), &top()).expect("a tree");
        assert_eq!(scan.skipped, [dir.path().join("socket")]);
        assert_eq!(paths(&scan), [(format!("/t/{DIRECTORY_MARK}").as_str(), 0)]);
    }
}
