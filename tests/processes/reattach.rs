//! The lease that each node is attached to after all servers were killed and started again (A48 in
//! docs/verification.md). etcd has tests for this too. Nodes are put in all ways, put again with or
//! without a removal before, and put once more after the restart. Then all servers restart again.
//! Some puts are in transactions. All servers have their logs, or one needs a Raft snapshot.

use std::{collections::BTreeMap, time::Duration};

use leasehold_client_cache::{Attach, Client, LeaseId, NodeOwner, NodePath, Operation, Transaction};
use serde_json::json;

use crate::{alone, common::Cluster, path};

/// Long enough for the test.
const TTL: Duration = Duration::from_secs(3600);

/// A server that was down for a moment does not find what it missed in the log.
const SHORT_LOG: &str = "[raft]\nsnapshot_entries = 25\nkeep_entries = 5\n";

/// One of the two leases, or none.
type Lease = Option<usize>;

const LEASES: [Lease; 3] = [None, Some(0), Some(1)];

/// A step with a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Nothing,
    Put(Lease),
    /// The node is removed before.
    PutAnew(Lease),
}

/// The steps with one node: two before the restart, and one after it.
#[derive(Debug, Clone, Copy)]
struct Story([Step; 3]);

impl Story {
    fn all() -> BTreeMap<NodePath, Self> {
        let puts = || LEASES.into_iter().map(Step::Put);
        let again = || [Step::Nothing].into_iter().chain(puts()).chain(LEASES.into_iter().map(Step::PutAnew));
        let stories = puts().flat_map(|first| {
            again().flat_map(move |second| {
                [Step::Nothing].into_iter().chain(puts()).map(move |third| Self([first, second, third]))
            })
        });
        stories.enumerate().map(|(number, story)| (path(&format!("/keys/{number:03}")), story)).collect()
    }

    /// The lease that the node is attached to in the end.
    fn lease(&self) -> Lease {
        let puts = self.0.iter().rev().find_map(|step| match step {
            Step::Nothing => None,
            Step::Put(lease) | Step::PutAnew(lease) => Some(*lease),
        });
        puts.expect("it is put")
    }
}

/// Puts a node, by itself or in a transaction.
async fn put(client: &Client, at: &NodePath, attach: Attach, in_transaction: bool) {
    if in_transaction {
        let put = Operation::Put { path: at.clone(), value: "value".into(), attach };
        client.transaction(Transaction::new().then(put)).await.expect("the lease is there");
    } else {
        client.put(at, "value").attach(attach).await.expect("the lease is there");
    }
}

async fn take(client: &Client, at: &NodePath, step: Step, leases: [LeaseId; 2], in_transaction: bool) {
    let (Step::Put(lease) | Step::PutAnew(lease)) = step else { return };
    if matches!(step, Step::PutAnew(_)) {
        client.delete(at).await.expect("it is there");
    }
    put(client, at, lease.map_or(Attach::Nothing, |lease| Attach::Lease(leases[lease])), in_transaction).await;
}

/// Kills all servers, and starts those in `start`.
fn crash(cluster: &mut Cluster, start: &[u64]) {
    for id in cluster.ids().into_iter().filter(|id| cluster.runs(*id)).collect::<Vec<_>>() {
        cluster.kill(id);
    }
    start.iter().for_each(|id| cluster.spawn(*id));
    cluster.caught_up(start);
}

/// The nodes that are attached to a lease, or to none.
fn nodes(stories: &BTreeMap<NodePath, Story>, lease: Lease) -> Vec<NodePath> {
    stories.iter().filter(|(_, story)| story.lease() == lease).map(|(path, _)| path.clone()).collect()
}

async fn check_owners(client: &Client, stories: &BTreeMap<NodePath, Story>, leases: [LeaseId; 2], gone: &[Lease]) {
    for (path, story) in stories {
        let found = client.get(path).await.expect("the cluster serves");
        let owner = found.map(|entry| entry.stat.owner);
        let expected = story.lease().map(|lease| NodeOwner::Lease(leases[lease]));
        let expected = (!gone.contains(&story.lease())).then_some(expected);
        assert_eq!(owner, expected, "{path}: {story:?}");
    }
}

/// The state in which a test begins.
struct Start {
    cluster: Cluster,
    client: Client,
    leases: [LeaseId; 2],
    stories: BTreeMap<NodePath, Story>,
}

impl Start {
    async fn with(config: Option<&str>) -> Self {
        let cluster = Cluster::start_with(3, config);
        let client = cluster.client("writer").await;
        let grant = async || client.grant_lease(TTL).await.expect("the cluster serves");
        let leases = [grant().await, grant().await];
        Self { cluster, client, leases, stories: Story::all() }
    }

    /// Takes the step of this number in each story, every other one in a transaction.
    async fn tell(&self, part: usize) {
        for (count, (path, story)) in self.stories.iter().enumerate() {
            take(&self.client, path, story.0[part], self.leases, (count + part).is_multiple_of(2)).await;
        }
    }

    async fn check(&self, gone: &[Lease]) {
        check_owners(&self.client, &self.stories, self.leases, gone).await;
    }

    /// Makes a server lead. It must win if the only other server that runs lacks an entry.
    async fn have_lead(&mut self, server: u64) {
        let leader = self.cluster.leader();
        if leader != server {
            let third = self.cluster.others(leader).into_iter().find(|id| *id != server).expect("one of three");
            self.cluster.kill(third);
            put(&self.client, &path("/lacking"), Attach::Nothing, false).await;
            self.cluster.kill(leader);
            self.cluster.spawn(third);
            assert_eq!(self.cluster.leader(), server);
            self.cluster.spawn(leader);
        }
    }

    /// Checks all leases, and revokes one after the other.
    async fn finish(mut self) {
        self.check(&[]).await;
        let (cli, all) = (self.cluster.cli(), self.cluster.ids());
        for (number, id) in self.leases.into_iter().enumerate() {
            let expected = nodes(&self.stories, Some(number));
            let lives = cli.done(["lease", "timetolive", &format!("{id:016x}"), "--keys"]);
            assert_eq!((&lives["ttl_ms"], &lives["keys"]), (&json!(3_600_000), &json!(expected)));
        }
        self.client.revoke_lease(self.leases[0]).await.expect("it is there");
        self.check(&[Some(0)]).await;
        crash(&mut self.cluster, &all);
        self.check(&[Some(0)]).await;
        self.client.revoke_lease(self.leases[1]).await.expect("it is there");
        self.check(&[Some(0), Some(1)]).await;
        let stay = nodes(&self.stories, None).len();
        println!("{} nodes, {stay} of which go with no lease in the end", self.stories.len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_stay_attached_to_last_lease_after_crash_of_all() {
    let _alone = alone();
    let mut start = Start::with(None).await;
    let all = start.cluster.ids();
    start.tell(0).await;
    start.tell(1).await;
    crash(&mut start.cluster, &all);
    start.tell(2).await;
    crash(&mut start.cluster, &all);
    start.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_stay_attached_to_last_lease_after_raft_snapshot() {
    let _alone = alone();
    let mut start = Start::with(Some(SHORT_LOG)).await;
    let all = start.cluster.ids();
    let behind = start.cluster.others(start.cluster.leader())[0];
    start.tell(0).await;
    start.cluster.kill(behind);
    start.tell(1).await;
    let others = start.cluster.others(behind);
    crash(&mut start.cluster, &others);
    start.tell(2).await;
    crash(&mut start.cluster, &all);
    let got_it = start.cluster.log(behind).contains("replaced by a snapshot");
    assert!(got_it, "the log was still long enough: nothing was shown");
    start.have_lead(behind).await;
    start.finish().await;
}
