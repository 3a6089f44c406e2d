//! Options of Leasehold's TCP sockets, and how a connection is opened.

use std::{io, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// The idle time after which the kernel probes a connection. The deadlines of requests find a dead
/// connection sooner. This is for the side that only waits, and would otherwise keep it for ever.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);

/// The interval between probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// A connection ends if sent data is unacknowledged for this long. This is the time of six probes,
/// and longer than any tolerable stall of the network.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(30);

/// The interval between attempts to open a connection, side by side. If the first packet of one is
/// lost, Linux repeats it only after a second. A client that looks for another server during a
/// short cut of the network would lose its leases.
const TRY_EVERY: Duration = Duration::from_millis(200);

/// The most attempts side by side. They fill the second until Linux repeats the first packet.
const TRIES_MAX: usize = 5;

/// Opens a connection: the first to succeed of a few attempts that begin one after the other. Fails
/// as soon as one attempt fails.
pub(crate) async fn open(address: &str) -> io::Result<TcpStream> {
    let mut tries = FuturesUnordered::new();
    loop {
        tries.push(TcpStream::connect(address));
        let is_last = tries.len() == TRIES_MAX;
        let wait = if is_last { Duration::MAX } else { TRY_EVERY };
        if let Ok(Some(opened)) = tokio::time::timeout(wait, tries.next()).await {
            let stream = opened?;
            tune(&stream)?;
            return Ok(stream);
        }
    }
}

/// Makes the socket send small frames at once, and detect a dead peer. A recall must not wait for
/// the acknowledgement of earlier bytes.
pub(crate) fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL))?;
    #[cfg(target_os = "linux")]
    {
        socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))?;
        // With few packets in flight, Linux sends one again up to six times at a constant interval,
        // instead of a doubled one. So a renewal arrives before its lease ends, even if every third
        // packet is lost.
        socket.set_tcp_thin_linear_timeouts(true)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::net::TcpSocket;

    use super::*;

    #[tokio::test]
    async fn lost_first_packet_costs_less_than_a_second() {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
        let listener = socket.listen(1).expect("it listens");
        let address = listener.local_addr().expect("it is bound").to_string();
        // A listener with a full queue drops first packets. Two connections fill it.
        let mut queued = Vec::new();
        let brief = Duration::from_millis(50);
        while let Ok(stream) = tokio::time::timeout(brief, TcpStream::connect(&address)).await {
            queued.push(stream.expect("it listens"));
        }
        let began = Instant::now();
        let mut opening = std::pin::pin!(open(&address));
        assert!(tokio::time::timeout(brief, &mut opening).await.is_err(), "no packet was lost: nothing is shown");
        for _ in &queued {
            listener.accept().await.expect("one is queued");
        }
        opening.await.expect("there is room");
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}: Linux repeats it after a second", began.elapsed());
    }

    #[tokio::test]
    async fn connection_that_is_refused_fails_at_once() {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
        // The address is bound, and nobody listens.
        let address = socket.local_addr().expect("it is bound").to_string();
        let error = open(&address).await.expect_err("nobody listens");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
