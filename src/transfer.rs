//! `import` and `export`: directory trees in and out, byte for byte.
//!
//! How files and directories stand in the tree of nodes:
//!
//! | in a directory | in the tree |
//! | --- | --- |
//! | a file | a node with its bytes |
//! | a directory with something in it | a node with children and an empty value |
//! | a directory with nothing in it | a node with the child [`DIRECTORY_MARK`], which has an empty value |
//! | a file named [`VALUE_FILE`] | the value of the node that stands for its directory |
//!
//! So a node without children is a file, one with children is a directory, and a node that has both
//! children and a value comes out as a directory with a [`VALUE_FILE`] in it, which goes in again
//! as what it was. The two names mean nothing else: where they are used otherwise, import and
//! export refuse, and say so.
//!
//! Kept are names and contents; not kept are permissions, owners and times. Symbolic links go in as
//! what they point to.

pub(crate) mod export;
pub(crate) mod import;
mod scan;

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::Output;

/// The child of a node that stands for a directory which has nothing else in it.
pub(crate) const DIRECTORY_MARK: &str = ".leasehold-directory";

/// The file with the value of a node that stands for a directory.
pub(crate) const VALUE_FILE: &str = ".leasehold-value";

/// Files under way at the same time: enough to hide the round trips and to share fsyncs. With the
/// longest values that is 64 MiB of memory.
const FILES_AT_ONCE: usize = 64;

/// How often a bar moves although nothing else happens.
const BAR_EVERY: Duration = Duration::from_millis(100);

/// A bar for those who watch, nothing for others.
fn progress(output: Output, what: &str, files: u64) -> ProgressBar {
    if !output.is_watched() {
        return ProgressBar::hidden();
    }
    // The template is ours: if it were wrong, the default would do.
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} files, {per_sec}, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(files).with_style(style).with_message(what.to_owned());
    bar.enable_steady_tick(BAR_EVERY);
    bar
}
