//! Tests of the driver. The test plays the server.

use leasehold_protocol::{
    id::{Epoch, Incarnation, Revision, Stamp, VolumeGeneration},
    lease_policy::LeaseOffer,
    lease_policy::LeaseRequest,
    message::{AcquiredVolume, Answer, Lapse, Promise, ReadAnswer, Revival},
    object::Content,
};

use super::*;

const TERM: Duration = Duration::from_secs(600);

fn path(text: &str) -> NodePath {
    NodePath::parse(text).expect("valid")
}

fn response(answer: Answer) -> Response {
    Response { epoch: Epoch(1), promises: Vec::new(), lapses: Vec::new(), clocks: None, result: Ok(answer) }
}

/// An answer that grants a lease on the volume.
fn acquired(volume: &str, incarnation: u64) -> Answer {
    let promise = Promise {
        volume: path(volume),
        incarnation: Incarnation(incarnation),
        generation: VolumeGeneration::default(),
        span: TERM,
        term: TERM,
        revision: Revision::default(),
    };
    let stamp = Stamp { epoch: Epoch(1), sequence: incarnation };
    Answer::Acquired(AcquiredVolume { promise, stamp, revival: Revival::None, read: None })
}

fn sent(orders: &mut mpsc::UnboundedReceiver<ConnectionOrder>) -> (SendId, Body) {
    match orders.try_recv().expect("something is sent") {
        ConnectionOrder::Send(send_id, request) => (send_id, request.body),
        ConnectionOrder::Leave(leader) => panic!("it leaves for {leader:?}"),
    }
}

#[test]
fn unleased_inner_volume_gets_no_remaining_from_outer_lease() {
    let driver = Driver::new(Options::new(["nobody:1"]), 0);
    let mut orders = driver.connected();
    let (open, _) = sent(&mut orders);
    driver.answered(open, response(Answer::Opened { session: SessionId(1), term: TERM }));
    let (register, _) = sent(&mut orders);
    driver.answered(register, response(Answer::Registered { coverings: Vec::new() }));
    let mut reads = Vec::new();
    for (object, volume, incarnation) in [("/v/a", "/v", 1), ("/a", "/", 2)] {
        let (_read, _answer) = driver.read(Object::data(path(object)), LeaseRequest::Implicit);
        let (acquire, body) = sent(&mut orders);
        assert!(matches!(body, Body::Acquire { .. }), "{body:?}");
        driver.answered(acquire, response(acquired(volume, incarnation)));
        reads.push(sent(&mut orders).0);
    }
    assert!(
        driver.volume_remaining(&path("/v/b")) > Duration::ZERO
            && driver.volume_remaining(&path("/b")) > Duration::ZERO
    );

    let lapse = Lapse { volume: path("/v"), incarnation: Incarnation(1) };
    let content = Some(Content::Data(None));
    let read = ReadAnswer {
        content,
        grant: None,
        volume: path("/"),
        applied: Revision::default(),
        offer: LeaseOffer::Everybody,
    };
    driver.answered(reads[1], Response { lapses: vec![lapse], ..response(Answer::Read(read)) });
    assert_eq!(driver.volume_remaining(&path("/v/b")), Duration::ZERO, "it is in a volume of which no lease is held");
    assert!(driver.volume_remaining(&path("/b")) > Duration::ZERO);
}
