//! Ports for servers that are stopped and started again.
//!
//! The kernel would choose a port that it also gives to outgoing connections. While a server is
//! down, one of these could take its port. So ports are chosen below that range, once each in a
//! process.

use std::{
    net::TcpListener,
    sync::atomic::{AtomicU16, Ordering},
};

/// Below the ports that Linux gives to outgoing connections (from 32768), and above those of
/// well-known services.
const PORTS: std::ops::Range<u16> = 12_000..30_000;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// A loopback address that nobody listens on.
pub fn free_address() -> String {
    let count = PORTS.end - PORTS.start;
    // Test processes that run at the same time begin at different ports.
    let begin = (std::process::id().wrapping_mul(7919) % u32::from(count)) as u16;
    for _ in 0..count {
        let port = PORTS.start + (begin + NEXT.fetch_add(1, Ordering::Relaxed) % count) % count;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return format!("127.0.0.1:{port}");
        }
    }
    panic!("no port is free in {PORTS:?}");
}
