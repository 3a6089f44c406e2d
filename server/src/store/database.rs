//! How a database of the store comes to be on the disk, all of it or nothing.
//!
//! The store underneath makes a database in several steps, and refuses one of which only some were
//! taken before a crash: a journal that is there without the version's marker, or a marker that is
//! empty. It also does not fsync the directory that a new keyspace's directory is in. So a database
//! is made beside its place, with all its keyspaces, and gets its name when all of it is on the
//! disk; and a keyspace that is made later is synced here.
//!
//! What a crash left half written at the end of its journal is cut off first ([`journal`]).

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::{
    directory,
    journal::{self, Synced},
};

/// Where the store underneath keeps the directories of its keyspaces.
const KEYSPACES: &str = "keyspaces";

/// Where the store underneath says which format its database has, after its name.
const MARKER: &str = "version";
const MARKER_NAME: &[u8] = b"FJL";
/// The format of the store underneath that we read, in [`journal`] too.
const STORE_FORMAT: u8 = 3;

/// Where a database of ours says which format its content has, in the keyspace for what is not
/// content.
const FORMAT: &str = "format";
/// The format of databases from before they said so.
const FORMAT_BEFORE: u8 = 1;

/// What the store underneath locks while a database is open.
const LOCK: &str = "lock";

/// With this many bytes in full journals, whatever keeps the oldest of them is written to tables,
/// and it goes. A restart reads all journals, which is much of its time, so this is the least that
/// the store underneath allows. Beside the full ones there is the journal that is being written; it
/// is full at 64 MB.
const JOURNALS_MAX_BYTES: u64 = 64 << 20;

/// The most tables that are kept open: connections need descriptors too ([`crate::admission`]).
const CACHED_FILES_MAX: usize = 32;

/// A keyspace by its name, and what it is made with.
pub(super) type DatabaseOptions = fn() -> KeyspaceCreateOptions;

/// Opens a database; makes it with these keyspaces if it is not there.
///
/// `synced` says how its batches are written, and with it what a crash of the machine can have left
/// of them.
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
        // Its journal is synced by that.
        drop(database);
        directory::sync(&new)?;
        fs::rename(&new, dir)?;
        directory::sync(dir.parent().unwrap_or(Path::new(".")))?;
    }
    check_marker(dir)?;
    let lock = lock(dir)?;
    journal::cut(dir, synced)?;
    // The store underneath takes it itself.
    drop(lock);
    start(dir)
}

/// Refuses a database of another format of the store underneath. It does so itself, but only after
/// [`journal::cut`], to which all batches of another format look torn. One without a marker it
/// makes anew, or refuses.
fn check_marker(dir: &Path) -> fjall::Result<()> {
    let marker = match fs::read(dir.join(MARKER)) {
        Ok(marker) => marker,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    match marker.strip_prefix(MARKER_NAME) {
        Some([got, ..]) if *got != STORE_FORMAT => {
            let message = format!("{}: store format {got}: expected {STORE_FORMAT}", dir.display());
            Err(io::Error::new(io::ErrorKind::InvalidData, message).into())
        }
        _ => Ok(()),
    }
}

/// The format that `meta` says the database's content has. One without content gets the format
/// `ours`, and is on the disk with it.
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

/// Takes the lock that the store underneath takes for as long as a database is open, so that the
/// journal of one that is in use is not touched. None if the database never had one.
fn lock(dir: &Path) -> fjall::Result<Option<fs::File>> {
    let file = match fs::File::options().read(true).write(true).open(dir.join(LOCK)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if directory::try_lock(&file)? { Ok(Some(file)) } else { Err(fjall::Error::Locked) }
}

/// Opens a keyspace of the database in `dir`, or makes it; it is on the disk then.
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
