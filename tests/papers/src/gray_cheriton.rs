//! The model of Gray and Cheriton, *Leases: an efficient fault-tolerant mechanism for distributed
//! file cache consistency* (SOSP 1989), section 3.1.
//!
//! Each cache reads and writes as a Poisson process, and a number of caches share each file. The
//! first read after the end of a lease extends it, with a request and a response. A write asks the
//! sharing caches for approval with one multicast, and each but the writer answers.

use leasehold_protocol::advice::{CopyTerm, CycleRates, LeaseCycle};

/// m_prop of the V system: the propagation of a message, in seconds. (From memory.)
pub const PROPAGATION: f64 = 0.000_5;
/// m_proc of the V system: sending or receiving a message, in seconds. (From memory.)
pub const PROCESSING: f64 = 0.001;

/// The load of the model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// N: the number of caches.
    pub clients: f64,
    /// R: reads per second by each cache.
    pub reads: f64,
    /// W: writes per second by each cache.
    pub writes: f64,
    /// S: how many caches share each file.
    pub sharing: f64,
}

impl Load {
    /// The rates of the V system, with these numbers of caches and of sharers of each file.
    pub fn v_system(clients: f64, sharing: f64) -> Self {
        Self { clients, reads: 0.864, writes: 0.040, sharing }
    }

    /// Messages per second that the server sends and receives for consistency. `term` is the term
    /// at the client, in seconds (their t_c). The formula is 2 N R / (1 + R t_c) + N S W, without
    /// approvals if nothing is shared or the term is zero.
    pub fn messages(&self, term: f64) -> f64 {
        self.extensions(term) + if term > 0.0 { self.approvals() } else { 0.0 }
    }

    /// The messages that extend leases, per second.
    pub fn extensions(&self, term: f64) -> f64 {
        2.0 * self.clients * self.reads / (1.0 + self.reads * term)
    }

    /// The approval requests and answers, per second. Only these remain with a term that never
    /// ends.
    pub fn approvals(&self) -> f64 {
        if self.sharing > 1.0 { self.clients * self.sharing * self.writes } else { 0.0 }
    }

    /// The mean delay that consistency adds to a read or a write, in seconds:
    /// (2 R (m_prop + 2 m_proc) / (1 + R t_c) + W t_a) / (R + W). An approval takes
    /// t_a = 2 m_prop + (S + 2) m_proc. With a term of zero, no write needs one.
    pub fn delay(&self, term: f64) -> f64 {
        let Self { reads, writes, sharing, .. } = *self;
        let is_approved = sharing > 1.0 && term > 0.0;
        let approval = if is_approved { 2.0 * PROPAGATION + (sharing + 2.0) * PROCESSING } else { 0.0 };
        let extension = 2.0 * reads * (PROPAGATION + 2.0 * PROCESSING) / (1.0 + reads * term);
        (extension + writes * approval) / (reads + writes)
    }

    /// What Leasehold sends instead, by the rules.
    ///
    /// This is [`LeaseCycle`] for each cache. Data that was recalled is fetched again, which is no
    /// message for consistency in the paper.
    pub fn by_rules(&self, term: CopyTerm) -> ByRules {
        let Self { clients, reads, writes, sharing } = *self;
        let cycle = LeaseCycle { reads, own_writes: writes, other_writes: (sharing - 1.0) * writes };
        let CycleRates { validations, recalls, .. } = cycle.rates(term);
        ByRules {
            validations: 2.0 * clients * validations,
            recalls: 2.0 * clients * recalls,
            validating_reads: validations / reads,
        }
    }
}

/// The messages of Leasehold by its rules, per second, and the share of reads that validate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ByRules {
    /// Reads that validate a copy, and their answers.
    pub validations: f64,
    /// Recalls and consents.
    pub recalls: f64,
    /// The share of reads that validate a copy.
    pub validating_reads: f64,
}

impl ByRules {
    /// All messages for consistency, per second.
    pub fn messages(&self) -> f64 {
        self.validations + self.recalls
    }
}

/// How many seconds a client may count on a lease that the server counts for `term` seconds (their
/// t_c). It subtracts the delay of the answer and the allowance for clocks.
pub fn client_term(term: f64, one_way: f64, allowance: f64) -> f64 {
    (term - one_way - allowance).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The load at a term, in percent of the load at a term of zero, to one decimal place.
    fn percent(sharing: f64, term: f64) -> f64 {
        let load = Load::v_system(20.0, sharing);
        // With a term of zero, a write needs no approvals.
        let share = load.messages(client_term(term, 0.0025, 0.1)) / load.extensions(0.0);
        (share * 1000.0).round() / 10.0
    }

    #[test]
    fn the_figures_of_the_paper_follow() {
        let unshared = [1.0, 2.0, 5.0, 10.0, 30.0].map(|term| percent(1.0, term));
        assert_eq!(unshared, [56.3, 37.9, 19.1, 10.5, 3.7]);
        assert_eq!([10.0, 20.0, 40.0].map(|sharing| percent(sharing, 10.0)), [33.6, 56.8, 103.1]);
        assert_eq!([10.0, 20.0, 40.0].map(|sharing| percent(sharing, f64::INFINITY)), [23.1, 46.3, 92.6]);
        assert_eq!(client_term(0.05, 0.0025, 0.1), 0.0);
    }
}
