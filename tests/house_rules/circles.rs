//! Checks that the files of a crate do not import each other in a circle.
//!
//! A module may import its parents and its children, as they are one thing in several files. What
//! only tests import does not count.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use syn::{
    Attribute, File as Syntax, ItemFn, ItemImpl, ItemMod, ItemUse, UseTree, Visibility,
    visit::{self, Visit},
};

use super::{files, none};

/// The sources of each crate that ships.
const CRATES: [&str; 7] = [
    "benches/load/src",
    "client-cache/src",
    "examples/demo/src",
    "protocol/src",
    "protocol/wire/src",
    "server/src",
    "src",
];

/// A module, by the names of the modules around it and its own.
type Module = Vec<String>;

/// The paths that a file names, and those that it exports to others.
#[derive(Default)]
struct Named {
    paths: Vec<Vec<String>>,
    exports: Vec<Vec<String>>,
}

fn is_of_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let text = attribute.meta.require_list().map(|list| list.tokens.to_string()).unwrap_or_default();
        attribute.path().is_ident("cfg")
            && (text == "test" || text.starts_with("any (test") || text.contains("planted"))
    })
}

/// Adds the paths of a `use`, each in full.
fn flatten(tree: &UseTree, before: &[String], paths: &mut Vec<Vec<String>>) {
    let with = |name: &syn::Ident| before.iter().cloned().chain([name.to_string()]).collect::<Vec<_>>();
    match tree {
        UseTree::Path(path) => flatten(&path.tree, &with(&path.ident), paths),
        UseTree::Name(name) => paths.push(with(&name.ident)),
        UseTree::Rename(rename) => paths.push(with(&rename.ident)),
        UseTree::Glob(_) => paths.push(before.to_vec()),
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, before, paths)),
    }
}

impl<'ast> Visit<'ast> for Named {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if !is_of_tests(&item.attrs) {
            let paths = if matches!(item.vis, Visibility::Inherited) { &mut self.paths } else { &mut self.exports };
            flatten(&item.tree, &[], paths);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if !is_of_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        if !is_of_tests(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        if !is_of_tests(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if names.len() > 1 && ["crate", "super", "self"].contains(&names[0].as_str()) {
            self.paths.push(names);
        }
        visit::visit_path(self, path);
    }
}

/// The modules of a crate, and what each names.
#[derive(Default)]
struct Crate {
    modules: BTreeMap<Module, Named>,
    /// The module behind a name that another module exports.
    exported: BTreeMap<(Module, String), Module>,
}

impl Crate {
    fn new(sources: impl IntoIterator<Item = (Module, Syntax)>) -> Self {
        let mut this = Self::default();
        for (module, syntax) in sources {
            let mut named = Named::default();
            named.visit_file(&syntax);
            this.modules.insert(module, named);
        }
        let mut exported = BTreeMap::new();
        for (module, named) in &this.modules {
            for path in &named.exports {
                let (Some(target), Some(name)) = (this.target(module, path), path.last()) else { continue };
                exported.insert((module.clone(), name.clone()), target);
            }
        }
        this.exported = exported;
        this
    }

    /// The module that a path names, or in which the named item is.
    fn target(&self, from: &Module, path: &[String]) -> Option<Module> {
        let (mut at, mut rest) = match path.first()?.as_str() {
            "crate" => (Vec::new(), &path[1..]),
            "self" => (from.clone(), &path[1..]),
            "super" => (from[..from.len().checked_sub(1)?].to_vec(), &path[1..]),
            _ => (from.clone(), path),
        };
        while rest.first().is_some_and(|name| name == "super") {
            at.pop()?;
            rest = &rest[1..];
        }
        let is_local = path[0] != *rest.first().map_or("", String::as_str);
        for (depth, name) in rest.iter().enumerate() {
            let inner: Module = at.iter().cloned().chain([name.clone()]).collect();
            if self.modules.contains_key(&inner) {
                at = inner;
            } else if let Some(behind) = self.exported.get(&(at.clone(), name.clone())) {
                return Some(behind.clone());
            } else {
                return (is_local || depth > 0).then_some(at);
            }
        }
        Some(at)
    }

    /// The modules that a module imports, without those around it and in it.
    fn imports(&self, module: &Module) -> BTreeSet<Module> {
        let named = &self.modules[module];
        let targets = named.paths.iter().chain(&named.exports).filter_map(|path| self.target(module, path));
        targets.filter(|target| !target.starts_with(module) && !module.starts_with(target)).collect()
    }

    /// All modules that can be reached from a module.
    fn reached(&self, module: &Module, imports: &BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<Module> {
        let (mut reached, mut next) = (BTreeSet::new(), vec![module.clone()]);
        while let Some(module) = next.pop() {
            next.extend(imports[&module].iter().filter(|one| reached.insert((*one).clone())).cloned());
        }
        reached
    }

    /// The imports that are part of a circle.
    fn circles(&self) -> Vec<String> {
        let imports: BTreeMap<Module, BTreeSet<Module>> =
            self.modules.keys().map(|module| (module.clone(), self.imports(module))).collect();
        let reached: BTreeMap<&Module, BTreeSet<Module>> =
            imports.keys().map(|module| (module, self.reached(module, &imports))).collect();
        let pairs = imports.iter().flat_map(|(one, others)| others.iter().map(move |other| (one, other)));
        let circular = pairs.filter(|(one, other)| reached[other].contains(*one));
        circular.map(|(one, other)| format!("{} imports {}", one.join("::"), other.join("::"))).collect()
    }
}

/// The module of a file below the sources of its crate. The crate's root is the empty name.
fn module_of(path: &str) -> Module {
    let mut module: Module =
        Path::new(path).with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    module.pop_if(|name| ["lib", "main", "mod"].contains(&name.as_str()));
    module
}

#[test]
fn files_of_a_crate_import_each_other_in_one_direction() {
    let files = files();
    let mut complaints = Vec::new();
    for sources in CRATES {
        let is_test = |path: &str| path.split(['/', '.']).any(|part| ["tests", "fixture", "random"].contains(&part));
        let parse = |text: &str| syn::parse_file(text).expect("Rust that compiles");
        let own = files.iter().filter(|file| file.is_rust()).filter_map(|file| {
            let path = file.name.strip_prefix(sources)?.strip_prefix('/')?;
            (!is_test(path)).then(|| (module_of(path), parse(&file.text)))
        });
        let own = Crate::new(own);
        assert!(own.modules.len() > 3, "{sources}: the files were not found");
        complaints.extend(own.circles().into_iter().map(|circle| format!("{sources}: {circle}, in a circle")));
    }
    none(complaints);
}

#[test]
fn circle_through_exports_and_paths_is_found() {
    let source = |path: &str, text: &str| (module_of(path), syn::parse_file(text).expect("Rust"));
    let circles = |a: &str, b: &str| {
        let root = source("lib.rs", "mod a; mod b; pub use a::One;");
        Crate::new([root, source("a.rs", a), source("b/mod.rs", b), source("b/c.rs", "use super::Two;")]).circles()
    };
    let both = ["a imports b", "b imports a"];
    assert_eq!(circles("use crate::b::Two;", "use crate::a::One;"), both);
    assert_eq!(circles("use crate::b::{self, Two};", "fn f() -> super::a::One { todo() }"), both);
    assert_eq!(circles("use super::b::Two;", "use crate::One;"), both, "the name that the crate exports");
    assert_eq!(circles("use super::b::c::Three;", "use std::fmt; use c::Three;"), [""; 0], "its own child");
    assert_eq!(circles("use crate::b::Two;", "#[cfg(test)] mod tests { use crate::a::One; }"), [""; 0]);
}
