//! The commands `volume create`, `set`, `show`, `list` and `remove`.

use serde_json::json;

use crate::common::Cluster;

#[test]
fn a_volume_is_made_changed_shown_and_removed() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    cli.done(["volume", "create", "/v", "--term", "2s", "--tracking", "covering"]);
    let made = cli.done(["volume", "show", "/v"]);
    let settings = |volume: &serde_json::Value| {
        let fields = ["term_ms", "object_term_ms", "skew_margin_ms", "tracking"];
        fields.map(|field| volume[field].clone())
    };
    assert_eq!(settings(&made), [json!(2_000), json!(3_600_000), json!(100), json!("covering")]);
    assert_eq!(cli.fails(["volume", "create", "/v"]).1, "volume_exists");

    cli.done(["volume", "set", "/v", "--object-term", "5m"]);
    let set = cli.done(["volume", "show", "/v"]);
    let expected = [json!(2_000), json!(300_000), json!(100), json!("covering")];
    assert_eq!(settings(&set), expected, "what was not given stays");
    assert!(set["generation"].as_u64() > made["generation"].as_u64());

    cli.done(["volume", "create", "/v/w"]);
    let list = cli.done(["volume", "list"]);
    let paths = list["volumes"].as_array().expect("a list").iter().map(|volume| volume["path"].clone());
    assert_eq!(paths.collect::<Vec<_>>(), ["/", "/v", "/v/w"]);
    let list = cli.run(["volume", "list", "/v"]);
    assert!(list.text().lines().any(|line| line.starts_with("/v ") && line.contains(" 2s ")), "{list:?}");

    assert_eq!(cli.fails(["rm", "-r", "/v"]).1, "contains_volume");
    cli.done(["volume", "remove", "/v/w"]);
    cli.done(["volume", "remove", "/v"]);
    assert_eq!(cli.fails(["volume", "show", "/v"]).1, "not_a_volume");
    assert_eq!(cli.done(["rm", "-r", "/v"])["removed"], 2);
}
