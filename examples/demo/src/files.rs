//! Finds the files of the demo and their nodes.
//!
//! It takes the files that git tracks, or else all files. Symbolic links are followed. It reports
//! each file that cannot be imported, with the reason.

use std::{
    fs,
    path::{Path as FilePath, PathBuf},
    process::{Command, Stdio},
};

use leasehold_protocol::{limits::Limits, path::NodePath};

use crate::{FILES_MIN, error::DemoError};

/// The maximum number of files. More would show nothing new.
const FILES_MAX: usize = 10_000;

/// The maximum sum of lengths in bytes. Each client caches all files.
const BYTES_MAX: u64 = 64 << 20;

/// A file and its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) source: PathBuf,
    pub(crate) node: NodePath,
    /// Its length in bytes at the scan.
    pub(crate) bytes: u64,
}

/// The result of the scan.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The files to import.
    pub(crate) files: Vec<File>,
    /// The skipped files with the reasons, one line each.
    pub(crate) skipped: Vec<String>,
    bytes: u64,
}

/// Finds the files of a directory, to be put below `top`.
pub(crate) fn find(dir: &FilePath, top: &NodePath) -> Result<Found, DemoError> {
    let what = format!("cannot read {}", dir.display());
    // Reports the system's error rather than git's.
    fs::read_dir(dir).map_err(DemoError::io(what))?;
    let mut found = Found::default();
    match tracked(dir) {
        Some(names) => names.iter().for_each(|name| found.take(dir, name, top, &mut Vec::new())),
        None => found.walk(dir, FilePath::new(""), top, &mut Vec::new()),
    }
    let count = found.files.len();
    if count < FILES_MIN {
        return Err(DemoError::TooFewFiles { dir: dir.to_owned(), count, skipped: found.skipped });
    }
    Ok(found)
}

/// The files that git tracks. `None` if the directory is in no repository, or none of its files is
/// tracked.
fn tracked(dir: &FilePath) -> Option<Vec<PathBuf>> {
    use std::os::unix::ffi::OsStrExt;

    let mut git = Command::new("git");
    git.args(["ls-files", "-z"]).current_dir(dir).stdin(Stdio::null()).stderr(Stdio::null());
    let output = git.output().ok().filter(|output| output.status.success())?;
    let names = output.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let names: Vec<PathBuf> = names.map(|name| PathBuf::from(std::ffi::OsStr::from_bytes(name))).collect();
    (!names.is_empty()).then_some(names)
}

impl Found {
    /// Adds the file or directory of this name. `within` has the real paths of the current
    /// directory and those above it: a link to one of them would never end.
    fn take(&mut self, dir: &FilePath, name: &FilePath, top: &NodePath, within: &mut Vec<PathBuf>) {
        let source = dir.join(name);
        match fs::metadata(&source) {
            Ok(metadata) if metadata.is_dir() => self.walk(dir, name, top, within),
            Ok(metadata) if metadata.is_file() => self.take_file(source, name, top, metadata.len()),
            Ok(_) => self.skip(name, "neither a file nor a directory"),
            Err(error) => self.skip(name, &error.to_string()),
        }
    }

    fn walk(&mut self, dir: &FilePath, name: &FilePath, top: &NodePath, within: &mut Vec<PathBuf>) {
        let place = dir.join(name);
        let real = match fs::canonicalize(&place) {
            Ok(real) if within.contains(&real) => return self.skip(name, "a link to a directory that it is in"),
            Ok(real) => real,
            Err(error) => return self.skip(name, &error.to_string()),
        };
        let entries = fs::read_dir(&place).and_then(|entries| entries.map(|e| Ok(e?.file_name())).collect());
        let mut entries: Vec<_> = match entries {
            Ok(entries) => entries,
            Err(error) => return self.skip(name, &error.to_string()),
        };
        entries.sort_unstable();
        within.push(real);
        for entry in entries.into_iter().filter(|entry| entry != ".git") {
            self.take(dir, &name.join(entry), top, within);
        }
        within.pop();
    }

    fn take_file(&mut self, source: PathBuf, name: &FilePath, top: &NodePath, bytes: u64) {
        let limit = Limits::default().value_max_bytes as u64;
        if bytes > limit {
            return self.skip(name, &format!("it has {bytes} bytes: expected at most {limit}"));
        }
        if self.files.len() == FILES_MAX || self.bytes + bytes > BYTES_MAX {
            return self.skip(name, &format!("the demo takes at most {FILES_MAX} files and {BYTES_MAX} bytes in all"));
        }
        let text = name.to_str().ok_or_else(|| "its name is not UTF-8".to_owned());
        match text.and_then(|text| NodePath::parse(&format!("{top}/{text}")).map_err(|error| error.to_string())) {
            Ok(node) => {
                self.bytes += bytes;
                self.files.push(File { source, node, bytes });
            }
            Err(reason) => self.skip(name, &reason),
        }
    }

    fn skip(&mut self, name: &FilePath, reason: &str) {
        self.skipped.push(format!("{} is left out: {reason}", name.display()));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn names(found: &Found) -> Vec<&str> {
        found.files.iter().map(|file| file.node.as_str()).collect()
    }

    #[test]
    fn links_become_what_they_point_to_and_large_files_are_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("sub")).expect("made");
        fs::write(at("sub/a"), "1").expect("written");
        fs::write(at("large"), vec![0; (1 << 20) + 1]).expect("written");
        symlink("sub/a", at("link")).expect("linked");
        symlink("sub", at("sub-link")).expect("linked");
        symlink("..", at("sub/up")).expect("linked");
        symlink("nowhere", at("dangling")).expect("linked");
        let mut found = Found::default();
        let top = NodePath::parse("/demo").expect("valid");
        found.walk(dir.path(), FilePath::new(""), &top, &mut Vec::new());
        assert_eq!(names(&found), ["/demo/link", "/demo/sub/a", "/demo/sub-link/a"]);
        let skipped = found.skipped.join("\n");
        for what in ["large", "dangling", "sub/up", "sub-link/up"] {
            assert!(skipped.contains(&format!("{what} is left out: ")), "{skipped}");
        }
        assert!(skipped.contains("1048577 bytes: expected at most 1048576"), "{skipped}");
    }

    #[test]
    fn a_directory_without_two_files_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let top = NodePath::parse("/demo").expect("valid");
        for (count, name) in ["one", "two"].into_iter().enumerate() {
            let error = find(dir.path(), &top).expect_err("too few are there").to_string();
            let expected = format!("files to import in {}: {count}: expected 2 at least", dir.path().display());
            assert!(error.starts_with(&expected), "{error}");
            fs::write(dir.path().join(name), "").expect("written");
        }
        assert_eq!(find(dir.path(), &top).expect("enough").files.len(), 2);
        fs::write(dir.path().join("two"), vec![0; (1 << 20) + 1]).expect("written");
        let error = find(dir.path(), &top).expect_err("one is left out").to_string();
        assert!(error.contains("; two is left out: it has 1048577 bytes"), "{error}");
        assert!(find(FilePath::new("/nowhere/at/all"), &top).is_err());
    }
}
