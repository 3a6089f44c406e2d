//! Prints the events of the demo as they happen. On a terminal a live status line stands below
//! them.

use std::{
    io::Write,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::{Output, visible};

/// How often the live line is redrawn.
const TICK: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Story {
    began: Instant,
    line: Option<ProgressBar>,
}

impl Story {
    pub(crate) fn new(output: Output) -> Self {
        let line = output.is_watched().then(|| {
            let line = ProgressBar::new_spinner();
            line.enable_steady_tick(TICK);
            // The template is constant. If it were wrong, the default style would do.
            line.with_style(
                ProgressStyle::with_template("{spinner} {msg}").unwrap_or_else(|_| ProgressStyle::default_bar()),
            )
        });
        Self { began: Instant::now(), line }
    }

    /// Prints an event.
    pub(crate) fn tell(&self, text: &str) {
        let text = format!("{:6.2} s  {}", self.began.elapsed().as_secs_f64(), visible(text));
        match &self.line {
            Some(line) => line.println(text),
            // A closed pipe is no error: the reader has stopped reading.
            None => drop(writeln!(std::io::stderr().lock(), "{text}")),
        }
    }

    /// Updates the live line, if there is one.
    pub(crate) fn live(&self, text: impl FnOnce() -> String) {
        if let Some(line) = &self.line {
            line.set_message(text());
        }
    }
}

impl Drop for Story {
    fn drop(&mut self) {
        if let Some(line) = &self.line {
            line.finish_and_clear();
        }
    }
}
