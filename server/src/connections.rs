//! The listener, and the life of each connection.
//!
//! Clients and peers connect to the same address, and name their role in their first bytes. If a
//! connection breaks the protocol, the server sends the reason and closes it.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::StreamExt;
use leasehold_protocol::message::{Answer, Body, ClusterInfo, Inspect, Refusal, Request, Response};
use leasehold_wire::{Leasehold, Role, accept_if, server_connection};
use tarpc::{
    context,
    server::{BaseChannel, Channel},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument;

use crate::{
    admission::{Admission, Handshake},
    callbacks::ClientCalls,
    core::{ConnectionId, RECALLS_WAITING_MAX, RecallSender, ServerCore, refusal_response},
    raft::{Replica, ReplicaInfo},
    spawn::spawn_if_slow,
};

/// The pause after a connection could not be accepted, usually for lack of a file descriptor.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// What every connection shares.
#[derive(Clone)]
pub(crate) struct Connections {
    pub(crate) core: Arc<ServerCore>,
    pub(crate) replica: Replica,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
    pub(crate) admission: Admission,
}

impl Connections {
    /// Accepts connections until the server stops.
    pub(crate) async fn accept_all(self, listener: TcpListener) {
        let next = AtomicU64::new(0);
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.stop.cancelled() => return,
            };
            let (stream, from) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection: trying again");
                    tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
                    continue;
                }
            };
            let id = ConnectionId(next.fetch_add(1, Ordering::Relaxed));
            let (connections, handshake) = (self.clone(), self.admission.handshake().await);
            self.tasks.spawn(async move {
                let stop = connections.stop.clone();
                tokio::select! {
                    () = connections.serve(id, stream, from, handshake) => {}
                    () = stop.cancelled() => {}
                }
            });
        }
    }

    async fn serve(self, id: ConnectionId, stream: TcpStream, from: SocketAddr, handshake: Handshake) {
        // The span adds the remote address to the lines that the handshake logs.
        let handshaking = accept_if(stream, self.replica.cluster(), |role| self.admission.admit(role))
            .instrument(tracing::info_span!("handshake", %from));
        let admitted = tokio::select! {
            admitted = handshaking => admitted,
            () = handshake.given_up() => return,
        };
        drop(handshake);
        // The handshake has logged the error, and reported it to the other side.
        let Ok((accepted, _room)) = admitted else { return };
        match accepted.role {
            Role::Client => self.serve_client(id, accepted.stream).await,
            Role::Peer => self.replica.peer_service().serve_connection(accepted.stream).await,
        }
    }

    async fn serve_client(self, id: ConnectionId, stream: TcpStream) {
        let (requests, callbacks, task) = server_connection(stream);
        let (recalls, to_recall) = mpsc::channel(RECALLS_WAITING_MAX);
        let mut ended = self.core.leaderships_ended();
        let _registered = DisconnectOnDrop { id, core: Arc::clone(&self.core) };
        let client_calls =
            ClientCalls { id, core: Arc::clone(&self.core), client: callbacks, recalls: recalls.clone() };
        let service = ClientService { id, core: Arc::clone(&self.core), replica: self.replica.clone(), recalls };
        let calls = BaseChannel::with_defaults(requests).execute(service.serve()).for_each(spawn_if_slow);
        tokio::select! {
            // The task has logged an unexpected end.
            _ = task => {}
            () = calls => {}
            () = client_calls.send_callbacks(to_recall) => {}
            _ = ended.changed() => {}
        }
    }
}

/// Removes a connection from the core when it ends, for whatever reason.
struct DisconnectOnDrop {
    id: ConnectionId,
    core: Arc<ServerCore>,
}

impl Drop for DisconnectOnDrop {
    fn drop(&mut self) {
        self.core.disconnected(self.id);
    }
}

#[derive(Clone)]
struct ClientService {
    id: ConnectionId,
    core: Arc<ServerCore>,
    replica: Replica,
    recalls: RecallSender,
}

impl ClientService {
    fn cluster(&self) -> ClusterInfo {
        let (epoch, _, revision) = self.core.applied();
        let ReplicaInfo { replica, leadership, members } = self.replica.info();
        let leader = leadership.leader.map(|(leader, _)| leader);
        let (clocks_beyond, clocks) = self.core.clock_infos();
        ClusterInfo { replica, leader, epoch, revision, members, clocks_beyond, clocks }
    }
}

impl Leasehold for ClientService {
    async fn call(self, _: context::Context, request: Request) -> Response {
        if request.body == Body::Inspect(Inspect::Cluster) {
            let (epoch, ..) = self.core.applied();
            return Response {
                epoch,
                promises: Vec::new(),
                lapses: Vec::new(),
                clocks: None,
                result: Ok(Answer::Cluster(self.cluster())),
            };
        }
        match self.core.request(request, self.id, &self.recalls).await {
            Ok(response) => response,
            // The core dropped the request because this replica no longer leads.
            Err(_) => refusal_response(self.core.applied().0, Refusal::Retry),
        }
    }
}
