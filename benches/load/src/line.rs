//! A connection without a cache, which measures the server itself.
//!
//! It has a session but no volume lease. So its reads are linearizable, are granted no lease, and
//! cause no recall.

use std::time::{Duration, Instant};

use leasehold_protocol::{
    id::{Epoch, SessionId},
    lease_policy::LeaseRequest,
    message::{Answer, Body, KeyLeasePromise, KeyLeaseRenewal, ReadAnswer, Request, RequestHeader, Response},
    object::{Content, Object},
    path::NodePath,
};
use leasehold_wire::{CallbackTransport, LeaseholdClient, Role, client_connection, connect};
use tokio::task::JoinHandle;

use crate::error::LoadError;

/// The pause between two rounds of the search.
const PAUSE: Duration = Duration::from_millis(50);

/// A connection to the leader, with a session and without a cache. Its reads are linearizable, are
/// granted no lease, and cause no recall.
#[derive(Debug)]
pub struct LoadLine {
    client: LeaseholdClient,
    session: SessionId,
    epoch: Epoch,
    timeout: Duration,
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
    /// Finds the leader, opens a session and registers it. The search and each later operation take
    /// `timeout` at most.
    pub async fn open(endpoints: &[String], name: &str, timeout: Duration) -> Result<Self, LoadError> {
        let began = Instant::now();
        let mut last = LoadError::NoEndpoints;
        while began.elapsed() < timeout {
            for endpoint in endpoints {
                match Self::at(endpoint, name, timeout).await {
                    Ok(line) => return Ok(line),
                    Err(error) => last = error,
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
        Err(last)
    }

    async fn at(endpoint: &str, name: &str, timeout: Duration) -> Result<Self, LoadError> {
        let stream = connect(endpoint, Role::Client, timeout).await?.stream;
        let (client, recalls, work) = client_connection(stream);
        let driver = tokio::spawn(async move {
            // Failed calls report how the connection ended.
            let _ = work.await;
        });
        let mut line = Self { client, session: SessionId(0), epoch: Epoch(0), timeout, driver, _recalls: recalls };
        let opened = line.ask(Body::Open { name: name.to_owned() }).await?;
        let Answer::Opened { session, .. } = opened.1 else { return Err(LoadError::UnexpectedAnswer) };
        (line.session, line.epoch) = (session, opened.0);
        line.ask(Body::Register).await?;
        Ok(line)
    }

    /// Reads a node's data from the server.
    pub async fn read(&self, path: &NodePath) -> Result<(), LoadError> {
        self.exists(path).await.map(drop)
    }

    /// Reads a node's data from the server. Returns whether the node exists.
    pub(crate) async fn exists(&self, path: &NodePath) -> Result<bool, LoadError> {
        let body = Body::Read { object: Object::data(path.clone()), known: None, lease: LeaseRequest::Implicit };
        match self.ask(body).await?.1 {
            Answer::Read(ReadAnswer { content: Some(Content::Data(data)), grant: None, .. }) => Ok(data.is_some()),
            _ => Err(LoadError::UnexpectedAnswer),
        }
    }

    /// Renews key leases. Returns the terms in the order of the leases. A term begins when the
    /// renewal arrives at the leader.
    pub(crate) async fn keep(&self, leases: Vec<KeyLeaseRenewal>) -> Result<Vec<KeyLeasePromise>, LoadError> {
        match self.ask(Body::KeepAlive { leases }).await?.1 {
            Answer::KeptAlive(kept) => Ok(kept),
            _ => Err(LoadError::UnexpectedAnswer),
        }
    }

    /// Ends the session.
    pub async fn close(self) -> Result<(), LoadError> {
        self.ask(Body::Close).await.map(drop)
    }

    async fn ask(&self, body: Body) -> Result<(Epoch, Answer), LoadError> {
        let header = RequestHeader { session: self.session, epoch: self.epoch, ..RequestHeader::default() };
        let mut context = tarpc::context::current();
        context.deadline = Instant::now() + self.timeout;
        let Response { epoch, result, .. } = self.client.call(context, Request { header, body }).await?;
        Ok((epoch, result?))
    }
}
