//! The calls from the server to one client: recalls, and pushes of next values.
//!
//! The reply to a recall may ask for pushes. Each of these push requests is a request like any
//! other, and the push is its response. This module does not know when the values are there: the
//! lessor answers when the writes have ended.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use leasehold_protocol::{
    message::{
        Answer, Consent, PUSH_REQUESTS_MAX, PUSH_WAIT_MAX, Push, PushRequest, Recall, RecallReply, Refusal, Response,
    },
    object::Content,
};
use leasehold_wire::CallbackClient;
use tarpc::context::{self, Context};
use tokio::sync::{Semaphore, mpsc};

use crate::{
    core::{ConnectionId, RecallSender, ServerCore, refusal_response},
    spawn::spawn_if_slow,
};

/// How long the server waits for the answer to one recall. Then it abandons that call, and the
/// lessor sends the recall again at the session's next request. In any case, the write that waits
/// for the consent proceeds when the volume lease has ended.
const RECALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The most recalls of one connection that are in flight. Each has a task. Further recalls wait in
/// the queue.
const RECALLS_OUT_MAX: usize = 1 << 12;

/// The most bytes of pushed contents of one connection that are in flight, unless one content alone
/// is longer. Recalls use the same channel, so a recall waits behind at most this much, or behind
/// one longer content.
const PUSH_BYTES_OUT_MAX: u32 = 256 << 10;

/// What a push counts in addition to its content, if it has one.
const PUSH_OVERHEAD_BYTES: usize = 256;

/// The server's end of the calls to one client.
#[derive(Clone)]
pub(crate) struct ClientCalls {
    pub(crate) id: ConnectionId,
    pub(crate) core: Arc<ServerCore>,
    pub(crate) client: CallbackClient,
    pub(crate) recalls: RecallSender,
}

impl ClientCalls {
    /// Sends recalls on the connection, and passes the consents to the core.
    pub(crate) async fn send_callbacks(self, mut recalls: mpsc::Receiver<Recall>) {
        let recall_room = Arc::new(Semaphore::new(RECALLS_OUT_MAX));
        let push_room = Arc::new(Semaphore::new(PUSH_BYTES_OUT_MAX as usize));
        while let Some(recall) = recalls.recv().await {
            let Ok(permit) = Arc::clone(&recall_room).acquire_owned().await else { return };
            let (calls, push_room) = (self.clone(), Arc::clone(&push_room));
            // `spawn_if_slow` polls once here, and that sends the recall. So recalls leave in order.
            // The reply never comes in that poll, so a task waits for it.
            spawn_if_slow(async move {
                let push_requests = calls.recall(recall).await;
                drop(permit);
                for request in push_requests {
                    spawn_if_slow(calls.clone().answer_push_request(request, Arc::clone(&push_room))).await;
                }
            })
            .await;
        }
    }

    /// Sends one recall, and passes on the consent. Returns the push requests in the reply.
    async fn recall(&self, recall: Recall) -> Vec<PushRequest> {
        let asked = Consent { session: recall.session, stamp: recall.stamp };
        match self.client.recall(within(RECALL_TIMEOUT), recall).await {
            Ok(RecallReply::Consented { consent, push_requests }) if consent == asked => {
                self.core.consent(self.id, consent);
                if push_requests.len() <= PUSH_REQUESTS_MAX {
                    return push_requests;
                }
                tracing::debug!(
                    got = push_requests.len(),
                    most = PUSH_REQUESTS_MAX,
                    "ignored the push requests of a consent"
                );
            }
            // The client will consent with a later request.
            Ok(RecallReply::Delayed(notice)) if notice.consent() == asked => self.core.consent_delayed(self.id, notice),
            // A reply that names another recall does not count.
            Ok(_) => {}
            // The lessor sends the recall again when it can, and does not depend on this call.
            Err(_) => {}
        }
        Vec::new()
    }

    /// Waits for the answer to a push request, and pushes it, if not more than [`PUSH_WAIT_MAX`]
    /// has passed since the request. A refusal is pushed too, so that the client need not wait.
    async fn answer_push_request(self, request: PushRequest, room: Arc<Semaphore>) {
        let until = tokio::time::Instant::now() + PUSH_WAIT_MAX;
        let (send_id, request) = request.into_request();
        let response = match self.core.request(request, self.id, &self.recalls).await {
            Ok(response) => response,
            // The core dropped the request because this replica no longer leads.
            Err(_) => refusal_response(self.core.applied().0, Refusal::Retry),
        };
        // This fails if the connection has ended or the client has given up. Then the next read of
        // the application asks the server.
        let _ = tokio::time::timeout_at(until, async {
            let _permit = room.acquire_many(push_bytes(&response)).await.ok()?;
            self.client.push(within(PUSH_WAIT_MAX), Push { send_id, response }).await.ok()
        })
        .await;
    }
}

/// How much of [`PUSH_BYTES_OUT_MAX`] a push of this response takes: at most all.
fn push_bytes(response: &Response) -> u32 {
    let content = match &response.result {
        Ok(Answer::Read(answer)) => answer.content.as_ref().map_or(0, Content::weight),
        _ => 0,
    };
    u32::try_from(content + PUSH_OVERHEAD_BYTES).map_or(PUSH_BYTES_OUT_MAX, |bytes| bytes.min(PUSH_BYTES_OUT_MAX))
}

fn within(timeout: Duration) -> Context {
    let mut context = context::current();
    context.deadline = Instant::now() + timeout;
    context
}

#[cfg(test)]
mod tests {
    use leasehold_protocol::{
        id::{Epoch, Revision},
        lease_policy::LeaseOffer,
        message::ReadAnswer,
        object::Children,
        path::NodePath,
    };

    use super::*;

    /// A push that needs more room than there is gets all of it. Otherwise it would wait in vain.
    #[test]
    fn push_of_long_content_takes_all_room_and_no_more() {
        let push_bytes_of = |names: usize| {
            let names = (0..names).map(|number| format!("{number:0>64}")).collect();
            let content = Content::Children(Some(Children { names, version: 1, modify_revision: Revision(1) }));
            let (volume, offer) = (NodePath::root(), LeaseOffer::Everybody);
            let answer = ReadAnswer { content: Some(content), grant: None, volume, offer, applied: Revision(1) };
            push_bytes(&Response { result: Ok(Answer::Read(answer)), ..refusal_response(Epoch(1), Refusal::Retry) })
        };
        assert_eq!(push_bytes(&refusal_response(Epoch(1), Refusal::Retry)), PUSH_OVERHEAD_BYTES as u32);
        assert!((6_400..PUSH_BYTES_OUT_MAX).contains(&push_bytes_of(100)));
        assert_eq!(push_bytes_of(10_000), PUSH_BYTES_OUT_MAX);
    }
}
