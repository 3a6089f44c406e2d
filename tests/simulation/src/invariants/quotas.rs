//! *No write takes a volume above its quota, and a refused write has no effect* (etcd's space
//! quota; ZooKeeper's quotas, which only warn). Judged by a count of its own, before and after each
//! command.

use std::collections::BTreeMap;

use leasehold_protocol::{
    command::{Command, Outcome, Proposal, Write, WriteRefusal},
    object::Data,
    path::NodePath,
    quota::QuotaFigure,
    state::State,
};

/// Whether any volume has a quota.
pub(crate) fn has_any(state: &State) -> bool {
    state.volumes_below(&NodePath::root()).any(|(_, volume)| !volume.settings.quota().is_none())
}

/// Checks the commands of an entry: `twin` applies them again, one by one.
pub(crate) fn check(mut twin: State, proposal: &Proposal, outcomes: &[Outcome]) -> Result<(), String> {
    if proposal.commands.iter().any(|command| matches!(command, Command::BeginEpoch { .. })) {
        return Ok(());
    }
    for (command, outcome) in proposal.commands.iter().zip(outcomes) {
        let before = Volumes::of(&twin);
        let alone = Proposal { commands: vec![command.clone()], ..proposal.clone() };
        twin.apply(twin.applied_index() + 1, &alone);
        let after = Volumes::of(&twin);
        let held = match (command, outcome) {
            (Command::Write { write, .. }, Outcome::Written(Err(refusal))) => refused(&before, &after, write, refusal),
            (Command::Write { write, .. }, _) => applied(&before, &after, Some(write)),
            _ => applied(&before, &after, None),
        };
        held.map_err(|what| format!("{command:?}, {outcome:?}: {what}"))?;
    }
    Ok(())
}

/// The nodes, and what each volume has and may have, in the order of [`QuotaFigure::ALL`].
#[derive(PartialEq)]
struct Volumes {
    nodes: BTreeMap<NodePath, Data>,
    used: BTreeMap<NodePath, [u64; 2]>,
    limits: BTreeMap<NodePath, [Option<u64>; 2]>,
}

impl Volumes {
    fn of(state: &State) -> Self {
        let node = |(path, _): (&NodePath, _)| Some((path.clone(), state.data(path)?));
        let nodes: BTreeMap<NodePath, Data> = state.nodes_from(&NodePath::root()).filter_map(node).collect();
        let volumes: Vec<_> = state.volumes_below(&NodePath::root()).collect();
        let mut used: BTreeMap<NodePath, [u64; 2]> = volumes.iter().map(|(top, _)| ((*top).clone(), [0, 0])).collect();
        for (path, data) in &nodes {
            let around = used.iter_mut().filter(|(top, _)| top.contains(path));
            if let Some((_, [count, bytes])) = around.max_by_key(|(top, _)| top.depth()) {
                *count += 1;
                *bytes += (path.as_str().len() + data.value.len()) as u64;
            }
        }
        let limits = |quota: leasehold_protocol::quota::Quota| [quota.nodes, quota.bytes];
        let limits = volumes.iter().map(|(top, volume)| ((*top).clone(), limits(volume.settings.quota()))).collect();
        Self { nodes, used, limits }
    }

    fn used_by(&self, top: &NodePath) -> [u64; 2] {
        self.used.get(top).copied().unwrap_or_default()
    }
}

/// A write without effect, or one that took effect, or another command.
fn applied(before: &Volumes, after: &Volumes, write: Option<&Write>) -> Result<(), String> {
    for (top, used) in &after.used {
        let limits = after.limits.get(top).copied().unwrap_or_default();
        let earlier = before.used_by(top);
        for (place, figure) in QuotaFigure::ALL.into_iter().enumerate() {
            let (got, limit) = (used[place], limits[place].unwrap_or(u64::MAX));
            let may_exceed = match write {
                Some(Write::CreateVolume { path, .. } | Write::SetVolume { path, .. }) => path == top,
                Some(Write::RemoveVolume { path }) => path != top && top.contains(path),
                _ => false,
            };
            if got > limit && got > earlier[place] && !may_exceed {
                return Err(format!(
                    "volume {top} has {got} {figure}, and had {}: its quota is {limit}",
                    earlier[place]
                ));
            }
        }
    }
    Ok(())
}

fn refused(before: &Volumes, after: &Volumes, write: &Write, refusal: &WriteRefusal) -> Result<(), String> {
    if before != after {
        return Err("the refused write had an effect".to_owned());
    }
    let WriteRefusal::QuotaExceeded { volume, figure, got, most, .. } = refusal else { return Ok(()) };
    let may_grow =
        matches!(write, Write::Put { .. } | Write::Flush { .. } | Write::Transaction(_) | Write::CreateVolume { .. });
    if !may_grow {
        return Err("it cannot grow a volume, and is refused for a quota".to_owned());
    }
    // A repeated request gets its first refusal, with the figures of that time.
    match got > most {
        true => Ok(()),
        false => Err(format!("it is refused, and {volume} would have {got} {figure} of {most}")),
    }
}
