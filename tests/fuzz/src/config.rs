//! A server's configuration: TOML, and its checks before a server starts.

use leasehold_server::ServerConfig;

/// Reads the bytes as a configuration file.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let config: ServerConfig = match toml::from_str(text) {
        Ok(config) => config,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let written = toml::to_string(&config).expect("what came from a file can be written to one");
    assert_eq!(toml::from_str::<ServerConfig>(&written).as_ref(), Ok(&config), "what is written is read back");
    match config.checked() {
        Ok(config) => {
            assert!(config.cluster.contains_key(&config.id));
            assert!(config.raft.election_min_ms >= config.raft.heartbeat_ms);
            assert_eq!(config.drift().ppm(), config.drift_ppm);
            assert_eq!(config.clone().checked(), Ok(config), "what was checked is right");
        }
        Err(error) => assert!(error.to_string().split_once(": ").is_some(), "no subject: {error}"),
    }
}
