//! The `leasehold` binary: the server and every client command.
//!
//! It parses arguments and prints tables or JSON. It decides nothing: the rules are in
//! `leasehold-protocol`, and `leasehold-server` and `leasehold-client-cache` execute them.

mod arguments;
mod background;
mod child;
mod cli;
mod commands;
mod context;
mod duration;
mod exit;
mod failure;
mod interrupt;
mod lease_id;
mod live_line;
mod output;
mod refusal;
mod serve;
mod shell;
mod transfer;
mod words;
mod wrong_usage;

/// Groups allocations by size, which the C library's allocator does not. So a hit among 100,000
/// cached copies is faster (`benches/README.md`).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    std::process::ExitCode::from(cli::run(std::env::args_os()).code())
}
