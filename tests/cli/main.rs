//! The command line as scripts see it: the binary, against real server processes.

#[path = "../common/mod.rs"]
mod common;

mod advice;
mod bad_input;
mod benches;
mod edits;
mod elections;
mod guards;
mod leases;
mod locks;
mod nodes;
mod registration;
mod running;
mod serving;
mod shell;
mod transactions;
mod transfer;
mod volumes;
mod waiting;
mod watches;
