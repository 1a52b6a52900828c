#!/bin/bash
# All tests that need no RDMA device: `cargo test` of the whole workspace. Ends with "unit: N passed, ...".
set -uo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." || exit

# Tests start kvserver and kvctl as processes of their own.
cargo build --locked --workspace --bins || exit
log=$(mktemp)
trap 'rm -f -- "$log"' EXIT
cargo test --locked --workspace --no-fail-fast 2>&1 | tee -- "$log"
status=${PIPESTATUS[0]}
awk -v label=unit -f tests/scripts/cargo-tally.awk "$log"
exit "$status"
