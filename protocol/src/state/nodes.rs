//! The nodes of the tree, and reads of them.
//!
//! One ordered map by path has all nodes. A node stores the number of its children, not their
//! names. To list the names, a read walks the map below the node and seeks past each child's
//! subtree. So the cost of a put does not depend on the number of siblings.

use std::{ops::Bound, time::Duration};

use serde::{Deserialize, Serialize};

use super::{State, after_all_below, below, row_key::RowKey, touched::Touched};
use crate::{
    change::{ChangeReason, EventKind},
    command::AnyLease,
    id::{Incarnation, Revision},
    limits::LimitError,
    object::{Children, Content, Data, NodeOwner, Object, ObjectKind, Stat, Value},
    path::NodePath,
    quota::VolumeUse,
    time::ClusterTime,
    work::{CountVisits, visit},
};

/// One node of the tree.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeRecord {
    /// The value.
    pub value: Value,
    /// The change that created the node.
    pub create_revision: Revision,
    /// The last change of the value.
    pub modify_revision: Revision,
    /// When that change was applied. Adaptive object terms use it.
    modify_time: ClusterTime,
    /// The number of writes of the value since the node was created. 1 for a new node.
    pub version: u64,
    /// `None` until the first child is created.
    children: Option<Box<ChildList>>,
    /// The lease that the node is attached to, if any.
    pub attachment: Option<Box<Attachment>>,
}

/// The lease that a node is attached to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Attachment {
    /// The lease.
    pub lease: AnyLease,
    /// Its incarnation. The node does not belong to later leases of the same name.
    pub incarnation: Incarnation,
}

impl Attachment {
    /// The lease as clients see it.
    pub fn owner(&self) -> Option<NodeOwner> {
        match &self.lease {
            AnyLease::KeyLease(id) => Some(NodeOwner::Lease(*id)),
            AnyLease::Volume(session, _) => Some(NodeOwner::Session(*session)),
            AnyLease::Session(_) | AnyLease::LockDelay(_) => None,
        }
    }
}

/// The list of a node's children, without the names. Most nodes never have children.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct ChildList {
    count: u64,
    version: u64,
    revision: Revision,
    time: ClusterTime,
}

/// A change: its revision, and the cluster time at which it was applied.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub(super) revision: Revision,
    pub(super) time: ClusterTime,
}

impl NodeRecord {
    /// A node without children.
    pub(super) fn new(value: Value, created: Moment) -> Self {
        Self {
            value,
            create_revision: created.revision,
            modify_revision: created.revision,
            modify_time: created.time,
            version: 1,
            children: None,
            attachment: None,
        }
    }

    pub(super) fn with_attachment(self, attachment: Option<Attachment>) -> Self {
        Self { attachment: attachment.map(Box::new), ..self }
    }

    /// The number of children.
    pub fn child_count(&self) -> u64 {
        self.children.as_ref().map_or(0, |children| children.count)
    }

    /// The number of changes that added or removed a child since the node was created.
    pub fn children_version(&self) -> u64 {
        self.children.as_ref().map_or(0, |children| children.version)
    }

    /// The last change of the list of children: it added or removed a child, or created the node.
    pub fn children_revision(&self) -> Revision {
        self.children.as_ref().map_or(self.create_revision, |children| children.revision)
    }

    /// All properties of the node except its children.
    pub fn stat(&self) -> Stat {
        Stat {
            create_revision: self.create_revision,
            modify_revision: self.modify_revision,
            version: self.version,
            value_len: self.value.len() as u64,
            owner: self.attachment.as_ref().and_then(|to| to.owner()),
        }
    }

    /// What the node adds to its volume.
    pub(super) fn used(&self, path: &NodePath) -> VolumeUse {
        VolumeUse::of_node(path.as_str().len(), self.value.len())
    }

    pub(super) fn set_value(&mut self, value: Value, change: Moment) {
        self.value = value;
        (self.modify_revision, self.modify_time) = (change.revision, change.time);
        self.version += 1;
    }

    /// When the list of children last changed. If the node never had children, when its value last
    /// changed.
    fn children_time(&self) -> ClusterTime {
        self.children.as_ref().map_or(self.modify_time, |children| children.time)
    }

    /// Counts this many children as removed.
    pub(super) fn remove_children(&mut self, count: u64, change: Moment) {
        self.change_children(change).count -= count;
    }

    pub(super) fn add_child(&mut self, change: Moment) {
        self.change_children(change).count += 1;
    }

    pub(super) fn remove_child(&mut self, change: Moment) {
        self.remove_children(1, change);
    }

    /// A transaction counts as one change of the list, even if it adds or removes several children.
    fn change_children(&mut self, Moment { revision, time }: Moment) -> &mut ChildList {
        let none = || Box::new(ChildList { count: 0, version: 0, revision, time });
        let children = self.children.get_or_insert_with(none);
        let has_counted = children.revision == revision && children.version > 0;
        if !has_counted {
            children.version += 1;
        }
        (children.revision, children.time) = (revision, time);
        children
    }
}

fn children_of(node: &NodeRecord, names: Vec<String>) -> Children {
    Children { names, version: node.children_version(), modify_revision: node.children_revision() }
}

impl State {
    /// The path that the state stores for a node. A clone of it shares the memory of its text.
    pub(crate) fn interned_path(&self, path: &NodePath) -> Option<&NodePath> {
        self.nodes.get_key_value(path).map(|(stored, _)| stored)
    }

    /// The node at `path`, if it exists. A purged node does not exist, even while it is in memory.
    pub fn node(&self, path: &NodePath) -> Option<&NodeRecord> {
        self.nodes.get(path).filter(|node| self.is_live(node))
    }

    /// The content of a node's data object.
    pub fn data(&self, path: &NodePath) -> Option<Data> {
        self.node(path).map(|node| Data { value: node.value.clone(), stat: node.stat() })
    }

    /// The content of a node's children object. The cost depends on the number of children, not on
    /// the number of deeper descendants.
    pub fn children(&self, path: &NodePath) -> Option<Children> {
        let node = self.node(path)?;
        self.child_names(path, node, &mut |_| true).map(|names| children_of(node, names))
    }

    /// The names of a node's children. `None` if a name does not fit: the walk then stops. `fits`
    /// gets `None` for a purged child.
    fn child_names(
        &self,
        path: &NodePath,
        node: &NodeRecord,
        fits: &mut dyn FnMut(Option<&str>) -> bool,
    ) -> Option<Vec<String>> {
        let mut names = Vec::new();
        if node.child_count() == 0 {
            return Some(names);
        }
        let lower = path.prefix_below();
        let upper = after_all_below(&lower);
        let mut rest = below(&self.nodes, path);
        while let Some((path, node)) = rest.next() {
            visit(1);
            let name = &path.as_str()[lower.len()..];
            match name.find('/') {
                None if !fits(self.is_live(node).then_some(name)) => return None,
                None if self.is_live(node) => names.push(name.to_owned()),
                None => {}
                // A descendant of a child that the walk has passed: seek past its subtree.
                Some(end) => {
                    let after_subtree = after_all_below(&path.as_str()[..=lower.len() + end]);
                    rest = self
                        .nodes
                        .range::<str, _>((Bound::Included(after_subtree.as_str()), Bound::Excluded(upper.as_str())));
                }
            }
        }
        Some(names)
    }

    /// The content of an object. For a node that does not exist, the content is that fact.
    pub fn content(&self, object: &Object) -> Content {
        match object.kind {
            ObjectKind::Data => Content::Data(self.data(&object.path)),
            ObjectKind::Children => Content::Children(self.children(&object.path)),
        }
    }

    /// The content of an object, if it weighs at most `most` bytes.
    ///
    /// # Errors
    ///
    /// [`LimitError::Content`] if it weighs more. The check costs no more than reading an allowed
    /// content, because it does not read a list with too many names. But a list may also have
    /// purged nodes that are not reclaimed yet: their number is added to `purged`.
    pub fn content_within(&self, object: &Object, most: usize, purged: &mut usize) -> Result<Content, LimitError> {
        let too_long = |weight| Err(LimitError::Content { got: weight, expected: most });
        let node = self.node(&object.path);
        let at_least = match (object.kind, node) {
            (_, None) => 0,
            (ObjectKind::Data, Some(node)) => node.value.len(),
            (ObjectKind::Children, Some(node)) => {
                usize::try_from(node.child_count()).unwrap_or(usize::MAX).saturating_mul(Content::name_weight("x"))
            }
        };
        if at_least > most {
            return too_long(at_least);
        }
        let mut weight = 0;
        let mut fits = |name: Option<&str>| {
            weight += name.map_or(0, Content::name_weight);
            *purged += usize::from(name.is_none());
            weight <= most
        };
        match (object.kind, node) {
            (ObjectKind::Data, _) => Ok(Content::Data(self.data(&object.path))),
            (ObjectKind::Children, None) => Ok(Content::Children(None)),
            (ObjectKind::Children, Some(node)) => match self.child_names(&object.path, node, &mut fits) {
                Some(names) => Ok(Content::Children(Some(children_of(node, names)))),
                None => too_long(weight),
            },
        }
    }

    /// The revision of an object's last change. `None` if the node does not exist.
    pub fn modify_revision(&self, object: &Object) -> Option<Revision> {
        self.node(&object.path).map(|node| match object.kind {
            ObjectKind::Data => node.modify_revision,
            ObjectKind::Children => node.children_revision(),
        })
    }

    /// How long ago an object last changed, at the cluster time `now`. `None` if the node does not
    /// exist. If the node never had children, its list is as old as its value.
    pub fn age(&self, object: &Object, now: ClusterTime) -> Option<Duration> {
        let node = self.node(&object.path)?;
        let changed = match object.kind {
            ObjectKind::Data => node.modify_time,
            ObjectKind::Children => node.children_time(),
        };
        Some(now.since(changed))
    }

    /// A change with this revision, applied now.
    pub(super) fn moment(&self, revision: Revision) -> Moment {
        Moment { revision, time: self.meta.cluster_time }
    }

    /// All nodes from `path` on, in the order of paths, including `path` itself if it exists.
    pub fn nodes_from<'a>(&'a self, path: &NodePath) -> impl Iterator<Item = (&'a NodePath, &'a NodeRecord)> + use<'a> {
        let nodes = self.nodes.range::<NodePath, _>((Bound::Included(path), Bound::Unbounded));
        nodes.filter(|(_, node)| self.is_live(node))
    }

    /// The nodes at and below `top` whose paths come after `after`, in the order of paths. With
    /// `None`, all of them.
    pub fn nodes_in<'a>(
        &'a self,
        top: &NodePath,
        after: Option<&NodePath>,
    ) -> impl Iterator<Item = (&'a NodePath, &'a NodeRecord)> + use<'a> {
        self.nodes_and_tombstones_in(top, after).filter_map(|(path, node)| node.map(|node| (path, node)))
    }

    /// Like `nodes_in`, with `None` for each purged node that is not reclaimed yet. A caller with a
    /// scan limit must count these too.
    pub(crate) fn nodes_and_tombstones_in<'a>(
        &'a self,
        top: &NodePath,
        after: Option<&NodePath>,
    ) -> impl Iterator<Item = (&'a NodePath, Option<&'a NodeRecord>)> + use<'a> {
        let lower = top.prefix_below();
        let upper = after_all_below(&lower);
        // A range that ends before it begins would panic. The clamp makes it empty instead.
        let from = after.map_or(lower.as_str(), NodePath::as_str).clamp(lower.as_str(), upper.as_str());
        let below = self.nodes.range::<str, _>((Bound::Excluded(from), Bound::Included(upper.as_str())));
        let topmost = self.nodes.get_key_value(top).filter(|(top, _)| after.is_none_or(|after| *top > after));
        // A node with the path of the upper bound is not in the subtree, but may exist after it.
        let within = move |path: &&NodePath| path.as_str() != upper;
        let nodes = topmost.into_iter().chain(below.filter(move |(path, _)| within(path)));
        nodes.counted().map(|(path, node)| (path, Some(node).filter(|node| self.is_live(node))))
    }

    /// The descendants of `path`, in the order of paths.
    pub fn nodes_below<'a>(
        &'a self,
        path: &NodePath,
    ) -> impl Iterator<Item = (&'a NodePath, &'a NodeRecord)> + use<'a> {
        below(&self.nodes, path).filter(|(_, node)| self.is_live(node))
    }

    /// The number of nodes in memory at and below a path, including purged nodes that are not
    /// reclaimed yet. It counts up to `most` + 1.
    pub(super) fn count_nodes_in(&self, top: &NodePath, most: usize) -> usize {
        1 + below(&self.nodes, top).take(most).count()
    }

    /// Creates a node and its missing ancestors.
    pub(super) fn make_node(&mut self, path: &NodePath, node: NodeRecord, touched: &mut Touched) {
        let now = self.moment(node.create_revision);
        let mut created = vec![path.clone()];
        self.insert_node(path.clone(), node, touched);
        for ancestor in path.ancestors() {
            let exists = self.node(&ancestor).is_some();
            if let Some(node) = self.nodes.get_mut(&ancestor).filter(|_| exists) {
                node.add_child(now);
                touched.insert(RowKey::Node(ancestor));
                break;
            }
            let mut node = NodeRecord::new(Value::new(), now);
            node.add_child(now);
            created.push(ancestor.clone());
            self.insert_node(ancestor, node, touched);
        }
        created.iter().rev().for_each(|path| self.note_put(path));
    }

    /// Inserts a node. It may replace a purged node that is not reclaimed yet.
    fn insert_node(&mut self, path: NodePath, node: NodeRecord, touched: &mut Touched) {
        self.attachments.insert(&path, &node);
        self.use_grew(&path, node.value.len());
        touched.insert(RowKey::Node(path.clone()));
        if let Some(replaced) = self.nodes.insert(path.clone(), node) {
            self.attachments.remove(&path, &replaced, touched);
        }
    }

    /// Sets a node's value and its attachment.
    pub(super) fn set_node(
        &mut self,
        path: &NodePath,
        value: Value,
        attachment: Option<Attachment>,
        revision: Revision,
        touched: &mut Touched,
    ) -> Option<Stat> {
        let now = self.moment(revision);
        let node = self.nodes.get_mut(path)?;
        let (before, after) = (node.value.len(), value.len());
        node.set_value(value, now);
        touched.insert(RowKey::Node(path.clone()));
        if node.attachment.as_deref() != attachment.as_ref() {
            self.attachments.remove(path, node, touched);
            node.attachment = attachment.map(Box::new);
            self.attachments.insert(path, node);
        }
        let stat = node.stat();
        self.use_changed(path, before, after);
        self.note_put(path);
        Some(stat)
    }

    /// Removes a node other than the root, and its descendants. Returns the number of removed
    /// nodes.
    pub(super) fn remove_nodes(&mut self, top: &NodePath, revision: Revision, touched: &mut Touched) -> u64 {
        let mut paths: Vec<NodePath> = below(&self.nodes, top).rev().map(|(below, _)| below.clone()).collect();
        paths.push(top.clone());
        let (mut removed, mut freed) = (0, VolumeUse::default());
        for path in paths {
            if let Some(node) = self.node(&path) {
                freed.add(node.used(&path));
            }
            if let Some(node) = self.nodes.remove(&path) {
                if self.is_live(&node) {
                    removed += 1;
                    self.note_event(path.clone(), EventKind::Delete, ChangeReason::Request);
                }
                self.attachments.remove(&path, &node, touched);
            }
            touched.insert(RowKey::Node(path));
        }
        // A delete removes no volume, so all these nodes were in one volume.
        self.use_shrank(top, freed);
        let now = self.moment(revision);
        if let Some(parent) = top.parent()
            && let Some(node) = self.nodes.get_mut(&parent)
        {
            node.remove_child(now);
            touched.insert(RowKey::Node(parent));
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::*, *};
    use crate::id::Revision;

    #[test]
    fn children_are_found_past_their_subtrees_and_their_neighbours() {
        let mut fixture = Fixture::new();
        let session = fixture.open();
        // In the order of bytes, `/a-b` is between `/a` and its descendants, and `/a0` comes right
        // after these.
        for at in ["/a/x/deep", "/a/y", "/a-b/z", "/a0", "/a/x-1", "/a/x1", "/a/name/z", "/b/x/y/z"] {
            fixture.put(session, at, "");
        }
        let names = |at: &str| fixture.state.children(&path(at)).expect("the node exists").names;
        assert_eq!(names("/"), ["a", "a-b", "a0", "b"]);
        assert_eq!(names("/a"), ["name", "x", "x-1", "x1", "y"]);
        assert_eq!(names("/a/x"), ["deep"]);
        assert_eq!(names("/a/y"), [""; 0]);
        assert_eq!(fixture.state.children(&path("/none")), None);
    }

    #[test]
    fn child_change_modifies_parents_list_and_not_its_data() {
        let mut fixture = Fixture::new();
        let session = fixture.open();
        fixture.put(session, "/a", "value");
        let before = fixture.state.data(&path("/a"));
        assert_eq!(before.as_ref().map(|data| &data.value[..]), Some(&b"value"[..]));
        fixture.put(session, "/a/b", "");
        fixture.write(session, delete("/a/b", false)).expect("a leaf");
        assert_eq!(fixture.state.data(&path("/a")), before);
        let expected = Children { names: vec![], version: 2, modify_revision: Revision(3) };
        assert_eq!(fixture.state.children(&path("/a")), Some(expected));
        assert_eq!(fixture.state.modify_revision(&Object::data(path("/a"))), Some(Revision(1)));
        assert_eq!(fixture.state.modify_revision(&Object::children(path("/a"))), Some(Revision(3)));
        assert_eq!(fixture.state.modify_revision(&Object::data(path("/a/b"))), None);
    }

    #[test]
    fn nodes_below_are_exactly_the_subtree() {
        let mut fixture = Fixture::new();
        let session = fixture.open();
        for at in ["/a/x/deep", "/a-b", "/a0"] {
            fixture.put(session, at, "");
        }
        let below = |at: &str| -> Vec<String> {
            fixture.state.nodes_below(&path(at)).map(|(below, _)| below.to_string()).collect()
        };
        assert_eq!(below("/a"), ["/a/x", "/a/x/deep"]);
        assert_eq!(below("/"), ["/a", "/a-b", "/a/x", "/a/x/deep", "/a0"]);
        let from: Vec<_> = fixture.state.nodes_from(&path("/a/x")).map(|(at, _)| at.as_str()).collect();
        assert_eq!(from, ["/a/x", "/a/x/deep", "/a0"]);
    }

    #[test]
    fn recreated_node_is_new() {
        let mut fixture = Fixture::new();
        let session = fixture.open();
        fixture.put(session, "/a", "one");
        fixture.put(session, "/a", "two");
        fixture.write(session, delete("/a", false)).expect("a leaf");
        let written = fixture.put(session, "/a", "three");
        let revision = Revision(4);
        let stat = Stat { create_revision: revision, modify_revision: revision, version: 1, value_len: 5, owner: None };
        assert_eq!(written.stat, Some(stat));
    }
}
