//! The words and the rules of Leasehold.
//!
//! Everything that decides is here, and nothing that acts: no runtime, no socket, no disk, no
//! clock, no randomness. Time comes in as the last argument, effects go out as data. The same
//! inputs give the same outputs on every machine, which is what lets a simulator run years of
//! faults through exactly the code that is shipped.
//!
//! Three machines, each with one way in:
//!
//! - [`state::State`], what every replica agrees on: [`State::apply`](state::State::apply);
//! - [`lessor::Lessor`], the leader's volatile side: [`Lessor::step`](lessor::Lessor::step);
//! - [`holder::Holder`], the client's side: [`Holder::step`](holder::Holder::step).
//!
//! Around them stand the words they are written in: [paths](path), [objects](object),
//! [volumes](volume), [identities and stamps](id), [time], [messages](message), [commands](command)
//! and [transactions](transaction).

pub mod change;
pub mod command;
pub mod drift;
pub mod holder;
pub mod id;
pub mod lessor;
pub mod limits;
pub mod lock;
pub mod message;
pub mod object;
pub mod path;
pub mod planted;
pub mod reached;
#[cfg(test)]
mod rerun;
pub mod state;
pub mod time;
pub mod transaction;
pub mod volume;
#[cfg(any(test, feature = "count-work"))]
pub mod work;
#[cfg(not(any(test, feature = "count-work")))]
mod work;
