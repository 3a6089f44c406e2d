//! The commands `import` and `export`.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use crate::common::Cluster;

/// Everything below a directory, with links followed: the bytes of a file, `None` for a directory.
fn contents(top: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut ahead = vec![top.to_owned()];
    while let Some(directory) = ahead.pop() {
        for entry in fs::read_dir(&directory).expect("a directory") {
            let file = entry.expect("an entry").path();
            let below = file.strip_prefix(top).expect("it is below").to_owned();
            if file.is_dir() {
                found.insert(below, None);
                ahead.push(file);
            } else {
                found.insert(below, Some(fs::read(&file).expect("a file")));
            }
        }
    }
    found
}

#[test]
fn what_is_imported_is_exported_byte_for_byte() {
    let cluster = Cluster::start(1);
    let (cli, directory) = (cluster.cli(), tempfile::tempdir().expect("a directory"));
    let source = directory.path().join("source");
    fs::create_dir_all(source.join("deep/er/empty")).expect("made");
    let all_bytes: Vec<u8> = (0..=255).collect();
    fs::write(source.join("all bytes"), &all_bytes).expect("written");
    fs::write(source.join("deep/nothing"), "").expect("written");
    fs::write(source.join("deep/er/line"), "text\n").expect("written");
    fs::write(source.join("largest"), vec![b'x'; 1 << 20]).expect("written");
    fs::write(source.join("deep/ünïcode ✓ #"), "name").expect("written");
    for number in 0..100 {
        fs::write(source.join(format!("deep/er/{number}")), number.to_string()).expect("written");
    }
    symlink("all bytes", source.join("link to a file")).expect("linked");
    symlink("deep", source.join("link to a directory")).expect("linked");

    let imported = cli.done(["import", source.to_str().expect("UTF-8"), "/tree"]);
    let bytes = cli.run(["get", "--raw", "/tree/all bytes"]).stdout;
    assert_eq!(bytes, all_bytes);
    let target = directory.path().join("target/of/export");
    let exported = cli.done(["export", "/tree", target.to_str().expect("UTF-8")]);
    assert_eq!(contents(&target), contents(&source));
    for field in ["files", "directories", "bytes"] {
        assert_eq!(exported[field], imported[field], "{field}");
    }
    assert_eq!(imported["files"], 209);

    let (status, kind, message) = cli.fails(["export", "/tree", target.to_str().expect("UTF-8")]);
    assert_eq!((status, kind.as_str()), (1, "not_empty"), "{message}");
    cli.done(["put", "/tree/largest", "small"]);
    cli.done(["export", "--force", "/tree", target.to_str().expect("UTF-8")]);
    assert_eq!(fs::read(target.join("largest")).expect("a file"), b"small");
}

#[test]
fn a_node_with_a_value_and_children_survives_the_round() {
    let cluster = Cluster::start(1);
    let (cli, directory) = (cluster.cli(), tempfile::tempdir().expect("a directory"));
    for (path, value) in [("/t", "top"), ("/t/a", "its own"), ("/t/a/b", "below"), ("/t/c", "")] {
        cli.done(["put", path, value]);
    }
    let target = directory.path().join("out");
    let target = target.to_str().expect("UTF-8");
    cli.done(["export", "/t", target]);
    cli.done(["import", target, "/u"]);
    for (path, value) in [("/u", "top"), ("/u/a", "its own"), ("/u/a/b", "below"), ("/u/c", "")] {
        assert_eq!(cli.done(["get", path])["value"], value, "{path}");
    }
    assert_eq!(cli.done(["ls", "/u"])["children"], cli.done(["ls", "/t"])["children"]);
    assert_eq!(cli.fails(["export", "/t/a/b", target]).1, "not_a_directory");
}

#[test]
fn export_skips_attached_nodes_unless_asked_for_them() {
    let cluster = Cluster::start(1);
    let (cli, directory) = (cluster.cli(), tempfile::tempdir().expect("a directory"));
    let id = cli.done(["lease", "grant", "1h"])["id"].as_str().expect("an id").to_owned();
    cli.done(["put", "/t/kept", "1"]);
    for path in ["/t/web", "/t/db"] {
        cli.done(["put", path, "here", "--lease", &id]);
    }
    let at = |name: &str| directory.path().join(name).to_str().expect("UTF-8").to_owned();
    let without = cli.run(["export", "/t", &at("without")]);
    let said = format!(
        "1 files, 0 directories, 1 bytes into {}\nskipped 2 nodes attached to leases; --attached includes them\n\
         skipped 1 lease; only names and values are exported\n",
        at("without")
    );
    assert_eq!((without.status, without.text()), (0, said.as_str()));
    assert_eq!(contents(&directory.path().join("without")).len(), 1);
    let with = cli.done(["export", "--attached", "/t", &at("with")]);
    assert_eq!((&with["files"], &with["attached_skipped"]), (&3.into(), &0.into()));
    assert_eq!(contents(&directory.path().join("with")).len(), 3);
    assert_eq!((&with["volumes_skipped"], &with["leases_skipped"]), (&0.into(), &1.into()));
    cli.done(["volume", "create", "/t/v"]);
    cli.done(["volume", "create", "/t/v/w"]);
    cli.done(["volume", "create", "/elsewhere"]);
    let volumes = cli.run(["export", "/t", &at("volumes")]);
    let last = "skipped 2 volumes and 1 lease; only names and values are exported";
    assert_eq!(volumes.text().lines().last(), Some(last), "{volumes:?}");
    let below = cli.done(["export", "/t/v", &at("below")]);
    assert_eq!((&below["volumes_skipped"], &below["leases_skipped"]), (&2.into(), &0.into()), "its own settings too");
    let help = cli.run(["import", "--help"]);
    assert!(["volumes", "leases", "revisions"].iter().all(|word| help.text().contains(word)), "{help:?}");
}

#[test]
fn nothing_is_imported_if_anything_cannot_be() {
    let cluster = Cluster::start(1);
    let (cli, directory) = (cluster.cli(), tempfile::tempdir().expect("a directory"));
    let at = |name: &str| directory.path().join(name);
    fs::write(at("a small one"), "1").expect("written");
    let source = directory.path().to_str().expect("UTF-8");
    let refused = |kind: &str, file: PathBuf, expected: &str| {
        let (status, got, message) = cli.fails(["import", source, "/t"]);
        assert_eq!((status, got.as_str()), (1, kind), "{message}");
        assert!(message.contains(file.to_str().expect("UTF-8")) && message.contains(expected), "{message}");
        assert_eq!(cli.fails(["get", "/t"]).1, "not_found");
        if file.is_dir() { Ok(()) } else { fs::remove_file(file) }.expect("removed");
    };
    fs::write(at("too large"), vec![0; (1 << 20) + 1]).expect("written");
    refused("limit", at("too large"), "1048577 bytes exceed the limit of 1048576");
    fs::File::create(at("huge")).and_then(|file| file.set_len(1 << 40)).expect("made");
    refused("limit", at("huge"), "1099511627776 bytes exceed the limit of 1048576");
    symlink("nowhere", at("broken")).expect("linked");
    refused("broken_link", at("broken"), "broken symbolic link");
    symlink(".", at("cycle")).expect("linked");
    let (_, kind, message) = cli.fails(["import", source, "/t"]);
    assert!(kind == "cycle" && message.contains("which contains it"), "{message}");
    assert_eq!(cli.fails(["get", "/t"]).1, "not_found");
    let (_, kind, _) = cli.fails(["import", at("a small one").to_str().expect("UTF-8"), "/t"]);
    assert_eq!(kind, "not_a_directory");
}
