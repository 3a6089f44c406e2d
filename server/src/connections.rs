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
    time::{Duration, Instant},
};

use futures::{FutureExt, StreamExt};
use leasehold_protocol::message::{
    Answer as Done, Body, ClusterInfo, Consent, Inspect, Recall, RecallReply, Refusal, Request, Response,
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

/// How long the server waits for the answer to one recall. Then it abandons that call, and the
/// lessor sends the recall again at the session's next request. In any case, the write that waits
/// for the consent proceeds when the volume lease has ended.
const RECALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The most recalls of one connection that are in flight. Each has a task. Further recalls wait in
/// the queue.
const RECALLS_OUT_MAX: usize = 1 << 12;

/// The pause when the process has no file descriptor for another connection.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

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
        // The span names a refused peer in the log.
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
        let (requests, callbacks, driver) = server_connection(stream);
        let (recalls, to_recall) = mpsc::channel(RECALLS_WAITING_MAX);
        let mut ended = self.core.leaderships_ended();
        let _registered = RegisteredOn { id, core: Arc::clone(&self.core) };
        let service = ClientService { id, core: Arc::clone(&self.core), replica: self.replica.clone(), recalls };
        let calls = BaseChannel::with_defaults(requests).execute(service.serve()).for_each(spawn_if_slow);
        tokio::select! {
            // The driver has logged an unexpected end.
            _ = driver => {}
            () = calls => {}
            () = send_recalls(Arc::clone(&self.core), id, callbacks, to_recall) => {}
            _ = ended.changed() => {}
        }
    }
}

/// Removes a connection from the core when it ends, for whatever reason.
struct RegisteredOn {
    id: ConnectionId,
    core: Arc<ServerCore>,
}

impl Drop for RegisteredOn {
    fn drop(&mut self) {
        self.core.disconnected(self.id);
    }
}

/// Answers a quick request in place. A request that has to wait gets a task of its own, so that a
/// consent never waits behind a write.
async fn spawn_if_slow(call: impl Future<Output = ()> + Send + 'static) {
    let mut call = Box::pin(call);
    if call.as_mut().now_or_never().is_none() {
        tokio::spawn(call);
    }
}

/// Sends recalls on the connection, and passes the consents to the core.
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
        // A recall is never answered at once, so this always spawns a task. The first poll has sent
        // the recall by then, so recalls leave in order.
        spawn_if_slow(async move {
            let mut context = context::current();
            context.deadline = Instant::now() + RECALL_TIMEOUT;
            let asked = Consent { session: recall.session, stamp: recall.stamp };
            match callbacks.recall(context, recall).await {
                Ok(RecallReply::Consented(consent)) if consent == asked => core.consent(id, consent),
                // The client will consent with a later request.
                Ok(RecallReply::Delayed(notice)) if notice.consent() == asked => core.consent_delayed(id, notice),
                // A reply that names another recall does not count.
                Ok(_) => {}
                // The lessor sends the recall again when it can, and does not depend on this call.
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
                clocks: None,
                result: Ok(Done::Cluster(self.cluster())),
            };
        }
        match self.core.request(request, self.id, &self.recalls).await {
            Ok(response) => response,
            // The core dropped the request because this replica no longer leads.
            Err(_) => refusal_response(self.core.applied().0, Refusal::Retry),
        }
    }
}
