//! The failures of commands, and their exit statuses.
//!
//! Scripts rely on these statuses:
//!
//! - 0: done
//! - 1: refused
//! - 2: wrong usage, such as a malformed path, duration or option
//! - 3: no server or no quorum
//! - 4: timed out, outcome unknown
//!
//! A wrong condition, length or volume setting is *refused*: only the server can check it.

use leasehold_client_cache::LeaseRef;
use leasehold_protocol::{command::WriteRefusal, message::Refusal};

use crate::refusal::{limit_text, volume_text};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CliStatus {
    Done,
    /// Refused. Nothing was changed.
    Refused,
    /// The arguments cannot be parsed.
    Usage,
    /// No server answers, or none of them has a quorum. Nothing was changed.
    Unavailable,
    /// The operation may have taken effect, or may still take effect.
    Unknown,
    /// The status of the command that was run.
    Command(u8),
}

impl CliStatus {
    /// The status of a command that was run and has ended.
    pub(crate) fn of_command(code: u8) -> Self {
        if code == 0 { Self::Done } else { Self::Command(code) }
    }

    /// The exit status of the process.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Refused => 1,
            Self::Usage => 2,
            Self::Unavailable => 3,
            Self::Unknown => 4,
            Self::Command(code) => code,
        }
    }
}

/// Why a command failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommandFailure {
    pub(crate) status: CliStatus,
    /// A word that scripts can compare.
    pub(crate) kind: &'static str,
    /// `SUBJECT: PROBLEM`, then the remedy if it helps, in one line.
    pub(crate) message: String,
    /// The message over several lines, for errors that clap and toml print so.
    lines: Option<String>,
    /// Whether the message begins with its subject.
    has_subject: bool,
}

impl CommandFailure {
    fn new(status: CliStatus, kind: &'static str, message: impl std::fmt::Display) -> Self {
        Self { status, kind, message: one_line(&message.to_string()), lines: None, has_subject: false }
    }

    /// Refused. Nothing was changed.
    pub(crate) fn refused(kind: &'static str, message: impl std::fmt::Display) -> Self {
        Self::new(CliStatus::Refused, kind, message)
    }

    /// The node does not exist.
    pub(crate) fn not_found() -> Self {
        Self::refused("not_found", "not found")
    }

    /// The key lease does not exist: it was never granted, has expired, or was revoked.
    pub(crate) fn lease_not_found(lease: impl Into<LeaseRef>) -> Self {
        Self::refused("lease_not_found", "not found").with_subject(&format!("lease {}", lease.into()))
    }

    /// The arguments are wrong.
    pub(crate) fn usage(message: impl std::fmt::Display) -> Self {
        Self::new(CliStatus::Usage, "usage", message)
    }

    /// The arguments or the configuration are wrong. The message stays on several lines, except
    /// with `--json`.
    pub(crate) fn usage_lines(message: &str) -> Self {
        let is_shown = |c: &char| *c == '\n' || !c.is_control();
        let lines = message.trim_end().chars().filter(is_shown).collect();
        Self { lines: Some(lines), ..Self::usage(message) }
    }

    /// No server answers.
    pub(crate) fn unavailable(message: impl std::fmt::Display) -> Self {
        Self::new(CliStatus::Unavailable, "unavailable", message)
    }

    /// Servers answer, but none leads. Nothing was changed.
    pub(crate) fn no_quorum(message: impl std::fmt::Display) -> Self {
        Self::new(CliStatus::Unavailable, "no_quorum", message)
    }

    /// The outcome is unknown: no answer arrived in time.
    pub(crate) fn unknown(message: impl std::fmt::Display) -> Self {
        Self::new(CliStatus::Unknown, "outcome_unknown", message)
    }

    /// A file or directory of this machine cannot be used.
    pub(crate) fn io(what: impl std::fmt::Display, error: &std::io::Error) -> Self {
        Self { has_subject: true, ..Self::refused("io", format!("{what}: {error}")) }
    }

    /// Prefixes the subject: a path, a lease or a directory. Does nothing if the message has a
    /// subject already, or begins with this one or with something below it.
    #[must_use]
    pub(crate) fn with_subject(mut self, subject: &str) -> Self {
        let subject = one_line(subject);
        if !self.has_subject && !begins_with(&self.message, &subject) {
            self.message = format!("{subject}: {}", self.message);
            self.lines = self.lines.map(|lines| format!("{subject}: {lines}"));
        }
        self.has_subject = true;
        self
    }

    /// Appends a consequence of the failure, or a remedy.
    #[must_use]
    pub(crate) fn and(mut self, other: &str) -> Self {
        self.message = one_line(&format!("{}; {other}", self.message));
        self.lines = self.lines.map(|lines| format!("{lines}\n{other}"));
        self
    }

    /// The message for people: on several lines if clap or toml print it so.
    pub(crate) fn text(&self) -> &str {
        self.lines.as_deref().unwrap_or(&self.message)
    }

    /// The failure for an error that has no status of its own.
    pub(crate) fn other(error: &dyn std::error::Error) -> Self {
        Self::refused("other", causes(error))
    }

    /// The failure for a refusal that the client does not retry.
    pub(crate) fn from_refusal(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::Write(WriteRefusal::NotFound { path }) => Self::not_found().with_subject(path.as_str()),
            Refusal::Write(WriteRefusal::LeaseNotFound { id }) => Self::lease_not_found(*id),
            Refusal::Write(WriteRefusal::LeaseNameNotFound { name }) => Self::lease_not_found(name),
            Refusal::Write(refusal) => Self::refused(kind_of(refusal), refusal),
            Refusal::Limit(error) => Self::refused("limit", limit_text(error)),
            Refusal::Volume(error) => Self::refused("volume_settings", volume_text(error)),
            Refusal::SessionNotFound { .. } => Self::refused("session_not_found", refusal),
            Refusal::Busy { .. } => Self::refused("busy", refusal),
            Refusal::OutsideWindow { .. } => Self::refused("outside_window", refusal),
            Refusal::Compacted { .. } => Self::refused("compacted", refusal),
            Refusal::OutcomeUnknown => Self::unknown(refusal),
            Refusal::NotLeader { .. } | Refusal::Retry | Refusal::NotRegistered { .. } => Self::unavailable(refusal),
        }
    }
}

fn kind_of(refusal: &WriteRefusal) -> &'static str {
    match refusal {
        WriteRefusal::NotFound { .. } => "not_found",
        WriteRefusal::Exists { .. } => "exists",
        WriteRefusal::RevisionDiffers { .. } => "revision_differs",
        WriteRefusal::HasChildren { .. } => "has_children",
        WriteRefusal::Root { .. } => "root",
        WriteRefusal::NotAVolume { .. } => "not_a_volume",
        WriteRefusal::VolumeExists { .. } => "volume_exists",
        WriteRefusal::VolumeReplaced { .. } => "volume_replaced",
        WriteRefusal::ContainsVolume { .. } => "contains_volume",
        WriteRefusal::TooManyNodes { .. } => "too_many_nodes",
        WriteRefusal::LeaseFull { .. } => "lease_full",
        WriteRefusal::LeaseNotFound { .. } | WriteRefusal::LeaseNameNotFound { .. } => "lease_not_found",
        WriteRefusal::LeaseExists { .. } | WriteRefusal::LeaseNameExists { .. } => "lease_exists",
        WriteRefusal::NoVolumeLease { .. } => "no_volume_lease",
        WriteRefusal::Attached { .. } => "attached",
        WriteRefusal::NotALeaf { .. } => "not_a_leaf",
        WriteRefusal::VolumeInUse { .. } => "volume_in_use",
        WriteRefusal::QuotaExceeded { .. } => "quota_exceeded",
        WriteRefusal::Locked { .. } => "locked",
        WriteRefusal::LockNotFound { .. } => "lock_not_found",
        WriteRefusal::LockNotGranted { .. } => "lock_not_granted",
        WriteRefusal::UpgradePending { .. } => "upgrade_pending",
        WriteRefusal::NotExclusive { .. } => "not_exclusive",
        WriteRefusal::TokenMismatch { .. } => "token_mismatch",
        WriteRefusal::NotAWriteLease { .. } => "not_a_write_lease",
        WriteRefusal::TooManyLocks { .. } => "too_many_locks",
        WriteRefusal::Operation { refusal, .. } => kind_of(refusal),
        WriteRefusal::Overlap { .. } => "overlap",
        WriteRefusal::SuccessorNotWaiting { .. } => "successor_not_waiting",
    }
}

/// Whether a message is about this subject, or about something below it.
fn begins_with(message: &str, subject: &str) -> bool {
    let rest = message.strip_prefix(subject).filter(|_| !subject.is_empty());
    rest.is_some_and(|rest| subject.ends_with('/') || rest.starts_with([':', ' ', ',', '/']))
}

/// An error and all its causes.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// An error is one line, also if names of files and nodes contain line breaks.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("; ").chars().filter(|c| !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use leasehold_protocol::{id::Revision, path::NodePath};

    use super::*;

    #[test]
    fn statuses_are_what_scripts_rely_on() {
        let statuses =
            [CliStatus::Done, CliStatus::Refused, CliStatus::Usage, CliStatus::Unavailable, CliStatus::Unknown];
        assert_eq!(statuses.map(CliStatus::code), [0, 1, 2, 3, 4]);
        let exists = WriteRefusal::Exists { path: NodePath::root(), create_revision: Revision(7) };
        assert_eq!(CommandFailure::from_refusal(&exists.into()).status, CliStatus::Refused);
        assert_eq!(CommandFailure::from_refusal(&Refusal::OutcomeUnknown).status, CliStatus::Unknown);
        assert_eq!(CommandFailure::from_refusal(&Refusal::Retry).status, CliStatus::Unavailable);
    }

    #[test]
    fn message_is_one_line_and_begins_with_its_subject_once() {
        let failure = CommandFailure::usage("not UTF-8\n\n  at 3\u{1b}[1m").with_subject("/a");
        assert_eq!(failure.message, "/a: not UTF-8; at 3[1m");
        assert_eq!(failure.with_subject("/b").message, "/a: not UTF-8; at 3[1m");
        for (message, subject, expected) in [
            ("/a: not empty", "/a", "/a: not empty"),
            ("/a is locked", "/a", "/a is locked"),
            ("/a/b: not found", "/a", "/a/b: not found"),
            ("/ab: not found", "/a", "/a: /ab: not found"),
            ("/x: not found", "/", "/x: not found"),
            ("lease 7: not found", "/a", "/a: lease 7: not found"),
            ("not found", "", ": not found"),
        ] {
            assert_eq!(CommandFailure::refused("x", message).with_subject(subject).message, expected);
        }
    }

    #[test]
    fn failure_over_several_lines_is_one_line_in_json() {
        let failure = CommandFailure::usage_lines("parse error\n  |\n2 | x = \u{1b}1\n").with_subject("a.toml");
        assert_eq!(failure.text(), "a.toml: parse error\n  |\n2 | x = 1");
        assert_eq!(failure.message, "a.toml: parse error; |; 2 | x = 1");
        assert_eq!(CommandFailure::not_found().with_subject("/a").text(), "/a: not found");
    }
}
