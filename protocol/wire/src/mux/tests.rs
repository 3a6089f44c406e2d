//! The order, the windows and the end of two channels over one connection.

use bytes::{BufMut, Bytes};
use futures::{FutureExt, SinkExt, StreamExt};
use tarpc::Response;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::{queues::CREDIT, *};

type Message = Response<String>;
type Transport = ChannelTransport<Message, Message>;

fn message(id: u64, bytes: usize) -> Message {
    Response { request_id: id, message: Ok("x".repeat(bytes)) }
}

/// Two connected ends, each split, with their tasks.
fn ends() -> [(Transport, Transport, ConnectionTask); 2] {
    let (one, other) = tokio::io::duplex(1 << 16);
    [split(one), split(other)]
}

/// One split end, and the other end as raw bytes.
fn raw_end() -> (DuplexStream, Transport, Transport, ConnectionTask) {
    let (raw, stream) = tokio::io::duplex(1 << 16);
    let (requests, recalls, task) = split(stream);
    (raw, requests, recalls, task)
}

fn frame(tag: u8, message: &Message) -> BytesMut {
    let mut frame = BytesMut::new();
    put_frame(message, Some(tag), &mut frame).unwrap();
    frame
}

/// Sends until the transport takes no more.
fn fill(transport: &mut Transport, bytes: usize) -> u64 {
    let mut sent = 0;
    while transport.feed(message(sent, bytes)).now_or_never().is_some_and(|fed| fed.is_ok()) {
        sent += 1;
    }
    sent
}

async fn next_raw(raw: &mut DuplexStream) -> (u8, Bytes) {
    let length = raw.read_u32().await.unwrap() as usize;
    let mut frame = vec![0; length];
    raw.read_exact(&mut frame).await.unwrap();
    (frame[0], Bytes::from(frame).slice(1..))
}

#[tokio::test]
async fn messages_keep_their_channel_and_their_order() {
    let [(mut requests, mut recalls, task), (mut other_requests, mut other_recalls, other_task)] = ends();
    tokio::spawn(task);
    tokio::spawn(other_task);
    let send = async {
        for id in 0..1000 {
            requests.send(message(id, 10)).await.unwrap();
            other_recalls.send(message(id, 20)).await.unwrap();
        }
    };
    let receive = async {
        for id in 0..1000 {
            assert_eq!(other_requests.next().await.unwrap().unwrap(), message(id, 10));
        }
    };
    let receive_recalls = async {
        for id in 0..1000 {
            assert_eq!(recalls.next().await.unwrap().unwrap(), message(id, 20));
        }
    };
    futures::join!(send, receive, receive_recalls);
}

#[tokio::test]
async fn the_longest_values_cross_and_far_more_than_a_window() {
    let [(mut requests, _recalls, task), (mut other, _other_recalls, other_task)] = ends();
    tokio::spawn(task);
    tokio::spawn(other_task);
    let send = async {
        for id in 0..4 {
            requests.send(message(id, 8 << 20)).await.unwrap();
        }
    };
    let receive = async {
        for id in 0..4 {
            assert_eq!(other.next().await.unwrap().unwrap(), message(id, 8 << 20));
        }
    };
    futures::join!(send, receive);
}

#[tokio::test]
async fn stalled_consumer_does_not_delay_other_channel() {
    let [(mut requests, mut recalls, task), (mut other_requests, mut other_recalls, other_task)] = ends();
    tokio::spawn(task);
    tokio::spawn(other_task);
    // Twice the capacity of the windows, the queue and the pipe.
    let total = 2 * (WINDOW_BYTES + (1 << 19)) as u64 / 1024;
    let sender = tokio::spawn(async move {
        for id in 0..total {
            requests.send(message(id, 1024)).await.unwrap();
        }
        requests
    });
    for id in 0..1000 {
        other_recalls.send(message(id, 10)).await.unwrap();
        assert_eq!(recalls.next().await.unwrap().unwrap(), message(id, 10));
        recalls.send(message(id, 11)).await.unwrap();
        assert_eq!(other_recalls.next().await.unwrap().unwrap(), message(id, 11));
    }
    assert!(!sender.is_finished());
    for id in 0..total {
        assert_eq!(other_requests.next().await.unwrap().unwrap(), message(id, 1024));
    }
    sender.await.unwrap();
}

#[tokio::test]
async fn a_transport_takes_a_bounded_number_of_messages() {
    let (_raw, mut requests, mut recalls, _task) = raw_end();
    assert!((1..300).contains(&fill(&mut requests, 1000)));
    assert!((1..300).contains(&fill(&mut recalls, 1000)));
    // Empty messages count too.
    let (_raw, mut requests, _recalls, _task) = raw_end();
    assert!((1..5000).contains(&fill(&mut requests, 0)));
}

#[tokio::test]
async fn recalls_overtake_requests_that_wait_to_be_written() {
    let (mut raw, mut requests, mut recalls, task) = raw_end();
    fill(&mut requests, 1000);
    recalls.send(message(99, 10)).await.unwrap();
    tokio::spawn(task);
    let (tag, first) = next_raw(&mut raw).await;
    assert_eq!(tag, RECALLS);
    assert_eq!(Message::decode(&first).unwrap(), message(99, 10));
    assert_eq!(next_raw(&mut raw).await.0, REQUESTS);
}

#[tokio::test]
async fn recalls_do_not_starve_requests() {
    let (_raw, mut requests, mut recalls, _task) = raw_end();
    fill(&mut recalls, 1000);
    requests.send(message(0, 10)).await.unwrap();
    let mut frames = Vec::new();
    assert!(requests.shared.next_batch(&mut frames).await);
    assert_eq!(frames.last().unwrap()[4], REQUESTS);
    assert!(frames.iter().map(|frame| frame.len()).sum::<usize>() < 2 * WRITE_BATCH_BYTES);
}

#[tokio::test]
async fn a_sender_waits_for_room_even_if_the_pipe_has_some() {
    let (mut raw, mut requests, _recalls, task) = raw_end();
    let task = tokio::spawn(task);
    let sender = tokio::spawn(async move {
        for id in 0..4000 {
            requests.send(message(id, 1000)).await.unwrap();
        }
        requests
    });
    // A window, and the frame that exceeds it.
    let mut received = 0;
    while received < WINDOW_BYTES {
        let (tag, payload) = next_raw(&mut raw).await;
        assert_eq!(tag, REQUESTS);
        received += payload.len() + 1 + 64;
    }
    assert!(next_raw(&mut raw).now_or_never().is_none());
    // Credit for half of it.
    let mut credit = BytesMut::new();
    credit.put_u32(6);
    credit.put_slice(&[CREDIT, REQUESTS]);
    credit.put_u32((WINDOW_BYTES / 2) as u32);
    raw.write_all(&credit).await.unwrap();
    assert_eq!(next_raw(&mut raw).await.0, REQUESTS);
    drop(raw);
    // A message sent after the end is lost, and the sender does not hang.
    sender.await.unwrap();
    let _ = task.await.unwrap();
}

#[tokio::test]
async fn whoever_sends_beyond_its_window_is_cut_off() {
    let (mut raw, _requests, _recalls, task) = raw_end();
    let task = tokio::spawn(task);
    let frame = frame(REQUESTS, &message(0, 1 << 19));
    for _ in 0..3 {
        // The last write may fail, because the other side has gone.
        let _ = raw.write_all(&frame).await;
    }
    let error = task.await.unwrap().unwrap_err();
    assert!(matches!(error, ConnectionError::Overrun { channel: REQUESTS, expected: WINDOW_BYTES, .. }), "{error}");
}

#[tokio::test]
async fn bad_frames_end_the_connection_with_the_reason() {
    async fn end(bytes: &[u8]) -> ConnectionError {
        let (mut raw, mut requests, mut recalls, task) = raw_end();
        raw.write_all(bytes).await.unwrap();
        let (end, request, recall) = futures::join!(task, requests.next(), recalls.next());
        assert!(request.is_none() && recall.is_none());
        let mut rest = Vec::new();
        raw.read_to_end(&mut rest).await.unwrap();
        assert!(rest.is_empty());
        end.unwrap_err()
    }
    use ConnectionError as E;
    assert!(matches!(end(&[0xff; 4]).await, E::Oversized { got: 0xffff_ffff, expected: 0x0100_0000 }));
    assert!(matches!(end(&[0, 0, 0, 0]).await, E::UnknownChannel { got: None }));
    assert!(matches!(end(&[0, 0, 0, 1, 9]).await, E::UnknownChannel { got: Some(9) }));
    assert!(matches!(end(&[0, 0, 0, 2, 2, 0]).await, E::UnknownChannel { got: None }));
    assert!(matches!(end(&[0, 0, 0, 6, 2, 5, 0, 0, 0, 0]).await, E::UnknownChannel { got: Some(5) }));
    assert!(matches!(end(&[0, 0, 0, 6, 2, 1, 0, 0, 0, 9]).await, E::Credit { got: 9, expected: 0 }));
    assert!(matches!(end(&[0, 0, 0, 2, 0, 0xff]).await, E::Codec(CodecError::Decode(_))));
    assert!(matches!(end(&[0, 0, 0, 2, 1, 0xff]).await, E::Codec(CodecError::Decode(_))));
}

#[tokio::test]
async fn half_a_frame_and_a_close_is_an_error() {
    let (mut raw, mut requests, _recalls, task) = raw_end();
    raw.write_all(&frame(REQUESTS, &message(0, 100))[..50]).await.unwrap();
    drop(raw);
    let (end, request) = futures::join!(task, requests.next());
    assert!(matches!(end, Err(ConnectionError::Truncated { got: 50 })));
    assert!(request.is_none());
}

#[tokio::test]
async fn what_arrived_before_the_end_can_still_be_taken() {
    let (mut raw, mut requests, _recalls, task) = raw_end();
    raw.write_all(&frame(REQUESTS, &message(0, 100))).await.unwrap();
    drop(raw);
    task.await.unwrap();
    assert_eq!(requests.next().await.unwrap().unwrap(), message(0, 100));
    assert!(requests.next().await.is_none());
}

#[tokio::test]
async fn what_was_sent_before_a_transport_was_dropped_is_written() {
    let [(mut requests, _recalls, task), (mut other, _other_recalls, other_task)] = ends();
    for id in 0..100 {
        requests.send(message(id, 1000)).await.unwrap();
    }
    drop(requests);
    let receive = async {
        for id in 0..100 {
            assert_eq!(other.next().await.unwrap().unwrap(), message(id, 1000));
        }
        assert!(other.next().await.is_none());
    };
    let (end, other_end, ()) = futures::join!(task, other_task, receive);
    end.unwrap();
    other_end.unwrap();
}

#[tokio::test]
async fn dropping_the_task_closes_the_connection() {
    let [(mut requests, _recalls, task), (mut other, _other_recalls, other_task)] = ends();
    // The task was never polled.
    drop(task);
    assert!(requests.next().await.is_none());
    requests.send(message(0, 10)).await.unwrap();
    let (end, request) = futures::join!(other_task, other.next());
    end.unwrap();
    assert!(request.is_none());
}

#[tokio::test]
async fn the_other_side_of_a_dropped_transport_is_not_waited_for() {
    let (raw, mut requests, _recalls, task) = raw_end();
    // Nobody reads, so these frames cannot be written.
    fill(&mut requests, 1000);
    drop(requests);
    task.await.unwrap();
    drop(raw);
}
