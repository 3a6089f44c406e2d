//! Tests over all public error enums.

use std::{collections::BTreeSet, error::Error, fs, path::Path};

use leasehold_protocol::{limits::LimitError, transaction::Branch, volume::VolumeSettings};

use super::*;
use crate::{EventsError, HandOverError, recipes::RecipeError};

const AFTER: Duration = Duration::from_secs(5);

fn node() -> NodePath {
    NodePath::root()
}

fn bad_path() -> PathError {
    NodePath::parse("/a//b").expect_err("an empty component")
}

fn unavailable() -> Unavailable {
    Unavailable::NoLeader { reason: "there is an election".to_owned() }
}

fn refusals() -> [Refusal; 2] {
    let exists = WriteRefusal::Exists { path: node(), create_revision: Revision(7) };
    let operation = WriteRefusal::Operation { branch: Branch::Then, index: 0, refusal: Box::new(exists.clone()) };
    [exists.into(), operation.into()]
}

fn write_errors() -> Vec<WriteError> {
    let refused = refusals().map(WriteError::Refused);
    let others = [
        WriteError::Path(bad_path()),
        WriteError::NotRead { path: node() },
        WriteError::Limit { path: Some(node()), limit: LimitError::from(bad_path()) },
        WriteError::Unavailable { path: Some(node()), after: AFTER, source: unavailable() },
    ];
    refused.into_iter().chain(others).collect()
}

fn lock_errors() -> Vec<LockError> {
    let others = [
        LockError::Path(bad_path()),
        LockError::Lost { path: node() },
        LockError::TimedOut { path: node(), after: AFTER },
    ];
    write_errors().into_iter().map(LockError::Write).chain(others).collect()
}

fn read_errors() -> Vec<ReadError> {
    let refused = refusals().map(|refusal| ReadError::Refused { path: node(), refusal });
    let others =
        [ReadError::Path(bad_path()), ReadError::Unavailable { path: node(), after: AFTER, source: unavailable() }];
    refused.into_iter().chain(others).collect()
}

fn watch_errors() -> Vec<WatchError> {
    let refused = refusals().map(WatchError::Refused);
    let others = [WatchError::Path(bad_path()), WatchError::Unavailable { after: AFTER, source: unavailable() }];
    refused.into_iter().chain(others).collect()
}

fn update_errors() -> Vec<UpdateError> {
    let reads = read_errors().into_iter().map(|source| UpdateError::Read { tries: 3, source });
    let writes = write_errors().into_iter().map(|source| UpdateError::Write { tries: 3, source });
    reads.chain(writes).chain([UpdateError::Path(bad_path())]).collect()
}

fn lost_change() -> LostChange {
    let refusal = refusals().into_iter().next().map(Box::new);
    LostChange { path: node(), value: Default::default(), may_be_written: true, refusal }
}

/// Each error enum's name, and one value for each variant that has a cause.
fn samples() -> Vec<(&'static str, Vec<Box<dyn Error>>)> {
    fn boxed<E: Error + 'static>(errors: impl IntoIterator<Item = E>) -> Vec<Box<dyn Error>> {
        errors.into_iter().map(|error| Box::new(error) as Box<dyn Error>).collect()
    }
    let recipes = lock_errors().into_iter().map(RecipeError::Lock);
    let recipes = recipes.chain(watch_errors().into_iter().map(RecipeError::Watch));
    let recipes = recipes.chain(read_errors().into_iter().map(RecipeError::Read));
    let recipes = recipes.chain(update_errors().into_iter().map(RecipeError::Update));
    let write_leases = lock_errors().into_iter().map(WriteLeaseError::Lock);
    let write_leases = write_leases.chain(write_errors().into_iter().map(WriteLeaseError::Write));
    let write_leases = write_leases.chain([WriteLeaseError::Lost(lost_change()), WriteLeaseError::Path(bad_path())]);
    let refused = || refusals().into_iter();
    vec![
        ("Unavailable", boxed([unavailable()])),
        (
            "ConnectError",
            boxed(
                refused()
                    .map(ConnectError::Refused)
                    .chain([ConnectError::Unavailable { after: AFTER, source: unavailable() }]),
            ),
        ),
        ("ReadError", boxed(read_errors())),
        ("WriteError", boxed(write_errors())),
        (
            "EnsureVolumeError",
            boxed(write_errors().into_iter().map(EnsureVolumeError::Write).chain([EnsureVolumeError::Differs {
                path: node(),
                expected: VolumeSettings::DEFAULT.into(),
                got: VolumeSettings::DEFAULT.with_lease_limit(Some(9)).into(),
            }])),
        ),
        ("LockError", boxed(lock_errors())),
        ("WriteLeaseError", boxed(write_leases)),
        (
            "LeaseError",
            boxed([
                LeaseError::Unavailable { after: AFTER, source: unavailable() },
                LeaseError::Lookup(InspectError::Unavailable { after: AFTER, source: unavailable() }),
            ]),
        ),
        ("WatchError", boxed(watch_errors())),
        (
            "InspectError",
            boxed(refused().map(InspectError::Refused).chain([
                InspectError::Path(bad_path()),
                InspectError::Unavailable { after: AFTER, source: unavailable() },
            ])),
        ),
        ("UpdateError", boxed(update_errors())),
        (
            "SnapshotError",
            boxed(read_errors().into_iter().map(SnapshotError::Read).chain([
                SnapshotError::Path(bad_path()),
                SnapshotError::Contended { after: AFTER, tries: 2 },
                SnapshotError::TooManyAbsent { got: 129, most: 128 },
            ])),
        ),
        ("RecipeError", boxed(recipes.chain([RecipeError::Path(bad_path())]))),
        ("EventsError", boxed([EventsError::Ended])),
        (
            "HandOverError",
            boxed(
                lock_errors()
                    .into_iter()
                    .flat_map(|error| [HandOverError::Unchanged((), error.clone()), HandOverError::Released(error)]),
            ),
        ),
    ]
}

/// An error and its causes, as `anyhow` prints them with `{:#}`.
fn chain(error: &dyn Error) -> Vec<String> {
    let (mut texts, mut next) = (vec![error.to_string()], error.source());
    while let Some(cause) = next {
        texts.push(cause.to_string());
        next = cause.source();
    }
    texts
}

#[test]
fn error_chain_prints_each_cause_once() {
    for (name, errors) in samples() {
        for error in errors {
            let texts = chain(&*error);
            for (depth, text) in texts.iter().enumerate() {
                let repeated = texts[depth + 1..].iter().find(|cause| text.contains(*cause));
                assert_eq!(repeated, None, "{name}: {text:?} repeats its cause");
            }
        }
    }
}

#[test]
fn bad_path_is_named_by_the_error() {
    let expected = r#"path "/a//b": empty component at byte 3"#;
    assert_eq!(ReadError::Path(bad_path()).to_string(), expected);
    assert_eq!(RecipeError::Lock(LockError::Write(WriteError::Path(bad_path()))).to_string(), expected);
}

#[test]
fn read_and_write_errors_name_the_node() {
    let path = NodePath::parse("/a").expect("a valid path");
    let read = ReadError::TimedOut { path: path.clone(), after: AFTER };
    assert_eq!((read.to_string().as_str(), read.path()), ("/a: read: no answer after 5s", Some(&path)));
    let write = WriteError::TimedOut { path: Some(path.clone()), after: AFTER };
    let expected = "/a: write: no answer after 5s; it may have taken effect, or may still";
    assert_eq!((write.to_string().as_str(), write.path()), (expected, Some(&path)));
    let transaction = WriteError::SessionEnded { path: None };
    assert_eq!(transaction.to_string(), "write: the session ended before it was sent; it changed nothing");
}

fn is_error(line: &str) -> bool {
    line.starts_with("#[derive(") && line.ends_with("thiserror::Error)]")
}

/// The public error enums in the files of a folder.
fn error_enums(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("the sources are there") {
        let file = entry.expect("an entry").path();
        if file.is_dir() {
            error_enums(&file, found);
            continue;
        }
        let text = fs::read_to_string(&file).expect("text");
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in lines.iter().enumerate().filter(|(_, line)| is_error(line)) {
            let marked = lines[number + 1];
            let named = lines.get(number + 2).and_then(|line| line.strip_prefix("pub enum "));
            let name = named.unwrap_or_else(|| panic!("{}: no public enum after {line}", file.display()));
            assert_eq!(marked, "#[non_exhaustive]", "{name}");
            found.insert(name.chars().take_while(|c| c.is_alphanumeric()).collect());
        }
    }
}

#[test]
fn every_error_enum_is_sampled_and_non_exhaustive() {
    let mut found = BTreeSet::new();
    error_enums(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    let sampled = samples().into_iter().map(|(name, _)| name.to_owned()).collect();
    assert_eq!(found, sampled, "left: the enums of this crate; right: those above");
}

#[test]
fn refusal_is_found_below_operation() {
    for refusal in refusals() {
        let error = WriteError::Refused(refusal);
        assert!(error.is_exists() && !error.is_not_found() && !error.is_unavailable(), "{error:?}");
    }
}

/// The predicates look into the errors inside.
#[test]
fn predicates_hold_at_each_depth() {
    let unavailable = || WriteError::Unavailable { path: None, after: AFTER, source: unavailable() };
    let lock = || LockError::Write(unavailable());
    assert!(lock().is_unavailable() && !lock().is_timeout());
    assert!(WriteLeaseError::Lock(lock()).is_unavailable() && RecipeError::Lock(lock()).is_unavailable());
    assert!(UpdateError::Write { tries: 1, source: unavailable() }.is_unavailable());
    let late = || LockError::Write(WriteError::TimedOut { path: None, after: AFTER });
    assert!(late().is_timeout() && WriteLeaseError::Lock(late()).is_timeout() && !late().is_unavailable());
    let lost = || LockError::Lost { path: node() };
    assert!(WriteLeaseError::Lock(lost()).is_lost() && RecipeError::Lock(lost()).is_lost());
    let [exists, _] = refusals();
    assert!(RecipeError::from(WriteError::Refused(exists)).is_exists());
}

#[test]
fn a_write_is_retryable_only_if_it_cannot_happen_any_more() {
    let busy = Refusal::Busy { what: "writes".to_owned(), got: 9, most: 8 };
    let retryable = [
        WriteError::Unavailable { path: None, after: AFTER, source: unavailable() },
        WriteError::NotSent { path: None, after: AFTER },
        WriteError::SessionEnded { path: None },
        WriteError::Refused(busy),
    ];
    assert!(retryable.iter().all(|error| error.is_retryable() && !error.may_still_happen()));
    let [exists, operation] = refusals().map(WriteError::Refused);
    let others = [
        WriteError::TimedOut { path: None, after: AFTER },
        WriteError::OutcomeUnknown { path: None },
        WriteError::NotRead { path: node() },
        exists,
        operation,
    ];
    assert!(others.iter().all(|error| !error.is_retryable()));
}
