//! The types and the rules of Leasehold.
//!
//! This crate makes every decision and does no input or output: it has no runtime, socket, disk,
//! clock or randomness. Time is the last argument, and effects are returned as data. The same
//! inputs give the same outputs on every machine. So a simulator can run years of faults through
//! the shipped code.
//!
//! There are three state machines. Each has one entry point:
//!
//! - [`state::State`], the replicated state: [`State::apply`](state::State::apply);
//! - [`lessor::Lessor`], the leader's volatile rules: [`Lessor::step`](lessor::Lessor::step);
//! - [`holder::Holder`], the client's rules: [`Holder::step`](holder::Holder::step).
//!
//! Their inputs and outputs consist of these types: [paths](path), [objects](object),
//! [volumes](volume), [ids and stamps](id), [time], [messages](message), [commands](command) and
//! [transactions](transaction).
//!
//! # Calls that do nothing in a shipped build
//!
//! Skip `visit(..)`, `.counted()`, `reached(..)` and `planted(..)` when you read the rules. They
//! are for tests, and for builds with the features `count-work` and `planted-bugs`. `visit` and
//! `counted` count the elements that a step examines. `reached` records that a bound took effect
//! ([`reached`]). `planted` says whether a known mistake is put into the rules ([`planted`]): in
//! a shipped build, it is false.

pub mod advice;
mod attach;
pub mod change;
pub mod command;
pub mod drift;
pub mod holder;
pub mod id;
pub mod lease_name;
pub mod lease_policy;
pub mod lessor;
pub mod limits;
pub mod lock;
pub mod message;
pub mod object;
pub mod path;
pub mod planted;
pub mod quota;
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
