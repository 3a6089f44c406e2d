//! What is set on every TCP socket of ours.

use std::{io, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// A connection on which nothing comes is probed from here on. Requests find dead connections
/// sooner, by their own deadlines; this is for the side that only waits, which would keep the
/// connection for ever.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);

/// Probes come this far apart.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// What was sent and is not acknowledged for so long ends the connection: six probes, and far
/// beyond any stall of a network that is still of use.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(30);

/// While a connection is not there, another one is tried beside it after this long. If the first
/// packet of a connection is lost, Linux repeats it after a second: a client that looks for another
/// server during a short cut of the network would lose its leases by that.
const TRY_EVERY: Duration = Duration::from_millis(200);

/// The most tries beside each other: they fill the second until Linux repeats the first one.
const TRIES_MAX: usize = 5;

/// Opens a connection: the first that is there of a few that are tried one after the other. Fails
/// as soon as one does.
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

/// Sends small frames at once (a recall must not wait for an acknowledgement of what went before
/// it), and notices when the other machine has gone.
pub(crate) fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL))?;
    #[cfg(target_os = "linux")]
    {
        socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))?;
        // With few packets under way, the first six repetitions of one come at a constant pace
        // instead of at twice the time each. A renewal then gets through a network that loses every
        // third packet before its lease ends.
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
        // A listener whose queue is full drops first packets. Two fill it.
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
        // It is bound, and nobody listens.
        let address = socket.local_addr().expect("it is bound").to_string();
        let error = open(&address).await.expect_err("nobody listens");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
