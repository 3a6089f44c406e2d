#!/usr/bin/env bash
# Measures Leasehold beside etcd, ZooKeeper and Redis on this machine, in one run, and prints tables in Markdown (--json: one document).
# Takes five to ten minutes; `--help` says how to make it shorter. Installs nothing: what is not there is left out, and said to be.
# Builds, starts servers in temporary folders, stops them. Give the machine nothing else to do. What the figures mean: benches/README.md.
set -euo pipefail
folder="$(cd "$(dirname "$0")/.." && pwd)"

cargo build --release --manifest-path "$folder/Cargo.toml" >&2
cargo build --release --manifest-path "$folder/benches/peers/Cargo.toml" --target-dir "$folder/benches/peers/target" >&2
exec "$folder/benches/peers/target/release/leasehold-peers" --leasehold "$folder/target/release/leasehold" "$@"
