//! Nested volumes, removed volumes, and volumes whose borders or settings change (S7, S8).

use super::*;
use crate::message::CoveringLease;

impl Client {
    /// Also with a lease on `/v`, incarnation 2, and a copy of `/v/a` under it.
    fn cache_below(mut self) -> Self {
        let of_volume = |grant| Answer::Read(read_answer("/v", Some(value(10)), grant));
        let effects = self.read(2000, "/v/a");
        let read = self.only(&effects).0;
        let effects = self.answer(read, of_volume(None));
        let acquire = self.only(&effects).0;
        let effects = self.answer(acquire, acquired("/v", 2, 13));
        let read = self.only(&effects).0;
        self.answer(read, of_volume(Some(Grant { volume: path("/v"), incarnation: Incarnation(2), ..grant(14) })));
        assert!(self.may_serve("/v/a"));
        self
    }
}

#[test]
fn removed_volume_drops_only_its_own_copies() {
    let mut client = Client::cached().cache_below();
    assert_eq!(client.holder.volume_of(&path("/v/b")), path("/v"));
    let effects = client.read(6, "/v/b");
    let read = client.only(&effects).0;
    let effects = client.answer(read, answer(Some(value(10)), None));
    assert_eq!(effects[0], HolderEffect::Drop(vec![data("/v/a")]), "the answer named the root as volume");
    assert!(client.may_serve("/a"));
    assert_eq!(client.holder.volume_remaining(&path("/v"), client.now), Duration::ZERO);
    assert_eq!(client.holder.volume_of(&path("/v/b")), NodePath::root());
}

#[test]
fn lease_of_newer_generation_drops_older_copies() {
    let mut client = Client::cached();
    client.now = at(150);
    let effects = client.read(5, "/b");
    let acquire = client.only(&effects).0;
    let promise = Promise { generation: VolumeGeneration(2), ..promise("/", 2) };
    let newer = AcquiredVolume { promise, stamp: stamp(9), revival: Revival::None, read: None };
    let effects = client.answer(acquire, Answer::Acquired(newer));
    assert!(effects.contains(&HolderEffect::Drop(vec![data("/a")])), "{effects:?}");
}

#[test]
fn a_newer_generation_drops_no_copies_of_a_volume_below() {
    let mut client = Client::cached().cache_below();
    let effects = client.read(5, "/b");
    let read = client.only(&effects).0;
    client.renew(read, Promise { generation: VolumeGeneration(2), ..promise("/", 1) });
    assert!(client.may_serve("/v/a") && !client.may_serve("/a"));
}

#[test]
fn holder_report_names_only_valid_copies_of_the_lease() {
    let mut client = Client::cached().cache_below();
    client.now = at(150);
    let effects = client.read(5, "/valid");
    let acquire = client.only(&effects).0;
    let effects = client.answer(acquire, acquired("/", 2, 15));
    let read = client.only(&effects).0;
    let granted = |sequence, span| {
        let span = Duration::from_secs(span);
        answer(Some(value(10)), Some(Grant { incarnation: Incarnation(2), span, ..grant(sequence) }))
    };
    client.answer(read, granted(16, 60));
    let effects = client.read(6, "/short");
    let read = client.only(&effects).0;
    client.answer(read, granted(17, 5));
    client.now = at(155);
    client.step(HolderInput::Disconnected);
    let effects = client.step(HolderInput::Connected);
    let register = client.only(&effects).0;
    let covering = CoveringLease { volume: NodePath::root(), incarnation: Incarnation(2), number: CoveringNumber(5) };
    let effects = client.answer(register, Answer::Registered { coverings: vec![covering] });
    let Body::HolderReport(part) = client.only(&effects).1.body else { panic!("{effects:?}") };
    assert_eq!(
        part.objects,
        [data("/valid")],
        "the report omits /a of an earlier lease, /v/a of another volume, and /short that has expired"
    );
}

impl Client {
    /// The client knows the volume `/v`, which may have been removed. Its lease there has lapsed.
    /// It asks for a new one, the connection breaks, and it asks again. The server refuses. Returns
    /// the effects of that.
    fn request_twice_and_be_refused(&mut self) -> Vec<HolderEffect> {
        self.now = at(109);
        let effects = self.timeout(&["/"]);
        self.renew(keep_alive(&effects).expect("a renewal is due").0, promise("/", 1));
        self.now = at(112);
        assert!(self.may_serve("/a") && !self.may_serve("/v/a"));
        let effects = self.read(5, "/v/b");
        assert!(acquiring(&effects).is_some(), "{effects:?}");
        assert!(!self.may_serve("/a"), "the root's lease may be replaced");
        self.step(HolderInput::Disconnected);
        let effects = self.step(HolderInput::Connected);
        let register = self.only(&effects).0;
        let registered = Ok(Answer::Registered { coverings: vec![] });
        let promises = vec![promise("/", 1)];
        let effects = self
            .respond(register, Response { epoch: EPOCH, promises, lapses: vec![], clocks: None, result: registered });
        let repeated = acquiring(&effects).expect("the lease is requested again");
        let busy = Refusal::Busy { what: "requests to propose".to_owned(), got: 9, most: 8 };
        let effects = self.refuse(repeated, busy);
        let reads = |(_, body): &(SendId, Body)| matches!(body, Body::Read { .. } | Body::AwaitRead { .. });
        assert!(sent(&effects).iter().any(reads), "the read continues without a lease: {effects:?}");
        assert!(!self.may_serve("/a"), "the first request may have replaced the lease, so no leader recalls the copy");
        effects
    }
}

/// A request for a volume lease among the effects.
fn acquiring(effects: &[HolderEffect]) -> Option<SendId> {
    sent(effects).into_iter().find_map(|(send_id, body)| matches!(body, Body::Acquire { .. }).then_some(send_id))
}

#[test]
fn lease_is_not_used_after_a_lost_request_may_replace_it() {
    let mut client = Client::cached().cache_below();
    client.request_twice_and_be_refused();
    client.now = at(120);
    assert_eq!(acquiring(&client.timeout(&[])), None, "the lease is not requested again");
}

#[test]
fn possibly_replaced_lease_with_nodes_is_requested_again() {
    let mut client = Client::cached().cache_below();
    let attach = crate::command::Attach::Session;
    let change = Write::Put { path: path("/n"), value: "v".into(), condition: Condition::Any, attach };
    let effects = client.write(3, change);
    let attached = vec![crate::command::VolumeLease { volume: NodePath::root(), incarnation: Incarnation(1) }];
    let written = crate::command::Written { revision: Revision(30), attached, ..Default::default() };
    let send_id = client.only(&effects).0;
    let (stamp, applied) = (stamp(40), Revision(30));
    client.answer(
        send_id,
        Answer::Written { written, stamp, grant: None, applied, key_lease: None, write_lease_data: None },
    );
    client.request_twice_and_be_refused();
    client.now = at(113);
    let repeated = acquiring(&client.timeout(&[])).expect("the lease is requested again");
    let lost = |effects: &[HolderEffect]| {
        effects.iter().any(|effect| matches!(effect, HolderEffect::AttachedNodesLost { .. }))
    };
    let effects = client.answer(repeated, acquired("/", 1, 50));
    assert!(!lost(&effects) && client.may_serve("/a"), "the server extended the same lease: {effects:?}");
}
