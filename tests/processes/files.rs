//! Directory trees to import, and to compare with an export.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use rand::{RngCore, SeedableRng, rngs::SmallRng};

/// All files with their bytes, and all directories (without bytes), by their path below the top.
pub(crate) type Tree = BTreeMap<PathBuf, Option<Vec<u8>>>;

/// Everything below a directory.
pub(crate) fn tree(top: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut ahead = vec![top.to_owned()];
    while let Some(directory) = ahead.pop() {
        for entry in fs::read_dir(&directory).expect("a directory") {
            let file = entry.expect("an entry").path();
            let name = file.strip_prefix(top).expect("below the top").to_owned();
            if file.is_dir() {
                tree.insert(name, None);
                ahead.push(file);
            } else {
                tree.insert(name, Some(fs::read(&file).expect("readable")));
            }
        }
    }
    tree
}

/// Makes a directory with files of all kinds: empty, long, binary, with names that need quoting.
/// Its directories have many files, some files or none. Returns its content.
pub(crate) fn make(top: &Path) -> Tree {
    let mut random = SmallRng::seed_from_u64(7);
    let mut bytes = |length: usize| {
        let mut bytes = vec![0; length];
        random.fill_bytes(&mut bytes);
        bytes
    };
    let mut files: Vec<(String, Vec<u8>)> = vec![
        ("empty".to_owned(), Vec::new()),
        ("longest".to_owned(), bytes(1 << 20)),
        ("a name with blanks & \"quotes\"".to_owned(), b"quoted\n".to_vec()),
        ("d\u{e9}j\u{e0} vu/\u{65e5}\u{672c}".to_owned(), bytes(300)),
        ("zero".to_owned(), vec![0; 17]),
        ("deep/er/and/deep/er/file".to_owned(), b"down here".to_vec()),
    ];
    files.extend((0..120).map(|number| (format!("many/{number:03}"), bytes(number * 97))));
    for (name, bytes) in files {
        let file = top.join(name);
        fs::create_dir_all(file.parent().expect("below the top")).expect("made");
        fs::write(file, bytes).expect("written");
    }
    fs::create_dir_all(top.join("nothing/in/here")).expect("made");
    tree(top)
}
