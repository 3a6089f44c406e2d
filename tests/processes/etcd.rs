//! One script of lease operations on a real etcd and on Leasehold (A18 in docs/verification.md).
//!
//! Each step is one command line that both etcdctl and leasehold take. The test compares their
//! answers in a normal form: leases have names instead of ids, a bound replaces the remaining time,
//! and each [`Difference`] is undone. Nothing else may differ, and each difference must be seen.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read, Write},
    net::TcpStream,
    process::Command,
    time::{Duration, Instant},
};

use crate::{
    alone,
    common::{
        Cli, Cluster, Place, Process, Tool, eventually, free_address, require,
        stall::{Missed, check, measured},
    },
};

/// The steps, each with the answer that both must give. `$name` is a lease. `as $name` names the
/// lease that the step grants.
const SCRIPT: &[(&str, &str)] = &[
    ("lease list", "found 0 leases"),
    ("lease grant 600 as $one", "lease $one granted with TTL(600s)"),
    ("lease grant 700 as $two", "lease $two granted with TTL(700s)"),
    // An id of the client's choice, and the same again: the lease stays as it was.
    ("lease grant 900 --id 7b as $chosen", "lease $chosen granted with TTL(900s)"),
    ("lease grant 950 --id 7b", "refused: the lease exists"),
    ("lease timetolive $chosen", "lease $chosen granted with TTL(900s), remaining(900s or less)"),
    // Keys with leases.
    ("put /a 1 --lease $one", "put"),
    ("put /b 1 --lease $one", "put"),
    ("put /moved 1 --lease $one", "put"),
    ("put /freed 1 --lease $one", "put"),
    ("put /plain 1", "put"),
    ("put /orphan 1 --lease $unknown", "refused: no such lease"),
    ("get /orphan", "absent"),
    ("put /plain 2 --lease $unknown", "refused: no such lease"),
    ("get /plain", "1"),
    ("get /a", "1"),
    (
        "lease timetolive $one --keys",
        "lease $one granted with TTL(600s), remaining(600s or less), attached keys([/a /b /freed /moved])",
    ),
    ("lease timetolive $two --keys", "lease $two granted with TTL(700s), remaining(700s or less), attached keys([])"),
    ("lease timetolive $unknown", "refused: no such lease"),
    ("lease timetolive $unknown --keys", "refused: no such lease"),
    // Renewals.
    ("lease keep-alive $one --once", "lease $one keepalived with TTL(600)"),
    ("lease keep-alive $unknown --once", "refused: no such lease"),
    // A key is attached to the lease that it was last put with, or to none.
    ("put /moved 2 --lease $two", "put"),
    ("put /freed 2", "put"),
    (
        "lease timetolive $one --keys",
        "lease $one granted with TTL(600s), remaining(600s or less), attached keys([/a /b])",
    ),
    (
        "lease timetolive $two --keys",
        "lease $two granted with TTL(700s), remaining(700s or less), attached keys([/moved])",
    ),
    // A key that is removed, and put again without the lease.
    ("put /again 1 --lease $one", "put"),
    ("del /again", "removed"),
    ("put /again 2", "put"),
    ("lease list", "found 3 leases: $chosen $one $two"),
    // Revoking deletes the lease's keys and no others.
    ("lease revoke $one", "lease $one revoked"),
    ("get /a", "absent"),
    ("get /b", "absent"),
    ("get /moved", "2"),
    ("get /freed", "2"),
    ("get /again", "2"),
    ("get /plain", "1"),
    ("lease list", "found 2 leases: $chosen $two"),
    // A revoked lease is as unknown as one that never existed.
    ("lease revoke $one", "refused: no such lease"),
    ("lease timetolive $one", "refused: no such lease"),
    ("lease keep-alive $one --once", "refused: no such lease"),
    ("put /a 3 --lease $one", "refused: no such lease"),
    ("get /a", "absent"),
    ("lease revoke $unknown", "refused: no such lease"),
    // Its id can be granted again. That brings no key back.
    ("lease revoke $chosen", "lease $chosen revoked"),
    ("lease grant 800 --id 7b as $chosen", "lease $chosen granted with TTL(800s)"),
    (
        "lease timetolive $chosen --keys",
        "lease $chosen granted with TTL(800s), remaining(800s or less), attached keys([])",
    ),
];

/// The steps before the short lease is only renewed.
const SHORT: &[(&str, &str)] = &[
    ("lease grant 2 as $short", "lease $short granted with TTL(2s)"),
    ("put /short 1 --lease $short", "put"),
    ("get /short", "1"),
];

/// A renewal of the short lease.
const RENEWAL: (&str, &str) = ("lease keep-alive $short --once", "lease $short keepalived with TTL(2)");

/// The steps after its end.
const END: &[(&str, &str)] = &[
    ("get /short", "absent"),
    ("lease timetolive $short", "refused: no such lease"),
    ("lease keep-alive $short --once", "refused: no such lease"),
    ("lease list", "found 2 leases: $chosen $two"),
    ("get /moved", "2"),
    ("get /freed", "2"),
    ("get /again", "2"),
    ("get /plain", "1"),
];

const SHORT_TERM: Duration = Duration::from_secs(2);

/// How long after its term a lease may end. etcd looks for ended leases twice a second, and
/// Leasehold adds its margin and two ticks. A check of this test starts a process.
const LATE_MAX: Duration = Duration::from_secs(1);

/// An id that no lease has.
const UNKNOWN: &str = "0000000000000d1e";

/// Where Leasehold differs on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Difference {
    /// `put`: etcdctl prints OK; Leasehold prints the revision.
    PutSaysRevision,
    /// `get`: etcdctl prints the key before the value; Leasehold only the value.
    GetSaysOnlyTheValue,
    /// `get` of an absent key: etcdctl prints nothing, status 0; Leasehold fails, status 1.
    GetOfNothingFails,
    /// Deletion: `etcdctl del` prints a count; `leasehold rm` also prints the revision.
    DeletingIsRm,
    /// `lease timetolive` of an unknown lease: the same words, but status 0 in etcdctl; 1 here.
    TimetoliveOfNothingFails,
    /// Refusals: other words. After `keep-alive`, etcdctl's status is 2; Leasehold's is always 1.
    RefusalsInOwnWords,
    /// The id of a grant: etcd's request has a field, etcdctl no option; Leasehold has `--id`.
    GrantHasId,
    /// Lists: etcd sorts no keys, and leases by their ends; Leasehold sorts all lists.
    ListsAreSorted,
}

const DIFFERENCES: [Difference; 8] = [
    Difference::PutSaysRevision,
    Difference::GetSaysOnlyTheValue,
    Difference::GetOfNothingFails,
    Difference::DeletingIsRm,
    Difference::TimetoliveOfNothingFails,
    Difference::RefusalsInOwnWords,
    Difference::GrantHasId,
    Difference::ListsAreSorted,
];

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Said {
    status: i32,
    stdout: String,
    stderr: String,
}

/// A system on which the script runs.
trait System {
    const NAME: &'static str;

    /// Runs a command of the script.
    fn run(&self, words: &[String], seen: &mut BTreeSet<Difference>) -> Said;

    /// The normal form of an answer that differs on purpose. `None` if it may not differ.
    fn undo(words: &[String], said: &Said) -> Option<(Difference, String)>;
}

/// etcd, and etcdctl.
struct Etcd {
    address: String,
    // Dropped before the directory.
    _server: Process,
    _directory: tempfile::TempDir,
}

impl Etcd {
    /// `None` if etcd is not installed and the test is skipped.
    fn start() -> Option<Self> {
        let is_there = |program: &str, word: &str| match Command::new(program).arg(word).output() {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(format!("{program} {word}: {}", String::from_utf8_lossy(&output.stderr))),
            Err(error) => Err(format!("{program}: {error}")),
        };
        require(Tool::Etcd, is_there("etcd", "--version").and_then(|()| is_there("etcdctl", "version")))?;
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (address, peer) = (free_address(), free_address());
        let mut command = Place::default().command("etcd");
        command.args(["--name", "one", "--data-dir"]).arg(directory.path().join("data"));
        for (option, address) in [("client", &address), ("peer", &peer)] {
            command.args([format!("--listen-{option}-urls"), format!("http://{address}")]);
        }
        command.args(["--advertise-client-urls", &format!("http://{address}")]);
        command.args(["--initial-advertise-peer-urls", &format!("http://{peer}")]);
        command.args(["--initial-cluster", &format!("one=http://{peer}")]);
        let server = Process::start(command, &directory.path().join("etcd.log"));
        let mut etcd = Self { address, _server: server, _directory: directory };
        eventually("etcd serves", || {
            assert_eq!(etcd._server.has_ended(), None, "etcd has ended");
            let said = etcd.ctl(&["get".to_owned(), "/".to_owned()]);
            if said.status == 0 { Ok(()) } else { Err(said.stderr) }
        });
        Some(etcd)
    }

    fn ctl(&self, words: &[String]) -> Said {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").env("ETCDCTL_ENDPOINTS", &self.address).args(words);
        said(command)
    }

    /// Grants a lease with a chosen id through etcd's HTTP gateway. Answers as etcdctl would.
    fn grant(&self, ttl: &str, id: &str) -> Said {
        let number = u64::from_str_radix(id, 16).expect("a lease's id");
        let body = format!("{{\"TTL\":{ttl},\"ID\":{number}}}");
        let head = format!("POST /v3/lease/grant HTTP/1.0\r\nContent-Length: {}\r\n\r\n", body.len());
        let mut stream = TcpStream::connect(&self.address).expect("etcd listens");
        let mut answer = String::new();
        let talk = stream.write_all((head + &body).as_bytes()).and_then(|()| stream.read_to_string(&mut answer));
        talk.expect("etcd answers");
        let (_, document) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let document: serde_json::Value = serde_json::from_str(document).expect("JSON");
        let field = |name: &str| document[name].as_str().unwrap_or_default().to_owned();
        match field("error") {
            error if error.is_empty() => {
                let id = field("ID").parse::<u64>().expect("a lease's id");
                let stdout = format!("lease {id:016x} granted with TTL({}s)\n", field("TTL"));
                Said { status: 0, stdout, stderr: String::new() }
            }
            error => Said { status: 1, stdout: String::new(), stderr: format!("Error: {error}\n") },
        }
    }
}

impl System for Etcd {
    const NAME: &'static str = "etcd";

    fn run(&self, words: &[String], seen: &mut BTreeSet<Difference>) -> Said {
        let borrowed: Vec<&str> = words.iter().map(String::as_str).collect();
        match borrowed[..] {
            ["lease", "grant", ttl, "--id", id] => {
                seen.insert(Difference::GrantHasId);
                self.grant(ttl, id)
            }
            _ => self.ctl(words),
        }
    }

    fn undo(words: &[String], said: &Said) -> Option<(Difference, String)> {
        let last = said.stderr.lines().last().unwrap_or_default();
        let (no_lease, exists) = ("etcdserver: requested lease not found", "etcdserver: lease already exists");
        let is_timetolive = words.get(1).is_some_and(|word| word == "timetolive");
        let (difference, normal) = match (words[0].as_str(), said.status) {
            ("put", 0) if said.stdout == "OK\n" => (Difference::PutSaysRevision, "put"),
            ("get", 0) if said.stdout.is_empty() => (Difference::GetOfNothingFails, "absent"),
            ("get", 0) => {
                let value = said.stdout.strip_prefix(&format!("{}\n", words[1]))?;
                (Difference::GetSaysOnlyTheValue, value.strip_suffix('\n')?)
            }
            ("del", 0) if said.stdout == "1\n" => (Difference::DeletingIsRm, "removed"),
            ("lease", 0) if is_timetolive && said.stdout == format!("lease {} already expired\n", words[2]) => {
                (Difference::TimetoliveOfNothingFails, NO_SUCH_LEASE)
            }
            (_, 1 | 2) if last.contains(no_lease) => (Difference::RefusalsInOwnWords, NO_SUCH_LEASE),
            (_, 1) if last.contains(exists) => (Difference::RefusalsInOwnWords, LEASE_EXISTS),
            _ => return None,
        };
        (said.status == 0 || said.stdout.is_empty()).then(|| (difference, normal.to_owned()))
    }
}

const NO_SUCH_LEASE: &str = "refused: no such lease";
const LEASE_EXISTS: &str = "refused: the lease exists";

/// Leasehold, as a cluster of one server.
struct Leasehold {
    cli: Cli,
    _cluster: Cluster,
}

impl Leasehold {
    fn start() -> Self {
        let cluster = Cluster::start(1);
        Self { cli: cluster.cli(), _cluster: cluster }
    }
}

impl System for Leasehold {
    const NAME: &'static str = "Leasehold";

    fn run(&self, words: &[String], seen: &mut BTreeSet<Difference>) -> Said {
        let mut words = words.to_vec();
        if words[0] == "del" {
            seen.insert(Difference::DeletingIsRm);
            "rm".clone_into(&mut words[0]);
        }
        let mut said = said(self.cli.command(&words));
        if said.status != 0 {
            // The kind is for scripts. A refused command has changed nothing, and is refused again.
            said.stderr = self.cli.fails(&words).1;
        }
        said
    }

    fn undo(words: &[String], said: &Said) -> Option<(Difference, String)> {
        let is_removal = said.stdout.starts_with("removed 1 node at revision ");
        let is_timetolive = words.get(1).is_some_and(|word| word == "timetolive");
        let (difference, normal) = match (words[0].as_str(), said.status, said.stderr.as_str()) {
            ("put", 0, "") if is_revision(&said.stdout) => (Difference::PutSaysRevision, "put"),
            ("get", 0, "") => (Difference::GetSaysOnlyTheValue, said.stdout.strip_suffix('\n')?),
            ("get", 1, "not_found") => (Difference::GetOfNothingFails, "absent"),
            ("del", 0, "") if is_removal => (Difference::DeletingIsRm, "removed"),
            ("lease", 1, "lease_not_found") if is_timetolive => (Difference::TimetoliveOfNothingFails, NO_SUCH_LEASE),
            (_, 1, "lease_not_found") => (Difference::RefusalsInOwnWords, NO_SUCH_LEASE),
            (_, 1, "lease_exists") => (Difference::RefusalsInOwnWords, LEASE_EXISTS),
            _ => return None,
        };
        (said.status == 0 || said.stdout.is_empty()).then(|| (difference, normal.to_owned()))
    }
}

/// True if the line is `revision N`.
fn is_revision(line: &str) -> bool {
    let number = line.strip_prefix("revision ").and_then(|rest| rest.strip_suffix('\n'));
    number.is_some_and(|number| number.parse::<u64>().is_ok())
}

/// Runs a command to its end.
fn said(mut command: Command) -> Said {
    let output = command.output().expect("the program starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    let status = output.status.code().expect("it was not killed");
    Said { status, stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// The script on one system.
struct Run<S> {
    system: S,
    /// The leases by their names.
    ids: BTreeMap<String, String>,
    seen: BTreeSet<Difference>,
}

impl<S: System> Run<S> {
    fn of(system: S) -> Self {
        let ids = BTreeMap::from([("$unknown".to_owned(), UNKNOWN.to_owned())]);
        Self { system, ids, seen: BTreeSet::new() }
    }

    /// Takes a step, and returns the answer in the normal form.
    fn step(&mut self, line: &str) -> String {
        let (line, name) = match line.split_once(" as ") {
            Some((line, name)) => (line, Some(name)),
            None => (line, None),
        };
        let word = |word: &str| if word.starts_with('$') { self.ids[word].clone() } else { word.to_owned() };
        let words: Vec<String> = line.split(' ').map(word).collect();
        let said = self.system.run(&words, &mut self.seen);
        if let Some(name) = name {
            let id = said.stdout.split(' ').nth(1).unwrap_or_else(|| panic!("no id: {said:?}"));
            self.ids.insert(name.to_owned(), id.to_owned());
        }
        if let Some((difference, normal)) = S::undo(&words, &said) {
            self.seen.insert(difference);
            return normal;
        }
        if said.status != 0 {
            return format!("{said:?}");
        }
        let mut text = said.stdout.trim_end_matches('\n').to_owned();
        for (name, id) in &self.ids {
            text = text.replace(id, name);
        }
        self.sorted(&bounded(&text))
    }

    /// Sorts the leases of a list, or the keys of a lease.
    fn sorted(&mut self, text: &str) -> String {
        let (head, list, tail) = if let Some((head, rest)) = text.split_once("attached keys([") {
            let list = rest.strip_suffix("])").unwrap_or_else(|| panic!("no end of keys: {text}"));
            (format!("{head}attached keys(["), list, "])")
        } else if let Some((head, list)) = text.split_once(" leases\n") {
            (format!("{head} leases: "), list, "")
        } else {
            return text.to_owned();
        };
        let mut list: Vec<&str> = list.split_whitespace().collect();
        list.sort_unstable();
        self.seen.insert(Difference::ListsAreSorted);
        format!("{head}{}{tail}", list.join(" "))
    }

    /// Takes steps, and compares each answer with the expected one.
    fn steps(&mut self, steps: &[(&str, &str)]) {
        for (line, expected) in steps {
            assert_eq!(self.step(line), *expected, "{}: {line}", S::NAME);
        }
    }

    /// Takes a step with the short lease, which may end a term after `renewed`.
    fn short_step(&mut self, (line, expected): (&str, &str), renewed: Instant) -> Result<(), Missed> {
        let answer = self.step(line);
        let age = renewed.elapsed();
        if answer != expected && age >= SHORT_TERM {
            return Err(Missed(format!("{}: {line}: {answer}: {age:.3?} after a renewal", S::NAME)));
        }
        assert_eq!(answer, expected, "{}: {line}", S::NAME);
        Ok(())
    }

    /// Renews a short lease beyond its term, stops, and measures when it ends.
    fn expiry(&mut self) -> Result<Duration, Missed> {
        let began = Instant::now();
        for step in SHORT {
            self.short_step(*step, began)?;
        }
        let (mut asked, mut renewed) = (began, began);
        while began.elapsed() < SHORT_TERM * 2 {
            let last = asked;
            asked = Instant::now();
            self.short_step(RENEWAL, last)?;
            renewed = Instant::now();
        }
        eventually("the key is gone", || {
            let answer = self.step("get /short");
            if answer == "absent" { Ok(()) } else { Err(answer) }
        });
        let what = format!("{}: gone after its last renewal", S::NAME);
        let lived = asked.elapsed();
        check(&what, lived, SHORT_TERM, SHORT_TERM + LATE_MAX + (renewed - asked))?;
        Ok(lived)
    }
}

/// Replaces the remaining time by a bound. More than half of the term must remain.
fn bounded(text: &str) -> String {
    let number = |before: &str| {
        let (_, rest) = text.split_once(before)?;
        rest.split_once("s)").and_then(|(number, _)| number.parse::<u64>().ok())
    };
    let (Some(ttl), Some(left)) = (number("TTL("), number("remaining(")) else { return text.to_owned() };
    assert!(left <= ttl && left > ttl / 2, "{text}");
    text.replace(&format!("remaining({left}s)"), &format!("remaining({ttl}s or less)"))
}

#[test]
fn lease_script_on_etcd_and_leasehold_has_equal_answers() {
    let _alone = alone();
    let Some(etcd) = Etcd::start() else { return };
    let (mut etcd, mut leasehold) = (Run::of(etcd), Run::of(Leasehold::start()));
    for (line, expected) in SCRIPT {
        let answers = (etcd.step(line), leasehold.step(line));
        assert!(answers.0 == answers.1, "{line}: etcd: {:?}, Leasehold: {:?}", answers.0, answers.1);
        assert_eq!(answers.0, *expected, "{line}: both");
    }
    let lived = measured(|| {
        std::thread::scope(|scope| {
            let etcd = scope.spawn(|| etcd.expiry());
            let leasehold = leasehold.expiry();
            Ok((etcd.join().expect("etcd answers as it has to")?, leasehold?))
        })
    });
    etcd.steps(END);
    leasehold.steps(END);
    println!("a lease of {SHORT_TERM:?} lived for {:.2?} in etcd, {:.2?} in Leasehold", lived.0, lived.1);
    let seen: BTreeSet<Difference> = etcd.seen.union(&leasehold.seen).copied().collect();
    assert_eq!(seen, BTreeSet::from(DIFFERENCES), "differences that were seen, and those that are listed");
}
