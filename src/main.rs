//! The front door of Leasehold: a server, and every client command, in one binary.
//!
//! It decides nothing: arguments in, tables or JSON out. The rules are in `leasehold-protocol`,
//! carried out by `leasehold-server` and `leasehold-client-cache`.

mod bench;
mod child;
mod cli;
mod commands;
mod context;
mod demo;
mod duration;
mod exit;
mod output;
mod serve;
mod shell;
mod transfer;
mod words;

/// Keeps allocations of one size together. A hit among 100,000 copies takes two thirds of the time
/// that it takes with the C library's allocator, which mixes them with all else (measured with
/// `bench cached`).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    std::process::ExitCode::from(cli::run(std::env::args_os()).code())
}
