//! Attaching a node to a lease and detaching it: the computation of the rules. It compares a lease
//! with one attached node and a lease with very many.

use std::time::Duration;

use leasehold_protocol::{
    command::{Attach, Condition, Write},
    id::LeaseId,
    message::{Answer, Body, Inspect},
    path::NodePath,
    state::State,
    volume::VolumeSettings,
};

use crate::{Figures, leader::Leader, spans::Spans};

/// Measured pairs for each lease.
const PAIRS: u64 = 20_000;

/// Much longer than the benchmark.
const TERM: Duration = Duration::from_secs(24 * 3600);

fn put(path: &str, attach: Attach) -> Write {
    let path = NodePath::parse(path).expect("made of valid components, and short");
    Write::Put { path, value: "here".into(), condition: Condition::Any, attach }
}

/// Alternates between the two leases.
pub(crate) fn measure(carried: u64, commit: Duration) -> Figures {
    let mut leader = Leader::elected(State::new(VolumeSettings::DEFAULT), commit);
    leader.begin();
    leader.open();
    let leases = [(LeaseId(1), 1), (LeaseId(2), carried)];
    for (id, carried) in leases {
        leader.write(Write::GrantLease { id: Some(id), name: None, ttl: TERM });
        for number in 0..carried {
            leader.write(put(&format!("/carried-{id}/{}/{}", number / 1000, number % 1000), Attach::Lease(id)));
        }
    }
    let mut times = leases.map(|_| (Spans::default(), Spans::default()));
    for number in 0..PAIRS {
        for ((id, _), (attach, detach)) in leases.into_iter().zip(&mut times) {
            let path = format!("/attached-{id}/{}/{}", number / 1000, number % 1000);
            attach.add(leader.write(put(&path, Attach::Lease(id))));
            detach.add(leader.write(put(&path, Attach::Nothing)));
        }
    }
    let told = leases.into_iter().zip(times).flat_map(|((_, carried), (mut attach, mut detach))| {
        let of = |what: &str| format!("{what}, of a lease with {carried} nodes: p50 · p99 · max");
        [(of("node attached"), attach.summary()), (of("node detached"), detach.summary())]
    });
    let mut figures: Figures = told.collect();
    figures.push(services(&mut leader, "there"));
    leader.write(Write::RevokeLease { id: LeaseId(2), incarnation: None });
    figures.push(services(&mut leader, "gone"));
    figures
}

/// Lists all services that are or were attached, as `leasehold services /` does. Each part is
/// measured, as other requests wait for it.
fn services(leader: &mut Leader, are: &str) -> (String, String) {
    let (mut parts, mut count, mut after) = (Spans::default(), 0, None);
    loop {
        let (answer, took) = leader.time(Body::Inspect(Inspect::Services { path: NodePath::root(), after }));
        let Ok(Answer::Services(part)) = answer else { panic!("services are told: {answer:?}") };
        parts.add(took);
        count += part.services.len();
        after = part.through;
        if after.is_none() {
            break;
        }
    }
    (format!("{count} services that are {are}, told in {} parts, each: p50 · p99 · max", parts.len()), parts.summary())
}
