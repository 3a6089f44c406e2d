//! Messages between holders and a lessor carry durations and revisions, and no reading of any
//! clock.

use super::*;
use crate::id::LeaseId;

/// All messages in two minutes of reads, writes, renewals and recalls. The clocks of clients and
/// server begin at these times.
fn sent(began: [Instant; 2]) -> Vec<Vec<u8>> {
    let mut pair = Pair::beginning_at(7, began);
    pair.wire = Some(Vec::new());
    pair.pass(Duration::from_secs(1));
    let grant = Write::GrantLease { id: Some(LeaseId(1)), name: None, ttl: TERM };
    pair.write(0, grant, vec![]);
    pair.pass(Duration::from_secs(2));
    pair.client(0, HolderInput::KeepAlive(LeaseId(1)));
    for _ in 0..3_000 {
        let pause = pair.numbers.below(80);
        pair.pass(Duration::from_millis(pause));
        let client = pair.numbers.below(3) as usize;
        pair.random_operation(client);
    }
    assert!(pair.hits > 1_000 && pair.written > 100, "{} from memory, {} written", pair.hits, pair.written);
    pair.wire.expect("the run records its messages")
}

#[test]
fn messages_have_spans_and_no_time_of_a_clock() {
    let day = Duration::from_secs(24 * 3600);
    let alike = sent([at(1), at(1)]);
    assert!(alike.len() > 1_000, "{}", alike.len());
    for began in [[at(1), at(1).after(day)], [at(1).after(400 * day), at(1)], [at(1).after(day), at(1).after(day)]] {
        let other = sent(began);
        let differs = alike.iter().zip(&other).position(|(one, other)| one != other);
        assert_eq!((differs, alike.len()), (None, other.len()), "clocks that begin at {began:?}");
    }
}
