//! What is set on every TCP socket of ours.

use std::{io, time::Duration};

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// A connection on which nothing comes is probed from here on. Requests find dead connections sooner, by their own
/// deadlines; this is for the side that only waits, which would keep the connection for ever.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);

/// Probes come this far apart.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// What was sent and is not acknowledged for so long ends the connection: six probes, and far beyond any stall of a
/// network that is still of use.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(30);

/// Sends small frames at once (a recall must not wait for an acknowledgement of what went before it), and notices when
/// the other machine has gone.
pub(crate) fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL))?;
    #[cfg(target_os = "linux")]
    {
        socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))?;
        // With few packets under way, the first six repetitions of one come at a constant pace instead of at twice the time
        // each. A renewal then gets through a network that loses every third packet before its lease ends.
        socket.set_tcp_thin_linear_timeouts(true)?;
    }
    Ok(())
}
