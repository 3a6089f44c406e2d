//! What long commands say on standard error while they run. On a terminal a live status line stands
//! below their events.

use std::{
    fmt,
    io::Write,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use leasehold_bench::Progress;
use leasehold_demo::Narrator;

use crate::output::{Output, visible};

/// How often the live line is redrawn.
const TICK: Duration = Duration::from_millis(100);

/// The live line, if standard error is a terminal.
#[derive(Debug)]
pub(crate) struct LiveLine {
    began: Instant,
    line: Option<ProgressBar>,
}

impl LiveLine {
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

    /// Updates the live line, if there is one.
    fn draw(&self, text: fmt::Arguments<'_>) {
        if let Some(line) = &self.line {
            line.set_message(text.to_string());
        }
    }
}

impl Narrator for LiveLine {
    fn tell(&self, event: &str) {
        let text = format!("{:6.2} s  {}", self.began.elapsed().as_secs_f64(), visible(event));
        match &self.line {
            Some(line) => line.println(text),
            // A closed pipe is no error: the reader has stopped reading.
            None => drop(writeln!(std::io::stderr().lock(), "{text}")),
        }
    }

    fn live(&self, counts: fmt::Arguments<'_>) {
        self.draw(counts);
    }
}

impl Progress for LiveLine {
    fn show(&self, state: fmt::Arguments<'_>) {
        self.draw(state);
    }
}

impl Drop for LiveLine {
    fn drop(&mut self) {
        if let Some(line) = &self.line {
            line.finish_and_clear();
        }
    }
}
