//! How the demo starts its processes.

use std::{ffi::OsString, io, path::PathBuf, process::Command};

/// A program and its first arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// The program.
    pub program: PathBuf,
    /// The arguments before those of the demo.
    pub args: Vec<OsString>,
}

impl Launch {
    /// Starts the program of this process with this first argument.
    pub fn this_program(arg: &str) -> io::Result<Self> {
        Ok(Self { program: std::env::current_exe()?, args: vec![arg.into()] })
    }

    /// The command. Its process is in a group of its own: Ctrl-C reaches only the demo, which then
    /// ends the process.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args);
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command
    }
}
