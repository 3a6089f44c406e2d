//! Requests about the servers' state, and lists: the client finds a server that answers.

use std::time::Duration;

use leasehold_client_cache::{Client, Options};

use crate::{
    common::{Server, within},
    recipes::proxy::Proxy,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_finds_another_server_when_one_is_silent() {
    let server = Server::start(Duration::from_secs(3)).await;
    let proxy = Proxy::before(&server).await;
    // When the proxy is cut, the first address is silent without an error. The second one still
    // works.
    let options = Options::new([proxy.address(), server.address()]).name("asks").timeout(Duration::from_secs(20));
    let client = within(Client::connect(options)).await.unwrap();
    within(client.admin().holders("/a")).await.unwrap();
    proxy.cut(true);
    within(client.admin().holders("/a")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_finds_another_server_when_one_is_silent() {
    let server = Server::start(Duration::from_secs(3)).await;
    let proxy = Proxy::before(&server).await;
    let options = Options::new([proxy.address(), server.address()]).name("lists").timeout(Duration::from_secs(20));
    let client = within(Client::connect(options)).await.unwrap();
    proxy.cut(true);
    drop(within(client.list_and_watch("/a")).await.unwrap());
}
