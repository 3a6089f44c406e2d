//! What the fuzzer drives: for each target a function that takes any bytes and must not panic.
//!
//! The targets in `fuzz_targets/` hand these functions to libFuzzer; `replay.rs`, a test of the
//! workspace, hands them the kept corpus. They see the shipped code through its public interface
//! only, and assert what holds whatever comes: bytes that are taken come out again as the same
//! value, every request is answered once, the invariants hold after every step.
//!
//! They do not know libFuzzer, and nothing here reads a clock, sleeps or draws lots: the same bytes
//! do the same.

#![forbid(unsafe_code)]

pub mod config;
pub mod draw;
pub mod holder;
pub mod lessor;
pub mod messages;
pub mod pipe;
pub mod state;
pub mod store;
pub mod text;
pub mod wire;

/// A target: its name, which is that of its folder in `corpus/`, and what is done with its inputs.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("config", config::run),
    ("holder", holder::run),
    ("lessor", lessor::run),
    ("messages", messages::run),
    ("state", state::run),
    ("store", store::run),
    ("text", text::run),
    ("wire", wire::run),
];
