//! Networks for tests. Each host is its own network namespace with one interface, on a bridge in
//! another namespace. The machine's own network is not touched.
//!
//! A cut has one direction. Hosts have permanent entries of each other's hardware addresses. A host
//! that must no longer reach another has a wrong address for it. Its packets are lost silently, as
//! in a network. Packets in the other direction still arrive.
//!
//! This takes iproute2 and root, and no kernel module. A filter (`cls_bpf`) loses packets at
//! random, or else `netem` does. `netem` makes a link slow, or else a narrow `tbf` does. A test
//! removes its namespaces when it drops them. The next test process removes those of killed test
//! processes.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::Write as _,
    process::{Command, Output, Stdio},
    sync::{
        Once,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::common::{Place, Tool, require};

/// The first part of each namespace's name. The id of the test process follows.
const PREFIX: &str = "leasehold-test-";

/// A hardware address that no host has.
const NOWHERE: &str = "02:00:00:00:ff:ff";

/// The states of a bridge's port, in Linux' if_bridge.h: it drops everything, or nothing.
const BR_STATE_DISABLED: u8 = 0;
const BR_STATE_FORWARDING: u8 = 3;

/// A random number of 32 bits, in a filter (SKF_AD_OFF + SKF_AD_RANDOM in Linux' filter.h).
const RANDOM: u32 = 0xffff_f000 + 56;

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Hosts that reach each other and nothing else.
#[derive(Debug)]
pub(crate) struct Network {
    name: String,
    /// Each host has a number, from 1 on.
    hosts: BTreeMap<String, u8>,
}

/// Runs a program. Returns its output, or its error output if it failed.
fn run(command: &mut Command, input: &str) -> Result<String, String> {
    let what = format!("{command:?}");
    let mut output = || -> std::io::Result<Output> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes())?;
        }
        child.wait_with_output()
    };
    let output = output().map_err(|error| format!("{what}: {error}"))?;
    let said = String::from_utf8_lossy(if output.status.success() { &output.stdout } else { &output.stderr });
    if output.status.success() { Ok(said.into_owned()) } else { Err(format!("{what}: {}", said.trim())) }
}

fn ip(words: &str) -> Result<String, String> {
    run(Command::new("ip").args(words.split_whitespace()), "")
}

/// Several commands at once, in a namespace.
fn ip_in(namespace: &str, lines: &str) -> Result<String, String> {
    run(Command::new("ip").args(["-n", namespace, "-batch", "-"]), lines)
}

fn tc(namespace: &str, words: &str) -> Result<String, String> {
    run(Command::new("tc").args(["-n", namespace]).args(words.split_whitespace()), "")
}

impl Network {
    /// Makes a network of these hosts. `None` if that is impossible and the test is skipped.
    pub(crate) fn of(hosts: &[&str]) -> Option<Self> {
        static SWEPT: Once = Once::new();
        SWEPT.call_once(sweep);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}", std::process::id());
        let network = Self { name, hosts: hosts.iter().map(|host| (*host).to_owned()).zip(1..).collect() };
        // If this can be done, the rest can be done too.
        require(Tool::Namespaces, ip(&format!("netns add {}", network.namespace("wire"))))?;
        network.make().expect("namespaces can be had, so they can be connected");
        Some(network)
    }

    fn make(&self) -> Result<(), String> {
        let mut bridge = "link add name bridge type bridge\nlink set dev bridge up\n".to_owned();
        for (host, number) in &self.hosts {
            let namespace = self.namespace(host);
            ip(&format!("netns add {namespace}"))?;
            let _ = writeln!(
                bridge,
                "link add name v{number} type veth peer name eth0 address {} netns {namespace}\n\
                 link set dev v{number} master bridge\n\
                 link set dev v{number} up",
                hardware(*number),
            );
        }
        ip_in(&self.namespace("wire"), &bridge)?;
        for (host, number) in &self.hosts {
            // One segment in a packet, so that a share of the packets is lost, as in a network with
            // wires.
            let mut lines = format!(
                "addr add {}/24 dev eth0\nlink set dev lo up\nlink set dev eth0 gso_max_segs 1\nlink set dev eth0 up\n",
                ip_address(*number)
            );
            for other in self.hosts.values().filter(|other| *other != number) {
                lines.push_str(&neighbour(*other, &hardware(*other)));
            }
            ip_in(&self.namespace(host), &lines)?;
        }
        Ok(())
    }

    fn namespace(&self, host: &str) -> String {
        format!("{}-{host}", self.name)
    }

    /// The place for a host's processes.
    pub(crate) fn place(&self, host: &str) -> Place {
        assert!(self.hosts.contains_key(host), "{host} is no host");
        Place::through(&["ip", "netns", "exec", &self.namespace(host)])
    }

    /// The address of a host.
    pub(crate) fn address(&self, host: &str) -> String {
        ip_address(self.hosts[host])
    }

    /// The names of all hosts.
    pub(crate) fn hosts(&self) -> Vec<String> {
        self.hosts.keys().cloned().collect()
    }

    /// From now on, packets from a host to another are lost. Those in the other direction are not.
    pub(crate) fn cut(&self, from: &str, to: &str) {
        self.aim(from, to, NOWHERE);
    }

    /// From now on, packets between two hosts are lost in both directions.
    pub(crate) fn cut_both(&self, one: &str, other: &str) {
        self.cut(one, other);
        self.cut(other, one);
    }

    /// Packets from a host to another arrive again.
    pub(crate) fn heal(&self, from: &str, to: &str) {
        self.aim(from, to, &hardware(self.hosts[to]));
    }

    /// All packets between a host and the others are lost, as if its cable was pulled.
    pub(crate) fn cut_off(&self, host: &str) {
        self.plug(host, BR_STATE_DISABLED);
    }

    /// Ends [`Network::cut_off`].
    pub(crate) fn plug_in(&self, host: &str) {
        self.plug(host, BR_STATE_FORWARDING);
    }

    /// Sets the port of the bridge in one call, so that a cut begins and ends at one moment. A port
    /// that is set down and up loses packets for longer: the kernel brings the other end up later.
    /// The permanent entries of hosts survive this.
    fn plug(&self, host: &str, state: u8) {
        let words = ["-n", &self.namespace("wire"), "link", "set", "dev", &format!("v{}", self.hosts[host]), "state"];
        run(Command::new("bridge").args(words).arg(state.to_string()), "").expect("a port can be set");
    }

    fn aim(&self, from: &str, to: &str, at: &str) {
        ip_in(&self.namespace(from), &neighbour(self.hosts[to], at)).expect("a neighbour can be changed");
    }

    /// Loses this share of the packets that reach a host, at random. 0 ends that. Fails if this
    /// machine cannot do it.
    pub(crate) fn lose(&self, host: &str, share: f64) -> Result<(), String> {
        let namespace = self.namespace(host);
        // There may be none yet.
        let _ = tc(&namespace, "qdisc del dev eth0 clsact");
        if share == 0.0 {
            return Ok(());
        }
        let below = (share * f64::from(u32::MAX)) as u32;
        // If a random number is not below the share, the packet passes (-1), else it is dropped (2,
        // TC_ACT_SHOT).
        let program = format!("4,32 0 0 {RANDOM},53 1 0 {below},6 0 0 2,6 0 0 {}", u32::MAX);
        let by_filter = tc(&namespace, "qdisc add dev eth0 clsact").and_then(|_| {
            let words = ["filter", "add", "dev", "eth0", "ingress", "bpf", "bytecode", &program, "direct-action"];
            run(Command::new("tc").args(["-n", &namespace]).args(words), "")
        });
        by_filter
            .or_else(|first| {
                let netem = tc(&namespace, &format!("qdisc replace dev eth0 root netem loss {}%", share * 100.0));
                netem.map_err(|second| format!("{first}; {second}"))
            })
            .map(drop)
    }

    /// Delays what a host sends: each packet by this long, or else all packets by a narrow link.
    /// Returns which of the two.
    pub(crate) fn slow(&self, host: &str, by: Duration) -> Result<&'static str, String> {
        let (namespace, ms) = (self.namespace(host), by.as_millis());
        let netem = tc(&namespace, &format!("qdisc replace dev eth0 root netem delay {ms}ms {}ms", ms / 2));
        netem.map(|_| "netem").or_else(|first| {
            // A packet of 1,500 bytes takes this long.
            let rate = 1500 * 8 * 1000 / ms.max(1);
            let narrow = format!("qdisc replace dev eth0 root tbf rate {rate}bit burst 2kb latency 2s");
            tc(&namespace, &narrow).map(|_| "tbf").map_err(|second| format!("{first}; {second}"))
        })
    }

    /// All packets arrive again, without delay.
    pub(crate) fn heal_all(&self) {
        for (host, number) in &self.hosts {
            let others = self.hosts.values().filter(|other| *other != number);
            let lines: String = others.map(|other| neighbour(*other, &hardware(*other))).collect();
            ip_in(&self.namespace(host), &lines).expect("neighbours can be changed");
            // There may be none of either.
            let _ = tc(&self.namespace(host), "qdisc del dev eth0 clsact");
            let _ = tc(&self.namespace(host), "qdisc del dev eth0 root");
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        remove(|namespace| namespace.strip_prefix(&self.name).is_some_and(|rest| rest.starts_with('-')));
    }
}

fn ip_address(number: u8) -> String {
    format!("10.77.0.{number}")
}

fn hardware(number: u8) -> String {
    format!("02:00:00:00:00:{number:02x}")
}

fn neighbour(number: u8, at: &str) -> String {
    format!("neigh replace {} lladdr {at} nud permanent dev eth0\n", ip_address(number))
}

fn namespaces() -> Vec<String> {
    let list = ip("netns list").unwrap_or_default();
    list.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// Removes namespaces and the processes in them, which only tests have started.
fn remove(is_chosen: impl Fn(&str) -> bool) {
    for namespace in namespaces().into_iter().filter(|namespace| is_chosen(namespace)) {
        let pids = ip(&format!("netns pids {namespace}")).unwrap_or_default();
        for pid in pids.lines().filter_map(|line| line.trim().parse().ok()) {
            // It may have ended at this moment.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        // Another test process may have been faster.
        let _ = ip(&format!("netns del {namespace}"));
    }
}

/// Removes the namespaces of test processes that have ended.
fn sweep() {
    remove(|namespace| {
        let id = namespace.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        id.is_some_and(|id| !std::path::Path::new("/proc").join(id).exists())
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::{Process, eventually};

    /// Sends `count` datagrams to a port that nobody listens on.
    fn send(network: &Network, from: &str, to: &str, count: u32) {
        // Each from its own socket: a socket that learns that nobody listens fails instead of
        // sending the next datagram.
        let each = format!("for i in {{1..{count}}}; do echo > /dev/udp/{}/9; done", network.address(to));
        run(network.place(from).command("bash").args(["-c", &each]), "").expect("sent");
    }

    /// How many datagrams have reached a host where nobody listened.
    fn arrived(network: &Network, at: &str) -> u32 {
        let counts = run(network.place(at).command("cat").arg("/proc/net/snmp"), "").expect("readable");
        let mut udp = counts.lines().filter_map(|line| line.strip_prefix("Udp:")).map(str::split_whitespace);
        let (names, mut values) = (udp.next().expect("names"), udp.next().expect("values"));
        let at = names.into_iter().position(|name| name == "NoPorts").expect("it is counted");
        values.nth(at).and_then(|value| value.parse().ok()).expect("a number")
    }

    fn until_arrived(network: &Network, at: &str, count: u32) {
        eventually(&format!("{count} have arrived at {at}"), || {
            let arrived = arrived(network, at);
            if arrived == count { Ok(()) } else { Err(format!("{arrived} have")) }
        });
    }

    #[test]
    fn a_cut_is_in_one_direction_and_heals() {
        let Some(network) = Network::of(&["a", "b"]) else { return };
        send(&network, "a", "b", 5);
        until_arrived(&network, "b", 5);
        network.cut("a", "b");
        send(&network, "a", "b", 5);
        send(&network, "b", "a", 5);
        until_arrived(&network, "a", 5);
        network.heal("a", "b");
        send(&network, "a", "b", 1);
        until_arrived(&network, "b", 6);
    }

    #[test]
    fn host_that_is_cut_off_hears_and_is_heard_when_plugged_in() {
        let Some(network) = Network::of(&["a", "b", "c"]) else { return };
        network.cut_off("a");
        for (from, to) in [("a", "b"), ("b", "a"), ("a", "c"), ("c", "a"), ("b", "c")] {
            send(&network, from, to, 5);
        }
        until_arrived(&network, "c", 5);
        network.plug_in("a");
        for (from, to) in [("a", "b"), ("b", "a"), ("a", "c"), ("c", "a")] {
            send(&network, from, to, 1);
        }
        until_arrived(&network, "a", 2);
        until_arrived(&network, "b", 1);
        until_arrived(&network, "c", 6);
    }

    #[test]
    fn so_many_packets_are_lost_as_is_said() {
        let Some(network) = Network::of(&["a", "b"]) else { return };
        let Some(()) = require(Tool::PacketLoss, network.lose("b", 1.0 / 3.0)) else { return };
        send(&network, "a", "b", 3000);
        network.heal_all();
        let lossy = arrived(&network, "b");
        // More than five standard deviations.
        assert!((1850..2150).contains(&lossy), "{lossy} of 3000 have arrived");
        send(&network, "a", "b", 100);
        until_arrived(&network, "b", lossy + 100);
    }

    #[test]
    fn what_a_killed_test_process_left_is_removed() {
        let Some(network) = Network::of(&["a"]) else { return };
        // As if a process that has ended had made it. No process id is so large.
        let old = format!("{PREFIX}4194305-0-a");
        ip(&format!("netns add {old}")).expect("like the other one");
        let mut command = Place::through(&["ip", "netns", "exec", &old]).command("sleep");
        let mut left = Process::of(command.arg("1000").spawn().expect("it starts"));
        eventually("it runs there", || ip(&format!("netns pids {old}")).ok().filter(|pids| !pids.is_empty()));
        sweep();
        assert!(!left.ended().success());
        assert!(!namespaces().contains(&old));
        assert!(namespaces().contains(&network.namespace("a")), "one of a process that runs is not removed");
    }
}
