//! A candidate in a process of its own: it campaigns for a node again and again. While it leads it
//! does, at a pace, what only the leader does, and writes down when, and until when it was certain
//! to lead then.

use std::{
    convert::Infallible,
    path::{Path as FilePath, PathBuf},
    time::Duration,
};

use leasehold_client_cache::{CampaignOptions, Client, Leadership, NodePath, Options};
use serde::{Deserialize, Serialize};
use tokio::time::{MissedTickBehavior, interval};

use crate::{
    alone,
    common::{Cluster, Place, eventually},
    path,
    reigns::Reigns,
    worker::{self, Notes, Role, boottime_ns, until_told_to_stop},
};

/// What a process is that is to be a candidate.
const CANDIDATE: Role = Role {
    variable: "LEASEHOLD_TEST_CANDIDATE",
    test: "candidate::candidate_records_leadership_end_and_next_begins_later",
};

/// Between two things that a leader does, and two attempts of a candidate.
const PACE: Duration = Duration::from_millis(5);

/// What a candidate is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Task {
    /// Where the servers are.
    pub(crate) endpoints: Vec<String>,
    /// What its session is called, and it writes as the leader. Each candidate has its own.
    pub(crate) name: String,
    /// What it campaigns for.
    pub(crate) path: String,
    /// Where it writes down what it did.
    pub(crate) notes: PathBuf,
}

/// What a candidate says. Times are in nanoseconds on the clock by which leases are counted.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Note {
    /// It leads.
    Elected {
        /// Its fencing token.
        token: u64,
        /// Since when it knows.
        at: u64,
    },
    /// It has written [`ready`] for others to read.
    Proclaimed {
        /// Its fencing token.
        token: u64,
        /// When it asked for that.
        asked: u64,
        /// When it was answered.
        answered: u64,
    },
    /// It did what only the leader does.
    Acted {
        /// Its fencing token.
        token: u64,
        /// When it looked whether it leads.
        at: u64,
        /// Until when it was certain to lead, if it would hear nothing more.
        until: u64,
    },
    /// It knows that it leads no more.
    Over {
        /// Its fencing token.
        token: u64,
        /// Since when.
        at: u64,
    },
    /// It was not elected.
    Failed {
        /// Why.
        why: String,
    },
}

/// What a leader of this name writes when it has begun.
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

    /// Is elected again and again.
    async fn campaign(&self) {
        let mut attempts = interval(PACE);
        loop {
            attempts.tick().await;
            match self.client.campaign(&self.path, &self.name, CampaignOptions::default()).await {
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

    /// Does what only the leader does, until its own clock says that it leads no more.
    async fn lead(&self, leadership: &Leadership) {
        let token = leadership.token().0;
        let mut acts = interval(PACE);
        acts.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // The clock first: if the process is stopped in between, this says too little, and
            // never too much.
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

    /// Says that it leads. Has nothing to do after that.
    async fn proclaim(&self, leadership: &Leadership) -> Infallible {
        let asked = boottime_ns();
        // It may be over before it was answered.
        if leadership.proclaim(ready(&self.name)).await.is_ok() {
            self.notes.note(&Note::Proclaimed { token: leadership.token().0, asked, answered: boottime_ns() });
        }
        std::future::pending().await
    }
}

/// In a process that is to be a candidate: the candidate.
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
