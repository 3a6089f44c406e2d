//! The handshake, as bytes and over TCP.

use tokio::{io::DuplexStream, net::TcpListener};

use super::*;

const CLUSTER: Option<ClusterId> = Some(ClusterId { founder: 3, nonce: 1 << 127 | 5 });

/// The server's result for these first bytes, and its whole answer.
async fn answer_to(hello: &[u8]) -> (Result<Role, HandshakeError>, Vec<u8>) {
    let (mut client, server) = tokio::io::duplex(1024);
    let client = async {
        client.write_all(hello).await.unwrap();
        let mut answer = Vec::new();
        client.shutdown().await.unwrap();
        client.read_to_end(&mut answer).await.unwrap();
        answer
    };
    let server = async { receive(server, None).await.map(|accepted| accepted.role) };
    let (outcome, answer) = futures::join!(server, client);
    (outcome, answer)
}

/// The client's result for this answer.
async fn outcome_of(answer: &[u8]) -> Result<Introduced<DuplexStream>, HandshakeError> {
    let (client, mut server) = tokio::io::duplex(1024);
    server.write_all(answer).await.unwrap();
    server.shutdown().await.unwrap();
    introduce(client, Role::Client).await
}

fn reason(answer: &[u8]) -> &str {
    assert_eq!(answer[..7], opening(PROTOCOL_VERSION, REFUSED));
    assert_eq!(usize::from(u16::from_be_bytes([answer[7], answer[8]])), answer.len() - 9);
    std::str::from_utf8(&answer[9..]).unwrap()
}

#[tokio::test]
async fn each_role_is_accepted_over_tcp() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    for role in [Role::Client, Role::Peer] {
        let server = async { accept(listener.accept().await.unwrap().0, CLUSTER).await };
        let (client, server) = futures::join!(connect(&address, role, HANDSHAKE_TIMEOUT), server);
        let (client, server) = (client.unwrap(), server.unwrap());
        assert_eq!(server.role, role);
        assert_eq!(client.cluster, CLUSTER);
        assert!(client.stream.nodelay().unwrap() && server.stream.nodelay().unwrap());
    }
}

#[tokio::test]
async fn server_without_a_cluster_names_none() {
    for cluster in [None, CLUSTER] {
        let introduced = outcome_of(&accepted(cluster)).await.unwrap();
        assert_eq!(introduced.cluster, cluster);
    }
    let cut = accepted(CLUSTER);
    for end in 7..cut.len() {
        assert!(matches!(outcome_of(&cut[..end]).await.unwrap_err(), HandshakeError::Closed), "{end} bytes");
    }
}

#[tokio::test]
async fn client_that_there_is_no_room_for_is_told_why() {
    let (client, server) = tokio::io::duplex(1024);
    let no_room = |role| Err::<(), _>(format!("no room for another {role:?}"));
    let (server, client) = futures::join!(receive_if(server, None, no_room), introduce(client, Role::Client));
    assert!(matches!(server, Err(HandshakeError::NotAdmitted { .. })), "{server:?}");
    let refused = client.expect_err("there is no room").to_string();
    assert_eq!(refused, "the server refused the connection: no room for another Client");
}

#[tokio::test]
async fn garbage_is_refused_with_a_reason() {
    let (outcome, answer) = answer_to(b"GET / HTTP/1.1\r\n\r\n").await;
    assert!(matches!(outcome, Err(HandshakeError::Magic { got }) if &got == b"GET "));
    assert!(reason(&answer).contains("this is a Leasehold server"));
}

#[tokio::test]
async fn the_reason_reaches_a_client_that_has_sent_more_over_tcp() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let client = async {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(&[b'x'; 10_000]).await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        answer
    };
    let server = async { accept(listener.accept().await.unwrap().0, CLUSTER).await };
    let (answer, outcome) = futures::join!(client, server);
    assert!(matches!(outcome, Err(HandshakeError::Magic { .. })));
    assert!(reason(&answer).contains("this is a Leasehold server"));
}

const ANOTHER_VERSION: u16 = PROTOCOL_VERSION + 1;

#[tokio::test]
async fn another_version_is_refused_and_both_are_named() {
    let (outcome, answer) = answer_to(&opening(ANOTHER_VERSION, 1)).await;
    assert!(matches!(outcome, Err(HandshakeError::Version { theirs: ANOTHER_VERSION, ours: PROTOCOL_VERSION })));
    let both = format!("the client speaks protocol version {ANOTHER_VERSION}, the server version {PROTOCOL_VERSION}");
    assert_eq!(reason(&answer), format!("{both}; they must be equal"));
}

#[tokio::test]
async fn an_unknown_role_is_refused() {
    let (outcome, answer) = answer_to(&opening(PROTOCOL_VERSION, 3)).await;
    assert!(matches!(outcome, Err(HandshakeError::Role { got: 3 })));
    assert!(reason(&answer).contains("role 3"));
}

#[tokio::test]
async fn half_a_hello_and_a_close_is_an_error() {
    for end in [0, 3, 6] {
        let (outcome, answer) = answer_to(&opening(PROTOCOL_VERSION, 1)[..end]).await;
        assert!(matches!(outcome, Err(HandshakeError::Closed)));
        assert!(answer.is_empty());
    }
}

#[tokio::test]
async fn a_client_learns_why_it_is_refused() {
    let (mut client, server) = tokio::io::duplex(1024);
    let refuse = refuse(server, "not today");
    let introduce = introduce(&mut client, Role::Client);
    let (outcome, _) = futures::join!(async { introduce.await.map(drop) }, async {
        // `refuse` would end only after the client has gone.
        let _ = tokio::time::timeout(Duration::from_millis(1), refuse).await;
    });
    assert!(matches!(outcome, Err(HandshakeError::Refused { reason }) if reason == "not today"));
}

#[tokio::test]
async fn a_client_refuses_answers_that_are_none() {
    let magic = outcome_of(b"HTTP/1.1 400").await.unwrap_err();
    assert!(matches!(magic, HandshakeError::Magic { got } if &got == b"HTTP"));
    let version = outcome_of(&opening(ANOTHER_VERSION, REFUSED)).await.unwrap_err();
    assert!(matches!(version, HandshakeError::Version { theirs: ANOTHER_VERSION, ours: PROTOCOL_VERSION }));
    let verdict = outcome_of(&opening(PROTOCOL_VERSION, 7)).await.unwrap_err();
    assert!(matches!(verdict, HandshakeError::Verdict { got: 7 }));
    let mut long = opening(PROTOCOL_VERSION, REFUSED).to_vec();
    long.extend_from_slice(&[0xff, 0xff]);
    let reason = outcome_of(&long).await.unwrap_err();
    assert!(matches!(reason, HandshakeError::Reason { got: 0xffff, expected: REASON_MAX_BYTES }));
    assert!(matches!(outcome_of(b"LSHD").await.unwrap_err(), HandshakeError::Closed));
}

#[tokio::test]
async fn a_server_that_says_nothing_is_given_up() {
    // Only the kernel accepts the connection.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let error = connect(&address, Role::Client, Duration::from_millis(20)).await.unwrap_err();
    assert!(matches!(&error, DialError::Timeout { address: named, .. } if *named == address));
}

#[tokio::test]
async fn an_address_where_nobody_listens_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let error = connect(&address, Role::Client, HANDSHAKE_TIMEOUT).await.unwrap_err();
    assert!(matches!(&error, DialError::Connect { .. }));
    assert!(error.to_string().contains(&address));
}
