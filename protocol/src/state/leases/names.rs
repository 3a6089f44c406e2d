//! The ids and names of key leases. A client may choose either, or both. If it chooses no id, the
//! state chooses one.

use std::{collections::BTreeMap, time::Duration};

use super::super::{row_key::RowError, touched::Touched};
use crate::{
    command::{AnyLease, GrantedKeyLease, WriteRefusal, Written},
    id::LeaseId,
    lease_name::LeaseName,
    state::State,
    work::visit,
};

/// The number of taken ids that the search skips one by one.
const TAKEN_IDS_SKIPPED: usize = 16;

/// The mixing function of SplitMix64 (Steele, Lea and Flood 2014). It never maps two numbers to the
/// same number.
fn splitmix64(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

impl State {
    /// The key lease that has this name.
    pub fn lease_named(&self, name: &LeaseName) -> Option<LeaseId> {
        self.lease_names.get(name).copied()
    }

    /// Checks that the id and the name of a lease to grant are free.
    ///
    /// # Errors
    ///
    /// [`WriteRefusal::LeaseExists`] or [`WriteRefusal::LeaseNameExists`] if a lease has it.
    pub(in crate::state) fn check_grant(
        &self,
        id: Option<LeaseId>,
        name: Option<&LeaseName>,
    ) -> Result<(), WriteRefusal> {
        if let Some(id) = id.filter(|id| self.leases.contains_key(&AnyLease::KeyLease(*id))) {
            return Err(WriteRefusal::LeaseExists { id });
        }
        match name.and_then(|name| self.lease_names.get_key_value(name)) {
            Some((name, id)) => Err(WriteRefusal::LeaseNameExists { name: name.clone(), id: *id }),
            None => Ok(()),
        }
    }

    /// Grants a key lease. Without an id, the state assigns one. The caller has checked that the id
    /// and the name are free.
    pub(in crate::state) fn grant_key_lease(
        &mut self,
        (id, name): (Option<LeaseId>, Option<&LeaseName>),
        ttl: Duration,
        touched: &mut Touched,
    ) -> Written {
        let id = id.unwrap_or_else(|| self.free_lease_id());
        let key = AnyLease::KeyLease(id);
        let incarnation = self.grant_lease(key.clone(), ttl, touched).incarnation;
        if let (Some(name), Some(lease)) = (name, self.leases.get_mut(&key)) {
            lease.name = Some(name.clone());
            self.lease_names.insert(name.clone(), id);
        }
        Written { revision: self.meta.revision, lease: Some(GrantedKeyLease { id, incarnation }), ..Written::default() }
    }

    /// Rebuilds the table of names from the leases.
    ///
    /// # Errors
    ///
    /// [`RowError::Inconsistent`] if two leases have the same name.
    pub(in crate::state) fn index_lease_names(&mut self) -> Result<(), RowError> {
        self.lease_names = self.names_of_leases().map_err(|what| RowError::Inconsistent { what })?;
        Ok(())
    }

    fn names_of_leases(&self) -> Result<BTreeMap<LeaseName, LeaseId>, String> {
        let mut names = BTreeMap::new();
        for (key, lease) in &self.leases {
            match (key, &lease.name) {
                (_, None) => {}
                (AnyLease::KeyLease(id), Some(name)) => {
                    if let Some(other) = names.insert(name.clone(), *id) {
                        return Err(format!("leases {other:016x} and {id:016x} have the same name {name:?}"));
                    }
                }
                (AnyLease::Session(_) | AnyLease::Volume(..) | AnyLease::LockDelay(_), Some(name)) => {
                    return Err(format!("lease {key:?} has the name {name:?}: expected one of key leases only"));
                }
            }
        }
        Ok(names)
    }

    /// Checks that each name is that of the lease with its id, and no name is missing.
    pub(in crate::state) fn check_lease_names(&self) -> Result<(), String> {
        match self.names_of_leases()? == self.lease_names {
            true => Ok(()),
            false => Err("the table of the names of leases does not match the leases".to_owned()),
        }
    }

    /// An id that no key lease has: the next incarnation number that is free as an id. If clients
    /// have taken the next [`TAKEN_IDS_SKIPPED`], it is a pseudo-random number.
    pub(super) fn free_lease_id(&mut self) -> LeaseId {
        for _ in 0..TAKEN_IDS_SKIPPED {
            let next = self.meta.next_incarnation;
            if !self.is_taken(next.0) {
                return LeaseId(next.0);
            }
            self.meta.next_incarnation = next.next();
        }
        let mut number = self.meta.next_incarnation.0;
        // The loop tries the next pseudo-random id only if a client has taken this one.
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
        self.leases.contains_key(&AnyLease::KeyLease(LeaseId(id)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::super::fixture::*, TAKEN_IDS_SKIPPED, splitmix64};
    use crate::{
        command::{AnyLease, Attach, Command, Condition, Outcome, Write, WriteRefusal},
        id::{LeaseId, SessionId},
        lease_name::LeaseName,
        state::{LeaseRecord, RowError, RowKey, State},
    };

    const TAKEN: LeaseId = LeaseId(100);

    fn name() -> LeaseName {
        LeaseName::parse("server1Lease").expect("a name")
    }

    fn grant_named(id: Option<LeaseId>) -> Write {
        Write::GrantLease { id, name: Some(name()), ttl: Duration::from_secs(60) }
    }

    /// A state in which lease [`TAKEN`] has the name.
    fn named() -> (Fixture, SessionId) {
        let mut fixture = Fixture::new();
        let session = fixture.open();
        fixture.write(session, grant_named(Some(TAKEN))).expect("new");
        (fixture, session)
    }

    fn put_by_name(at: &str) -> Write {
        Write::Put { path: path(at), value: "v".into(), condition: Condition::Any, attach: Attach::LeaseNamed(name()) }
    }

    #[test]
    fn name_of_a_live_lease_is_refused_and_the_lease_stays() {
        let (mut fixture, session) = named();
        let before = fixture.state.lease(&AnyLease::KeyLease(TAKEN)).cloned();
        let exists = || Err(WriteRefusal::LeaseNameExists { name: name(), id: TAKEN });
        assert_eq!(fixture.write(session, grant_named(None)), exists());
        assert_eq!(fixture.write(session, grant_named(Some(LeaseId(101)))), exists());
        let same_id = fixture.write(session, grant_named(Some(TAKEN)));
        assert_eq!(same_id, Err(WriteRefusal::LeaseExists { id: TAKEN }), "the id is checked first");
        assert_eq!(fixture.state.lease(&AnyLease::KeyLease(TAKEN)).cloned(), before);
        assert_eq!(fixture.state.lease_named(&name()), Some(TAKEN));
        let other = Write::GrantLease {
            id: None,
            name: Some(LeaseName::parse("server2Lease").expect("a name")),
            ttl: Duration::from_secs(60),
        };
        fixture.write(session, other).expect("another name is free");
    }

    #[test]
    fn name_is_free_when_its_lease_has_ended() {
        let (mut fixture, session) = named();
        fixture.write(session, put_by_name("/a")).expect("attached");
        let revoked = fixture.write(session, Write::RevokeLeaseNamed { name: name() }).expect("revoked");
        assert_eq!((revoked.removed, fixture.state.lease_named(&name())), (1, None));
        let none = || Err(WriteRefusal::LeaseNameNotFound { name: name() });
        assert_eq!(fixture.write(session, Write::RevokeLeaseNamed { name: name() }), none());
        assert_eq!(fixture.write(session, put_by_name("/a")), none());
        assert!(fixture.state.node(&path("/a")).is_none());
        fixture.write(session, grant_named(Some(TAKEN))).expect("free after a revocation by name");
        fixture.write(session, Write::RevokeLease { id: TAKEN, incarnation: None }).expect("revoked");
        fixture.write(session, grant_named(Some(TAKEN))).expect("free after a revocation by id");
        let lease = AnyLease::KeyLease(TAKEN);
        let LeaseRecord { incarnation, horizon, .. } = *fixture.state.lease(&lease).expect("a lease");
        assert_eq!(fixture.run(Command::Expire { lease, incarnation, horizon }), Outcome::Expired);
        let granted = fixture.write(session, grant_named(None)).expect("free after the end").lease.expect("a lease");
        assert_eq!(fixture.state.lease_named(&name()), Some(granted.id));
    }

    #[test]
    fn names_are_rebuilt_from_the_rows_of_leases() {
        let (mut fixture, session) = named();
        fixture.write(session, put_by_name("/a")).expect("attached");
        let state = State::from_rows(fixture.rows.clone()).expect("the rows are a state");
        assert_eq!((&state, state.lease_named(&name())), (&fixture.state, Some(TAKEN)));
        let mut reloaded = Fixture::of(state);
        let refused = reloaded.command_after(session, grant_named(None));
        let exists = WriteRefusal::LeaseNameExists { name: name(), id: TAKEN };
        assert_eq!(reloaded.run(refused), Outcome::Written(Err(exists)));
    }

    #[test]
    fn rows_in_which_two_leases_have_one_name_are_refused() {
        let (fixture, session) = named();
        let value = fixture.state.row(&RowKey::Lease(AnyLease::KeyLease(TAKEN))).expect("a row");
        let with_copy_at = |key: AnyLease| {
            let mut rows = fixture.rows.clone();
            rows.insert(RowKey::Lease(key).encode(), value.clone());
            match State::from_rows(rows) {
                Err(RowError::Inconsistent { what }) => what,
                other => panic!("{other:?}"),
            }
        };
        let both = "leases 0000000000000064 and 0000000000000065 have the same name \"server1Lease\"";
        assert_eq!(with_copy_at(AnyLease::KeyLease(LeaseId(101))), both);
        let of_session = "lease Session(SessionId(1)) has the name \"server1Lease\": expected one of key leases only";
        assert_eq!(with_copy_at(AnyLease::Session(session)), of_session);
    }

    #[test]
    fn table_without_the_name_of_a_lease_is_found() {
        let (mut fixture, _) = named();
        fixture.state.lease_names.clear();
        let found = fixture.state.check().expect_err("the name is missing");
        assert_eq!(found, "the table of the names of leases does not match the leases");
    }

    #[test]
    fn automatic_id_skips_many_taken_ids_quickly() {
        let mut fixture = Fixture::new();
        let session = fixture.open();
        let grant = |id| Write::GrantLease { id, name: None, ttl: Duration::from_secs(60) };
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
        let grant = |id| Write::GrantLease { id, name: None, ttl: Duration::from_secs(60) };
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
        let lease = fixture.state.lease(&AnyLease::KeyLease(drawn)).expect("the lease exists");
        assert_eq!(lease.incarnation, taken.incarnation, "the lease is the same");
    }
}
