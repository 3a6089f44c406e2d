//! Who is registered, looked at all day: services that live are listed, whatever fails.

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

/// Between two looks.
const PACE: Duration = Duration::from_millis(100);

/// How long a look may take: there may be no leader at the moment.
const TIMEOUT: &str = "1s";

/// What was seen.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Services that something befalls: they may be gone.
    pub(super) struck: BTreeSet<String>,
    /// When the last look that was answered began.
    pub(super) began: u64,
    /// What it said of each service.
    states: BTreeMap<String, String>,
    /// What has not been judged yet.
    pub(super) looked: Looked,
}

/// Looks at services of which it is known that they live.
#[derive(Debug, Default)]
pub(super) struct Looked {
    /// Those that found the service.
    pub(super) fine: u64,
    /// What the others found.
    pub(super) missing: Vec<String>,
}

impl Seen {
    /// Whether a service is listed as one that is there.
    pub(super) fn is_listed(&self, name: &str) -> bool {
        self.states.get(name).is_some_and(|state| state == "live" || state == "jeopardy")
    }
}

/// A thread that looks, in a shell.
#[derive(Debug)]
pub(super) struct Listing {
    seen: Arc<Mutex<Seen>>,
    stops: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listing {
    /// Looks at these services from now on.
    pub(super) fn start(cli: &Cli, programs: All, names: Vec<String>) -> Self {
        let (seen, stops) = (Arc::new(Mutex::new(Seen::default())), Arc::new(AtomicBool::new(false)));
        let (noted, told) = (Arc::clone(&seen), Arc::clone(&stops));
        let mut shell = cli.shell_with(&["--timeout", TIMEOUT]);
        let thread = std::thread::spawn(move || {
            let lock = || noted.lock().unwrap_or_else(PoisonError::into_inner);
            while !told.load(Relaxed) {
                // Those live that lived before the question and after the answer, in the same life.
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
                            true => seen.looked.fine += 1,
                            false => seen.looked.missing.push(format!("{name} lives, and is not listed: {answer}")),
                        }
                    }
                }
                std::thread::sleep(PACE);
            }
            shell.close();
        });
        Self { seen, stops, thread: Some(thread) }
    }

    /// What was seen.
    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks no more.
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
