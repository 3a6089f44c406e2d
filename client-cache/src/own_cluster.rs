//! Which cluster this client belongs to, and which servers it ignores because they are of another.
//!
//! The endpoints may belong to two clusters. Suppose that a replica's folder is emptied, and that
//! the replica is started once with only itself in its list. Then it bootstraps a cluster of its
//! own, at an address that clients know. Its answers are wrong for clients of the old cluster.
//!
//! Servers name their cluster in the handshake. When the first server names one, the client asks
//! the other endpoints for theirs. It joins the cluster that is named most often, for its whole
//! life. If there is a tie that includes the first server's cluster, it joins that one. It ignores
//! servers of other clusters, and logs each of them once.

use std::collections::BTreeMap;

use leasehold_wire::ClusterId;

use crate::error::Unavailable;

/// The cluster that this client belongs to, once a server has named one.
#[derive(Debug, Default)]
pub(crate) struct OwnCluster {
    id: Option<ClusterId>,
    /// The servers of other clusters that have been logged.
    warned: BTreeMap<String, ClusterId>,
}

impl OwnCluster {
    /// Whether no server has named a cluster yet.
    pub(crate) fn is_open(&self) -> bool {
        self.id.is_none()
    }

    /// Chooses the cluster that most servers name, when `first` and the `others` have named theirs.
    pub(crate) fn decide(&mut self, first: ClusterId, others: &[(String, ClusterId)]) {
        let mut counts = BTreeMap::from([(first, 1)]);
        for (_, named) in others {
            *counts.entry(*named).or_insert(0_usize) += 1;
        }
        let rank = |(named, count): &(ClusterId, usize)| (*count, *named == first);
        self.id = counts.into_iter().max_by_key(rank).map(|(named, _)| named);
        for (endpoint, named) in others {
            // Only for the log.
            let _ = self.check(endpoint, Some(*named));
        }
    }

    /// Compares a server's cluster with this client's. `named` is `None` if the server has no
    /// cluster yet.
    ///
    /// # Errors
    ///
    /// Why the client must not use that server.
    pub(crate) fn check(&mut self, endpoint: &str, named: Option<ClusterId>) -> Result<(), Unavailable> {
        let Some(got) = named else {
            return Err(Unavailable::NoLeader { reason: format!("{endpoint}: not a member of a cluster yet") });
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
                "this server belongs to another cluster than this client: it is passed over; correct the endpoints \
                 of this client, or the server at that address"
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
    fn cluster_that_most_endpoints_name_decides() {
        let named = |list: &[(&str, ClusterId)]| -> Vec<(String, ClusterId)> {
            list.iter().map(|(endpoint, named)| ((*endpoint).to_owned(), *named)).collect()
        };
        for (others, decided) in [
            (named(&[("b:1", OURS), ("c:1", OURS)]), OURS),
            (named(&[("b:1", OURS)]), OTHER),
            (named(&[("b:1", OURS), ("c:1", OTHER)]), OTHER),
            (named(&[]), OTHER),
        ] {
            let mut own = OwnCluster::default();
            assert!(own.is_open());
            own.decide(OTHER, &others);
            assert!(!own.is_open());
            assert_eq!(own.check("d:1", Some(decided)), Ok(()), "{others:?}");
        }
    }

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
