//! Requests within the limits, all sent at once, do not end a leadership.

use std::{collections::BTreeMap, time::Duration};

use leasehold_protocol::{
    command::{Attach, Write},
    id::{LeaseId, Sequence, SessionId, Stamp, Token},
    message::{Answer, Body, Request, RequestHeader},
    path::NodePath,
    state::State,
    transaction::{Compare, CompareTarget, Operation, Transaction},
};
use tokio::{net::TcpListener, sync::mpsc};

use super::Server;
use crate::{
    config::ServerConfig,
    core::{ConnectionId, RecallSender},
};

/// The longest wait of this test.
const DEADLINE: Duration = Duration::from_secs(120);

/// One server that is its whole cluster, and leads.
async fn alone(dir: &std::path::Path) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    drop(listener);
    let cluster = BTreeMap::from([(1, address.clone())]);
    let config = ServerConfig { id: 1, data: dir.join("1"), listen: address, cluster, ..ServerConfig::default() };
    let server = Server::start(config).await.expect("starts");
    let leads = async {
        while !server.is_serving() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(DEADLINE, leads).await.expect("it leads");
    server
}

async fn session(server: &Server, recalls: &RecallSender) -> SessionId {
    let open = Request { header: RequestHeader::default(), body: Body::Open { name: "test".to_owned() } };
    let response = server.core.request(open, ConnectionId(1), recalls).await.expect("answered");
    let Ok(Answer::Opened { session, .. }) = response.result else { panic!("opened: {response:?}") };
    let epoch = server.core.applied().0;
    let header = RequestHeader { session, epoch, registration: 1, ..RequestHeader::default() };
    let register = Request { header, body: Body::Register };
    let registered = server.core.request(register, ConnectionId(1), recalls).await.expect("answered");
    assert!(matches!(registered.result, Ok(Answer::Registered { .. })), "{registered:?}");
    session
}

/// A transaction with the maximum number of parts, each as short as possible.
fn small_parts() -> Transaction {
    let operation = |number: usize| Operation::Put {
        path: NodePath::parse(&format!("/{number}")).expect("a path"),
        value: Default::default(),
        attach: Attach::Lease(LeaseId(u64::MAX)),
    };
    let operations = |branch: usize| (0..Transaction::OPERATIONS_MAX).map(|one| operation(branch + one)).collect();
    let compare = Compare { path: NodePath::root(), target: CompareTarget::Locked(false, Token(u64::MAX)) };
    Transaction { compares: vec![compare; Transaction::COMPARES_MAX], then: operations(0), otherwise: operations(0) }
}

#[tokio::test(flavor = "current_thread")]
async fn small_transactions_in_one_stall_keep_the_leadership() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = alone(dir.path()).await;
    let (recalls, _recalled) = mpsc::channel(1);
    let sessions = [session(&server, &recalls).await, session(&server, &recalls).await];
    let (epoch, ended) = (server.core.applied().0, server.core.leaderships_ended());
    // The test does not yield this one thread. So the server proposes nothing before all requests
    // have arrived.
    let mut answers = Vec::new();
    for session in sessions {
        for sequence in 1..=State::ANSWERS_MAX {
            let sequence = Sequence(sequence);
            let header = RequestHeader {
                session,
                epoch,
                registration: 1,
                sequence,
                unanswered_from: Sequence(1),
                ..RequestHeader::default()
            };
            let write = Write::Transaction(small_parts());
            let body = Body::Write { write, dropped: Vec::new(), seen: Stamp::default() };
            answers.push(server.core.request(Request { header, body }, ConnectionId(1), &recalls));
        }
    }
    for answer in answers {
        let response = tokio::time::timeout(DEADLINE, answer).await.expect("in time").expect("not dropped");
        let refusal = response.result.expect_err("there is no such lease").to_string();
        assert!(refusal.contains("lease ffffffffffffffff"), "{refusal}");
    }
    assert_eq!((*ended.borrow(), server.core.applied().0), (0, epoch), "no leadership has ended");
    server.stop().await.expect("stops");
}
