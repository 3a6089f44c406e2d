//! Reads the fuzzer's corpus, `tests/fuzz/corpus.tar.gz`: a folder for each target, a file for each
//! input.

use std::{fs::File, io::Read, path::Path};

use flate2::read::GzDecoder;
use tar::Archive;

/// The archive, relative to the repository.
pub const ARCHIVE: &str = "tests/fuzz/corpus.tar.gz";

/// An input of a target.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Input {
    /// The target that gets the input.
    pub target: String,
    /// The name of the file.
    pub name: String,
    /// The bytes.
    pub data: Vec<u8>,
}

/// All stored inputs, in order of their targets and names.
pub fn inputs() -> Vec<Input> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(ARCHIVE);
    let file = File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut archive = Archive::new(GzDecoder::new(file));
    let entries = archive.entries().expect("an archive of ours");
    let mut inputs: Vec<Input> = entries
        .map(|entry| entry.expect("an archive of ours"))
        .filter(|entry| entry.header().entry_type().is_file())
        .map(|mut entry| {
            let path = entry.path().expect("a path of ours").into_owned();
            let part = |part: Option<&std::ffi::OsStr>| part.expect("TARGET/NAME").to_string_lossy().into_owned();
            let target = part(path.parent().and_then(Path::file_name));
            let name = part(path.file_name());
            let mut data = Vec::new();
            entry.read_to_end(&mut data).expect("an archive of ours");
            Input { target, name, data }
        })
        .collect();
    inputs.sort();
    inputs
}
