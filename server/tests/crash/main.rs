//! What survives a failing disk, a killed process or a crash of the machine, at each call that
//! changes a file.
//!
//! A child process runs a history on a disk that fails on request (`faults.c`), and records what
//! was acknowledged as durable. Then the test opens the stores without faults, and compares.

mod calls;
mod child;
mod disk;
mod history;
mod judge;
mod points;
mod server;
