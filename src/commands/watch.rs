//! `watch PATH`: prints each event until a stop signal.

use base64::{Engine, prelude::BASE64_STANDARD};
use clap::Args;
use leasehold_client_cache::{ChangeReason, Event, EventKind, NodePath, Revision, Value, Watch as Watching, WatchItem};
use serde::Serialize;

use crate::{
    arguments,
    background::StopSignal,
    context::Context,
    exit::CommandFailure,
    failure::watch_failure,
    output::{Output, Text, escaped, reader_gone, visible},
};

/// `watch PATH`
#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    /// Node to watch, with the nodes below it
    #[arg(value_parser = arguments::path)]
    pub(crate) path: NodePath,
    /// First revision to print, past or future [default: from now on]
    #[arg(long, value_name = "N")]
    from: Option<u64>,
    /// Watch the node only
    #[arg(long)]
    node: bool,
    /// Print how far the watch is complete: at its start, and every few seconds without changes
    #[arg(long)]
    progress: bool,
}

/// An event of a node.
#[derive(Debug, Serialize)]
struct EventLine {
    revision: u64,
    kind: &'static str,
    path: NodePath,
    reason: &'static str,
    value: Option<String>,
    encoding: Option<&'static str>,
}

impl EventLine {
    fn new(revision: Revision, event: Event) -> Self {
        let reason = match event.reason {
            ChangeReason::Request => "request",
            ChangeReason::Expired => "expired",
            ChangeReason::Revoked => "revoked",
        };
        let (kind, value) = match event.kind {
            EventKind::Put(data) => ("put", Some(text_of(&data.value))),
            EventKind::Delete => ("delete", None),
        };
        let (value, encoding) = value.unzip();
        Self { revision: revision.0, kind, path: event.path, reason, value, encoding }
    }
}

/// A value as text, and its encoding.
pub(crate) fn text_of(value: &Value) -> (String, &'static str) {
    match std::str::from_utf8(value) {
        Ok(text) => (text.to_owned(), "utf8"),
        Err(_) => (BASE64_STANDARD.encode(value), "base64"),
    }
}

impl Text for EventLine {
    fn text(&self, out: &mut Vec<u8>) {
        let mut line = format!("{} {} {}", self.revision, self.kind, visible(self.path.as_str()));
        if self.reason != "request" {
            line = format!("{line} ({})", self.reason);
        }
        if let Some(value) = &self.value {
            let mark = if self.encoding == Some("base64") { "(base64) " } else { "" };
            let value = format!("{mark}{}", escaped(value));
            line = if value.is_empty() { line } else { format!("{line} {value}") };
        }
        out.extend_from_slice(format!("{line}\n").as_bytes());
    }
}

/// All changes up to this revision were printed.
#[derive(Debug, Serialize)]
struct ProgressLine {
    revision: u64,
    kind: &'static str,
}

impl Text for ProgressLine {
    fn text(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("{} {}\n", self.revision, self.kind).as_bytes());
    }
}

impl WatchArgs {
    /// Prints events until a stop signal, or until the reader closes the pipe. It is a failure if
    /// the watch ends before that.
    pub(crate) async fn run(self, context: &Context) -> Result<(), CommandFailure> {
        let stop = StopSignal::listen()?;
        let watching = async {
            let client = context.client().await?;
            let watch = client.watch(&self.path).recursive(!self.node);
            let watch = match self.from {
                Some(from) => watch.from(Revision(from)),
                None => watch,
            };
            let watch = watch.await.map_err(|error| watch_failure(&error))?;
            self.print_changes(watch, context.output).await
        };
        tokio::select! {
            biased;
            () = stop.requested() => Ok(()),
            () = reader_gone() => Ok(()),
            ended = watching => ended,
        }
    }

    async fn print_changes(&self, mut watch: Watching, output: Output) -> Result<(), CommandFailure> {
        let say = |revision: Revision| {
            if self.progress {
                output.answer(&ProgressLine { revision: revision.0, kind: "progress" });
            }
        };
        if self.from.is_none() {
            say(Revision(watch.resume_from().0.saturating_sub(1)));
        }
        loop {
            match watch.next().await.map_err(|error| watch_failure(&error))? {
                WatchItem::Change(change) => {
                    let revision = change.revision;
                    for event in change.events.iter().cloned() {
                        output.answer(&EventLine::new(revision, event));
                    }
                }
                WatchItem::Progress(revision) => say(revision),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(value: Option<&str>, reason: &'static str) -> String {
        let value = value.map(str::to_owned);
        let kind = if value.is_some() { "put" } else { "delete" };
        let line = EventLine { revision: 7, kind, path: NodePath::root(), reason, value, encoding: None };
        let mut out = Vec::new();
        line.text(&mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn a_line_says_what_happened_and_why_if_nobody_asked_for_it() {
        assert_eq!(line(Some("two words"), "request"), "7 put / two words\n");
        assert_eq!(line(Some(""), "request"), "7 put /\n");
        assert_eq!(line(Some(" x "), "request"), "7 put /  x \n", "blanks belong to the value");
        assert_eq!(line(Some("a\nb\\"), "request"), "7 put / a\\nb\\\\\n", "one line, whatever was written");
        assert_eq!(line(None, "expired"), "7 delete / (expired)\n");
    }
}
