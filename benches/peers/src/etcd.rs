//! etcd, by its own gRPC. The few messages that are needed are copied from its `rpc.proto` and
//! `kv.proto`.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, future::BoxFuture, stream};
use prost::Message;
use tokio::{
    sync::{OnceCell, mpsc},
    task::JoinSet,
};
use tonic::{
    Request,
    client::Grpc,
    codegen::http::uri::PathAndQuery,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

use crate::{
    closed_loop::{Line, Load},
    process::in_path,
    system::{LEASE_TERM, path_of, value},
    watched::Watchers,
};

/// Time limit of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The first field of every answer.
#[derive(Clone, PartialEq, Message)]
struct ResponseHeader {
    #[prost(uint64, tag = "2")]
    member_id: u64,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "5")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bool, tag = "7")]
    serializable: bool,
}

#[derive(Clone, PartialEq, Message)]
struct RangeResponse {
    #[prost(message, repeated, tag = "2")]
    kvs: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct PutResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<ResponseHeader>,
}

#[derive(Clone, PartialEq, Message)]
struct StatusRequest {}

#[derive(Clone, PartialEq, Message)]
struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<ResponseHeader>,
    #[prost(uint64, tag = "4")]
    leader: u64,
}

#[derive(Clone, PartialEq, Message)]
struct LeaseGrantRequest {
    #[prost(int64, tag = "1")]
    ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LeaseGrantResponse {
    #[prost(int64, tag = "2")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LeaseRevokeRequest {
    #[prost(int64, tag = "1")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LeaseRevokeResponse {}

#[derive(Clone, PartialEq, Message)]
struct LockRequest {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(int64, tag = "2")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LockResponse {
    #[prost(bytes = "vec", tag = "2")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct UnlockRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct UnlockResponse {}

#[derive(Clone, PartialEq, Message)]
struct WatchCreateRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct WatchRequest {
    #[prost(message, optional, tag = "1")]
    create: Option<WatchCreateRequest>,
}

#[derive(Clone, PartialEq, Message)]
struct Event {}

#[derive(Clone, PartialEq, Message)]
struct WatchResponse {
    #[prost(bool, tag = "3")]
    created: bool,
    #[prost(message, repeated, tag = "11")]
    events: Vec<Event>,
}

/// The path of the program.
pub(crate) fn program() -> Result<PathBuf> {
    in_path("etcd").context("there is no etcd in PATH (Debian: etcd-server)")
}

/// Three members, and their client ports.
pub(crate) fn commands(program: &Path, dir: &Path, ports: &[u16]) -> (Vec<Command>, Vec<u16>) {
    let (served, peers) = (ports[..3].to_vec(), &ports[3..6]);
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let members: Vec<_> = (0..3).map(|id| format!("m{id}={}", url(peers[id]))).collect();
    let member = |id: usize| {
        let mut command = Command::new(program);
        command.args(["--name", &format!("m{id}"), "--initial-cluster", &members.join(",")]);
        command.arg("--data-dir").arg(dir.join(format!("member-{id}")));
        for option in ["--listen-client-urls", "--advertise-client-urls"] {
            command.args([option, &url(served[id])]);
        }
        for option in ["--listen-peer-urls", "--initial-advertise-peer-urls"] {
            command.args([option, &url(peers[id])]);
        }
        command.args(["--logger", "zap", "--log-level", "error"]);
        command
    };
    ((0..3).map(member).collect(), served)
}

async fn connect(endpoint: &str) -> Result<Connection> {
    let endpoint = Endpoint::from_shared(format!("http://{endpoint}"))?;
    let channel = endpoint.connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true).connect().await?;
    Ok(Connection { channel, lease: OnceCell::new() })
}

/// Whether the server at this endpoint leads.
pub(crate) async fn is_leader(endpoint: &str) -> Result<bool> {
    let status: StatusResponse =
        connect(endpoint).await?.call("/etcdserverpb.Maintenance/Status", StatusRequest {}).await?;
    Ok(status.header.is_some_and(|header| header.member_id == status.leader))
}

/// Opens a connection.
pub(crate) async fn line(endpoint: &str) -> Result<Arc<dyn Line>> {
    Ok(Arc::new(connect(endpoint).await?))
}

/// Watches on one stream.
pub(crate) async fn watched(endpoint: &str, watchers: usize) -> Result<Watchers> {
    let channel = connect(endpoint).await?.channel;
    let create = WatchRequest { create: Some(WatchCreateRequest { key: path_of(0).into_bytes() }) };
    // The stream of requests stays open.
    let requests = stream::iter(vec![create; watchers]).chain(stream::pending());
    let mut client = Grpc::new(channel);
    client.ready().await?;
    let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
    let codec = ProstCodec::<WatchRequest, WatchResponse>::new();
    let mut responses = client.streaming(Request::new(requests), path, codec).await?.into_inner();
    let mut created = 0;
    while created < watchers {
        created += usize::from(responses.message().await?.context("the stream of watches has ended")?.created);
    }
    let (sender, told) = mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        while let Some(response) = responses.message().await? {
            if !response.events.is_empty() {
                sender.send(Instant::now())?;
            }
        }
        Ok(())
    });
    Ok(Watchers { told, _tasks: tasks })
}

/// One HTTP/2 connection that requests share.
struct Connection {
    channel: Channel,
    /// The lease of its locks, as in etcd's session.
    lease: OnceCell<i64>,
}

impl Connection {
    async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<A>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut client = Grpc::new(self.channel.clone());
        client.ready().await?;
        let path = PathAndQuery::from_static(path);
        Ok(client.unary(Request::new(request), path, ProstCodec::<Q, A>::new()).await?.into_inner())
    }
}

impl Connection {
    async fn grant(&self) -> Result<i64> {
        let ttl = i64::try_from(LEASE_TERM.as_secs())?;
        let granted: LeaseGrantResponse =
            self.call("/etcdserverpb.Lease/LeaseGrant", LeaseGrantRequest { ttl }).await?;
        Ok(granted.id)
    }

    async fn grant_and_revoke(&self) -> Result<()> {
        let id = self.grant().await?;
        self.call::<_, LeaseRevokeResponse>("/etcdserverpb.Lease/LeaseRevoke", LeaseRevokeRequest { id }).await?;
        Ok(())
    }

    /// As etcd's concurrency library does, but in the server.
    async fn lock_and_unlock(&self, name: Vec<u8>) -> Result<()> {
        let lease = *self.lease.get_or_try_init(|| self.grant()).await?;
        let LockResponse { key } = self.call("/v3lockpb.Lock/Lock", LockRequest { name, lease }).await?;
        self.call::<_, UnlockResponse>("/v3lockpb.Lock/Unlock", UnlockRequest { key }).await?;
        Ok(())
    }
}

impl Line for Connection {
    fn request(&self, load: Load, node: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let key = path_of(node).into_bytes();
            match load {
                Load::Fill | Load::Write => {
                    let request = PutRequest { key, value: value(node) };
                    self.call::<_, PutResponse>("/etcdserverpb.KV/Put", request).await.map(drop)
                }
                Load::Lease => self.grant_and_revoke().await,
                // Locks have names of their own, because the existing nodes would be in the way.
                Load::Lock => self.lock_and_unlock(format!("/lock{}", path_of(node)).into_bytes()).await,
                Load::Read | Load::LocalRead => {
                    let request = RangeRequest { key, serializable: load == Load::LocalRead };
                    let answer: RangeResponse = self.call("/etcdserverpb.KV/Range", request).await?;
                    ensure!(answer.kvs.len() == 1, "expected a value for node {node}, got {}", answer.kvs.len());
                    Ok(())
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_bytes_that_etcd_expects() {
        let put = PutRequest { key: b"k".to_vec(), value: b"v".to_vec() };
        assert_eq!(put.encode_to_vec(), [0x0a, 1, b'k', 0x12, 1, b'v']);
        let read = RangeRequest { key: b"k".to_vec(), serializable: true };
        assert_eq!(read.encode_to_vec(), [0x0a, 1, b'k', 0x38, 1]);
        let watch = WatchRequest { create: Some(WatchCreateRequest { key: b"k".to_vec() }) };
        assert_eq!(watch.encode_to_vec(), [0x0a, 3, 0x0a, 1, b'k']);
        let lock = LockRequest { name: b"n".to_vec(), lease: 5 };
        assert_eq!(lock.encode_to_vec(), [0x0a, 1, b'n', 0x10, 5]);
        // With fields that are not read here: a header, a version, a count.
        let answer =
            RangeResponse::decode(&[0x0a, 2, 0x18, 9, 0x12, 8, 0x0a, 1, b'k', 0x20, 3, 0x2a, 1, b'v', 0x20, 1][..]);
        assert_eq!(answer.expect("decodes").kvs, [KeyValue { key: b"k".to_vec(), value: b"v".to_vec() }]);
    }
}
