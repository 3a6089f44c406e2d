//! A crowd of clients in its own process. It takes all the room that a server has for clients.

use std::{path::PathBuf, time::Duration};

use leasehold_wire::connect;
use serde::{Deserialize, Serialize};

use crate::{
    common::Place,
    worker::{self, Notes, Role, until_told_to_stop},
};

/// How a process learns that it must be a crowd.
pub(super) const CROWD: Role =
    Role { variable: "LEASEHOLD_TEST_CROWD", test: "day::a_day_in_the_life_of_a_cluster_breaks_no_promise" };

/// The longest time to open a connection.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How often the crowd takes the room that other clients have left.
const PACE: Duration = Duration::from_millis(10);

/// The task of a crowd.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Task {
    address: String,
    count: usize,
    notes: PathBuf,
}

/// The result of a crowd's attempt to connect.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Admitted {
    pub(super) admitted: usize,
    /// The errors of the clients that were not admitted.
    pub(super) refused: Vec<String>,
}

/// A crowd, as the test sees it.
pub(super) type Crowd = worker::Worker<Admitted>;

/// Sends `count` clients to a server.
pub(super) fn start(place: &Place, address: &str, count: usize, directory: &std::path::Path, name: &str) -> Crowd {
    let task = Task { address: address.to_owned(), count, notes: worker::notes(directory, name) };
    Crowd::start(place, CROWD, name, &task, &task.notes)
}

/// Connects, and stays connected until it is stopped.
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
        // Other clients leave, and make room.
        let mut pace = tokio::time::interval(PACE);
        loop {
            pace.tick().await;
            if let Ok(introduced) = connect(&task.address, leasehold_wire::Role::Client, TIMEOUT).await {
                admitted.push(introduced.stream);
            }
        }
    });
}
