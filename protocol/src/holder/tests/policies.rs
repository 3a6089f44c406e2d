//! Volumes whose policy grants leases only to some reads, or to none.

use super::{super::known_volume::AttachedNode, *};

impl Client {
    fn read_with(&mut self, read: u64, text: &str, lease: LeaseRequest) -> Vec<HolderEffect> {
        self.step(HolderInput::Read { read: ReadId(read), object: data(text), lease })
    }

    /// Has learned this offer of the root volume, on which it has a lease.
    fn offered(offer: LeaseOffer) -> Self {
        let mut client = Self::leased();
        let effects = client.read(2, "/first");
        let read = client.only(&effects).0;
        client.answer_renewing(read, unleased(offer));
        client
    }
}

/// An answer without a lease.
fn unleased(offer: LeaseOffer) -> Answer {
    Answer::Read(ReadAnswer {
        content: Some(value(9)),
        grant: None,
        volume: NodePath::root(),
        offer,
        applied: Revision(20),
    })
}

/// A lease on the volume would be of no use.
#[test]
fn reads_without_object_leases_acquire_and_renew_nothing() {
    let mut client = Client::offered(LeaseOffer::Nobody);
    client.now = at(150);
    let effects = client.timeout(&[]);
    let renewed = keep_alive(&effects).map(|(_, renew)| renew);
    assert_eq!(renewed.unwrap_or_default(), [], "the volume is not in use");
    let effects = client.read(3, "/a");
    let (read, request) = client.only(&effects);
    assert!(matches!(request.body, Body::Read { .. }) && request.header.renew.is_empty(), "{request:?}");
    let effects = client.answer(read, unleased(LeaseOffer::Nobody));
    assert_eq!(effects, [served(&[3], "/a", value(9), None)], "one request, and no copy");
    assert!(!client.may_serve("/a"));
}

/// Each answer says what the volume offers, so a reader learns that its policy has changed.
#[test]
fn reader_acquires_a_lease_once_the_volume_grants_them() {
    let mut client = Client::offered(LeaseOffer::Nobody);
    client.now = at(150);
    let effects = client.read(3, "/a");
    let read = client.only(&effects).0;
    let effects = client.answer(read, unleased(LeaseOffer::Everybody));
    let (acquire, request) = client.only(&effects);
    assert!(matches!(request.body, Body::Acquire { .. }), "{request:?}");
    let effects = client.answer(acquire, acquired("/", 2, 5));
    let read = client.only(&effects).0;
    let lease = Grant { incarnation: Incarnation(2), ..grant(6) };
    client.answer(read, answer(Some(value(10)), Some(lease)));
    assert!(client.may_serve("/a"));
}

#[test]
fn only_explicit_reads_acquire_a_lease_if_it_is_on_request() {
    let mut client = Client::offered(LeaseOffer::OnRequest);
    client.now = at(150);
    let effects = client.read(3, "/a");
    let (read, request) = client.only(&effects);
    assert!(matches!(request.body, Body::Read { lease: LeaseRequest::Implicit, .. }), "{request:?}");
    client.answer(read, unleased(LeaseOffer::OnRequest));
    let effects = client.read_with(4, "/a", LeaseRequest::Explicit);
    assert!(matches!(client.only(&effects).1.body, Body::Acquire { .. }), "{effects:?}");
}

/// Reads that share a request ask for the most that any of them wants.
#[test]
fn shared_fetch_asks_for_what_the_most_demanding_read_wants() {
    let mut client = Client::registered();
    let effects = client.read(1, "/a");
    let acquire = client.only(&effects).0;
    assert_eq!(client.read_with(2, "/a", LeaseRequest::Explicit), []);
    assert_eq!(client.read_with(3, "/a", LeaseRequest::Unwanted), []);
    let effects = client.answer(acquire, acquired("/", 1, 1));
    let (read, request) = client.only(&effects);
    assert!(matches!(request.body, Body::Read { lease: LeaseRequest::Explicit, .. }), "{request:?}");
    let effects = client.answer(read, answer(Some(value(10)), Some(grant(2))));
    assert!(matches!(&effects[..], [.., HolderEffect::Serve { reads, .. }] if reads.len() == 3), "{effects:?}");
}

impl Client {
    /// Renews its leases in this way. Has a lease on the root from 100 s to 110 s, and a copy.
    fn renewing(renewal: RenewalMode) -> Self {
        let mut client = Self::with(|config| config.renewal = renewal).connect();
        client.holder.settle_clocks();
        client.lease().cache("/a", 2)
    }

    /// The messages that only renew, until a lease that is in use has ended.
    fn heartbeats(&mut self) -> usize {
        let mut count = 0;
        while let Some(next) = self.holder.next_deadline().filter(|next| *next < at(112)) {
            assert!(next > self.now, "{next} is not after {}", self.now);
            self.now = next;
            let effects = self.timeout(&["/"]);
            if let Some((heartbeat, renewed)) = keep_alive(&effects) {
                assert_eq!(renewed, [root(1)]);
                count += 1;
                self.answer_renewing(heartbeat, Answer::Heartbeat(Default::default()));
            }
        }
        self.now = at(112);
        count
    }

    /// The leases that a read of another object renews when half of the term has passed.
    fn renewals_of_a_read(&mut self) -> Vec<Renew> {
        self.now = at(105);
        let effects = self.read(3, "/b");
        self.only(&effects).1.header.renew
    }
}

#[test]
fn renewal_mode_decides_which_requests_renew() {
    use RenewalMode::{Ahead, Never, OnDemand};
    for (mode, by_themselves, by_reads) in [(Ahead, true, true), (OnDemand, false, true), (Never, false, false)] {
        let mut client = Client::renewing(mode);
        assert_eq!(client.heartbeats() > 0, by_themselves, "{mode:?}");
        assert_eq!(client.may_serve("/a"), by_themselves, "{mode:?}: the lease holds");
        let renewals = Client::renewing(mode).renewals_of_a_read();
        assert_eq!(renewals, if by_reads { vec![root(1)] } else { vec![] }, "{mode:?}");
    }
}

/// Also if an unanswered request asked for a renewal.
#[test]
fn lease_that_ends_by_the_renewal_mode_is_no_jeopardy() {
    let mut client = Client::renewing(RenewalMode::OnDemand);
    client.now = at(105);
    client.read(3, "/b");
    client.now = at(111);
    let reported = client.timeout(&["/"]);
    let is_report = |effect: &HolderEffect| matches!(effect, HolderEffect::Connection(SessionNews::Jeopardy { .. }));
    assert!(!reported.iter().any(is_report), "{reported:?}");
}

#[test]
fn nodes_and_locks_are_renewed_ahead_in_each_mode() {
    for mode in [RenewalMode::OnDemand, RenewalMode::Never] {
        let mut client = Client::renewing(mode);
        let node = AttachedNode { incarnation: Incarnation(1), revision: Revision(10) };
        client.holder.volumes.learn(&NodePath::root()).attached.insert(path("/node"), node);
        assert!(client.heartbeats() > 0, "{mode:?}");
    }
}

/// Each read is cancelled before its answer comes. The reads carry the renewals, so that no
/// heartbeat is due.
#[test]
fn application_that_cancels_all_its_reads_keeps_its_leases() {
    for mode in [RenewalMode::Ahead, RenewalMode::OnDemand, RenewalMode::Never] {
        let mut client = Client::renewing(mode);
        let node = AttachedNode { incarnation: Incarnation(1), revision: Revision(10) };
        client.holder.volumes.learn(&NodePath::root()).attached.insert(path("/node"), node);
        let mut renewing = 0;
        for number in 10..1_000 {
            let mut asked = requests(&client.read(number, "/b"));
            client.now = client.now.after(Duration::from_millis(50));
            asked.extend(requests(&client.timeout(&[])));
            asked.extend(requests(&client.step(HolderInput::CancelRead(ReadId(number)))));
            client.now = client.now.after(Duration::from_millis(10));
            for (send_id, request) in asked {
                let answered = match &request.body {
                    Body::Heartbeat(_) => Answer::ReportReceived,
                    _ => answer(Some(value(9)), None),
                };
                if request.header.renew.is_empty() {
                    client.answer(send_id, answered);
                } else {
                    renewing += 1;
                    client.answer_renewing(send_id, answered);
                }
            }
            client.now = client.now.after(Duration::from_millis(40));
            assert!(client.holder.volume_remaining(&NodePath::root(), client.now) > Duration::ZERO, "{mode:?}");
        }
        assert!(renewing > 0, "{mode:?}");
    }
}

/// The lease may have been extended meanwhile, with the node. So the holder first asks for it.
#[test]
fn lease_that_may_get_a_node_is_renewed_in_each_mode() {
    for mode in [RenewalMode::OnDemand, RenewalMode::Never] {
        let mut client = Client::renewing(mode);
        let attach = Write::Put {
            path: path("/s"),
            value: "v".into(),
            attach: crate::command::Attach::Session,
            condition: Condition::Any,
        };
        client.write(1, attach);
        client.now = at(111);
        let effects = client.read(4, "/b");
        assert_eq!(keep_alive(&effects).map(|(_, renewed)| renewed), Some(vec![root(1)]), "{mode:?}: {effects:?}");
    }
}

#[test]
fn heartbeats_renew_only_leases_that_are_renewed_ahead() {
    for (mode, expected) in [(RenewalMode::Ahead, vec![root(1)]), (RenewalMode::OnDemand, vec![])] {
        let mut client = Client::renewing(mode);
        client.now = at(107);
        client.timeout(&["/"]);
        client.holder.send_heartbeat(client.now);
        let effects = std::mem::take(&mut client.holder.effects);
        assert_eq!(keep_alive(&effects).map(|(_, renewed)| renewed), Some(expected), "{mode:?}");
    }
}

/// One volume lease is for all copies, so one heartbeat renews them all.
#[test]
fn renewals_do_not_grow_with_the_copies() {
    let heartbeats = |copies: u64| {
        let client = Client::renewing(RenewalMode::Ahead);
        (0..copies).fold(client, |client, copy| client.cache(&format!("/installed/{copy}"), 10 + copy)).heartbeats()
    };
    assert!(heartbeats(1) > 0);
    assert_eq!(heartbeats(1), heartbeats(1000));
}
