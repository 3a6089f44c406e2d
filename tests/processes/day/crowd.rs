//! A crowd of clients in a process of its own: it takes all the room that a server has for clients.

use std::{path::PathBuf, time::Duration};

use leasehold_wire::connect;
use serde::{Deserialize, Serialize};

use crate::{
    common::Place,
    worker::{self, Notes, Role, until_told_to_stop},
};

/// What a process is that is a crowd.
pub(super) const CROWD: Role =
    Role { variable: "LEASEHOLD_TEST_CROWD", test: "day::a_day_in_the_life_of_a_cluster_breaks_no_promise" };

/// How long a connection may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How often the crowd takes the room that others have left.
const PACE: Duration = Duration::from_millis(10);

/// What a crowd is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Task {
    address: String,
    count: usize,
    notes: PathBuf,
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Admitted {
    pub(super) admitted: usize,
    /// What the others were told.
    pub(super) refused: Vec<String>,
}

/// A crowd, as the test sees it.
pub(super) type Crowd = worker::Worker<Admitted>;

/// Sends so many clients to a server.
pub(super) fn start(place: &Place, address: &str, count: usize, directory: &std::path::Path, name: &str) -> Crowd {
    let task = Task { address: address.to_owned(), count, notes: worker::notes(directory, name) };
    Crowd::start(place, CROWD, name, &task, &task.notes)
}

/// Connects, and stays connected until it is told to stop.
pub(super) fn be_a_crowd(task: Task) {
    until_told_to_stop(async {
        let all = (0..task.count).map(|_| connect(&task.address, leasehold_wire::Role::Client, TIMEOUT));
        let (mut admitted, mut refused) = (Vec::new(), Vec::new());
        for one in futures::future::join_all(all).await {
            match one {
                Ok(introduced) => admitted.push(introduced.stream),
                Err(error) => refused.push(error.to_string()),
            }
        }
        Notes::open(&task.notes).note(&Admitted { admitted: admitted.len(), refused });
        // Others leave, and make room.
        let mut pace = tokio::time::interval(PACE);
        loop {
            pace.tick().await;
            if let Ok(introduced) = connect(&task.address, leasehold_wire::Role::Client, TIMEOUT).await {
                admitted.push(introduced.stream);
            }
        }
    });
}
