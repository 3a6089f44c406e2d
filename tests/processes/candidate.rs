//! A candidate in its own process. It campaigns for a node again and again. While it leads, it acts
//! as the leader at a fixed pace. It records when, and until when it was certain to lead.

use std::{
    convert::Infallible,
    path::{Path as FilePath, PathBuf},
    time::Duration,
};

use leasehold_client_cache::{Client, Leadership, NodePath, Options};
use serde::{Deserialize, Serialize};
use tokio::time::{MissedTickBehavior, interval};

use crate::{
    alone,
    common::{Cluster, Place, eventually},
    path,
    reigns::Reigns,
    worker::{self, Notes, Role, boottime_ns, until_told_to_stop},
};

/// How a process learns that it must be a candidate.
const CANDIDATE: Role = Role {
    variable: "LEASEHOLD_TEST_CANDIDATE",
    test: "candidate::candidate_records_leadership_end_and_next_begins_later",
};

/// The time between two acts of a leader, and between two attempts of a candidate.
const PACE: Duration = Duration::from_millis(5);

/// The task of a candidate.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Task {
    /// The servers' addresses.
    pub(crate) endpoints: Vec<String>,
    /// The name of its session, which it also writes as the leader. Each candidate has its own.
    pub(crate) name: String,
    /// The node that it campaigns for.
    pub(crate) path: String,
    /// The file for its notes.
    pub(crate) notes: PathBuf,
}

/// A note of a candidate. Times are in nanoseconds on the clock by which leases are counted.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Note {
    /// It leads.
    Elected {
        /// Its fencing token.
        token: u64,
        /// When it learned that.
        at: u64,
    },
    /// It has written [`ready`] for observers.
    Proclaimed {
        /// Its fencing token.
        token: u64,
        /// When it sent that.
        asked: u64,
        /// When it was answered.
        answered: u64,
    },
    /// It acted as only the leader may.
    Acted {
        /// Its fencing token.
        token: u64,
        /// When it checked that it leads.
        at: u64,
        /// Until when it was certain to lead without another renewal.
        until: u64,
    },
    /// It knows that it no longer leads.
    Over {
        /// Its fencing token.
        token: u64,
        /// When it learned that.
        at: u64,
    },
    /// It was not elected.
    Failed {
        /// The error.
        why: String,
    },
}

/// The value that a leader of this name writes when it begins.
pub(crate) fn ready(name: &str) -> String {
    format!("{name} is ready")
}

/// A candidate process, as the test sees it.
pub(crate) type Candidate = worker::Worker<Note>;

/// Starts a candidate at a place.
pub(crate) fn start(place: &Place, cluster: &Cluster, name: &str, at: &str) -> Candidate {
    let task = Task {
        endpoints: cluster.endpoints(),
        name: name.to_owned(),
        path: at.to_owned(),
        notes: notes(cluster, name),
    };
    Candidate::start(place, CANDIDATE, name, &task, &task.notes)
}

fn notes(cluster: &Cluster, name: &str) -> PathBuf {
    worker::notes(FilePath::new(&cluster.directory("")), name)
}

/// A candidate at work.
struct Work {
    client: Client,
    name: String,
    path: NodePath,
    notes: Notes,
}

impl Work {
    async fn connect(task: Task) -> Self {
        let options = Options::new(task.endpoints.clone()).name(&task.name);
        let client = loop {
            // There may be no server at the moment.
            if let Ok(client) = Client::connect(options.clone()).await {
                break client;
            }
        };
        Self { client, name: task.name, path: path(&task.path), notes: Notes::open(&task.notes) }
    }

    /// Campaigns again and again.
    async fn campaign(&self) {
        let mut attempts = interval(PACE);
        loop {
            attempts.tick().await;
            match self.client.campaign(&self.path, &self.name).await {
                Ok(leadership) => {
                    self.notes.note(&Note::Elected { token: leadership.token().0, at: boottime_ns() });
                    tokio::select! {
                        () = self.lead(&leadership) => {}
                        never = self.proclaim(&leadership) => match never {},
                    }
                }
                Err(error) => self.notes.note(&Note::Failed { why: error.to_string() }),
            }
        }
    }

    /// Acts as the leader, until its own clock says that it no longer leads.
    async fn lead(&self, leadership: &Leadership) {
        let token = leadership.token().0;
        let mut acts = interval(PACE);
        acts.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // Read the clock first. If the process is paused in between, the note says too little,
            // and never too much.
            let at = boottime_ns();
            let left = leadership.remaining();
            if left.is_zero() {
                break;
            }
            self.notes.note(&Note::Acted { token, at, until: at + left.as_nanos() as u64 });
            acts.tick().await;
        }
        self.notes.note(&Note::Over { token, at: boottime_ns() });
    }

    /// Proclaims that it leads. Then it has nothing to do.
    async fn proclaim(&self, leadership: &Leadership) -> Infallible {
        let asked = boottime_ns();
        // The leadership may end before the answer.
        if leadership.proclaim(ready(&self.name)).await.is_ok() {
            self.notes.note(&Note::Proclaimed { token: leadership.token().0, asked, answered: boottime_ns() });
        }
        std::future::pending().await
    }
}

/// If the process must be a candidate, this runs the candidate.
#[test]
fn candidate_records_leadership_end_and_next_begins_later() {
    if let Some(task) = CANDIDATE.task() {
        until_told_to_stop(async { Work::connect(task).await.campaign().await });
        return;
    }
    let _alone = alone();
    let cluster = Cluster::start(1);
    cluster.cli().done(["volume", "create", "/jobs", "--term", "500ms", "--skew-margin", "5ms"]);
    let mut reigns = Reigns::default();
    for name in ["one", "two", "three"] {
        let mut candidate = start(&Place::default(), &cluster, name, "/jobs/leader");
        eventually(&format!("{name} leads and has said so"), || {
            reigns.add(name, candidate.news());
            let leads = reigns.latest().is_some_and(|(_, reign)| reign.name == name && reign.proclaimed.is_some());
            if leads { Ok(()) } else { Err(format!("{reigns:?}")) }
        });
    }
    assert!(reigns.gaps().len() >= 2, "{reigns:?}");
}
