//! Volumes whose policy grants leases only to some reads, or to none.

use super::*;

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
