//! `import` and `export`: directory trees in and out, byte for byte.
//!
//! Files and directories map to nodes as follows:
//!
//! | in a directory | in the tree |
//! | --- | --- |
//! | a file | a node with its bytes |
//! | a directory with something in it | a node with children and an empty value |
//! | a directory with nothing in it | a node with the child [`DIRECTORY_MARK`], which has an empty value |
//! | a file named [`VALUE_FILE`] | the value of the node that stands for its directory |
//!
//! So a node without children is a file, and a node with children is a directory. A node with
//! children and a value becomes a directory with a [`VALUE_FILE`]; an import restores the same
//! node. The two names are reserved: import and export refuse any other use of them.
//!
//! Names and contents are transferred; permissions, owners and times are not. An import follows
//! symbolic links.

pub(crate) mod export;
pub(crate) mod import;
mod scan;

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::Output;

/// The child of a node that stands for an empty directory.
pub(crate) const DIRECTORY_MARK: &str = ".leasehold-directory";

/// The file with the value of a node that stands for a directory.
pub(crate) const VALUE_FILE: &str = ".leasehold-value";

/// Files in flight: enough to hide round trips and to share fsyncs. With values of the maximum size
/// they take 64 MiB of memory.
const FILES_AT_ONCE: usize = 64;

/// How often the progress bar is redrawn without other progress.
const BAR_EVERY: Duration = Duration::from_millis(100);

/// A progress bar, hidden if standard error is not a terminal.
fn progress(output: Output, what: &str, files: u64) -> ProgressBar {
    if !output.is_watched() {
        return ProgressBar::hidden();
    }
    // The template is constant. If it were wrong, the default style would do.
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} files, {per_sec}, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(files).with_style(style).with_message(what.to_owned());
    bar.enable_steady_tick(BAR_EVERY);
    bar
}
