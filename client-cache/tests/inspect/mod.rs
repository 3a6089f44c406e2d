//! Requests about the servers' state, and lists: the client finds a server that answers.

use std::time::Duration;

use leasehold_client_cache::{
    Client, DriftAllowance, EnsureVolumeError, NodePath, OnWrite, Options, Refusal, VolumeError, VolumeSettings,
    WriteError, WriteRefusal,
};

use crate::{
    common::{Server, path, within},
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

async fn settings(client: &Client, path: &NodePath) -> Option<VolumeSettings> {
    let volumes = client.admin().volumes(path).await.expect("listed");
    volumes.into_iter().find(|volume| volume.path == *path).map(|volume| volume.settings)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn set_volume_keeps_the_settings_that_it_does_not_name() {
    let server = Server::start(Duration::from_secs(10)).await;
    let (client, services) = (server.client().await, path("/services"));
    let refused = client.admin().set_volume("/services/web").quota_nodes(9).await.unwrap_err();
    let expected = WriteRefusal::NotAVolume { path: path("/services/web"), volume: NodePath::root() };
    assert_eq!(refused.refusal(), Some(&expected));
    client.admin().create_volume(&services).on_write(OnWrite::Update).quota_nodes(1_000).await.unwrap();
    client.admin().set_volume(&services).term(Duration::from_secs(2)).quota_nodes(None).await.unwrap();
    let set = settings(&client, &services).await.unwrap();
    assert_eq!((set.on_write(), set.longest_term()), (OnWrite::Update, Duration::from_secs(2)));
    assert_eq!(set.quota().nodes, None);
    client.admin().set_volume(&services).settings(VolumeSettings::DEFAULT).quota_bytes(1 << 20).await.unwrap();
    let set = settings(&client, &services).await.unwrap();
    assert_eq!((set.on_write(), set.quota().bytes), (OnWrite::Recall, Some(1 << 20)), "all are replaced");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ensure_volume_makes_it_once_and_names_differences() {
    let server = Server::start(Duration::from_secs(10)).await;
    let (client, services) = (server.client().await, path("/services"));
    let ensure = || client.admin().ensure_volume("/services").term(Duration::from_secs(2));
    let made = ensure().await.unwrap().expect("it did not exist");
    assert_eq!(ensure().await, Ok(None));
    assert_eq!(client.put("/a", "1").await.unwrap().revision.0, made.revision.0 + 1, "nothing was written");
    let error = ensure().on_write(OnWrite::Update).quota_nodes(9).await.unwrap_err();
    let expected = "/services: a volume with other settings: \
                    on_write is Recall, expected Update; quota_nodes is none, expected 9";
    assert_eq!(error.to_string(), expected);
    let EnsureVolumeError::Differs { got, .. } = error else { panic!("the settings differ") };
    assert_eq!(settings(&client, &services).await, Some(*got), "nothing was changed");
}

/// As for `set_volume`, the client's own allowance does not count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn margin_of_new_volume_is_checked_by_servers_allowance() {
    let server = Server::start(Duration::from_secs(3)).await;
    let drift = DriftAllowance::from_ppm(50_000).unwrap();
    let client = within(Client::connect(server.options().drift(drift))).await.unwrap();
    let create = |at: &'static str, margin| client.admin().create_volume(at).skew_margin(margin);
    within(create("/v", Duration::from_millis(100))).await.unwrap();
    let error = within(create("/w", Duration::from_micros(1))).await.unwrap_err();
    let WriteError::Refused(Refusal::Volume(VolumeError::SkewMargin { drift_ppm, .. })) = error else {
        panic!("{error:?}")
    };
    assert_eq!(drift_ppm, DriftAllowance::DEFAULT.ppm());
}
