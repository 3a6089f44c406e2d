//! `demo-replica`: one replica of the demo, a process of its own that does not outlive the demo.
//!
//! Its input is a pipe whose other end nobody has but the demo. When that ends, the demo is gone,
//! however it went: the replica removes what it had on disk and ends where it is. Unless it was
//! told to stay.

use std::{io::Read, path::Path};

use crate::{
    exit::{CliStatus, CommandFailure},
    output::Output,
    serve,
};

/// Said to a replica that is to outlive the demo.
pub(super) const STAY: &[u8] = b"stay\n";

/// Runs a replica until it is told to stop, or until the demo is gone.
pub(crate) async fn run(args: serve::ServeArgs, output: Output) -> Result<CliStatus, CommandFailure> {
    if let Some(data) = args.data.clone() {
        // Not a task: one that waits for input would keep the process from ending by itself.
        std::thread::spawn(move || {
            let mut said = Vec::new();
            // However the input ends, it has.
            let _ = std::io::stdin().read_to_end(&mut said);
            if said != STAY {
                remove(&data);
                std::process::exit(CliStatus::Refused.code().into());
            }
        });
    }
    serve::run(args, output).await
}

/// Where a replica's log is: beside its data.
pub(super) fn log_of(data: &Path) -> std::path::PathBuf {
    data.with_extension("log")
}

/// Removes what a replica has on disk; and the folder that it is in, if it is the last there.
/// Nobody is left to be told of what cannot be removed.
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
