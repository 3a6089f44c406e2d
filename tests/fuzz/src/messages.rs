//! Everything that postcard encodes: messages of clients, servers and replicas, and log entries.
//!
//! If bytes decode, the value encodes, and its encoding decodes to the same value and the same
//! bytes. The first bytes may differ from those, because a number can be written longer than
//! needed. Drawn values survive the same round trip.

use std::time::Duration;

use bytes::BytesMut;
use leasehold_protocol::{
    command::{Command, Outcome, Proposal, Write},
    id::{Epoch, Revision, SessionId},
    message::{
        Answer, Consent, DelayNotice, DelayReason, Push, PushRequest, Recall, RecallReply, Refusal, Request, Response,
    },
    object::{Content, ObjectSet},
    volume::VolumeSettings,
};
use leasehold_server::{
    raft::{
        peer::{Admitted, Bootstrap, MembershipRefusal, PeerRefusal, PeerReport, PeerRequest, PeerResponse},
        types::Logged,
    },
    store::snapshot::SnapshotHeader,
};
use leasehold_wire::{
    codec::{Decode, Encode},
    frame::FRAME_MAX_BYTES,
    service::{CallbackRequest, CallbackResponse, LeaseholdRequest, LeaseholdResponse},
};
use serde::{Serialize, de::DeserializeOwned};
use tarpc::ClientMessage;

use super::draw::Draw;

const KINDS: u64 = 32;

/// Decodes the bytes as a message of the kind that the first byte names, or draws one from them.
pub fn run(data: &[u8]) {
    let mut draw = Draw::new(data);
    match draw.below(KINDS) {
        0 => plain::<Request>(draw.rest()),
        1 => plain::<Response>(draw.rest()),
        2 => plain::<Answer>(draw.rest()),
        3 => plain::<Refusal>(draw.rest()),
        4 => plain::<Recall>(draw.rest()),
        5 => plain::<RecallReply>(draw.rest()),
        6 => plain::<Content>(draw.rest()),
        7 => plain::<ObjectSet>(draw.rest()),
        8 => plain::<Proposal>(draw.rest()),
        9 => plain::<Command>(draw.rest()),
        10 => plain::<Write>(draw.rest()),
        11 => plain::<Outcome>(draw.rest()),
        12 => plain::<VolumeSettings>(draw.rest()),
        13 => plain::<Logged>(draw.rest()),
        14 => plain::<SnapshotHeader>(draw.rest()),
        15 => plain::<Bootstrap>(draw.rest()),
        16 => plain::<PeerReport>(draw.rest()),
        17 => plain::<PeerRefusal>(draw.rest()),
        18 => plain::<Result<Admitted, MembershipRefusal>>(draw.rest()),
        19 => framed::<ClientMessage<LeaseholdRequest>>(draw.rest()),
        20 => framed::<tarpc::Response<LeaseholdResponse>>(draw.rest()),
        21 => framed::<ClientMessage<CallbackRequest>>(draw.rest()),
        22 => framed::<tarpc::Response<CallbackResponse>>(draw.rest()),
        23 => framed::<ClientMessage<PeerRequest>>(draw.rest()),
        24 => framed::<tarpc::Response<PeerResponse>>(draw.rest()),
        25 => come_back(&draw.request(SessionId(1), Epoch(1), 1, Revision(1))),
        26 => come_back(&draw.recall(SessionId(1), Epoch(1))),
        27 => {
            let Consent { session, stamp } = draw.consent(Epoch(1));
            let at_most = Duration::from_micros(stamp.sequence);
            for reason in [DelayReason::InUse { at_most }, DelayReason::Flushing] {
                come_back(&RecallReply::Delayed(DelayNotice { session, stamp, reason }));
            }
            let request = draw.request(session, Epoch(1), 1, Revision(1));
            let push_requests = PushRequest::from_request(stamp.sequence, request).into_iter().collect();
            come_back(&RecallReply::Consented { consent: Consent { session, stamp }, push_requests });
            let result = Err(Refusal::Retry);
            let (promises, lapses) = (Vec::new(), Vec::new());
            let response = Response { epoch: Epoch(1), promises, lapses, clocks: None, result };
            come_back(&Push { send_id: stamp.sequence, response });
        }
        28 => come_back(&draw.settings()),
        29 => come_back(&draw.write(Revision(1))),
        30 => come_back(&draw.set()),
        _ => logged(draw.proposal(Epoch(1), Revision(1))),
    }
}

fn encoded(value: &impl Serialize) -> Vec<u8> {
    postcard::to_allocvec(value).expect("plain data encodes")
}

fn plain<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    match postcard::take_from_bytes::<T>(bytes) {
        Ok((value, _)) => come_back(&value),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn come_back<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T) {
    let bytes = encoded(value);
    let (back, rest) = postcard::take_from_bytes::<T>(&bytes).expect("what was encoded decodes");
    assert_eq!((&back, rest), (value, &[][..]));
    assert_eq!(encoded(&back), bytes);
}

/// [`plain`] for messages in frames. These types cannot be compared, and a deadline is encoded as
/// the time left. So this checks that the encoding decodes, and that it needs exactly its bytes.
fn framed<T: Decode + Encode>(bytes: &[u8]) {
    let Ok(value) = T::decode(bytes) else { return };
    let mut out = BytesMut::new();
    value.encode(&mut out, FRAME_MAX_BYTES).expect("what was decoded encodes");
    assert!(T::decode(&out).is_ok(), "what was encoded decodes");
    assert!(T::decode(&out[..out.len() - 1]).is_err(), "all of it is needed");
    out.extend_from_slice(&[0]);
    assert!(T::decode(&out).is_err(), "and nothing more");
}

fn logged(proposal: Proposal) {
    come_back(&proposal);
    let logged = Logged::new(proposal.clone()).expect("plain data encodes");
    assert_eq!(logged.proposal(), &proposal);
    assert_eq!(logged.encoded_bytes(), encoded(&proposal).len());
    come_back(&logged);
}
