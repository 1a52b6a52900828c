#!/bin/bash
# The simulator from fresh seeds for so many hours (fractions are fine). A line of totals is added to
# target/simulation/ledger.txt after each few million schedules: schedules, steps, verbs, kills, mishaps by kind.
#
#   soak.sh HOURS
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
[[ $# -eq 1 ]] || { echo "usage: make soak HOURS=n" >&2; exit 2; }
export CARGO_TARGET_DIR=target/simulation
cargo build --locked --release -p sidestep-tests --features simulation --bin simulate
exec "$CARGO_TARGET_DIR/release/simulate" soak "$1"
