//! Answers of servers that came without an object lease, for reads that accept an old answer
//! ([`ReadBuilder::max_stale`](crate::ReadBuilder::max_stale)).
//!
//! Copies under leases stay in the [`cache`](crate::cache), also after their leases have ended. A
//! volume whose policy grants no lease has no copies. So the answers to reads with `max_stale` are
//! remembered here, each with the time before its request was sent. No other read looks here.
//!
//! A client sees its own writes: answers to requests sent before the last acknowledged write of
//! this client do not count.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use foldhash::quality::RandomState;
use leasehold_protocol::{object::Object, time::Instant};
use moka::sync::Cache;

use crate::{
    cache::{ENTRY_OVERHEAD_BYTES, RecentCopy},
    shared_content::SharedContent,
};

/// The share of the cache's capacity that these answers may take: one in this many bytes.
pub(crate) const SHARE: u64 = 8;

/// An answer, and the time before its request was sent.
#[derive(Debug, Clone)]
struct RecentAnswer {
    content: SharedContent,
    sent: Instant,
}

/// The remembered answers of one client.
#[derive(Debug)]
pub(crate) struct RecentAnswers {
    answers: Cache<Object, RecentAnswer, RandomState>,
    /// When the last write of this client was acknowledged, in microseconds.
    written: AtomicU64,
}

impl RecentAnswers {
    /// Answers of at most `capacity_bytes` together.
    pub(crate) fn new(capacity_bytes: u64) -> Self {
        let weigh = |object: &Object, answer: &RecentAnswer| {
            let bytes = answer.content.weight() as u64 + object.path.as_str().len() as u64 + ENTRY_OVERHEAD_BYTES;
            u32::try_from(bytes).unwrap_or(u32::MAX)
        };
        let answers = Cache::builder().max_capacity(capacity_bytes).weigher(weigh);
        Self { answers: answers.build_with_hasher(RandomState::default()), written: AtomicU64::new(0) }
    }

    /// Remembers an answer to a request that was sent after `sent`.
    pub(crate) fn remember(&self, object: Object, content: SharedContent, sent: Instant) {
        self.answers.insert(object, RecentAnswer { content, sent });
    }

    /// From now on, only answers to later requests count: a write was acknowledged.
    pub(crate) fn note_write(&self, now: Instant) {
        self.written.fetch_max(now.as_micros(), Relaxed);
    }

    /// The answer for the object, if its request was sent at most `max_age` ago.
    pub(crate) fn get(&self, object: &Object, max_age: Duration, now: Instant) -> Option<RecentCopy> {
        let RecentAnswer { content, sent } = self.answers.get(object)?;
        let age = now.since(sent);
        (age <= max_age && sent.as_micros() >= self.written.load(Relaxed)).then_some(RecentCopy { content, age })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leasehold_protocol::{object::Content, path::NodePath};

    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn answer_counts_until_it_is_too_old_or_the_client_writes() {
        let object = Object::data(NodePath::parse("/a").expect("a path"));
        let answers = RecentAnswers::new(1 << 20);
        let content = SharedContent::new(object.path.clone(), Arc::new(Content::Data(None)));
        answers.remember(object.clone(), content.clone(), at(10));
        let age = |max, now| answers.get(&object, Duration::from_secs(max), at(now)).map(|copy| copy.age);
        assert_eq!(age(30, 40), Some(Duration::from_secs(30)));
        assert_eq!(age(30, 41), None, "too old");
        answers.note_write(at(20));
        assert_eq!(age(30, 21), None, "sent before the client's own write");
        answers.remember(object.clone(), content, at(20));
        assert_eq!(age(30, 21), Some(Duration::from_secs(1)));
    }

    #[test]
    fn answers_take_no_more_than_the_capacity() {
        let answers = RecentAnswers::new(4 * (ENTRY_OVERHEAD_BYTES + 64));
        for n in 0..100 {
            let path = NodePath::parse(&format!("/{n}")).expect("a path");
            let content = SharedContent::new(path.clone(), Arc::new(Content::Data(None)));
            answers.remember(Object::data(path), content, at(1));
        }
        answers.answers.run_pending_tasks();
        assert!((1..=4).contains(&answers.answers.entry_count()), "{}", answers.answers.entry_count());
    }
}
