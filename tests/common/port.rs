//! Ports for servers that are stopped and started again.
//!
//! The kernel's own choice would be one that it also gives to outgoing connections: while a server
//! is down, its port could be taken. So ports are chosen below that range, each once in a process.

use std::{
    net::TcpListener,
    sync::atomic::{AtomicU16, Ordering},
};

/// Below the ports that Linux gives to outgoing connections (32768 on), above those of well-known
/// services.
const PORTS: std::ops::Range<u16> = 12_000..30_000;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// A loopback address at which nobody listens.
pub fn free_address() -> String {
    let count = PORTS.end - PORTS.start;
    // Test processes that run at the same time begin at different places.
    let begin = (std::process::id().wrapping_mul(7919) % u32::from(count)) as u16;
    for _ in 0..count {
        let port = PORTS.start + (begin + NEXT.fetch_add(1, Ordering::Relaxed) % count) % count;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return format!("127.0.0.1:{port}");
        }
    }
    panic!("no port is free in {PORTS:?}");
}
