//! Creates a database of the store completely or not at all, and opens it.
//!
//! fjall creates a database in several steps. If a crash interrupts them, it refuses the result: a
//! journal without the marker of its version, or an empty marker. It also does not fsync the parent
//! folder of a new keyspace's folder. So this module creates a database with all its keyspaces
//! under another name, and renames it once all of it is on the disk. It fsyncs a keyspace that is
//! created later.
//!
//! Before opening, it cuts off an incomplete batch that a crash left at the journal's end
//! ([`journal`]).

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::{
    directory,
    journal::{self, Synced},
};

/// The folder of fjall's keyspaces.
const KEYSPACES: &str = "keyspaces";

/// The file in which fjall records its name and its format.
const MARKER: &str = "version";
const MARKER_NAME: &[u8] = b"FJL";
/// The format of fjall that we read, also in [`journal`].
const STORE_FORMAT: u8 = 3;

/// The key, in the keyspace for metadata, of the format of a database's content.
const FORMAT: &str = "format";
/// The format of databases that do not record one.
const FORMAT_BEFORE: u8 = 1;

/// The file that fjall locks while a database is open.
const LOCK: &str = "lock";

/// When full journals exceed this many bytes, fjall writes the rows that need the oldest one to
/// tables, and removes it. A restart reads all journals, which is much of its time, so this is
/// fjall's minimum. The current journal comes on top; it is full at 64 MB.
const JOURNALS_MAX_BYTES: u64 = 64 << 20;

/// The most open tables, because connections need descriptors too ([`crate::admission`]).
const CACHED_FILES_MAX: usize = 32;

/// A keyspace's options.
pub(super) type DatabaseOptions = fn() -> KeyspaceCreateOptions;

/// Opens a database, or creates it with these keyspaces.
///
/// `synced` says how its batches are written, and so which of them a crash of the machine can tear.
pub(super) fn open(dir: &Path, synced: Synced, keyspaces: &[(&str, DatabaseOptions)]) -> fjall::Result<Database> {
    let start = |dir: &Path| {
        let database = Database::builder(dir).worker_threads(1).max_journaling_size(JOURNALS_MAX_BYTES);
        database.max_cached_files(Some(CACHED_FILES_MAX)).open()
    };
    if !dir.try_exists()? {
        let new = beside(dir);
        match fs::remove_dir_all(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let database = start(&new)?;
        for (name, options) in keyspaces {
            keyspace(&database, &new, name, *options)?;
        }
        // Dropping it fsyncs its journal.
        drop(database);
        directory::sync(&new)?;
        fs::rename(&new, dir)?;
        directory::sync(dir.parent().unwrap_or(Path::new(".")))?;
    }
    check_marker(dir)?;
    let lock = lock(dir)?;
    journal::cut(dir, synced)?;
    // fjall takes the lock itself.
    drop(lock);
    start(dir)
}

/// Refuses a database of another fjall format. fjall does so itself, but only after
/// [`journal::cut`], to which all batches of another format look torn. A database without a marker
/// is created anew or refused by fjall.
fn check_marker(dir: &Path) -> fjall::Result<()> {
    let marker = match fs::read(dir.join(MARKER)) {
        Ok(marker) => marker,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    match marker.strip_prefix(MARKER_NAME) {
        Some([got, ..]) if *got != STORE_FORMAT => {
            let message = format!("{}: store format {got}; expected {STORE_FORMAT}", dir.display());
            Err(io::Error::new(io::ErrorKind::InvalidData, message).into())
        }
        _ => Ok(()),
    }
}

/// The format of the database's content. A database without content gets the format `ours`, with an
/// fsync.
pub(super) fn format(database: &Database, meta: &Keyspace, ours: u8) -> fjall::Result<u8> {
    match meta.get(FORMAT)? {
        Some(found) => Ok(found.first().copied().unwrap_or_default()),
        None if meta.is_empty()? => {
            let mut batch = database.batch().durability(Some(PersistMode::SyncAll));
            batch.insert(meta, FORMAT, [ours]);
            batch.commit()?;
            Ok(ours)
        }
        None => Ok(FORMAT_BEFORE),
    }
}

/// Takes the lock that fjall takes while a database is open, so that no journal in use is touched.
/// `None` if the database never had one.
fn lock(dir: &Path) -> fjall::Result<Option<fs::File>> {
    let file = match fs::File::options().read(true).write(true).open(dir.join(LOCK)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if directory::try_lock(&file)? { Ok(Some(file)) } else { Err(fjall::Error::Locked) }
}

/// Opens a keyspace of the database in `dir`, or creates it durably.
pub(super) fn keyspace(
    database: &Database,
    dir: &Path,
    name: &str,
    options: DatabaseOptions,
) -> fjall::Result<Keyspace> {
    let is_new = !database.keyspace_exists(name);
    let keyspace = database.keyspace(name, options)?;
    if is_new {
        directory::sync(&dir.join(KEYSPACES))?;
    }
    Ok(keyspace)
}

fn beside(dir: &Path) -> PathBuf {
    let mut name = dir.as_os_str().to_owned();
    name.push(".new");
    name.into()
}
