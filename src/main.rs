//! The front door of Leasehold: a server, and every client command, in one binary.
//!
//! It decides nothing: arguments in, tables or JSON out. The rules are in `leasehold-protocol`, carried out by
//! `leasehold-server` and `leasehold-client-cache`.

mod bench;
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

fn main() -> std::process::ExitCode {
    std::process::ExitCode::from(cli::run(std::env::args_os()) as u8)
}
