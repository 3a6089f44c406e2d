//! From a write that has its turn to the recalls that it waits for: who may hold what it changes, and what each is asked for (S2).
//!
//! It guarantees: whoever may hold an object that the write covers is asked for a set that includes the object, but for the
//! writer, if it has dropped the object itself (S2w). It may ask for more than is covered, and the holder drops more then.
//!
//! It asks for each set by itself as long as those are few. The sets of one write, such as the removal of what many leases
//! carry, and the sessions that hold them may each be thousands. Their product would stop the leader (S10b). So with more than
//! [`claims_max`](super::Bounds::claims_max) claims it asks for a few subtrees that include the sets. It does not know
//! when a write has its turn, and what becomes of consents.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    command::Write,
    id::{Incarnation, SessionId, Stamp},
    object::{Object, ObjectSet, SETS_MAX, few_including},
    path::Path,
    planted::Bug,
    reached::{Bound, reached},
    state::{FEW_NODES, State},
    time::ClusterTime,
    work::visit,
};

use super::{
    Effect, Lessor, StepContext,
    holdings::volumes_of,
    writes::{Asked, Turn, Wait},
};

/// What is to be recalled from one session for one write.
#[derive(Default)]
pub(super) struct Claim {
    pub(super) sets: BTreeSet<ObjectSet>,
    leases: BTreeMap<Path, Incarnation>,
    /// None once a covering is among them: then there is no end to wait for but the volume leases'.
    over: Option<ClusterTime>,
    is_covering: bool,
}

impl Claim {
    /// Something is held under this lease: known to be over at a time, or not known.
    pub(super) fn add(&mut self, volume: Path, incarnation: Incarnation, over: Option<ClusterTime>) {
        self.leases.insert(volume, incarnation);
        self.is_covering |= over.is_none();
        self.over = self.over.max(over);
    }
}

/// What is to be recalled for one write.
#[derive(Default)]
pub(super) struct Claims {
    pub(super) of: BTreeMap<SessionId, Claim>,
    writer: Option<Writer>,
}

/// Who writes: the copies that it dropped when it sent the write, and the highest stamp that it had seen (S2w).
struct Writer {
    session: SessionId,
    dropped: Vec<ObjectSet>,
    seen: Stamp,
}

/// What a write changes, as far as holders of copies are concerned.
#[derive(Default)]
struct Changed {
    /// Whoever may hold an object of these is asked.
    sets: Vec<ObjectSet>,
    /// Leases that carry so many nodes that the copies of those are looked for together.
    large: Vec<Incarnation>,
    /// Where the nodes of those leases lie: for each list, its volume, and the subtree.
    lists: Vec<(Path, ObjectSet)>,
}

/// A copy that is known, or several in one set: who holds it, under a lease on which volume, until when, and what.
type Known = (SessionId, Path, ClusterTime, ObjectSet);

impl Lessor {
    /// Asks everyone who may hold an object that the write covers for consent (S2), and proposes the write if there is
    /// nothing to wait for. Of what is flushed nobody has a copy: that was seen to when it began to be written back.
    pub(super) fn gather(&mut self, waiting: Turn, turn: &mut StepContext<'_>) {
        let Some(pending) = self.writes.get_mut(waiting) else { return };
        pending.carried_at = turn.state.revision();
        let (covers, leases) = (pending.covers.clone(), pending.carried().clone());
        let writer =
            |asked: &Asked| Writer { session: asked.session, dropped: asked.dropped.clone(), seen: asked.seen };
        let mut claims = Claims { writer: pending.asked().map(writer), ..Claims::default() };
        if let Some(asked) = pending.asked() {
            if let Write::Flush { .. } = asked.write {
                return self.propose_ready(vec![waiting]);
            }
            let write = asked.write.clone();
            self.claim_cached(&write, &covers, &mut claims, turn.state);
        }
        let changed = self.changed_with(covers, &leases, turn.state);
        self.claim_from_known(&changed, &mut claims, turn.state);
        self.claim_from_coverings(&changed, &mut claims, turn.state);
        for (holder, claim) in claims.of {
            self.recall(waiting, holder, claim, turn);
        }
        self.propose_ready(vec![waiting]);
    }

    /// What the write covers, and the nodes that go with these leases.
    fn changed_with(&self, covers: Vec<ObjectSet>, leases: &BTreeSet<Incarnation>, state: &State) -> Changed {
        let mut changed = Changed { sets: covers, ..Changed::default() };
        if self.planted(Bug::RemovalSparesNodes) {
            return changed;
        }
        for lease in leases {
            let nodes: Vec<&Path> = state.carried(*lease).take(FEW_NODES + 1).collect();
            if nodes.len() <= FEW_NODES {
                changed.sets.extend(nodes.into_iter().flat_map(objects_of).map(ObjectSet::One));
                continue;
            }
            changed.large.push(*lease);
            // Nothing is attached to the top of a volume: a node is in the volume of the list that it is in.
            let lists = state.lists_carried(*lease).into_keys();
            changed.lists.extend(lists.map(|list| (state.volume_of(&list).0.clone(), ObjectSet::Subtree(list))));
        }
        changed
    }

    /// Claims what is changed from those who are known to hold copies of it.
    fn claim_from_known(&mut self, changed: &Changed, claims: &mut Claims, state: &State) {
        let known = self.known_copies(changed, state).unwrap_or_else(|| {
            reached(Bound::Claims);
            let lists = changed.lists.iter().map(|(_, list)| list);
            let few = few_including(changed.sets.iter().chain(lists).cloned(), SETS_MAX);
            few.iter().flat_map(|set| self.known_in(set)).collect()
        });
        for (holder, volume, over, set) in known {
            self.claim(&set, (holder, &volume, Some(over)), claims);
        }
    }

    /// The copies that are known, each by itself. None if those are too many claims.
    fn known_copies(&self, changed: &Changed, state: &State) -> Option<Vec<Known>> {
        let most = self.config.bounds.claims_max;
        let mut known = Vec::new();
        for set in &changed.sets {
            // Few sets are claimed each by itself, however many sessions hold them: they cannot be fewer.
            if known.len() > most && changed.sets.len() > SETS_MAX {
                return None;
            }
            known.extend(self.known_in(set));
        }
        for lease in &changed.large {
            for (object, holder, volume, over) in self.copies_of(*lease, state) {
                known.push((holder, volume, over, ObjectSet::One(object)));
                if known.len() > most {
                    return None;
                }
            }
        }
        Some(known)
    }

    /// The sessions that are known to hold an object of the set.
    fn known_in(&self, set: &ObjectSet) -> Vec<Known> {
        let known = self.holdings.exact_holders(set, self.clock.ending()).into_iter();
        known.map(|((holder, volume), over)| (holder, volume, over, set.clone())).collect()
    }

    /// The copies of nodes that go with a lease, of which there are very many: a walk along the copies in the subtree that they
    /// lie in, or along the nodes if that is shorter.
    fn copies_of<'a>(
        &'a self,
        lease: Incarnation,
        state: &'a State,
    ) -> impl Iterator<Item = (Object, SessionId, Path, ClusterTime)> + use<'a> {
        let lists = state.lists_carried(lease);
        let subtree = ObjectSet::Subtree(Path::common(lists.keys()));
        let most = 2 * state.carried_count(lease);
        let walk: Vec<_> = self.holdings.leases_in(&subtree).take(most + 1).collect();
        let is_long = walk.len() > most;
        let along_copies = walk.into_iter().filter(move |_| !is_long);
        let nodes = state.carried(lease).filter(move |_| is_long).flat_map(objects_of).map(ObjectSet::One);
        let along_nodes = nodes.flat_map(|one| self.holdings.leases_in(&one).collect::<Vec<_>>());
        let goes = move |path: &Path| {
            let node = state.node(path).and_then(|node| node.attachment.as_ref());
            node.is_some_and(|to| to.incarnation == lease)
        };
        let now = self.clock.ending();
        let copies = along_copies.chain(along_nodes);
        let copies = copies.filter(move |((object, _), held)| held.over > now && goes(&object.path));
        copies.map(|((object, holder), held)| {
            (object.clone(), *holder, state.volume_of(&object.path).0.clone(), held.over)
        })
    }

    /// Claims what is changed from those who may hold anything of the volumes that it lies in.
    fn claim_from_coverings(&mut self, changed: &Changed, claims: &mut Claims, state: &State) {
        let mut by_volume: BTreeMap<Path, BTreeSet<ObjectSet>> = BTreeMap::new();
        for (volume, list) in &changed.lists {
            by_volume.entry(volume.clone()).or_default().insert(list.clone());
        }
        for set in &changed.sets {
            for volume in volumes_of(set, state) {
                by_volume.entry(volume.clone()).or_default().insert(set.clone());
            }
        }
        let writer = claims.writer.as_ref().map(|writer| writer.session);
        for (volume, sets) in by_volume {
            let coverings: Vec<SessionId> = self.holdings.coverings_of(&volume).map(|(session, _)| session).collect();
            if coverings.is_empty() {
                continue;
            }
            let most = (self.config.bounds.claims_max / coverings.len()).max(SETS_MAX);
            let few = (sets.len() > most).then(|| {
                reached(Bound::Claims);
                few_including(sets.iter().cloned(), most)
            });
            for holder in coverings {
                // The writer is looked at set by set: it may have dropped them all.
                let asked = few.as_ref().filter(|_| Some(holder) != writer).unwrap_or(&sets);
                for set in asked {
                    self.claim(set, (holder, &volume, None), claims);
                }
            }
        }
    }

    /// Claims a set from a holder, unless that is the writer, and needs no recall.
    fn claim(
        &mut self,
        set: &ObjectSet,
        (holder, volume, over): (SessionId, &Path, Option<ClusterTime>),
        claims: &mut Claims,
    ) {
        visit(1);
        if let Some(Writer { session, dropped, seen }) = &claims.writer
            && holder == *session
            && self.is_exempt(holder, volume, set, dropped, *seen)
        {
            let planted = self.planted(Bug::ExemptWriterWithoutStamp);
            return self.holdings.drop_through(set, holder, if planted { u64::MAX } else { seen.sequence });
        }
        let Some(track) = self.holdings.track(volume, holder) else { return };
        let claim = claims.of.entry(holder).or_default();
        claim.add(volume.clone(), track.incarnation, over);
        claim.sets.insert(set.clone());
    }

    /// Asks a session for its consent, for no more sets than one recall names.
    fn recall(&mut self, waiting: Turn, holder: SessionId, claim: Claim, turn: &mut StepContext<'_>) {
        let Claim { sets, leases, over, is_covering } = claim;
        let Some(epoch) = self.epoch else { return };
        let most = self.config.bounds.recall_sets_max;
        let sets = match sets.len() > most {
            true => {
                reached(Bound::RecallSets);
                few_including(sets, most)
            }
            false => sets,
        };
        let sets = sets.into_iter().collect();
        let through = turn.state.last_write_lease();
        let (stamp, recall) = self.channel(holder).recall(holder, epoch, (sets, through), turn.now);
        turn.effects.extend(recall.map(Effect::Recall));
        let over = over.filter(|_| !is_covering);
        self.writes.wait(waiting, holder, Wait { stamp, leases, over });
    }

    /// Whether the writer needs no recall: it dropped its own copy when it sent the write, in this epoch, and nothing was granted to
    /// it since (S2w).
    fn is_exempt(&self, writer: SessionId, volume: &Path, set: &ObjectSet, dropped: &[ObjectSet], seen: Stamp) -> bool {
        if !dropped.iter().any(|one| one.includes(set)) {
            return false;
        }
        if self.planted(Bug::ExemptWriterWithoutStamp) {
            return true;
        }
        let is_covering = self.holdings.track(volume, writer).is_some_and(|track| track.is_covering());
        let last_grant = if is_covering && !self.planted(Bug::ExemptCoveringWriter) {
            self.channels.get(&writer).map_or(0, |channel| channel.last_grant())
        } else {
            self.holdings.newest_of(set, writer)
        };
        Some(seen.epoch) == self.epoch && last_grant <= seen.sequence
    }
}

/// The two objects of a node.
fn objects_of(path: &Path) -> [Object; 2] {
    [Object::data(path.clone()), Object::children(path.clone())]
}
