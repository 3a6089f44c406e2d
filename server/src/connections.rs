//! The listener, and what becomes of each connection.
//!
//! Clients and peers come in at the same address and say in their first bytes what they are. A
//! connection that breaks the protocol is told why and closed; the server goes on.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures::{FutureExt, StreamExt};
use leasehold_protocol::message::{
    Answer as Done, Body, ClusterInfo, Consent, Inspect, Recall, Refusal, Request, Response,
};
use leasehold_wire::{CallbackClient, Leasehold, Role, accept_if, server_connection};
use tarpc::{
    context,
    server::{BaseChannel, Channel},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument;

use crate::{
    admission::{Admission, Handshake},
    core::{ConnectionId, RECALLS_WAITING_MAX, RecallSender, ServerCore, refusal_response},
    raft::{Replica, ReplicaInfo},
};

/// How long a recall is waited for on its connection before it is given up there; it is sent again
/// with the session's next request, and the write that recalls goes on at the end of the volume
/// lease in any case.
const RECALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The recalls of one connection that are sent or being sent, and not answered: each has a task.
/// More wait in the queue before.
const RECALLS_OUT_MAX: usize = 1 << 12;

/// How long to wait when the process has no file descriptor left for another connection.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// What every connection works with.
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
                    tokio::time::sleep(ACCEPT_AGAIN).await;
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
        // Whoever is refused is named in the log.
        let handshaking = accept_if(stream, self.replica.cluster(), |role| self.admission.admit(role))
            .instrument(tracing::info_span!("handshake", %from));
        let admitted = tokio::select! {
            admitted = handshaking => admitted,
            () = handshake.given_up() => return,
        };
        drop(handshake);
        // What was wrong has been logged, and told to the other side, by the handshake.
        let Ok((accepted, _room)) = admitted else { return };
        match accepted.role {
            Role::Client => self.serve_client(id, accepted.stream).await,
            Role::Peer => self.replica.peer_service().serve_connection(accepted.stream).await,
        }
    }

    async fn serve_client(self, id: ConnectionId, stream: TcpStream) {
        let (requests, callbacks, driver) = server_connection(stream);
        let (recalls, to_recall) = mpsc::channel(RECALLS_WAITING_MAX);
        let mut ended = self.core.leaderships_ended();
        let _registered = RegisteredOn { id, core: Arc::clone(&self.core) };
        let service = ClientService { id, core: Arc::clone(&self.core), replica: self.replica.clone(), recalls };
        let calls = BaseChannel::with_defaults(requests).execute(service.serve()).for_each(spawn_if_slow);
        tokio::select! {
            // Why it ended has been logged, if it is worth a line.
            _ = driver => {}
            () = calls => {}
            () = send_recalls(Arc::clone(&self.core), id, callbacks, to_recall) => {}
            _ = ended.changed() => {}
        }
    }
}

/// Tells the core when a connection ends, however that happens.
struct RegisteredOn {
    id: ConnectionId,
    core: Arc<ServerCore>,
}

impl Drop for RegisteredOn {
    fn drop(&mut self) {
        self.core.disconnected(self.id);
    }
}

/// Quick requests are answered in place; those that have to wait get a task of their own, so that a
/// consent never waits behind a write.
async fn spawn_if_slow(call: impl Future<Output = ()> + Send + 'static) {
    let mut call = Box::pin(call);
    if call.as_mut().now_or_never().is_none() {
        tokio::spawn(call);
    }
}

/// Sends recalls down the connection, and brings the consents back.
async fn send_recalls(
    core: Arc<ServerCore>,
    id: ConnectionId,
    callbacks: CallbackClient,
    mut recalls: mpsc::Receiver<Recall>,
) {
    let room = Arc::new(Semaphore::new(RECALLS_OUT_MAX));
    while let Some(recall) = recalls.recv().await {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        let (core, callbacks) = (Arc::clone(&core), callbacks.clone());
        // Spawned if it has to wait, and it always has; by then it is on its way, so that recalls
        // keep their order.
        spawn_if_slow(async move {
            let mut context = context::current();
            context.deadline = Instant::now() + RECALL_TIMEOUT;
            let asked = Consent { session: recall.session, stamp: recall.stamp };
            match callbacks.recall(context, recall).await {
                Ok(consent) if consent == asked => core.consent(id, consent),
                // The client will consent with a later request. An answer that names another recall
                // does not count.
                Ok(_) => {}
                // The lessor sends it again when there is a chance, and does not depend on it.
                Err(_) => {}
            }
            drop(permit);
        })
        .await;
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
                result: Ok(Done::Cluster(self.cluster())),
            };
        }
        match self.core.request(request, self.id, &self.recalls).await {
            Ok(response) => response,
            // The core gave the request up because this replica leads no more.
            Err(_) => refusal_response(self.core.applied().0, Refusal::Retry),
        }
    }
}
