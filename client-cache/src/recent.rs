//! Answers of servers that came without an object lease, for reads that accept an old answer
//! ([`ReadBuilder::max_stale`](crate::ReadBuilder::max_stale)).
//!
//! Copies under leases stay in the [`cache`](crate::cache), also after their leases have ended. A
//! volume whose policy grants no lease has no copies. So here are the last answers about objects
//! that reads with `max_stale` ask for, each with the time before its request was sent. No other
//! read looks here.
//!
//! A client sees its own writes: answers to requests sent before the last write of this client
//! ended, or before the last change of a value under its write lease, do not count.

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
    /// `None` until the first answer.
    content: Option<SharedContent>,
    sent: Instant,
}

/// The remembered answers of one client.
#[derive(Debug)]
pub(crate) struct RecentAnswers {
    answers: Cache<Object, RecentAnswer, RandomState>,
    /// When the last write of this client ended that may have taken effect, in microseconds.
    written: AtomicU64,
}

impl RecentAnswers {
    /// Answers of at most `capacity_bytes` together.
    pub(crate) fn new(capacity_bytes: u64) -> Self {
        let weigh = |object: &Object, answer: &RecentAnswer| {
            let content = answer.content.as_ref().map_or(0, |content| content.weight()) as u64;
            let bytes = content + object.path.as_str().len() as u64 + ENTRY_OVERHEAD_BYTES;
            u32::try_from(bytes).unwrap_or(u32::MAX)
        };
        let answers = Cache::builder().max_capacity(capacity_bytes).weigher(weigh);
        Self { answers: answers.build_with_hasher(RandomState::default()), written: AtomicU64::new(0) }
    }

    /// From now on, answers about this object are remembered: a read accepts an old one.
    pub(crate) fn expect(&self, object: &Object) {
        let none = RecentAnswer { content: None, sent: Instant::ZERO };
        self.answers.entry(object.clone()).or_insert(none);
    }

    /// Takes note of a server's answer to a request that was sent after `sent`. A copy under a
    /// lease replaces the remembered answer. It is in the cache, and a recall removes it.
    pub(crate) fn learn(&self, object: &Object, content: &SharedContent, is_leased: bool, sent: Instant) {
        if !self.answers.contains_key(object) {
            return;
        }
        if is_leased {
            return self.answers.invalidate(object);
        }
        self.remember(object, content.clone(), sent);
    }

    fn remember(&self, object: &Object, content: SharedContent, sent: Instant) {
        self.answers.entry(object.clone()).and_upsert_with(|known| {
            let answer = RecentAnswer { content: Some(content), sent };
            // A slow answer to an earlier request is no news.
            known.map(|known| known.into_value()).filter(|known| known.sent > sent).unwrap_or(answer)
        });
    }

    /// Forgets everything: the client is closed.
    pub(crate) fn clear(&self) {
        self.answers.invalidate_all();
    }

    /// From now on, only answers to later requests count: a write may have taken effect.
    pub(crate) fn note_write(&self, now: Instant) {
        self.written.fetch_max(now.as_micros(), Relaxed);
    }

    /// Whether a content that was current at this time has all writes of this client.
    pub(crate) fn is_after_writes(&self, current: Instant) -> bool {
        current.as_micros() >= self.written.load(Relaxed)
    }

    /// The answer for the object, if its request was sent at most `max_age` ago.
    pub(crate) fn get(&self, object: &Object, max_age: Duration, now: Instant) -> Option<RecentCopy> {
        let RecentAnswer { content, sent } = self.answers.get(object)?;
        let (content, age) = (content?, now.since(sent));
        (age <= max_age && self.is_after_writes(sent)).then_some(RecentCopy { content, age })
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
        answers.remember(&object, content.clone(), at(10));
        let age = |max, now| answers.get(&object, Duration::from_secs(max), at(now)).map(|copy| copy.age);
        assert_eq!(age(30, 40), Some(Duration::from_secs(30)));
        assert_eq!(age(30, 41), None, "too old");
        answers.note_write(at(20));
        assert_eq!(age(30, 21), None, "sent before the client's own write");
        answers.remember(&object, content.clone(), at(20));
        answers.remember(&object, content, at(15));
        assert_eq!(age(30, 21), Some(Duration::from_secs(1)));
    }

    #[test]
    fn answers_take_no_more_than_the_capacity() {
        let answers = RecentAnswers::new(4 * (ENTRY_OVERHEAD_BYTES + 64));
        for n in 0..100 {
            let path = NodePath::parse(&format!("/{n}")).expect("a path");
            let content = SharedContent::new(path.clone(), Arc::new(Content::Data(None)));
            answers.remember(&Object::data(path), content, at(1));
        }
        answers.answers.run_pending_tasks();
        assert!((1..=4).contains(&answers.answers.entry_count()), "{}", answers.answers.entry_count());
    }
}
