//! What the driver gathers while it executes the effects of one input and of its follow-up inputs.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use leasehold_protocol::{
    holder::{HolderInput, SendId},
    message::{Answer, PUSH_REQUESTS_MAX, PushRequest, RecallReply, Request},
    object::{Content, Object},
    path::NodePath,
};

use super::Driver;
use crate::{dropped_copies::MissCause, shared_content::SharedContent};

/// The context of one input and its follow-up inputs. Each of these is a step of the rules. The
/// first two fields describe the present step; the others keep the results of effects.
#[derive(Debug, Default)]
pub(super) struct DriverStep {
    /// Whether a server answered.
    pub(super) is_answer: bool,
    /// Why the step drops copies.
    pub(super) drop_cause: MissCause,
    pub(super) recall_reply: Option<RecallReply>,
    /// The content that this step installed last. Usually a later effect answers reads with it.
    pub(super) installed: Option<(Arc<Content>, SharedContent)>,
    /// The inputs that the effects produced, to be stepped next.
    pub(super) follow_ups: VecDeque<HolderInput>,
}

impl DriverStep {
    /// Adds a request for a next value to the consent that replies to the recall. Returns the
    /// request if it needs a message of its own.
    pub(super) fn attach_to_consent(&mut self, send_id: SendId, request: Request) -> Option<Request> {
        match &mut self.recall_reply {
            Some(RecallReply::Consented { push_requests, .. }) if push_requests.len() < PUSH_REQUESTS_MAX => {
                PushRequest::from_request(send_id.0, request).map(|request| push_requests.push(request)).err()
            }
            _ => Some(request),
        }
    }

    /// The content for readers. If this step has installed it, they share it with the cache.
    pub(super) fn shared(&self, object: Object, content: Arc<Content>) -> SharedContent {
        match &self.installed {
            Some((installed, shared)) if Arc::ptr_eq(installed, &content) => shared.fetched(),
            _ => SharedContent::new(object.path, content),
        }
    }
}

impl Driver {
    /// Counts a read that needed a server, in the volume of the path as known now. `gap` is the
    /// time since the first grant that no read has followed. `None` if there is no such grant.
    pub(crate) fn count_miss(&self, path: &NodePath, cause: MissCause, gap: Option<Duration>) {
        let volume = self.core.lock().holder.volume_of(path);
        self.cache_counters.miss(&volume, cause, gap);
    }
}

/// Why a step with this input drops copies. Inputs that write drop the copies that the write
/// changes; a write also ends all delays of consents, and these copies count as `Written`. A
/// timeout drops only copies whose consent was delayed. Other inputs drop copies whose lease had
/// ended, or whose volume has changed. If they end the delay of a consent, the copies count as
/// `Expired`.
pub(super) fn drop_cause(input: &HolderInput) -> MissCause {
    match input {
        HolderInput::Recalled(_) | HolderInput::Timeout { .. } => MissCause::Recalled,
        HolderInput::Write { .. } => MissCause::Written,
        HolderInput::Answered { response, .. } if matches!(response.result, Ok(Answer::Written { .. })) => {
            MissCause::Written
        }
        _ => MissCause::Expired,
    }
}
