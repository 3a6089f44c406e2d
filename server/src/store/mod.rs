//! The files of a replica on disk.
//!
//! ```text
//! DIR/lock         locked by the process that uses the rest                            [`directory`]
//! DIR/standing     whether this replica may take part in a cluster, and in which       [`standing`]
//! DIR/log/         Raft's log and vote, fsynced before anything is acknowledged        [`log`]
//! DIR/witness      an independent record of how far the log reaches                    [`witness`]
//! DIR/state/       the replicated state as rows; behind the log by design              [`state`]
//! DIR/incoming     a snapshot that is being received                                   [`snapshot`]
//! DIR/*.cut        what the last repair cut off the end of a database's journal
//! ```
//!
//! The file `standing` is the store identity ([`store_identity`]), `witness` the durable index
//! ([`durable_index`]). `incoming` stands for `incoming-0`, `incoming-1` and so on.
//!
//! There are two databases, because the state needs no fsync of its own: the log reaches back to
//! what the state has. In one journal, each fsync of the log would write the state too (measured:
//! 198,000 against 138,000 entries/s with batches of 64).
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
