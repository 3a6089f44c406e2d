//! A connection without a cache, which measures the server itself.
//!
//! It has a session but no volume lease. So its reads are linearizable, are granted no lease, and
//! cause no recall.

use std::time::{Duration, Instant};

use leasehold_protocol::{
    id::{Epoch, SessionId},
    message::{Answer, Body, KeyLeasePromise, KeyLeaseRenewal, ReadAnswer, Refusal, Request, RequestHeader, Response},
    object::{Content, Object},
    path::NodePath,
};
use leasehold_wire::{CallbackTransport, LeaseholdClient, Role, client_connection, connect};
use tokio::task::JoinHandle;

use super::TIMEOUT;
use crate::exit::CommandFailure;

/// Time limit of the search for a leader.
const SEARCH: Duration = Duration::from_secs(10);

/// The pause between two rounds of the search.
const PAUSE: Duration = Duration::from_millis(50);

/// A connection to the leader.
#[derive(Debug)]
pub(crate) struct LoadLine {
    client: LeaseholdClient,
    session: SessionId,
    epoch: Epoch,
    driver: JoinHandle<()>,
    /// Dropping it closes the connection.
    _recalls: CallbackTransport,
}

impl Drop for LoadLine {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl LoadLine {
    /// Finds the leader, opens a session and registers it.
    pub(crate) async fn open(endpoints: &[String], name: &str) -> Result<Self, CommandFailure> {
        let began = Instant::now();
        let mut last = CommandFailure::unavailable("no endpoints were given");
        while began.elapsed() < SEARCH {
            for endpoint in endpoints {
                match Self::at(endpoint, name).await {
                    Ok(line) => return Ok(line),
                    Err(failure) => last = failure,
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
        Err(last)
    }

    async fn at(endpoint: &str, name: &str) -> Result<Self, CommandFailure> {
        let stream = connect(endpoint, Role::Client, SEARCH).await.map_err(CommandFailure::unavailable)?.stream;
        let (client, recalls, work) = client_connection(stream);
        let driver = tokio::spawn(async move {
            // Failed calls report how the connection ended.
            let _ = work.await;
        });
        let mut line = Self { client, session: SessionId(0), epoch: Epoch(0), driver, _recalls: recalls };
        let opened = line.ask(Body::Open { name: name.to_owned() }).await?;
        let Answer::Opened { session, .. } = opened.1 else { return Err(unexpected()) };
        (line.session, line.epoch) = (session, opened.0);
        line.ask(Body::Register).await?;
        Ok(line)
    }

    /// Reads a node's data from the server.
    pub(crate) async fn read(&self, path: &NodePath) -> Result<(), CommandFailure> {
        self.exists(path).await.map(drop)
    }

    /// Reads a node's data from the server. Returns whether the node exists.
    pub(crate) async fn exists(&self, path: &NodePath) -> Result<bool, CommandFailure> {
        let body = Body::Read { object: Object::data(path.clone()), known: None };
        match self.ask(body).await?.1 {
            Answer::Read(ReadAnswer { content: Some(Content::Data(data)), grant: None, .. }) => Ok(data.is_some()),
            _ => Err(unexpected()),
        }
    }

    /// Renews key leases. Returns the terms in the order of the leases. A term begins when the
    /// renewal arrives at the leader.
    pub(crate) async fn keep(&self, leases: Vec<KeyLeaseRenewal>) -> Result<Vec<KeyLeasePromise>, CommandFailure> {
        match self.ask(Body::KeepAlive { leases }).await?.1 {
            Answer::KeptAlive(kept) => Ok(kept),
            _ => Err(unexpected()),
        }
    }

    /// Ends the session.
    pub(crate) async fn close(self) -> Result<(), CommandFailure> {
        self.ask(Body::Close).await.map(drop)
    }

    async fn ask(&self, body: Body) -> Result<(Epoch, Answer), CommandFailure> {
        let header = RequestHeader { session: self.session, epoch: self.epoch, ..RequestHeader::default() };
        let mut context = tarpc::context::current();
        context.deadline = Instant::now() + TIMEOUT;
        let response =
            self.client.call(context, Request { header, body }).await.map_err(CommandFailure::unavailable)?;
        let Response { epoch, result, .. } = response;
        result.map(|answer| (epoch, answer)).map_err(|refusal: Refusal| CommandFailure::from_refusal(&refusal))
    }
}

fn unexpected() -> CommandFailure {
    CommandFailure::refused("answer", "the server's answer is not one to the question")
}
