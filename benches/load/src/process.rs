//! What the operating system says about a process: its memory and its processor time.

use std::{io, time::Duration};

use nix::unistd::{SysconfVar, sysconf};

/// Why a process could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// A file of `/proc` cannot be read, probably because the process has ended.
    #[error("{file}")]
    Io {
        /// The file.
        file: String,
        /// The reason.
        source: io::Error,
    },
    /// The file does not have the expected content.
    #[error("{file}: expected {expected}")]
    Content {
        /// The file.
        file: String,
        /// What it should have.
        expected: &'static str,
    },
}

/// The resident memory of a process in bytes: VmRSS.
pub fn resident_bytes(process: u32) -> Result<u64, ProcessError> {
    let file = format!("/proc/{process}/status");
    vm_rss(&read(&file)?).ok_or(ProcessError::Content { file, expected: "VmRSS, in kB" })
}

/// The processor time that a process has used.
pub fn processor_time(process: u32) -> Result<Duration, ProcessError> {
    let file = format!("/proc/{process}/stat");
    let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten();
    match (processor_ticks(&read(&file)?), per_second) {
        (Some(ticks), Some(per_second)) => Ok(Duration::from_secs_f64(ticks as f64 / per_second as f64)),
        _ => Err(ProcessError::Content { file, expected: "user and system time, in clock ticks" }),
    }
}

fn read(file: &str) -> Result<String, ProcessError> {
    std::fs::read_to_string(file).map_err(|source| ProcessError::Io { file: file.to_owned(), source })
}

fn vm_rss(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// User and system time. The process name in parentheses can contain anything.
fn processor_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_from_the_line_that_has_it() {
        assert_eq!(vm_rss("Name:\tx\nVmHWM:\t 9 kB\nVmRSS:\t    5124 kB\n"), Some(5124 * 1024));
        assert_eq!(vm_rss("Name:\tx\n"), None);
    }

    #[test]
    fn processor_time_is_found_behind_any_name() {
        assert_eq!(processor_ticks("17 (a) b) R 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 1"), Some(300));
        assert_eq!(processor_ticks("17 (a"), None);
    }
}
