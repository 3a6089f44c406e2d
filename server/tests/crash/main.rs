//! What is kept when the disk fails, the process is killed or the machine crashes: at each call
//! that changes a file.
//!
//! A child of a test goes through a history on a disk that fails when it is told to (`faults.c`),
//! and says what it was told to be durable; then the stores are opened without faults and judged by
//! that.

mod calls;
mod child;
mod disk;
mod history;
mod judge;
mod points;
mod server;
