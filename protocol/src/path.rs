//! Absolute paths of nodes. [`NodePath::parse`] checks a path once, so every [`NodePath`] is valid.
//!
//! A path is `/`, or one or more components, each with a `/` before it. A component is UTF-8 text
//! that is not empty, `.` or `..`, and has no `/` and no NUL. [`COMPONENT_MAX_BYTES`] and
//! [`PATH_MAX_BYTES`] bound the lengths. A server's [`Limits`](crate::limits::Limits) may be lower.
//!
//! Paths are ordered by their bytes. So exactly the nodes below `/a` are between `/a/` and `/a0`,
//! and a walk of a subtree is a scan of one range.

use std::{
    cmp::Ordering,
    convert::Infallible,
    fmt,
    hash::{BuildHasher, Hash, Hasher},
    str::FromStr,
};

use arcstr::ArcStr;
use foldhash::fast::FixedState;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::reached::{Bound, reached};

/// The longest component of a path, in bytes.
pub const COMPONENT_MAX_BYTES: usize = 255;

/// The longest path, in bytes.
pub const PATH_MAX_BYTES: usize = 4096;

/// The absolute path of a node. Cheap to clone. It takes two words, because a server may store
/// several paths for each of millions of leases.
///
/// It includes a hash code of its text, so that a lookup in a cache need not read the text.
#[derive(Clone)]
pub struct NodePath {
    text: ArcStr,
    code: u64,
}

/// The reason why a text is not a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error, Serialize, Deserialize)]
pub enum PathError {
    /// The text does not begin with `/`.
    #[error("path {path:?}: not absolute; a path begins with \"/\"")]
    Relative {
        /// The text that was given.
        path: String,
    },
    /// The path has two slashes in a row, or a slash at the end.
    #[error("path {path:?}: empty component at byte {at}")]
    EmptyComponent {
        /// The text that was given.
        path: String,
        /// The byte at which the empty component begins.
        at: usize,
    },
    /// The component is `.` or `..`, or has a `/` or NUL, which other software treats specially.
    #[error(
        "path {path:?}: invalid component {component:?}; a component is not \".\" or \"..\", and \
         has no slash or NUL"
    )]
    ForbiddenComponent {
        /// The text that was given.
        path: String,
        /// The forbidden component.
        component: String,
    },
    /// A component is too long.
    #[error("path component: {got} bytes exceed the limit of {expected}")]
    ComponentTooLong {
        /// Its length in bytes.
        got: usize,
        /// The bound in bytes.
        expected: usize,
    },
    /// The path is too long.
    #[error("path: {got} bytes exceed the limit of {expected}")]
    TooLong {
        /// Its length in bytes.
        got: usize,
        /// The bound in bytes.
        expected: usize,
    },
}

impl NodePath {
    /// The root, `/`.
    pub fn root() -> Self {
        Self::with_code(arcstr::literal!("/"))
    }

    /// Parses an absolute path.
    ///
    /// # Errors
    ///
    /// [`PathError`] with the problem and the expected text.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        if text.len() > PATH_MAX_BYTES {
            reached(Bound::PathMax);
            return Err(PathError::TooLong { got: text.len(), expected: PATH_MAX_BYTES });
        }
        let Some(rest) = text.strip_prefix('/') else {
            return Err(PathError::Relative { path: text.to_owned() });
        };
        if !rest.is_empty() {
            let mut at = 1;
            for component in rest.split('/') {
                check_component(text, component, at)?;
                at += component.len() + 1;
            }
        }
        Ok(Self::of(text))
    }

    fn of(text: &str) -> Self {
        Self::with_code(ArcStr::from(text))
    }

    fn with_code(text: ArcStr) -> Self {
        let code = FixedState::default().hash_one(text.as_str());
        Self { text, code }
    }

    /// A hash code of the text. It is the same for equal paths in one process, and has no meaning
    /// in others.
    pub fn code(&self) -> u64 {
        self.code
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether this is `/`.
    pub fn is_root(&self) -> bool {
        self.text.len() == 1
    }

    /// The node above this one. `None` for the root.
    pub fn parent(&self) -> Option<Self> {
        if self.is_root() {
            return None;
        }
        match self.text.rfind('/') {
            Some(0) | None => Some(Self::root()),
            Some(at) => Some(Self::of(&self.text[..at])),
        }
    }

    /// The last component. `None` for the root.
    pub fn name(&self) -> Option<&str> {
        if self.is_root() { None } else { self.text.rsplit('/').next() }
    }

    /// The child of this node with the given name.
    ///
    /// # Errors
    ///
    /// [`PathError`] if `name` is not one valid component, or if the path would be too long.
    pub fn child(&self, name: &str) -> Result<Self, PathError> {
        let text = if self.is_root() { format!("/{name}") } else { format!("{}/{name}", self.text) };
        if name.contains('/') {
            return Err(PathError::ForbiddenComponent { path: text, component: name.to_owned() });
        }
        Self::parse(&text)
    }

    /// Whether `other` is this node or lies below it.
    pub fn contains(&self, other: &NodePath) -> bool {
        self.is_root()
            || (other.text.starts_with(&*self.text)
                && (other.text.len() == self.text.len() || other.text.as_bytes()[self.text.len()] == b'/'))
    }

    /// The nodes above this one: the nearest first, the root last. Empty for the root.
    pub fn ancestors(&self) -> impl Iterator<Item = NodePath> + use<> {
        std::iter::successors(self.parent(), NodePath::parent)
    }

    /// The common prefix of all paths strictly below this one.
    pub fn prefix_below(&self) -> String {
        if self.is_root() { "/".to_owned() } else { format!("{}/", self.text) }
    }

    /// A bound for ordered searches: after this path, and at or before every path strictly below
    /// it. It is not a valid path.
    pub(crate) fn bound_below(&self) -> NodePath {
        Self::of(&self.prefix_below())
    }

    /// A bound for ordered searches: after every path below this one, and at or before the next
    /// other path.
    pub(crate) fn bound_after(&self) -> NodePath {
        let mut text = self.prefix_below();
        text.pop();
        text.push('0');
        Self::of(&text)
    }

    /// Whether both nodes are directly below one node. A node is its own sibling, but the root has
    /// none.
    pub(crate) fn is_sibling_of(&self, other: &NodePath) -> bool {
        let above = |path: &NodePath| if path.is_root() { None } else { path.text.rfind('/') };
        match (above(self), above(other)) {
            (Some(one), Some(two)) => self.text[..one] == other.text[..two],
            _ => false,
        }
    }

    /// Whether this is the node directly above `other`.
    pub fn is_parent_of(&self, other: &NodePath) -> bool {
        match other.text.rfind('/') {
            Some(0) => self.is_root() && !other.is_root(),
            Some(end) => *self.text == other.text[..end],
            None => false,
        }
    }

    /// The lowest node at or above all of these paths. The root if there are none.
    pub fn common_ancestor<'a>(paths: impl IntoIterator<Item = &'a NodePath>) -> Self {
        let mut paths = paths.into_iter();
        let Some(first) = paths.next() else { return Self::root() };
        paths.fold(first.clone(), |mut common, path| {
            while !common.contains(path) {
                common = common.parent().unwrap_or_else(Self::root);
            }
            common
        })
    }

    /// The number of components. 0 for the root.
    pub fn depth(&self) -> usize {
        if self.is_root() { 0 } else { self.text.matches('/').count() }
    }
}

fn check_component(path: &str, component: &str, at: usize) -> Result<(), PathError> {
    if component.is_empty() {
        return Err(PathError::EmptyComponent { path: path.to_owned(), at });
    }
    if component == "." || component == ".." || component.contains('\0') {
        return Err(PathError::ForbiddenComponent { path: path.to_owned(), component: component.to_owned() });
    }
    if component.len() > COMPONENT_MAX_BYTES {
        reached(Bound::ComponentMax);
        return Err(PathError::ComponentTooLong { got: component.len(), expected: COMPONENT_MAX_BYTES });
    }
    Ok(())
}

impl PartialEq for NodePath {
    fn eq(&self, other: &Self) -> bool {
        self.code == other.code && self.text == other.text
    }
}

impl Eq for NodePath {}

impl PartialOrd for NodePath {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for NodePath {
    fn cmp(&self, other: &Self) -> Ordering {
        if ArcStr::ptr_eq(&self.text, &other.text) { Ordering::Equal } else { self.text.cmp(&other.text) }
    }
}

/// Hashes like the text, as `Borrow<str>` requires.
impl Hash for NodePath {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl fmt::Display for NodePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for NodePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for NodePath {
    type Err = PathError;

    fn from_str(text: &str) -> Result<Self, PathError> {
        Self::parse(text)
    }
}

impl TryFrom<&str> for NodePath {
    type Error = PathError;

    fn try_from(text: &str) -> Result<Self, PathError> {
        Self::parse(text)
    }
}

impl TryFrom<String> for NodePath {
    type Error = PathError;

    fn try_from(text: String) -> Result<Self, PathError> {
        Self::parse(&text)
    }
}

impl TryFrom<&String> for NodePath {
    type Error = PathError;

    fn try_from(text: &String) -> Result<Self, PathError> {
        Self::parse(text)
    }
}

impl From<&NodePath> for NodePath {
    fn from(path: &NodePath) -> Self {
        path.clone()
    }
}

/// A path that is parsed already never fails to convert.
impl From<Infallible> for PathError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl AsRef<str> for NodePath {
    fn as_ref(&self) -> &str {
        &self.text
    }
}

impl std::borrow::Borrow<str> for NodePath {
    fn borrow(&self) -> &str {
        &self.text
    }
}

impl Serialize for NodePath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for NodePath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> NodePath {
        NodePath::parse(text).expect("a valid path")
    }

    #[test]
    fn a_path_knows_its_family() {
        assert_eq!(path("/a/b").parent(), Some(path("/a")));
        assert_eq!(path("/a").parent(), Some(NodePath::root()));
        assert_eq!(NodePath::root().parent(), None);
        assert_eq!(path("/a/b").name(), Some("b"));
        assert_eq!(path("/a").child("b"), Ok(path("/a/b")));
        assert_eq!(NodePath::root().child("a"), Ok(path("/a")));
        assert_eq!(path("/a/b/c").ancestors().collect::<Vec<_>>(), [path("/a/b"), path("/a"), NodePath::root()]);
    }

    #[test]
    fn containment_respects_component_borders() {
        assert!(path("/a").contains(&path("/a")));
        assert!(path("/a").contains(&path("/a/b")));
        assert!(!path("/a").contains(&path("/ab")));
        assert!(NodePath::root().contains(&path("/ab")));
    }

    #[test]
    fn malformed_paths_are_refused_with_what_was_expected() {
        assert!(matches!(NodePath::parse("a"), Err(PathError::Relative { .. })));
        assert!(matches!(NodePath::parse(""), Err(PathError::Relative { .. })));
        assert!(matches!(NodePath::parse("/a//b"), Err(PathError::EmptyComponent { at: 3, .. })));
        assert!(matches!(NodePath::parse("/a/"), Err(PathError::EmptyComponent { at: 3, .. })));
        assert!(matches!(NodePath::parse("/a/../b"), Err(PathError::ForbiddenComponent { .. })));
        assert!(matches!(NodePath::parse("/a\0"), Err(PathError::ForbiddenComponent { .. })));
        let long = format!("/{}", "x".repeat(COMPONENT_MAX_BYTES + 1));
        assert_eq!(NodePath::parse(&long), Err(PathError::ComponentTooLong { got: 256, expected: 255 }));
        let deep = "/x".repeat(PATH_MAX_BYTES / 2 + 1);
        assert_eq!(NodePath::parse(&deep), Err(PathError::TooLong { got: 4098, expected: 4096 }));
        assert!(path("/a").child("b/c").is_err());
    }

    #[test]
    fn decoding_a_path_checks_it() {
        let bytes = postcard::to_allocvec("no/slash").expect("encodes");
        assert!(postcard::from_bytes::<NodePath>(&bytes).is_err());
    }
}
