//! Elections: one of several leads, as long as it holds a node; its name is there to be read.
//!
//! A thin layer over [`Client::lock`]: who leads holds the node exclusively, those who campaign
//! wait in its queue, and only the next in line is woken. When it is elected it writes the node:
//! the fencing token of its hold, a space, and what it has to say. The write is a transaction that
//! compares the token, and the node goes with the session's lease on its volume, which the hold
//! lives under as well: both end together.
//!
//! So three things say together whether somebody leads: the *token*, which grows from leader to
//! leader and is good only while the hold is there; the *lease* that the node goes with
//! ([`ElectedLeader::session`]); and the *revision*, the place of the announcement in the order of
//! all changes. The name alone says nothing: what is read may be the leader of a moment ago.

use std::time::Duration;

use leasehold_protocol::{
    change::EventKind,
    command::{Attach, Condition},
    id::{LockId, Revision, SessionId, Token},
    message::LockInfo,
    object::{Data, NodeOwner, Value},
    path::NodePath,
    transaction::{Compare, Operation, Transaction},
};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::{
    client::Client,
    error::{InspectError, LockError, ReadError, WatchError},
    lock::{HandOverError, LockGuard, LockOptions, LockWait},
    watch::{Watch, WatchItem},
    write::DeleteOptions,
};

/// How to campaign.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CampaignOptions {
    /// How long to wait for one's turn: candidates are elected in the order in which they came.
    pub wait: LockWait,
    /// If the leadership is lost with its lease, nobody is elected for so long; see
    /// [`LockOptions::delay`].
    pub lock_delay: Duration,
    /// How long each request may take to be answered, the waiting aside; as long as the client's
    /// operations do unless told otherwise.
    pub timeout: Option<Duration>,
}

/// Somebody who was elected, as the node says.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ElectedLeader {
    /// What it wrote: its name, as a rule.
    pub value: Value,
    /// The fencing token of its leadership.
    pub token: Token,
    /// The session whose lease the node goes with.
    pub session: SessionId,
    /// When it wrote this.
    pub revision: Revision,
}

impl ElectedLeader {
    /// Reads what a node says. None if no leader has written it.
    pub fn of(data: &Data) -> Option<Self> {
        let Some(NodeOwner::Session(session)) = data.stat.owner else { return None };
        let space = data.value.iter().position(|byte| *byte == b' ')?;
        let token = std::str::from_utf8(&data.value[..space]).ok()?.parse().ok()?;
        let value = data.value.slice(space + 1..);
        Some(Self { value, token: Token(token), session, revision: data.stat.modify_revision })
    }
}

/// What a leader's node holds.
fn written(token: Token, value: &[u8]) -> Value {
    [token.to_string().as_bytes(), b" ", value].concat().into()
}

/// This client leads, until it [resigns](Leadership::resign), [hands over](Leadership::hand_over),
/// is dropped, or loses the hold.
///
/// # What it promises
///
/// Nobody else leads while [`Leadership::certain_for`] says more than zero: it is the hold's
/// promise (see [`LockGuard`]). By [`Leadership::over`] the leader learns of its end by its own
/// clock, before anybody else can be elected.
///
/// # What only its token can
///
/// What the leader sent before its end may arrive after it. Only whoever it arrives at can refuse
/// it, by the [`Leadership::token`] that goes with it; in a transaction, by comparing with
/// [`Compare::held`].
#[derive(Debug)]
pub struct Leadership {
    /// None once it has been given back.
    lock: Option<LockGuard>,
    client: Client,
    path: NodePath,
    token: Token,
    lost: CancellationToken,
    timeout: Option<Duration>,
    /// Where what is dropped is given back from.
    runtime: Handle,
}

impl Leadership {
    fn new(client: Client, hold: LockGuard, timeout: Option<Duration>) -> Self {
        let (path, token, lost) = (hold.path().clone(), hold.token(), hold.on_lost());
        Self { lock: Some(hold), client, path, token, lost, timeout, runtime: Handle::current() }
    }

    /// The node.
    pub fn path(&self) -> &NodePath {
        &self.path
    }

    /// The fencing token: it grows from leader to leader, and stays the same when the leadership is
    /// over.
    pub fn token(&self) -> Token {
        self.token
    }

    /// How long nobody else leads if nothing more is heard; zero if it is over.
    pub fn remaining(&self) -> Duration {
        self.lock.as_ref().map_or(Duration::ZERO, LockGuard::remaining)
    }

    /// Cancelled when the leadership is over, or can no longer be relied on: by this client's own
    /// clock at the latest. Once for all.
    pub fn on_lost(&self) -> CancellationToken {
        self.lost.clone()
    }

    /// Whether somebody else waits to be elected.
    pub fn is_contended(&self) -> bool {
        self.lock.as_ref().is_some_and(LockGuard::is_contended)
    }

    /// Writes something else for others to read: an address, a state. Only as the leader.
    ///
    /// # Errors
    ///
    /// [`LockError::CopyEvicted`] if it does not lead any more: nothing was written.
    pub async fn proclaim(&self, value: impl AsRef<[u8]>) -> Result<Revision, LockError> {
        let put = Operation::Put {
            path: self.path.clone(),
            value: written(self.token, value.as_ref()),
            attach: Attach::Session,
        };
        let transaction = Transaction::new().when(Compare::locked(self.path.clone(), self.token)).then(put);
        let outcome = self.client.transaction_with(transaction, self.timeout).await?;
        if outcome.succeeded() { Ok(outcome.revision) } else { Err(LockError::Lost { path: self.path.clone() }) }
    }

    /// Who waits to be elected, in the order in which they came: to whom it can be [handed
    /// over](Leadership::hand_over).
    ///
    /// # Errors
    ///
    /// [`InspectError`].
    pub async fn candidates(&self) -> Result<Vec<LockInfo>, InspectError> {
        let holds = self.client.locks(&self.path).await?;
        Ok(holds.into_iter().filter(|hold| hold.token.is_none()).collect())
    }

    /// Lets one of the [candidates](Leadership::candidates) lead, past those that came before it,
    /// with nobody in between: one entry of the log ends this leadership and begins the next, under
    /// a larger token. From the call on this one leads no more.
    ///
    /// # What the application may count on
    ///
    /// It stops acting as the leader before the call; while that is under way
    /// [`Leadership::certain_for`] is zero. If it is refused (the candidate may have gone) this one
    /// leads as before, as [`HandOverError::Unchanged`] says, and can hand over to another. If
    /// nobody answered in time it does not, and either the successor leads or whoever is next in
    /// line. Either way nobody else did while this one was certain.
    ///
    /// # Errors
    ///
    /// [`HandOverError`].
    pub async fn hand_over(mut self, to: LockId) -> Result<(), HandOverError<Self>> {
        let handed_over = match &mut self.lock {
            Some(hold) => hold.try_hand_over(to).await,
            None => Err(LockError::Lost { path: self.path.clone() }),
        };
        match handed_over {
            Err(error) if !self.lost.is_cancelled() => Err(HandOverError::Unchanged(self, error)),
            handed_over => {
                delete_proclamation(&self.client, &self.path, self.token, self.timeout).await;
                handed_over.map_err(HandOverError::Released)
            }
        }
    }

    /// Leads no more: removes the node and lets the next in line be elected. Dropping it does so
    /// too, and waits for nothing.
    ///
    /// # Errors
    ///
    /// [`LockError::CopyEvicted`] if it was over already; [`LockError::Write`] if nobody answered
    /// in time: then all of it ends with the client's lease at the latest.
    pub async fn resign(mut self) -> Result<(), LockError> {
        let Some(hold) = self.lock.take() else { return Ok(()) };
        release_leadership(self.client.clone(), hold, self.token, self.timeout).await
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        if let Some(hold) = self.lock.take() {
            let withdrawal = self.client.driver().pending_releases.begin(&self.path);
            let given_back = release_leadership(self.client.clone(), hold, self.token, self.timeout);
            // If nobody hears of it, all of it ends with the lease.
            self.runtime.spawn(async {
                drop(given_back.await);
                drop(withdrawal);
            });
        }
    }
}

/// Removes what the leader with this token has said, unless the next has said something since. If
/// nobody hears of it, that comes in its place.
async fn delete_proclamation(client: &Client, path: &NodePath, token: Token, timeout: Option<Duration>) {
    if let Ok(Some(leader)) = client.leader(path).await
        && leader.token == token
    {
        let options =
            DeleteOptions { condition: Condition::Revision(leader.revision), timeout, ..DeleteOptions::default() };
        let _ = client.delete(path, options).await;
    }
}

/// The node goes first: else the next leader's could be found there. Of one that is over the hold
/// has been given back; the node may still be there, if the lease that it goes with lives on.
async fn release_leadership(
    client: Client,
    hold: LockGuard,
    token: Token,
    timeout: Option<Duration>,
) -> Result<(), LockError> {
    let path = hold.path().clone();
    if hold.on_lost().is_cancelled() {
        delete_proclamation(&client, &path, token, timeout).await;
        return Err(LockError::Lost { path });
    }
    let transaction = Transaction::new()
        .when(Compare::locked(path.clone(), token))
        .when(Compare::exists(path.clone()))
        .then(Operation::delete(path));
    let removed = client.transaction_with(transaction, timeout).await;
    hold.release().await?;
    removed.map(|_| ()).map_err(LockError::Write)
}

/// The leaders of one node, one after the other.
#[derive(Debug)]
pub struct ElectedLeaders {
    client: Client,
    path: NodePath,
    watch: Option<Watch>,
    /// Who was told last.
    told: Option<ElectedLeader>,
}

impl ElectedLeaders {
    /// The next leader, and each thing that it proclaims: the one that there is at first. Each is
    /// told once, in order of tokens. Who led while this was too far behind to know (see
    /// [`WatchError::Compacted`]) is left out. Nothing is lost if the future is dropped.
    ///
    /// # Errors
    ///
    /// [`WatchError`] if there is nothing to wait for, or nobody who answers in time.
    pub async fn next(&mut self) -> Result<ElectedLeader, WatchError> {
        loop {
            let found = match &mut self.watch {
                None => {
                    let (subtree, watch) = self.client.list_and_watch(&self.path).await?;
                    self.watch = Some(watch);
                    subtree.nodes.get(&self.path).and_then(ElectedLeader::of)
                }
                Some(watch) => match watch.next().await {
                    Ok(told) => self.elected_by(&told),
                    Err(WatchError::Compacted { .. }) => {
                        self.watch = None;
                        None
                    }
                    Err(error) => return Err(error),
                },
            };
            let is_news = |found: &ElectedLeader| self.told.as_ref().is_none_or(|told| told.revision < found.revision);
            if let Some(leader) = found.filter(is_news) {
                self.told = Some(leader.clone());
                return Ok(leader);
            }
        }
    }

    fn elected_by(&self, told: &WatchItem) -> Option<ElectedLeader> {
        let WatchItem::Change(change) = told else { return None };
        // A node is put once in a change.
        change.events.iter().filter(|event| event.path == self.path).find_map(|event| match &event.kind {
            EventKind::Put(data) => ElectedLeader::of(data),
            EventKind::Delete => None,
        })
    }
}

impl Client {
    /// Waits to be elected, and says so to others by writing `value` to the node: a name, as a
    /// rule. The node must not be a volume, or have children. Dropping the future withdraws the
    /// candidate.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold_client_cache::CampaignOptions;
    ///
    /// let leadership = client.campaign(&"/scheduler".parse()?, "host-1", CampaignOptions::default()).await?;
    /// let over = leadership.over();
    /// tokio::select! {
    ///     () = over.cancelled() => println!("stopped in time"),
    ///     () = async { /* what only the leader does */ } => leadership.resign().await?,
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`LockError`], as of [`Client::lock`]; also if the node cannot be written.
    pub async fn campaign(
        &self,
        path: &NodePath,
        value: impl AsRef<[u8]>,
        options: CampaignOptions,
    ) -> Result<Leadership, LockError> {
        let CampaignOptions { wait, lock_delay, timeout } = options;
        let hold = self.lock(path, LockOptions { wait, lock_delay, timeout, ..LockOptions::default() }).await?;
        // From here on, whatever becomes of this, it is given back with the node.
        let leadership = Leadership::new(self.clone(), hold, timeout);
        leadership.proclaim(value).await?;
        Ok(leadership)
    }

    /// Who leads, as the node says: through the cache. None if nobody does, or nobody has said so
    /// yet.
    ///
    /// It may be over already, as far as the leader itself is concerned: whoever acts for a leader
    /// checks the token.
    ///
    /// # Errors
    ///
    /// [`ReadError`].
    pub async fn leader(&self, path: &NodePath) -> Result<Option<ElectedLeader>, ReadError> {
        let entry = self.get(path).await?;
        Ok(entry.and_then(|entry| ElectedLeader::of(&entry)))
    }

    /// The leaders from the first [`ElectedLeaders::next`] on, the one that there is then first.
    pub fn observe(&self, path: &NodePath) -> ElectedLeaders {
        ElectedLeaders { client: self.clone(), path: path.clone(), watch: None, told: None }
    }
}

#[cfg(test)]
mod tests {
    use leasehold_protocol::{id::LeaseId, object::Stat};

    use super::*;

    fn data(value: &[u8], owner: Option<NodeOwner>) -> Data {
        let stat = Stat {
            create_revision: Revision(3),
            modify_revision: Revision(4),
            version: 2,
            value_len: value.len() as u64,
            owner,
        };
        Data { value: Value::copy_from_slice(value), stat }
    }

    #[test]
    fn what_a_leader_writes_is_read_back_and_nothing_else_is() {
        let session = SessionId(7);
        let owner = Some(NodeOwner::Session(session));
        let leader = |value: &'static str| ElectedLeader {
            value: Value::from(value),
            token: Token(12),
            session,
            revision: Revision(4),
        };
        for value in ["host 1", "", " "] {
            assert_eq!(ElectedLeader::of(&data(&written(Token(12), value.as_bytes()), owner)), Some(leader(value)));
        }
        for (value, owner) in [
            ("12 host", None),
            ("12 host", Some(NodeOwner::Lease(LeaseId(7)))),
            ("host 1", owner),
            ("12", owner),
            ("-1 host", owner),
            ("", owner),
        ] {
            assert_eq!(ElectedLeader::of(&data(value.as_bytes(), owner)), None, "{value}");
        }
    }
}
