//! Checks that the random runs reach every outcome that a command can have.

use std::collections::BTreeSet;

use super::runs;
use crate::command::Outcome;

#[test]
fn the_random_runs_reach_every_outcome() {
    let mut reached = BTreeSet::new();
    runs(|_, _, _, _, applied, _| {
        for outcome in &applied.outcomes {
            reached.insert(match outcome {
                Outcome::Written(Err(refusal)) => format!("refused: {}", first_word(refusal)),
                outcome => first_word(outcome),
            });
        }
    });
    let expected = [
        "BelowWindow",
        "BeyondWindow",
        "EpochBegun",
        "EpochEnded",
        "Expired",
        "HorizonMoved",
        "LeaseNotFound",
        "MissingConsents",
        "Purged",
        "SessionClosed",
        "SessionNotFound",
        "SessionOpened",
        "Ticked",
        "VolumeAcquired",
        "Written",
        "refused: Attached",
        "refused: ContainsVolume",
        "refused: Exists",
        "refused: HasChildren",
        "refused: LeaseExists",
        "refused: LeaseNameExists",
        "refused: LeaseNameNotFound",
        "refused: LeaseNotFound",
        "refused: LockNotFound",
        "refused: LockNotGranted",
        "refused: Locked",
        "refused: NoVolumeLease",
        "refused: NotALeaf",
        "refused: NotAVolume",
        "refused: NotAWriteLease",
        "refused: NotExclusive",
        "refused: NotFound",
        "refused: Operation",
        "refused: Overlap",
        "refused: QuotaExceeded",
        "refused: RevisionDiffers",
        "refused: Root",
        "refused: SuccessorNotWaiting",
        "refused: TokenMismatch",
        "refused: VolumeExists",
        "refused: VolumeReplaced",
    ];
    assert!(reached.iter().eq(expected.iter()), "{reached:?}");
}

fn first_word(of: &impl std::fmt::Debug) -> String {
    format!("{of:?}").split(|character: char| !character.is_alphanumeric()).next().unwrap_or_default().to_owned()
}
