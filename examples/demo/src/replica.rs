//! One replica of the demo, a process that does not outlive the demo.
//!
//! Its standard input is a pipe whose other end only the demo has. When the pipe closes, the demo
//! has ended or died. Then the replica removes its files and exits at once, unless it was ordered
//! to stay.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

/// The order to a replica to outlive the demo.
pub(crate) const STAY: &[u8] = b"stay\n";

/// For a process that [`Replicas`](crate::Replicas) has started as a replica, with its data in
/// `data`. If the demo ends without an order to keep the replica, this removes the data and calls
/// `end`, which must exit.
pub fn when_abandoned(data: PathBuf, end: impl FnOnce() + Send + 'static) {
    // A thread, as a task that waits for input would keep the process from exiting.
    std::thread::spawn(move || {
        let mut said = Vec::new();
        // An error ends the input too.
        let _ = std::io::stdin().read_to_end(&mut said);
        if said != STAY {
            remove(&data);
            end();
        }
    });
}

/// The path of a replica's log, next to its data.
pub(crate) fn log_of(data: &Path) -> std::path::PathBuf {
    data.with_extension("log")
}

/// Removes a replica's files, and their folder if it is then empty. Ignores errors, as nobody is
/// left to read them.
fn remove(data: &Path) {
    let _ = std::fs::remove_dir_all(data);
    let _ = std::fs::remove_file(log_of(data));
    if let Some(folder) = data.parent() {
        let _ = std::fs::remove_dir(folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_to_go_removes_the_folder() {
        let top = tempfile::tempdir().expect("a directory");
        let folder = top.path().join("demo");
        let data = [folder.join("replica-1"), folder.join("replica-2")];
        for data in &data {
            std::fs::create_dir_all(data.join("log")).expect("made");
            std::fs::write(log_of(data), "said").expect("written");
        }
        remove(&data[0]);
        assert!(!data[0].exists() && !log_of(&data[0]).exists() && data[1].join("log").exists());
        remove(&data[1]);
        assert!(!folder.exists() && top.path().exists());
    }
}
