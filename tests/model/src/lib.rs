//! What the models of Leasehold in virtual time share: clients and servers around the shipped
//! rules, and the oracle that judges what clients are told.
//!
//! Three programs run the shipped [`Lessor`](leasehold_protocol::lessor::Lessor),
//! [`Holder`](leasehold_protocol::holder::Holder) and [`State`](leasehold_protocol::state::State):
//! `tests/simulation` tries long random runs with faults, `tests/exhaustive` visits every situation
//! of small worlds, and `tests/papers` counts messages. Each has a world of its own. This crate has
//! the parts that are the same in all worlds:
//!
//! | module | content |
//! | --- | --- |
//! | [`client`], [`cache`] | the shell of a client: it steps a holder, has the copies, and knows the reads and writes that the application waits for |
//! | [`server`] | the shell of a server: it steps a lessor, and knows where each answer and each recall goes |
//! | [`versions`], [`fates`] | the oracle: which contents a read may return, and what became of each write |
//! | [`committed`] | the writes and the ended leases of a committed entry |
//! | [`queue`], [`clock`], [`rng`] | virtual time: events in order, the clocks of machines, random numbers from a seed |
//! | [`threads`] | seeds and situations, spread over threads |
//! | [`planting`] | known mistakes, put back into the rules |
//!
//! A step goes through a shell like this:
//!
//! ```text
//!   message, deadline ──► world ──► shell ──► rules
//!                           ▲         │
//!                           └─ event ─┘   send this, serve that read, something is wrong
//! ```
//!
//! *What it owns.* A shell owns its holder or lessor, and the tables that any shell needs. A world
//! embeds the shell in its own client or server, passes the clock's reading to each call, and
//! carries out the events that the call returns, in their order.
//!
//! *What it guarantees.* The same calls return the same events. All tables can be cloned and
//! hashed, so that a world can be a value. A broken invariant is a sentence: an `Err`, or an event
//! `Wrong`.
//!
//! *What it does not know.* The network, Raft, faults, and what applications do. Entries are
//! committed and applied by the world, which has one replicated state or several.

pub mod cache;
pub mod client;
pub mod clock;
pub mod committed;
pub mod fates;
pub mod planting;
pub mod queue;
pub mod rng;
pub mod server;
pub mod threads;
pub mod versions;
