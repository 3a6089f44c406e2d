//! Checks all day which services are registered. Services that live are listed, whatever fails.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

use serde_json::Value;

use crate::{
    common::Cli,
    day::programs::{All, SERVICES},
    workload::now_ns,
};

/// The time between two checks.
const PACE: Duration = Duration::from_millis(100);

/// The timeout of a check: there may be no leader at the moment.
const TIMEOUT: &str = "1s";

/// The results of the checks.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Services that have a fault: they may be gone.
    pub(super) struck: BTreeSet<String>,
    /// When the last check that was answered began.
    pub(super) began: u64,
    /// The state of each service in that answer.
    states: BTreeMap<String, String>,
    /// The results that are not judged yet.
    pub(super) checks: ServiceChecks,
}

/// Checks of services that are known to live.
#[derive(Debug, Default)]
pub(super) struct ServiceChecks {
    /// The number of checks that found the service.
    pub(super) fine: u64,
    /// The answers of the other checks.
    pub(super) missing: Vec<String>,
}

impl Seen {
    /// True if a service is listed as one that is there.
    pub(super) fn is_listed(&self, name: &str) -> bool {
        self.states.get(name).is_some_and(|state| state == "live" || state == "jeopardy")
    }
}

/// A thread that checks the list, through a shell.
#[derive(Debug)]
pub(super) struct Listing {
    seen: Arc<Mutex<Seen>>,
    stops: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listing {
    /// Checks these services from now on.
    pub(super) fn start(cli: &Cli, programs: All, names: Vec<String>) -> Self {
        let (seen, stops) = (Arc::new(Mutex::new(Seen::default())), Arc::new(AtomicBool::new(false)));
        let (noted, told) = (Arc::clone(&seen), Arc::clone(&stops));
        let mut shell = cli.shell_with(&["--timeout", TIMEOUT]);
        let thread = std::thread::spawn(move || {
            let lock = || noted.lock().unwrap_or_else(PoisonError::into_inner);
            while !told.load(Relaxed) {
                // A service lives if the same process was registered before and after the request.
                let lives = |name: &String| programs.registered(name).map(|life| (name.clone(), life));
                let spared = || {
                    let struck = lock().struck.clone();
                    names.iter().filter(|name| !struck.contains(*name)).filter_map(lives).collect::<BTreeMap<_, _>>()
                };
                let (began, before) = (now_ns(), spared());
                let answer = shell.ask(&format!("services {SERVICES}"));
                let after = spared();
                if let Some(services) = answer["services"].as_array() {
                    let mut seen = lock();
                    (seen.began, seen.states) = (began, states(services));
                    for (name, _) in before.iter().filter(|(name, life)| after.get(*name) == Some(life)) {
                        match seen.is_listed(name) {
                            true => seen.checks.fine += 1,
                            false => seen.checks.missing.push(format!("{name} lives, and is not listed: {answer}")),
                        }
                    }
                }
                std::thread::sleep(PACE);
            }
            shell.close();
        });
        Self { seen, stops, thread: Some(thread) }
    }

    /// The results so far.
    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the checks.
    pub(super) fn stop(&mut self) {
        self.stops.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the shell answers");
        }
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        self.stops.store(true, Relaxed);
    }
}

/// The state of each service, by the last component of its path.
fn states(services: &[Value]) -> BTreeMap<String, String> {
    let said = |service: &Value| {
        let (path, state) = (service["path"].as_str()?, service["state"].as_str()?);
        Some((path.rsplit('/').next()?.to_owned(), state.to_owned()))
    };
    services.iter().filter_map(said).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn service_that_is_gone_or_unknown_is_not_listed() {
        let service = |name: &str, state: &str| json!({"path": format!("{SERVICES}/{name}"), "state": state});
        let services = [service("a", "live"), service("b", "jeopardy"), service("c", "gone")];
        let seen = Seen { states: states(&services), ..Seen::default() };
        assert_eq!(["a", "b", "c", "d"].map(|name| seen.is_listed(name)), [true, true, false, false]);
    }
}
