//! The files of a replica on disk.
//!
//! ```text
//! DIR/lock            locked by the process that uses the rest                       directory
//! DIR/store-identity  the store identity: which replica of which cluster this is    store_identity
//! DIR/log/            Raft's log and vote, fsynced before anything is acknowledged  log
//! DIR/durable-index   the durable index: an independent record of the log's end     durable_index
//! DIR/state/          the replicated state as rows; behind the log by design        state
//! DIR/incoming-N      a snapshot that is being received                             snapshot
//! DIR/*.cut           the end of a database's journal that the last repair removed
//! ```
//!
//! The last column names the module.
//!
//! There are two databases, because the state needs no fsync of its own: the log still has each
//! entry that the state lacks. In one journal, each fsync of the log would write the state too
//! (measured: 198,000 against 138,000 entries/s with batches of 64).
//!
//! All files belong together. A folder of which a part was removed or restored is refused.

mod database;
pub mod directory;
pub mod durable_index;
mod journal;
pub mod log;
pub mod poison;
pub mod snapshot;
pub mod state;
pub mod store_identity;
