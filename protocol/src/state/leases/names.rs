//! Chooses ids for key leases whose clients chose none.

use crate::{command::LeaseKey, id::LeaseId, state::State, work::visit};

/// The number of taken ids that the search skips one by one.
const TAKEN_IDS_SKIPPED: usize = 16;

/// The mixing function of SplitMix64 (Steele, Lea and Flood 2014). It maps each number to a
/// different number.
fn splitmix64(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

impl State {
    /// An id that no key lease has. It is the number of the next incarnation, if that id is free.
    /// If clients have taken several such ids, it is a pseudo-random number.
    pub(super) fn free_lease_id(&mut self) -> LeaseId {
        for _ in 0..TAKEN_IDS_SKIPPED {
            let next = self.meta.next_incarnation;
            if !self.is_taken(next.0) {
                return LeaseId(next.0);
            }
            self.meta.next_incarnation = next.next();
        }
        let mut number = self.meta.next_incarnation.0;
        // The loop continues only while clients have taken exactly the ids that follow from
        // `number`.
        loop {
            number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let id = splitmix64(number);
            if id != 0 && !self.is_taken(id) {
                return LeaseId(id);
            }
        }
    }

    fn is_taken(&self, id: u64) -> bool {
        visit(1);
        self.leases.contains_key(&LeaseKey::Key(LeaseId(id)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::super::fixture::*, TAKEN_IDS_SKIPPED, splitmix64};
    use crate::{
        command::{LeaseKey, Write},
        id::LeaseId,
    };

    #[test]
    fn automatic_id_skips_many_taken_ids_quickly() {
        let mut fixture = Fixture::new();
        let session = fixture.open();
        let grant = |id| Write::GrantLease { id, ttl: Duration::from_secs(60) };
        let taken_count = 900;
        let first = fixture.state.meta.next_incarnation.0 + taken_count;
        for number in first..first + taken_count {
            fixture.write(session, grant(Some(LeaseId(number)))).expect("new");
        }
        for _ in 0..10 {
            crate::work::take_visited();
            let granted = fixture.write(session, grant(None)).expect("an id is free").lease.expect("a lease");
            let visited = crate::work::take_visited();
            assert!(visited < 100, "{visited} ids were examined");
            assert!(!(first..first + taken_count).contains(&granted.id.0) && granted.incarnation.0 >= first);
        }
    }
    #[test]
    fn automatic_random_id_is_not_taken() {
        let mut fixture = Fixture::new();
        let session = fixture.open();
        let grant = |id| Write::GrantLease { id, ttl: Duration::from_secs(60) };
        let first = fixture.state.meta.next_incarnation.0 + 100;
        for number in first..first + 100 {
            fixture.write(session, grant(Some(LeaseId(number)))).expect("new");
        }
        // The next grant uses one incarnation itself, and then skips this many ids.
        let number = fixture.state.meta.next_incarnation.0 + 1 + TAKEN_IDS_SKIPPED as u64;
        let drawn = LeaseId(splitmix64(number.wrapping_add(0x9e37_79b9_7f4a_7c15)));
        let taken = fixture.write(session, grant(Some(drawn))).expect("new").lease.expect("a lease");
        let granted = fixture.write(session, grant(None)).expect("an id is free").lease.expect("a lease");
        assert_eq!(granted.incarnation.0, number, "the ids before it were taken");
        assert!(granted.id != drawn && granted.id.0 > number, "{granted:?}");
        let lease = fixture.state.lease(&LeaseKey::Key(drawn)).expect("the lease exists");
        assert_eq!(lease.incarnation, taken.incarnation, "the lease is the same");
    }
}
