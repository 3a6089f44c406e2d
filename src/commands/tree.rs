//! `tree PATH`: a node and all nodes below it. Each list of children is as of its own moment.

use std::collections::BTreeMap;

use clap::Args;
use futures::{StreamExt, stream::FuturesUnordered};
use leasehold_client_cache::Client;
use leasehold_protocol::path::{NodePath, PathError};
use serde::{Serialize, Serializer, ser::SerializeStruct};

use super::read_failure;
use crate::{
    cli,
    context::Context,
    exit::CommandFailure,
    output::{Text, visible},
};

/// Lists in flight: enough to hide round trips, and a small load for a server.
const LISTS_AT_ONCE: usize = 64;

/// `tree PATH`
#[derive(Debug, Args)]
pub(crate) struct TreeArgs {
    /// Topmost node
    #[arg(value_parser = cli::path, default_value = "/")]
    pub(crate) path: NodePath,
}

/// A subtree: each node's children by name.
#[derive(Debug)]
pub(crate) struct TreeAnswer {
    top: NodePath,
    lists: Lists,
}

/// The children of each node in a subtree, in the order of the paths.
pub(crate) type Lists = BTreeMap<NodePath, Vec<NodePath>>;

impl TreeArgs {
    pub(crate) async fn run(self, context: &Context) -> Result<TreeAnswer, CommandFailure> {
        let lists = walk(context.client().await?, &self.path).await?;
        Ok(TreeAnswer { top: self.path, lists })
    }
}

/// The children of every node at and below `top`. Nodes that are removed during the walk are left
/// out.
pub(crate) async fn walk(client: &Client, top: &NodePath) -> Result<Lists, CommandFailure> {
    let mut lists = Lists::new();
    let mut ahead = vec![top.clone()];
    let mut asked = FuturesUnordered::new();
    loop {
        while asked.len() < LISTS_AT_ONCE
            && let Some(path) = ahead.pop()
        {
            asked.push(async move { (client.children(&path).await, path) });
        }
        let Some((children, path)) = asked.next().await else { break };
        let Some(children) = children.map_err(|error| read_failure(&error))? else { continue };
        let paths: Result<Vec<NodePath>, PathError> = children.names.iter().map(|name| path.child(name)).collect();
        let paths = paths.map_err(|error| CommandFailure::refused("path", error))?;
        ahead.extend(paths.iter().cloned());
        lists.insert(path, paths);
    }
    if !lists.contains_key(top) {
        return Err(CommandFailure::not_found());
    }
    Ok(lists)
}

impl TreeAnswer {
    fn children<'a>(&'a self, path: &NodePath) -> impl Iterator<Item = &'a NodePath> {
        let children = self.lists.get(path).map(Vec::as_slice).unwrap_or_default();
        children.iter().filter(|child| self.lists.contains_key(*child))
    }

    /// Draws lines like tree(1).
    fn lines(&self, path: &NodePath, indent: &str, out: &mut Vec<u8>) {
        let mut children = self.children(path).peekable();
        while let Some(child) = children.next() {
            let (branch, below) =
                if children.peek().is_some() { ("├── ", "│   ") } else { ("└── ", "    ") };
            let name = visible(child.name().unwrap_or_default());
            out.extend_from_slice(format!("{indent}{branch}{name}\n").as_bytes());
            self.lines(child, &format!("{indent}{below}"), out);
        }
    }
}

impl Text for TreeAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("{}\n", visible(self.top.as_str())).as_bytes());
        self.lines(&self.top, "", out);
        let count = self.lists.len() - 1;
        out.extend_from_slice(format!("\n{count} {} below\n", if count == 1 { "node" } else { "nodes" }).as_bytes());
    }
}

impl Serialize for TreeAnswer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        TreeNode { tree: self, path: &self.top }.serialize(serializer)
    }
}

/// One node of the JSON document, with the nodes below it.
struct TreeNode<'a> {
    tree: &'a TreeAnswer,
    path: &'a NodePath,
}

impl Serialize for TreeNode<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let children = self.tree.children(self.path).map(|path| TreeNode { tree: self.tree, path }).collect::<Vec<_>>();
        let mut node = serializer.serialize_struct("Node", 3)?;
        node.serialize_field("name", self.path.name().unwrap_or_default())?;
        node.serialize_field("path", self.path)?;
        node.serialize_field("children", &children)?;
        node.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> NodePath {
        NodePath::parse(text).expect("a valid path")
    }

    fn tree(list: &[(&str, &[&str])]) -> TreeAnswer {
        let lists = list.iter().map(|(top, children)| (path(top), children.iter().map(|&child| path(child)).collect()));
        TreeAnswer { top: path(list[0].0), lists: lists.collect() }
    }

    #[test]
    fn a_tree_is_drawn_with_its_branches() {
        let tree = tree(&[("/a", &["/a/b", "/a/gone", "/a/d"]), ("/a/b", &["/a/b/c"]), ("/a/b/c", &[]), ("/a/d", &[])]);
        let mut out = Vec::new();
        tree.text(&mut out);
        let expected = "/a\n├── b\n│   └── c\n└── d\n\n3 nodes below\n";
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }

    #[test]
    fn a_tree_is_nested_in_json() {
        let tree = tree(&[("/", &["/a"]), ("/a", &[])]);
        let json = serde_json::to_string(&tree).expect("serializes");
        let a = r#"{"name":"a","path":"/a","children":[]}"#;
        assert_eq!(json, format!(r#"{{"name":"","path":"/","children":[{a}]}}"#));
    }
}
