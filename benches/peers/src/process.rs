//! Server processes: starts them, and stops them by their ids, never by a name.
//!
//! A process is killed when its [`Process`] is dropped. Its log goes to a file.

use std::{
    fs::File,
    io,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, bail};

/// The number of last log lines to show when a server fails.
const LOG_TAIL: usize = 5;

/// A server that is killed on drop.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    /// Starts the server, with its output in `log`.
    pub(crate) fn start(mut command: Command, log: PathBuf) -> Result<Self> {
        let what = || format!("cannot start {}", command.get_program().display());
        let file = File::create(&log).with_context(what)?;
        let copy = file.try_clone().with_context(what)?;
        let program = what();
        command.stdin(Stdio::null()).stdout(copy).stderr(file);
        // Its own group, so that Ctrl-C reaches only this process, which stops the servers.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        Ok(Self { child: command.spawn().context(program)?, log })
    }

    /// Fails if the server has ended by itself.
    pub(crate) fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(LOG_TAIL)..].join("\n  ");
            bail!("a server ended with {status}; it said:\n  {tail}");
        }
        Ok(())
    }

    /// Kills it with SIGKILL.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill().context("cannot kill a server")
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

/// Currently free ports. All listeners stay open until the last is bound, so that the ports differ.
pub(crate) fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    let listeners = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<io::Result<Vec<_>>>()?;
    listeners.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}

/// The path of a program, by `PATH`.
pub(crate) fn in_path(program: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(program)).find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_does_not_outlive_its_owner() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut command = Command::new("sleep");
        command.arg("600");
        let process = Process::start(command, dir.path().join("log")).expect("starts");
        let proc = PathBuf::from(format!("/proc/{}", process.id()));
        assert!(proc.exists());
        drop(process);
        assert!(!proc.exists());
    }

    #[test]
    fn a_server_that_ended_by_itself_is_quoted() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such disk; exit 7"]);
        let mut process = Process::start(command, dir.path().join("log")).expect("starts");
        process.child.wait().expect("ends");
        let text = process.check().expect_err("has ended").to_string();
        assert!(text.contains("exit status: 7") && text.contains("no such disk"), "{text}");
    }

    #[test]
    fn ports_differ() {
        let ports = free_ports(9).expect("free ports");
        let distinct: std::collections::BTreeSet<_> = ports.iter().collect();
        assert_eq!(distinct.len(), 9);
    }

    #[test]
    fn programs_are_found_by_path_alone() {
        assert!(in_path("sh").is_some());
        assert_eq!(in_path("a-program-that-nobody-has"), None);
    }
}
