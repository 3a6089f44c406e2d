//! Who led when, by the leaders' own notes, and whether two ever led at once.

use std::{collections::BTreeMap, time::Duration};

use crate::candidate::Note;

/// One leadership, from its election to its end. Times are in nanoseconds on the clock by which
/// leases are counted.
#[derive(Debug, Clone)]
pub(crate) struct Reign {
    /// The leader's name.
    pub(crate) name: String,
    /// When the leader learned of its election.
    pub(crate) elected: u64,
    /// Until when it was certain to lead, by its notes.
    pub(crate) until: u64,
    /// When it last acted as only the leader may.
    pub(crate) acted: u64,
    /// When it sent the write of [`crate::candidate::ready`], and when it was answered.
    pub(crate) proclaimed: Option<(u64, u64)>,
    /// When it learned that it no longer led. `None` if it was killed before.
    pub(crate) over: Option<u64>,
}

/// All leaderships of one node, by their tokens.
#[derive(Debug, Default)]
pub(crate) struct Reigns {
    reigns: BTreeMap<u64, Reign>,
    /// The number of campaigns that failed.
    pub(crate) failed: u64,
}

impl Reigns {
    /// Adds the new notes of a candidate.
    pub(crate) fn add(&mut self, name: &str, notes: Vec<Note>) {
        for note in notes {
            match note {
                Note::Elected { token, at } => self.begin(name, token, at),
                Note::Proclaimed { token, asked, answered } => {
                    self.of(name, token).proclaimed = Some((asked, answered));
                }
                Note::Acted { token, at, until } => {
                    let reign = self.of(name, token);
                    assert_eq!(reign.over, None, "{name} acts as the leader though it has seen its end: {reign:?}");
                    (reign.acted, reign.until) = (at, reign.until.max(until));
                }
                Note::Over { token, at } => self.of(name, token).over = Some(at),
                Note::Failed { .. } => self.failed += 1,
            }
        }
    }

    fn begin(&mut self, name: &str, token: u64, at: u64) {
        let reign = Reign { name: name.to_owned(), elected: at, until: at, acted: at, proclaimed: None, over: None };
        let earlier = self.reigns.insert(token, reign);
        assert!(earlier.is_none(), "token {token} is {name}'s, and was another's: {earlier:?}");
    }

    fn of(&mut self, name: &str, token: u64) -> &mut Reign {
        let reign = self.reigns.get_mut(&token).filter(|reign| reign.name == name);
        reign.unwrap_or_else(|| panic!("{name} leads by token {token}, of which it did not say that it has it"))
    }

    /// The leadership with the highest token.
    pub(crate) fn latest(&self) -> Option<(u64, &Reign)> {
        self.reigns.last_key_value().map(|(token, reign)| (*token, reign))
    }

    /// All leaderships, in the order of their tokens.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Reign)> {
        self.reigns.iter().map(|(token, reign)| (*token, reign))
    }

    /// The leaderships with higher tokens, in the order of their tokens.
    pub(crate) fn after(&self, token: u64) -> impl Iterator<Item = (u64, &Reign)> {
        self.reigns.range(token + 1..).map(|(token, reign)| (*token, reign))
    }

    /// The gaps between leaderships: from the time until which each leader, or one before, was
    /// certain to lead, to the next leader's election. Fails if one was elected earlier. Then two
    /// led at once, each by its own clock, or tokens did not grow.
    pub(crate) fn check(&self) -> Result<Vec<Duration>, String> {
        let mut until = 0;
        let gap = |(token, reign): (&u64, &Reign)| {
            let gap = reign.elected.checked_sub(until);
            until = until.max(reign.until);
            let reigns = || self.reigns.range(token.saturating_sub(10)..=*token);
            gap.ok_or_else(|| format!("two led at once when {token} began: {:#?}", reigns().collect::<Vec<_>>()))
        };
        let gaps: Result<Vec<u64>, String> = self.reigns.iter().map(gap).collect();
        Ok(gaps?.into_iter().skip(1).map(Duration::from_nanos).collect())
    }

    /// The same. Panics if two led at once.
    pub(crate) fn gaps(&self) -> Vec<Duration> {
        self.check().unwrap_or_else(|violation| panic!("{violation}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reign(reigns: &mut Reigns, name: &str, token: u64, from: u64, until: u64) {
        let acted = |at| Note::Acted { token, at, until };
        reigns.add(name, vec![Note::Elected { token, at: from }, acted(from), acted(from + 1)]);
    }

    #[test]
    fn leadership_gaps_run_from_counted_end_to_next_beginning() {
        let mut reigns = Reigns::default();
        reign(&mut reigns, "one", 3, 100, 200);
        reign(&mut reigns, "two", 5, 207, 300);
        reign(&mut reigns, "one", 6, 300, 400);
        assert_eq!(reigns.gaps(), [Duration::from_nanos(7), Duration::ZERO]);
        let after: Vec<_> = reigns.after(3).map(|(token, reign)| (token, reign.name.as_str())).collect();
        assert_eq!(after, [(5, "two"), (6, "one")]);
    }

    #[test]
    #[should_panic(expected = "two led at once")]
    fn overlapping_leaderships_are_found() {
        let mut reigns = Reigns::default();
        reign(&mut reigns, "one", 3, 100, 200);
        reign(&mut reigns, "two", 5, 199, 300);
        reigns.gaps();
    }

    #[test]
    #[should_panic(expected = "two led at once")]
    fn tokens_that_do_not_grow_are_found() {
        let mut reigns = Reigns::default();
        reign(&mut reigns, "one", 5, 100, 200);
        reign(&mut reigns, "two", 3, 300, 400);
        reigns.gaps();
    }

    #[test]
    #[should_panic(expected = "was another's")]
    fn a_token_that_two_have_is_found() {
        let mut reigns = Reigns::default();
        reign(&mut reigns, "one", 3, 100, 200);
        reign(&mut reigns, "two", 3, 300, 400);
    }

    #[test]
    #[should_panic(expected = "though it has seen its end")]
    fn one_who_acts_after_its_end_is_found() {
        let mut reigns = Reigns::default();
        reign(&mut reigns, "one", 3, 100, 200);
        reigns.add("one", vec![Note::Over { token: 3, at: 200 }]);
        reign(&mut reigns, "two", 4, 300, 400);
        reigns.add("one", vec![Note::Acted { token: 3, at: 310, until: 320 }]);
    }
}
