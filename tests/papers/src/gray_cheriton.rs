//! The model of Gray and Cheriton, *Leases: an efficient fault-tolerant mechanism for distributed
//! file cache consistency* (SOSP 1989), section 3.1.
//!
//! Each cache reads and writes as a Poisson process; a file is shared by so many caches. A lease is
//! extended by the first read after it has ended, which takes a request and a response. A write
//! asks the sharing caches for approval with one multicast, and each but the writer answers.

/// The load that the model is asked about.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// N: caches.
    pub clients: f64,
    /// R: reads a second by each of them.
    pub reads: f64,
    /// W: writes a second by each of them.
    pub writes: f64,
    /// S: caches that share each file.
    pub sharing: f64,
}

impl Load {
    /// The V system, with so many caches of which so many share each file.
    pub fn v_system(clients: f64, sharing: f64) -> Self {
        Self { clients, reads: 0.864, writes: 0.040, sharing }
    }

    /// Messages a second that the server handles for consistency, sent and received, with a term of
    /// `term` seconds at the client (their t_c): 2 N R / (1 + R t_c) + N S W, and no approvals if
    /// nothing is shared.
    pub fn messages(&self, term: f64) -> f64 {
        self.extensions(term) + self.approvals()
    }

    /// Those that extend leases.
    pub fn extensions(&self, term: f64) -> f64 {
        2.0 * self.clients * self.reads / (1.0 + self.reads * term)
    }

    /// Those that ask for approval, and give it: what is left with a term that never ends.
    pub fn approvals(&self) -> f64 {
        if self.sharing > 1.0 { self.clients * self.sharing * self.writes } else { 0.0 }
    }
}

/// How long a client may count on a lease that the server counts for `term` seconds, from when it
/// comes: the time that the answer takes and the allowance for clocks are off (their t_c).
pub fn client_term(term: f64, one_way: f64, allowance: f64) -> f64 {
    (term - one_way - allowance).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The load at a term, in percent of that at a term of zero, to one digit.
    fn percent(sharing: f64, term: f64) -> f64 {
        let load = Load::v_system(20.0, sharing);
        // With a term of zero nobody is asked for approval.
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
