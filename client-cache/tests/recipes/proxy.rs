//! A proxy between one client and the server, which can cut the client off.

use std::sync::Arc;

use leasehold_client_cache::{Client, Options};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

use crate::common::Server;

/// Passes connections until it is cut. Then nothing passes in either direction.
pub struct Proxy {
    is_cut: Arc<watch::Sender<bool>>,
    address: String,
    _tasks: JoinSet<()>,
}

impl Proxy {
    pub async fn before(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, to) = (listener.local_addr().unwrap().to_string(), server.address().to_owned());
        let is_cut = Arc::new(watch::Sender::new(false));
        let mut tasks = JoinSet::new();
        let cut = Arc::clone(&is_cut);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.spawn(pass(stream, to.clone(), cut.subscribe()));
            }
        });
        Self { is_cut, address, _tasks: tasks }
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub async fn client(&self) -> Client {
        Client::connect(Options::new([&self.address]).name("behind a proxy")).await.unwrap()
    }

    pub fn cut(&self, is_cut: bool) {
        self.is_cut.send_replace(is_cut);
    }
}

/// Passes bytes until the proxy is cut. The connection is then silent, and ends when the cut does.
async fn pass(mut stream: TcpStream, to: String, mut is_cut: watch::Receiver<bool>) {
    let connected = async {
        let mut server = TcpStream::connect(to).await.unwrap();
        let _ = copy_bidirectional(&mut stream, &mut server).await;
    };
    let mut cut = is_cut.clone();
    let is_cut_now = async { cut.wait_for(|is_cut| *is_cut).await.is_ok() };
    let has_ended = tokio::select! {
        () = connected => true,
        _ = is_cut_now => false,
    };
    if !has_ended {
        let _ = is_cut.wait_for(|is_cut| !is_cut).await;
    }
}
