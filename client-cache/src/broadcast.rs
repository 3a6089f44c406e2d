//! A broadcast channel's receiver that can be polled, for types that implement `Stream`.

use std::task::{Context, Poll, ready};

use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio_util::sync::ReusableBoxFuture;

/// Receives from a broadcast channel. Nothing is lost between two polls.
#[derive(Debug)]
pub(crate) struct PollReceiver<T>(ReusableBoxFuture<'static, (Result<T, RecvError>, Receiver<T>)>);

impl<T: Clone + Send + 'static> PollReceiver<T> {
    pub(crate) fn new(receiver: Receiver<T>) -> Self {
        Self(ReusableBoxFuture::new(receive(receiver)))
    }

    pub(crate) fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, RecvError>> {
        let (received, receiver) = ready!(self.0.poll(cx));
        self.0.set(receive(receiver));
        Poll::Ready(received)
    }
}

async fn receive<T: Clone>(mut receiver: Receiver<T>) -> (Result<T, RecvError>, Receiver<T>) {
    let received = receiver.recv().await;
    (received, receiver)
}
