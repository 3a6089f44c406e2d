//! Which cluster this client belongs to, and which servers are passed over because they are of another.
//!
//! Endpoints may belong to two clusters: a replica whose folder was emptied and that was started once with only
//! itself in its list founds a cluster of its own, at the address that clients know. What it says of nodes is right
//! there and wrong here. Servers name their cluster in the handshake. The first one that names any decides, for the
//! life of the client; servers of other clusters are passed over. The log has one line for each.

use std::collections::BTreeMap;

use leasehold_wire::ClusterId;

use crate::error::Unavailable;

/// The cluster that this client belongs to, once a server has named one.
#[derive(Debug, Default)]
pub(crate) struct OwnCluster {
    id: Option<ClusterId>,
    /// The servers of other clusters that the log has a line for.
    warned: BTreeMap<String, ClusterId>,
}

impl OwnCluster {
    /// A server has named its cluster, or has none yet.
    ///
    /// # Errors
    ///
    /// Why nothing is to be asked there.
    pub(crate) fn check(&mut self, endpoint: &str, named: Option<ClusterId>) -> Result<(), Unavailable> {
        let Some(got) = named else {
            return Err(Unavailable::NoLeader { reason: format!("{endpoint} takes part in no cluster yet") });
        };
        let expected = *self.id.get_or_insert(got);
        if got == expected {
            return Ok(());
        }
        if self.warned.insert(endpoint.to_owned(), got) != Some(got) {
            tracing::warn!(
                endpoint,
                %got,
                %expected,
                "this server belongs to another cluster than the one that answered first: it is passed over; correct \
                 the endpoints of this client"
            );
        }
        let (got, expected) = (got.to_string(), expected.to_string());
        Err(Unavailable::OtherCluster { endpoint: endpoint.to_owned(), got, expected })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: ClusterId = ClusterId { founder: 1, nonce: 7 };
    const OTHER: ClusterId = ClusterId { founder: 3, nonce: 8 };

    #[test]
    fn first_server_that_names_a_cluster_decides() {
        let mut own = OwnCluster::default();
        assert!(matches!(own.check("a:1", None), Err(Unavailable::NoLeader { .. })));
        assert_eq!(own.check("b:1", Some(OURS)), Ok(()));
        let refused = own.check("c:1", Some(OTHER)).expect_err("another cluster").to_string();
        for part in ["c:1".to_owned(), OURS.to_string(), OTHER.to_string()] {
            assert!(refused.contains(&part), "{part}: {refused}");
        }
        assert_eq!(own.check("a:1", Some(OURS)), Ok(()));
    }
}
