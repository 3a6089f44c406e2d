//! The check of one key: one pass forwards and one backwards over the only possible order.
//!
//! - *Forwards:* each operation takes the earliest possible moment. That is not before its own
//!   beginning, nor before the operations ordered before it. If it is after the operation's end, no
//!   order exists. Reads of one version have no order among each other.
//! - *Backwards:* the latest moment of each version. A read that found nothing fits an absence if
//!   two things hold. It did not end before the absence could begin, nor begin after the absence
//!   had to end.
//!
//! The first fit is enough. Suppose that one read ended before another began, and the later one
//! fits an earlier absence. Then that absence also fits the first read.

use std::{collections::BTreeMap, fmt::Debug};

use super::{Operation, Outcome, Read, Register, Violation, Write};

/// A write with its revision, and the reads that saw it.
#[derive(Debug)]
struct Version<'a, V> {
    revision: u64,
    write: &'a Write<V>,
    reads: Vec<&'a Read<V>>,
    /// The first and the last moment at which it can have taken effect.
    earliest: u64,
    latest: u64,
}

/// The writes of a key that took effect, with their revisions.
type Placed<'a, V> = Vec<(u64, &'a Write<V>)>;

/// Checks one key.
pub(super) fn register<'a, K: Clone + Debug, V: Clone + Ord + Debug>(
    key: &K,
    register: &'a Register<V>,
) -> Result<Placed<'a, V>, Violation<K, V>> {
    let mut versions = versions(key, register)?;
    forwards(key, &mut versions)?;
    backwards(&mut versions);
    for read in register.reads.iter().filter(|read| read.found.is_none()) {
        absence(key, read, &versions, register)?;
    }
    Ok(versions.into_iter().map(|version| (version.revision, version.write)).collect())
}

/// Checks that the order of revisions agrees with time over all keys.
pub(super) fn revisions<K: Clone + Debug, V: Clone + Debug>(
    mut placed: Vec<(u64, &K, &Write<V>)>,
) -> Result<(), Violation<K, V>> {
    placed.sort_by_key(|(revision, _, _)| *revision);
    let mut last: Option<(&K, &Write<V>)> = None;
    for (_, key, write) in placed {
        if let Some((key, late)) = last.filter(|(_, late)| late.span.0 > revised(write)) {
            let early = Operation::Write(write.clone());
            return Err(Violation::Backwards { key: key.clone(), early, late: Box::new(late.clone()) });
        }
        if last.is_none_or(|(_, late)| write.span.0 > late.span.0) {
            last = Some((key, write));
        }
    }
    Ok(())
}

/// The last moment at which a write can have got its revision.
fn revised<V>(write: &Write<V>) -> u64 {
    if write.outcome == Outcome::Unknown { u64::MAX } else { write.revised }
}

/// The last moment at which a write can have taken effect.
fn end<V>(write: &Write<V>) -> u64 {
    if write.outcome == Outcome::Unknown { u64::MAX } else { write.span.1 }
}

/// The writes that took effect, in order, each with the reads that saw it.
fn versions<'a, K: Clone + Debug, V: Clone + Ord + Debug>(
    key: &K,
    register: &'a Register<V>,
) -> Result<Vec<Version<'a, V>>, Violation<K, V>> {
    let mut by_value: BTreeMap<&V, (&Write<V>, Vec<&Read<V>>)> = BTreeMap::new();
    let mut all = Vec::new();
    for write in &register.writes {
        match (&write.value, write.outcome) {
            (Some(value), _) => {
                if by_value.insert(value, (write, Vec::new())).is_some() {
                    return Err(Violation::NotUnique { key: key.clone(), value: value.clone() });
                }
            }
            (None, Outcome::Done { revision }) => all.push((revision, write, Vec::new())),
            (None, _) => {}
        }
    }
    for read in &register.reads {
        let Some((value, _)) = &read.found else { continue };
        match by_value.get_mut(value) {
            Some((_, reads)) => reads.push(read),
            None => return Err(Violation::Unwritten { key: key.clone(), read: read.clone() }),
        }
    }
    for (_, (write, reads)) in by_value {
        if let Some(revision) = place(key, write, &reads)? {
            all.push((revision, write, reads));
        }
    }
    all.sort_by_key(|(revision, _, _)| *revision);
    if let Some(pair) = all.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        let (one, other) = (pair[0].1.clone(), pair[1].1.clone());
        let (one, other) = (Box::new(one), Box::new(other));
        return Err(Violation::SameRevision { key: key.clone(), one, other });
    }
    let version = |(revision, write, reads)| Version { revision, write, reads, earliest: 0, latest: u64::MAX };
    Ok(all.into_iter().map(version).collect())
}

/// The revision of a write, from its acknowledgement or from a read that saw it.
fn place<K: Clone + Debug, V: Clone + Debug>(
    key: &K,
    write: &Write<V>,
    reads: &[&Read<V>],
) -> Result<Option<u64>, Violation<K, V>> {
    let mut place = match write.outcome {
        Outcome::Done { revision } => Some(revision),
        Outcome::Refused | Outcome::Unknown => None,
    };
    for read in reads {
        let (key, write, read) = (key.clone(), write.clone(), (*read).clone());
        if write.outcome == Outcome::Refused {
            return Err(Violation::Refused { key, write, read });
        }
        if read.span.1 < write.span.0 {
            return Err(Violation::Future { key, read, write });
        }
        let seen = read.found.map(|(_, revision)| revision);
        match (place, seen) {
            (Some(one), Some(other)) if one != other => return Err(Violation::Twice { key, write, one, other }),
            _ => place = place.or(seen),
        }
    }
    Ok(place)
}

/// The operation that bounds the moment of the next one from below.
#[derive(Debug)]
enum Bound<'a, V> {
    Write(&'a Write<V>),
    Read(&'a Read<V>),
}

// Derived implementations would require that `V` is `Copy`.
impl<V> Clone for Bound<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for Bound<'_, V> {}

fn forwards<'a, K: Clone + Debug, V: Clone + Debug>(
    key: &K,
    versions: &mut [Version<'a, V>],
) -> Result<(), Violation<K, V>> {
    let mut now = 0;
    let mut bound: Option<Bound<'a, V>> = None;
    for place in 0..versions.len() {
        let write = versions[place].write;
        if end(write) < now {
            return Err(blame(key, bound, Operation::Write(write.clone()), &versions[place..]));
        }
        if write.span.0 > now {
            (now, bound) = (write.span.0, Some(Bound::Write(write)));
        }
        versions[place].earliest = now;
        let mut last = (now, bound);
        for read in &versions[place].reads {
            if read.span.1 < now {
                return Err(blame(key, bound, Operation::Read((*read).clone()), &versions[place..]));
            }
            if read.span.0 > last.0 {
                last = (read.span.0, Some(Bound::Read(read)));
            }
        }
        (now, bound) = last;
    }
    Ok(())
}

/// The violation for an operation that ended before its predecessor in the order began.
fn blame<K: Clone + Debug, V: Clone + Debug>(
    key: &K,
    bound: Option<Bound<'_, V>>,
    ended: Operation<V>,
    later: &[Version<'_, V>],
) -> Violation<K, V> {
    let key = key.clone();
    match (bound, ended) {
        (Some(Bound::Read(read)), ended) => missed(key, read, ended, later),
        (Some(Bound::Write(late)), early) => Violation::Backwards { key, early, late: Box::new(late.clone()) },
        // Nothing bounds the first moment.
        (None, Operation::Read(read)) => Violation::Unwritten { key, read },
        (None, Operation::Write(write)) => {
            Violation::Backwards { key, early: Operation::Write(write.clone()), late: Box::new(write) }
        }
    }
}

/// A read missed an operation. It is a lost write if no read after the acknowledgement saw that
/// write, or a later one.
fn missed<K: Debug, V: Clone + Debug>(
    key: K,
    read: &Read<V>,
    ended: Operation<V>,
    later: &[Version<'_, V>],
) -> Violation<K, V> {
    match ended {
        Operation::Write(write) if later.iter().all(|version| version.reads.is_empty()) => {
            Violation::Lost { key, write, read: read.clone() }
        }
        missed => Violation::Stale { key, read: read.clone(), missed },
    }
}

fn backwards<V>(versions: &mut [Version<'_, V>]) {
    let mut latest = u64::MAX;
    for version in versions.iter_mut().rev() {
        let ends = version.reads.iter().map(|read| read.span.1);
        latest = ends.chain([end(version.write), latest]).min().unwrap_or(latest);
        version.latest = latest;
    }
}

/// Checks that a read that found nothing fits an absence.
fn absence<K: Clone + Debug, V: Clone + Debug>(
    key: &K,
    read: &Read<V>,
    versions: &[Version<'_, V>],
    register: &Register<V>,
) -> Result<(), Violation<K, V>> {
    let (begun, ended) = read.span;
    let until = |next: usize| versions.get(next).map_or(u64::MAX, |version| version.latest);
    let is_within = |place: usize| versions[place].earliest <= ended && begun <= until(place + 1);
    let is_excused = register
        .writes
        .iter()
        .any(|write| write.value.is_none() && write.outcome == Outcome::Unknown && write.span.0 <= ended);
    let is_absent = |place: usize| versions[place].write.value.is_none() || is_excused;
    if begun <= until(0) || (0..versions.len()).any(|place| is_absent(place) && is_within(place)) {
        return Ok(());
    }
    // The version at the beginning of the read, which the read had to see.
    let stood = versions.iter().rposition(|version| version.latest < begun).unwrap_or(0);
    let write = Operation::Write(versions[stood].write.clone());
    Err(missed(key.clone(), read, write, &versions[stood..]))
}
