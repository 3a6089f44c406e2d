#!/usr/bin/env bash
# Prints the figures of benches/README.md, measured here and now, as Markdown. Builds, starts clusters of its own in
# temporary folders, stops them.
# Takes about ten minutes. Give the machine nothing else to do: with other work on it the figures mean little.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release
bench() {
    printf '\n`bench %s`\n\n' "$*"
    target/release/leasehold --timeout 60s bench "$@"
}

printf 'On %s cores of %s:\n' "$(nproc)" "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
bench cached --spawn 1 --seconds 5
bench put --spawn 3 --seconds 3
bench put --overwrite --spawn 3 --seconds 2
bench read --spawn 3 --seconds 3
bench miss --spawn 3 --seconds 2
bench holders --spawn 3 --seconds 2
bench memory --spawn 1
bench leases --spawn 3 --seconds 3
bench locks --spawn 3 --seconds 3
bench watch --spawn 3 --seconds 3
bench renewals --spawn 3
bench expiry --spawn 3 --leases 100000
printf '\n`demo`\n\n'
target/release/leasehold demo
