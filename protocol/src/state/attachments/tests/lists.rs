//! The lists of children that contain purged nodes.

use super::*;
use crate::{
    limits::LimitError,
    object::{Content, Object},
    work::take_visited,
};

/// In the order of paths, a node of another list comes between two nodes of one list.
#[test]
fn removed_nodes_are_counted_once_in_each_list() {
    let (mut fixture, session) = fixture();
    for at in ["/x/a", "/x/b/c", "/x/d"] {
        fixture.write(session, to(at, ONE)).expect("attached");
    }
    assert_eq!(fixture.write(session, revoke(ONE)).expect("the node exists").removed, 3);
    assert_eq!((names(&fixture, "/x"), names(&fixture, "/x/b")), (vec!["b".to_owned()], vec![]));
    for at in ["/x/b", "/x"] {
        fixture.write(session, delete(at, false)).expect("the node has no children");
    }
}

#[test]
fn list_of_children_has_no_purged_nodes() {
    let (mut fixture, session) = fixture();
    attach_many(&mut fixture, session, "/a", RECLAIMED_PER_ENTRY + 10, ONE);
    fixture.put(session, "/a/kept", "");
    fixture.write(session, revoke(ONE)).expect("the node exists");
    assert!(fixture.state.nodes.len() > 3, "some nodes are not reclaimed yet");
    assert_eq!(names(&fixture, "/a"), ["kept"]);
    let list = Object::children(path("/a"));
    let most = Content::name_weight("kept");
    let mut purged = 0;
    assert_eq!(
        fixture.state.content_within(&list, most, &mut purged),
        Ok(fixture.state.content(&list)),
        "reclaimed nodes have no weight"
    );
    assert_eq!(purged, fixture.state.nodes.len() - 3, "without the root, the list's node and its child");
    let refused = LimitError::Content { got: most, expected: most - 1 };
    assert_eq!(fixture.state.content_within(&list, most - 1, &mut purged), Err(refused));
}

#[test]
fn purged_nodes_of_a_lease_are_not_examined() {
    let (mut fixture, session) = fixture();
    attach_many(&mut fixture, session, "/a", RECLAIMED_PER_ENTRY * 3, ONE);
    let lease = fixture.state.lease(&AnyLease::KeyLease(ONE)).expect("granted").incarnation;
    fixture.write(session, revoke(ONE)).expect("the lease exists");
    assert!(fixture.state.attached_node_count(lease) > RECLAIMED_PER_ENTRY, "most are not reclaimed yet");
    take_visited();
    assert_eq!((fixture.state.attached_nodes(lease).count(), take_visited()), (0, 0));
}
