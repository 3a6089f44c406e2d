//! The whole system, in real processes on this machine: what users are promised (docs, "who fails, and what users see")
//! when processes are killed, stopped, wiped and spoken to in garbage.
//!
//! Servers and command lines are processes of the binary, on free ports with data in temporary directories. Where a test
//! wants to see every moment of a cache, it is a client itself. One test runs at a time: what is measured is time, and the
//! machine may be small. Nothing waits for a fixed time for something to happen; deadlines are generous, because the
//! machine may be busy too.
//!
//! `cargo test --test processes -- --nocapture` prints what was measured. A test that fails prints the ends of its
//! servers' logs.

mod bad_input;
mod consent;
mod crash;
mod failover;
mod harness;
mod pause;
mod quorum;
mod rebuild;
mod snapshot;
mod stop;
