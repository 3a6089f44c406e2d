//! What happens, told as it happens: to people at a terminal with a live line below, to others line
//! by line.

use std::{
    io::Write,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::{Output, visible};

/// How often the live line moves.
const TICK: Duration = Duration::from_millis(100);

/// The teller.
#[derive(Debug)]
pub(crate) struct Story {
    began: Instant,
    line: Option<ProgressBar>,
}

impl Story {
    /// Begins now.
    pub(crate) fn new(output: Output) -> Self {
        let line = output.is_watched().then(|| {
            let line = ProgressBar::new_spinner();
            line.enable_steady_tick(TICK);
            // The template is ours: if it were wrong, the default would do.
            line.with_style(
                ProgressStyle::with_template("{spinner} {msg}").unwrap_or_else(|_| ProgressStyle::default_bar()),
            )
        });
        Self { began: Instant::now(), line }
    }

    /// Something happened.
    pub(crate) fn tell(&self, text: &str) {
        let text = format!("{:6.2} s  {}", self.began.elapsed().as_secs_f64(), visible(text));
        match &self.line {
            Some(line) => line.println(text),
            // Whoever has stopped listening does not want the rest.
            None => drop(writeln!(std::io::stderr().lock(), "{text}")),
        }
    }

    /// How things stand. Only for those who watch.
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
