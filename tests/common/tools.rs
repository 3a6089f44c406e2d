//! Tools that a test needs and a machine may lack. A test that lacks one fails, and names it. With
//! `LEASEHOLD_ALLOW_SKIPS=1` the test is skipped instead, and noted in a file. `.ci/test` counts
//! the lines of that file at the end.

use std::{
    fmt,
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
};

/// If this is 1, tests may be skipped.
pub const ALLOW_SKIPS: &str = "LEASEHOLD_ALLOW_SKIPS";

/// The file that skipped tests are noted in, instead of `default_notes`.
pub const SKIPPED_FILE: &str = "LEASEHOLD_SKIPPED_FILE";

/// A tool that a machine may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// Network namespaces: root, and `ip`.
    Namespaces,
    /// Packets that are lost at random: `tc` with `cls_bpf` or `netem`.
    PacketLoss,
    /// Slow links: `tc` with `netem` or `tbf`.
    SlowLinks,
    /// Clocks that run wrong: libfaketime.
    Faketime,
    /// Time namespaces: root, and `unshare`.
    TimeNamespaces,
    /// Small disks: root, and `mount`.
    SmallDisks,
    /// A real etcd to compare with: `etcd`, and `etcdctl`.
    Etcd,
}

impl Tool {
    /// The requirements, for the error message.
    fn takes(self) -> &'static str {
        match self {
            Self::Namespaces => "root, and `ip` (Debian: iproute2)",
            Self::PacketLoss => "root, and `tc` (Debian: iproute2) with a kernel that has cls_bpf or netem",
            Self::SlowLinks => "root, and `tc` (Debian: iproute2) with a kernel that has netem or tbf",
            Self::Faketime => "libfaketime (Debian: faketime)",
            Self::TimeNamespaces => "root, and `unshare` (Debian: util-linux) with a kernel that has time namespaces",
            Self::SmallDisks => "root, and `mount` (Debian: mount)",
            Self::Etcd => "`etcd` and `etcdctl` (Debian: etcd-server, etcd-client)",
        }
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Namespaces => "network namespaces",
            Self::PacketLoss => "packet loss",
            Self::SlowLinks => "slow links",
            Self::Faketime => "bent clocks",
            Self::TimeNamespaces => "time namespaces",
            Self::SmallDisks => "small disks",
            Self::Etcd => "etcd",
        })
    }
}

/// Returns the tool that was found. If none was found and skips are allowed, notes the skip and
/// returns `None`. The test then goes on without the tool, or returns.
///
/// # Panics
///
/// If none was found and skips are not allowed.
#[track_caller]
pub fn require<T>(tool: Tool, found: Result<T, String>) -> Option<T> {
    let why = match found {
        Ok(found) => return Some(found),
        Err(why) => why,
    };
    let (test, takes) = (std::thread::current().name().unwrap_or("a test").to_owned(), tool.takes());
    let is_allowed = std::env::var(ALLOW_SKIPS).is_ok_and(|value| value == "1");
    assert!(
        is_allowed,
        "{test} needs {tool}: {takes}: {}\n.ci/install-test-tools installs it; {ALLOW_SKIPS}=1 skips what lacks something",
        why.trim()
    );
    let notes = std::env::var_os(SKIPPED_FILE).map_or_else(default_notes, PathBuf::from);
    // Written at once as one line, because other tests write to the file at the same time.
    let note = format!("{test}: no {tool}: {}\n", why.split_whitespace().collect::<Vec<_>>().join(" "));
    append(&notes, &note).unwrap_or_else(|error| panic!("{}: {error}", notes.display()));
    eprint!("skipped: {note}");
    None
}

/// The file that `.ci/test` reads.
fn default_notes() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("skipped-tests")
}

fn append(file: &Path, line: &str) -> std::io::Result<()> {
    File::options().create(true).append(true).open(file)?.write_all(line.as_bytes())
}
