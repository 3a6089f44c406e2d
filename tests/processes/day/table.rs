//! The results of a day, as a table. Each check has a row: how often it was made, the worst figure,
//! the bound and the verdict.
//!
//! A row is declared before anything is checked. A row that was never checked is a failure too.

use std::{collections::BTreeMap, fmt, time::Duration};

use crate::common::ALLOWANCE;

/// How many failures of one row are printed.
const TOLD_MAX: usize = 5;

/// One check.
#[derive(Debug, Default)]
struct Row {
    /// How often it was made.
    times: u64,
    /// The longest time. `None` if the check is not about time.
    worst: Option<Duration>,
    /// The longest time allowed.
    bound: Option<Duration>,
    /// Missed bounds that prove nothing, because the machine stalled.
    set_aside: u64,
    failed: u64,
    /// The first failures.
    failures: Vec<String>,
}

impl Row {
    fn fail(&mut self, why: String) {
        self.failed += 1;
        if self.failures.len() < TOLD_MAX {
            self.failures.push(why);
        }
    }

    fn is_fine(&self) -> bool {
        self.times > 0 && self.failed == 0
    }

    fn verdict(&self) -> String {
        let mut verdict = match (self.times, self.failed) {
            (0, _) => "FAILED: never checked".to_owned(),
            (_, 0) => "ok".to_owned(),
            (_, failed) => format!("FAILED: {failed}"),
        };
        if self.set_aside > 0 {
            verdict.push_str(&format!(", {} not judged", self.set_aside));
        }
        verdict
    }
}

/// All checks, in the order in which they were declared.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: BTreeMap<usize, (String, Row)>,
}

impl Table {
    /// Adds a check that is not about time.
    pub(crate) fn declare(&mut self, what: &str) {
        self.add(what, None);
    }

    /// Adds a check of a time: at most `bound`, and [`ALLOWANCE`] for the machine.
    pub(crate) fn declare_bound(&mut self, what: &str, bound: Duration) {
        self.add(what, Some(bound));
    }

    fn add(&mut self, what: &str, bound: Option<Duration>) {
        let number = self.rows.len();
        self.rows.insert(number, (what.to_owned(), Row { bound, ..Row::default() }));
    }

    fn row(&mut self, what: &str) -> &mut Row {
        let found = self.rows.values_mut().find(|(name, _)| name == what);
        &mut found.unwrap_or_else(|| panic!("no check is declared as {what:?}")).1
    }

    /// Counts a check that was made this often without a failure.
    pub(crate) fn passed(&mut self, what: &str, times: u64) {
        self.row(what).times += times;
    }

    /// Raises the count of a check to `times`, without a failure.
    pub(crate) fn at_least(&mut self, what: &str, times: u64) {
        let row = self.row(what);
        row.times = row.times.max(times);
    }

    /// Counts a check that was made once.
    pub(crate) fn check(&mut self, what: &str, outcome: Result<(), String>) {
        let row = self.row(what);
        row.times += 1;
        if let Err(why) = outcome {
            row.fail(why);
        }
    }

    /// Checks a time during which the machine stalled for `stall`. False if that proves nothing:
    /// the bound was missed while the machine stalled.
    pub(crate) fn took(&mut self, what: &str, took: Duration, stall: Duration, circumstances: &str) -> bool {
        let row = self.row(what);
        let bound = row.bound.expect("a check of time has a bound");
        let is_missed = took > bound + ALLOWANCE;
        if is_missed && stall > ALLOWANCE {
            row.set_aside += 1;
            return false;
        }
        row.times += 1;
        row.worst = row.worst.max(Some(took));
        if is_missed {
            row.fail(format!(
                "{took:.3?} ({circumstances}): expected at most {bound:.3?}, and {ALLOWANCE:?} for the machine, which \
                 stood still for {stall:.3?}"
            ));
        }
        true
    }

    /// Counts a failure that proves nothing: the machine stalled for longer than the allowance.
    pub(crate) fn set_aside(&mut self, what: &str) {
        self.row(what).set_aside += 1;
    }

    /// True if each check was made and none failed.
    pub(crate) fn is_fine(&self) -> bool {
        self.rows.values().all(|(_, row)| row.is_fine())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds =
            |duration: Option<Duration>| duration.map_or(String::new(), |it| format!("{:.2} s", it.as_secs_f64()));
        let cells = |(what, row): &(String, Row)| {
            [what.clone(), row.times.to_string(), seconds(row.worst), seconds(row.bound), row.verdict()]
        };
        let head = ["check", "times", "worst", "bound", "verdict"].map(str::to_owned);
        let lines: Vec<[String; 5]> = std::iter::once(head).chain(self.rows.values().map(cells)).collect();
        let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default();
        let widths: Vec<usize> = (0..5).map(width).collect();
        for [what, times, worst, bound, verdict] in &lines {
            writeln!(
                f,
                "| {what:0$} | {times:>1$} | {worst:>2$} | {bound:>3$} | {verdict:4$} |",
                widths[0], widths[1], widths[2], widths[3], widths[4]
            )?;
        }
        for (what, row) in self.rows.values().filter(|(_, row)| row.failed > 0) {
            writeln!(f, "{what}:")?;
            for why in &row.failures {
                writeln!(f, "  {why}")?;
            }
            if row.failed > TOLD_MAX as u64 {
                writeln!(f, "  and {} more", row.failed - TOLD_MAX as u64)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn table() -> Table {
        let mut table = Table::default();
        table.declare("reads are fresh");
        table.declare_bound("a write waits", 1_000 * MS);
        table
    }

    #[test]
    fn check_that_was_never_made_fails() {
        let mut table = table();
        table.passed("reads are fresh", 7);
        assert!(!table.is_fine());
        let told = table.to_string();
        assert!(told.contains("| a write waits   |     0 |       | 1.00 s | FAILED: never checked |"), "{told}");
        assert!(table.took("a write waits", 5 * MS, Duration::ZERO, ""));
        assert!(table.is_fine(), "{table}");
    }

    #[test]
    fn failure_is_told_with_its_words() {
        let mut table = table();
        table.check("reads are fresh", Ok(()));
        table.check("reads are fresh", Err("2 was read after 3".to_owned()));
        table.took("a write waits", 2_500 * MS, 10 * MS, "the leader was killed");
        let told = table.to_string();
        assert!(told.contains("| reads are fresh |     2 |        |        | FAILED: 1 |"), "{told}");
        assert!(told.contains("\nreads are fresh:\n  2 was read after 3\n"), "{told}");
        assert!(told.contains("2.500s (the leader was killed): expected at most 1.000s"), "{told}");
    }

    #[test]
    fn bound_missed_on_a_machine_that_stood_still_is_not_judged() {
        let mut table = table();
        assert!(!table.took("a write waits", 9_000 * MS, 1_500 * MS, ""));
        assert!(!table.is_fine(), "it has shown nothing");
        assert!(table.took("a write waits", 1_900 * MS, 1_500 * MS, ""), "the bound was kept all the same");
        table.passed("reads are fresh", 1);
        assert!(table.is_fine(), "{table}");
        assert!(table.to_string().contains("| ok, 1 not judged |"), "{table}");
    }
}
