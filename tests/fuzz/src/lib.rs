//! The functions that the fuzzer drives, one for each target. They take any bytes and must not
//! panic.
//!
//! The targets in `fuzz_targets/` give these functions to libFuzzer. `replay.rs`, a test of the
//! workspace, gives them the stored corpus. They use the shipped code through its public interface,
//! and assert what holds for any input: accepted bytes encode to the same value, every request is
//! answered once, the invariants hold after every step.
//!
//! They do not know libFuzzer. Nothing here reads a clock, sleeps or uses randomness, so the same
//! bytes give the same run.

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

/// A target: its name, which is also its folder in `corpus/`, and the function for its inputs.
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
