//! The two services over one connection: calls in both directions, and calls when the connection
//! ends.

use std::time::{Duration, Instant};

use futures::{StreamExt, future::join_all};
use leasehold_protocol::{
    id::{Epoch, Sequence, SessionId, Stamp},
    message::{Answer, Body, Consent, RequestHeader},
};
use tarpc::{
    client::RpcError,
    context::Context,
    server::{BaseChannel, Channel},
    trace,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::*;
use crate::{ConnectionError, Role, accept, codec::Decode, connect, frame::FRAME_MAX_BYTES};

/// A TCP connection after its handshake: the client's end and the server's.
async fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = async { accept(listener.accept().await.unwrap().0, None).await.unwrap().stream };
    let client = async { connect(&address, Role::Client, Duration::from_secs(5)).await.unwrap().stream };
    futures::join!(client, server)
}

/// Answers each request with its sequence as the epoch. The answer to an `Open` has four times as
/// many bytes as the name.
#[derive(Clone)]
struct TestServer {
    /// Gets a recall before each answer.
    callback: Option<CallbackClient>,
}

impl Leasehold for TestServer {
    async fn call(self, _: Context, request: Request) -> Response {
        if let Some(callback) = self.callback {
            let sequence = request.header.sequence.0;
            assert_eq!(callback.recall(context(), recall(sequence)).await.unwrap(), consented(sequence));
        }
        let answer = match request.body {
            Body::Open { name } => Answer::PendingWrites(vec![wait(name)]),
            _ => Answer::ReportReceived,
        };
        response(request.header.sequence.0, answer)
    }
}

#[derive(Clone)]
struct TestClient;

impl Callback for TestClient {
    async fn recall(self, _: Context, recall: Recall) -> RecallReply {
        let consent = Consent { session: recall.session, stamp: recall.stamp };
        RecallReply::Consented { consent, push_requests: Vec::new() }
    }

    async fn push(self, _: Context, push: Push) {
        panic!("nobody asked for {push:?}");
    }
}

fn wait(writer_name: String) -> leasehold_protocol::message::PendingWriteInfo {
    leasehold_protocol::message::PendingWriteInfo {
        path: leasehold_protocol::path::NodePath::root(),
        writer: SessionId(1),
        holder_name: writer_name.repeat(3),
        writer_name,
        holder: None,
        since: Duration::ZERO,
        at_most: Duration::ZERO,
        covering: None,
        delay: None,
    }
}

fn response(epoch: u64, answer: Answer) -> Response {
    Response { epoch: Epoch(epoch), promises: Vec::new(), lapses: Vec::new(), clocks: None, result: Ok(answer) }
}

fn context() -> Context {
    let mut context = tarpc::context::current();
    // Long enough for a slow machine.
    context.deadline = Instant::now() + Duration::from_secs(60);
    context
}

fn request(sequence: u64, body: Body) -> Request {
    Request { header: RequestHeader { sequence: Sequence(sequence), ..RequestHeader::default() }, body }
}

fn recall(sequence: u64) -> Recall {
    Recall {
        session: SessionId(1),
        stamp: Stamp { epoch: Epoch(1), sequence },
        number: sequence,
        sets: Vec::new(),
        offers_next_values: false,
    }
}

/// What [`TestClient`] replies to that recall.
fn consented(sequence: u64) -> RecallReply {
    let consent = Consent { session: SessionId(1), stamp: Stamp { epoch: Epoch(1), sequence } };
    RecallReply::Consented { consent, push_requests: Vec::new() }
}

async fn serve(transport: LeaseholdTransport, server: TestServer) {
    let requests = BaseChannel::with_defaults(transport).execute(server.serve());
    requests.for_each(|request| async { drop(tokio::spawn(request)) }).await;
}

async fn consent(transport: CallbackTransport) {
    let recalls = BaseChannel::with_defaults(transport).execute(TestClient.serve());
    recalls.for_each(|recall| recall).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_calls_go_both_ways_at_once() {
    let (client, server) = connection().await;
    let (requests, callback, task) = server_connection(server);
    let (leasehold, recalls, client_task) = client_connection(client);
    tokio::spawn(task);
    tokio::spawn(client_task);
    tokio::spawn(serve(requests, TestServer { callback: None }));
    tokio::spawn(consent(recalls));
    let calls = (0..5000).map(|sequence| {
        let leasehold = leasehold.clone();
        tokio::spawn(
            async move { leasehold.call(context(), request(sequence, Body::Heartbeat(Default::default()))).await },
        )
    });
    let recalls = (0..5000).map(|sequence| {
        let callback = callback.clone();
        tokio::spawn(async move { callback.recall(context(), recall(sequence)).await })
    });
    let (calls, recalls) = futures::join!(join_all(calls), join_all(recalls));
    for (sequence, (call, recall)) in calls.into_iter().zip(recalls).enumerate() {
        assert_eq!(call.unwrap().unwrap(), response(sequence as u64, Answer::ReportReceived));
        assert_eq!(recall.unwrap().unwrap(), consented(sequence as u64));
    }
}

#[tokio::test]
async fn a_request_can_wait_for_a_consent_on_its_own_connection() {
    let (client, server) = connection().await;
    let (requests, callback, task) = server_connection(server);
    let (leasehold, recalls, client_task) = client_connection(client);
    tokio::spawn(task);
    tokio::spawn(client_task);
    tokio::spawn(serve(requests, TestServer { callback: Some(callback) }));
    tokio::spawn(consent(recalls));
    for sequence in 1..100 {
        let answer = leasehold.call(context(), request(sequence, Body::Heartbeat(Default::default()))).await.unwrap();
        assert_eq!(answer.epoch, Epoch(sequence));
    }
}

#[tokio::test]
async fn requests_that_nobody_takes_delay_no_recall() {
    let (client, server) = connection().await;
    let (requests, callback, task) = server_connection(server);
    let (leasehold, recalls, client_task) = client_connection(client);
    tokio::spawn(task);
    tokio::spawn(client_task);
    tokio::spawn(consent(recalls));
    // 16 MiB of requests, far more than the window.
    let calls: Vec<_> = (0..256)
        .map(|sequence| {
            let leasehold = leasehold.clone();
            let body = Body::Open { name: "x".repeat(1 << 16) };
            tokio::spawn(async move { leasehold.call(context(), request(sequence, body)).await.unwrap() })
        })
        .collect();
    for sequence in 0..100 {
        assert_eq!(callback.recall(context(), recall(sequence)).await.unwrap(), consented(sequence));
    }
    assert!(calls.iter().all(|call| !call.is_finished()));
    tokio::spawn(serve(requests, TestServer { callback: None }));
    for (sequence, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.unwrap().epoch, Epoch(sequence as u64));
    }
}

#[tokio::test]
async fn a_message_that_does_not_fit_fails_by_itself() {
    let (client, server) = connection().await;
    let (requests, _callback, task) = server_connection(server);
    let (leasehold, _recalls, client_task) = client_connection(client);
    tokio::spawn(task);
    tokio::spawn(client_task);
    tokio::spawn(serve(requests, TestServer { callback: None }));
    let body = Body::Open { name: "x".repeat(FRAME_MAX_BYTES) };
    let error = leasehold.call(context(), request(1, body)).await.unwrap_err();
    assert!(matches!(error, RpcError::Send(_)), "{error}");
    // The request fits into a frame, and its answer does not.
    let body = Body::Open { name: "x".repeat(FRAME_MAX_BYTES / 2) };
    let error = leasehold.call(context(), request(2, body)).await.unwrap_err();
    assert!(matches!(&error, RpcError::Server(error) if error.detail.contains("exceeds the limit of")), "{error}");
    leasehold.call(context(), request(3, Body::Heartbeat(Default::default()))).await.unwrap();
}

#[tokio::test]
async fn a_bad_connection_ends_and_the_server_goes_on() {
    let (mut bad, server) = connection().await;
    let (_requests, callback, task) = server_connection(server);
    let task = tokio::spawn(task);
    bad.write_all(&[0xff; 4]).await.unwrap();
    let end = task.await.unwrap();
    assert!(matches!(end, Err(ConnectionError::Oversized { got: 0xffff_ffff, expected: FRAME_MAX_BYTES })));
    let error = callback.recall(context(), recall(1)).await.unwrap_err();
    assert!(matches!(error, RpcError::Shutdown), "{error}");
    assert_eq!(bad.read(&mut [0; 1]).await.unwrap(), 0);

    let (client, server) = connection().await;
    let (requests, _callback, task) = server_connection(server);
    let (leasehold, _recalls, client_task) = client_connection(client);
    tokio::spawn(task);
    tokio::spawn(client_task);
    tokio::spawn(serve(requests, TestServer { callback: None }));
    leasehold.call(context(), request(1, Body::Heartbeat(Default::default()))).await.unwrap();
}

/// A frame of the requests channel: a request with this sequence, and these bytes as its deadline.
fn request_frame(sequence: u64, deadline: &[u8]) -> Vec<u8> {
    let message = LeaseholdRequest::Call { request: request(sequence, Body::Heartbeat(Default::default())) };
    let message = postcard::to_stdvec(&message).unwrap();
    // A request (0), its id, the deadline, and no trace: no number, no span, not sampled.
    let id = postcard::to_stdvec(&sequence).unwrap();
    frame(&[&[0], &id[..], deadline, &[0, 0, 0], &message[..]].concat())
}

fn frame(call: &[u8]) -> Vec<u8> {
    let length = u32::try_from(call.len() + 1).unwrap().to_be_bytes();
    [&length[..], &[crate::mux::REQUESTS], call].concat()
}

/// Reads from the client's end of a connection until the answer to this request arrives.
async fn answer_to(client: &mut TcpStream, sequence: u64) -> Response {
    loop {
        let length = client.read_u32().await.unwrap() as usize;
        let mut bytes = vec![0; length];
        client.read_exact(&mut bytes).await.unwrap();
        if bytes[0] != crate::mux::REQUESTS {
            continue;
        }
        let answer = tarpc::Response::<LeaseholdResponse>::decode(&bytes[1..]).unwrap();
        if answer.request_id == sequence {
            let LeaseholdResponse::Call(answer) = answer.message.unwrap();
            return answer;
        }
    }
}

/// tarpc's timer panics at a deadline of more than two years. The codec cuts each to an hour.
#[tokio::test]
async fn request_with_any_deadline_on_the_wire_harms_nobody() {
    const FOUR_YEARS_US: u64 = 4 * 365 * 24 * 3600 * 1_000_000;
    let (mut client, server) = connection().await;
    let (requests, _callback, task) = server_connection(server);
    tokio::spawn(task);
    tokio::spawn(serve(requests, TestServer { callback: None }));
    let hour_us = crate::codec::DEADLINE_MAX.as_micros() as u64;
    for (sequence, us) in (1..).zip([u64::MAX, u64::MAX / 2 + 1, FOUR_YEARS_US, hour_us + 1, hour_us]) {
        let deadline = postcard::to_stdvec(&us).unwrap();
        client.write_all(&request_frame(sequence, &deadline)).await.unwrap();
        assert_eq!(answer_to(&mut client, sequence).await.epoch, Epoch(sequence), "{us} µs");
    }
    // These have expired when they arrive. They may get no answer. The next request must get one.
    for sequence in 10..20 {
        client.write_all(&request_frame(sequence, &[0])).await.unwrap();
    }
    let minute = postcard::to_stdvec(&60_000_000_u64).unwrap();
    client.write_all(&request_frame(20, &minute)).await.unwrap();
    assert_eq!(answer_to(&mut client, 20).await.epoch, Epoch(20));
}

#[tokio::test]
async fn deadline_that_is_no_number_ends_its_connection_alone() {
    let (other, server) = connection().await;
    let (requests, _callback, task) = server_connection(server);
    let (leasehold, _recalls, other_task) = client_connection(other);
    tokio::spawn(task);
    tokio::spawn(other_task);
    tokio::spawn(serve(requests, TestServer { callback: None }));

    // In tarpc's own order: deadline (seconds, nanoseconds), trace, id, message.
    let longest = postcard::to_stdvec(&(u64::MAX, 999_999_999_u32)).unwrap();
    let request = LeaseholdRequest::Call { request: request(1, Body::Heartbeat(Default::default())) };
    let rest = postcard::to_stdvec(&(trace::Context::default(), 1_u64, request)).unwrap();
    let as_tarpc = frame(&[&[0], &longest[..], &rest[..]].concat());
    // 2^64 microseconds, and a number without an end.
    let too_large = request_frame(1, &[&[0x80; 9][..], &[2]].concat());
    let endless = request_frame(1, &[0xff; 11]);
    for (sequence, frame) in (1..).zip([as_tarpc, too_large, endless]) {
        let (mut client, server) = connection().await;
        let (requests, _callback, task) = server_connection(server);
        let serving = tokio::spawn(serve(requests, TestServer { callback: None }));
        let task = tokio::spawn(task);
        client.write_all(&frame).await.unwrap();
        let end = task.await.unwrap();
        let is_refused = matches!(&end, Err(error @ ConnectionError::Codec(_)) if error.is_violation());
        assert!(is_refused, "{frame:02x?}: {end:?}");
        serving.await.unwrap();
        let answer = leasehold.call(context(), self::request(sequence, Body::Heartbeat(Default::default()))).await;
        assert_eq!(answer.unwrap().epoch, Epoch(sequence));
    }
}

#[tokio::test]
async fn calls_under_way_fail_when_the_other_side_goes() {
    let (client, server) = connection().await;
    let (leasehold, _recalls, task) = client_connection(client);
    let task = tokio::spawn(task);
    let (requests, callback, server_task) = server_connection(server);
    let server_task = tokio::spawn(server_task);
    let mut requests = BaseChannel::with_defaults(requests).requests();
    let call = leasehold.call(context(), request(1, Body::Heartbeat(Default::default())));
    let kill = async {
        // The request has arrived, and nobody will answer it.
        let taken = requests.next().await.unwrap().unwrap();
        server_task.abort();
        taken
    };
    let (outcome, _taken) = futures::join!(call, kill);
    assert!(matches!(outcome, Err(RpcError::Shutdown)), "{outcome:?}");
    task.await.unwrap().unwrap();
    assert!(leasehold.call(context(), request(2, Body::Heartbeat(Default::default()))).await.is_err());
    assert!(callback.recall(context(), recall(1)).await.is_err());
}

#[tokio::test]
async fn an_answer_that_arrives_just_before_the_end_is_not_lost() {
    let (client, mut server) = connection().await;
    let (leasehold, _recalls, task) = client_connection(client);
    let answer = response(7, Answer::ReportReceived);
    let sent = tarpc::Response { request_id: 0, message: Ok(LeaseholdResponse::Call(answer.clone())) };
    let mut frame = bytes::BytesMut::new();
    crate::frame::put_frame(&sent, Some(crate::mux::REQUESTS), &mut frame).unwrap();
    let answering = async {
        // Reads the request: its length, then its bytes.
        let length = server.read_u32().await.unwrap() as usize;
        server.read_exact(&mut vec![0; length]).await.unwrap();
        server.write_all(&frame).await.unwrap();
        drop(server);
    };
    let call = leasehold.call(context(), request(1, Body::Heartbeat(Default::default())));
    let (got, end, ()) = futures::join!(call, task, answering);
    assert_eq!(got.unwrap(), answer);
    end.unwrap();
}

#[tokio::test]
async fn a_server_may_let_go_of_its_callback_client() {
    let (client, server) = connection().await;
    let (requests, callback, task) = server_connection(server);
    drop(callback);
    let (leasehold, _recalls, client_task) = client_connection(client);
    tokio::spawn(task);
    tokio::spawn(client_task);
    tokio::spawn(serve(requests, TestServer { callback: None }));
    for sequence in 0..10 {
        leasehold.call(context(), request(sequence, Body::Heartbeat(Default::default()))).await.unwrap();
    }
}
