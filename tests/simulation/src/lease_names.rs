//! Key leases with names: in some worlds, applications grant, revoke and use leases by few names
//! that all of them share. The draws use a random stream of their own, so that everything else in a
//! world is drawn as it would be without them.

use leasehold_model::rng::Rng;
use leasehold_protocol::{
    command::{Attach, Write},
    id::LeaseId,
    lease_name::LeaseName,
};

use crate::profile::Profile;

/// How many of a thousand worlds have such leases.
const WORLDS: u64 = 300;

/// How many of a thousand grants, revocations and attachments are changed.
const GRANTS: u64 = 700;
const REVOCATIONS: u64 = 600;
const ATTACHMENTS: u64 = 400;

/// Selects the random stream of names.
const NAMES: u64 = 0x6e_61_6d_65_73;

/// The draws of names in one world. `None` in worlds without them.
#[derive(Debug)]
pub(crate) struct LeaseNames(Option<(Rng, Vec<LeaseName>)>);

impl LeaseNames {
    pub(crate) fn new(seed: u64, profile: &Profile) -> Self {
        let mut rng = Rng::new(seed ^ NAMES);
        let ids = profile.swarm.as_ref().map_or_else(|| (1..=3).map(LeaseId).collect(), |swarm| swarm.names.clone());
        Self(rng.chance(WORLDS).then(|| (rng, ids.into_iter().map(text_name).collect())))
    }

    /// The same write, perhaps with a name for its lease.
    pub(crate) fn rename(&mut self, write: Write) -> Write {
        let Some((rng, names)) = &mut self.0 else { return write };
        match write {
            Write::GrantLease { id, name: None, ttl } if rng.chance(GRANTS) => {
                Write::GrantLease { id, name: Some(rng.pick(names).clone()), ttl }
            }
            Write::RevokeLease { .. } if rng.chance(REVOCATIONS) => {
                Write::RevokeLeaseNamed { name: rng.pick(names).clone() }
            }
            Write::Put { path, value, condition, attach: Attach::Lease(_) } if rng.chance(ATTACHMENTS) => {
                Write::Put { path, value, condition, attach: Attach::LeaseNamed(rng.pick(names).clone()) }
            }
            other => other,
        }
    }
}

/// The text that names leases as this id does.
pub(crate) fn text_name(id: LeaseId) -> LeaseName {
    LeaseName::parse(&format!("lease-{id}")).expect("a name")
}
