//! Every parser of text that people type: paths, durations, and the lines of the shell.
//!
//! The last two are private to the binary, which has no library. So this module includes their
//! files. A test in `src/shell.rs` gives the same corpus to clap and to the parsers of single
//! arguments.

use leasehold_protocol::{limits::Limits, path::NodePath};

// The binary calls the functions that are not called here.
#[allow(dead_code)]
#[path = "../../../src/duration.rs"]
mod duration;
#[path = "../../../src/words.rs"]
mod words;

/// Gives the text to each parser.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    path(&text);
    span(&text);
    line(&text);
}

fn path(text: &str) {
    let path = match NodePath::parse(text) {
        Ok(path) => path,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert_eq!(path.as_str(), text);
    assert_eq!(path.depth(), path.ancestors().count());
    assert_eq!(path.is_root(), path.name().is_none());
    assert!(path.ancestors().all(|above| above.contains(&path) && !path.contains(&above) && above < path));
    if let (Some(above), Some(name)) = (path.parent(), path.name()) {
        assert_eq!(above.child(name), Ok(path.clone()));
        assert!(path.as_str().starts_with(&above.prefix_below()));
    }
    let limits = Limits::default();
    assert_eq!(limits.check_path(&path).is_ok(), path.depth() <= limits.depth_max, "{path}");
    let bytes = postcard::to_allocvec(&path).expect("a text encodes");
    assert_eq!(postcard::from_bytes(&bytes), Ok(path));
}

fn span(text: &str) {
    match duration::parse(text) {
        Ok(span) => {
            assert_eq!(duration::parse(&duration::exact(span)), Ok(span), "what is written is read back");
            assert!(!duration::rough(span).is_empty());
        }
        Err(error) => assert!(error.to_string().contains(": "), "no subject: {error}"),
    }
}

fn line(text: &str) {
    let words = match words::split(text) {
        Ok(words) => words,
        Err(error) => return assert!(error.to_string().contains(": "), "no subject: {error}"),
    };
    let quoted: Vec<String> = words.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect();
    assert_eq!(words::split(&quoted.join(" ")), Ok(words.clone()), "quoted words come back");
    for word in words {
        path(&word);
        path(&format!("/{word}"));
        span(&word);
    }
}
