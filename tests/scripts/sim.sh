#!/bin/bash
# The simulator: its fabric's conformance, its own tests, the tests that plant mistakes, then every world and every planted
# mistake. Ends with "simulation: N passed, ..." and
#
#   sim: worlds W schedules S crash_points C planted P/P violations V
#
#   sim.sh          all of it; does the same work with the same result everywhere
#   sim.sh --docs   the same, and writes what was measured into tests/SIMULATION.md
set -uo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
cd -- "$here/../.." || exit
# shellcheck source-path=SCRIPTDIR source=tally.sh
source "$here/tally.sh"

docs=()
[[ ${1:-} != --docs ]] || docs=(--docs tests/SIMULATION.md)

# Mistakes are compiled in here and nowhere else, so that no product can have them: folders of their own keep what was
# built with them apart.
export CARGO_TARGET_DIR=target/simulation

tests() {
    local log status
    log=$(mktemp)
    {
        local status=0 cargo=(cargo test --locked --release --no-fail-fast)
        "${cargo[@]}" -p sidestep-tests --features simulation --test conformance_sim || status=1
        "${cargo[@]}" -p sidestep-tests --features simulation --lib simulation || status=1
        "${cargo[@]}" -p sidestep-tests --features simulation --test fuzz_planted || status=1
        # Real processes, some of which make mistakes.
        cargo build --locked --release -p sidestep-server --bin kvserver || status=1
        "${cargo[@]}" -p sidestep-tests --features simulation --test histories -- planted || status=1
        "${cargo[@]}" -p sidestep-client --features planted --lib planted || status=1
        "${cargo[@]}" -p sidestep-common --features sim --lib fabric::sim || status=1
        (exit "$status")
    } 2>&1 | tee -- "$log"
    status=${PIPESTATUS[0]}
    awk -v label=tests -f tests/scripts/cargo-tally.awk "$log"
    rm -f -- "$log"
    return "$status"
}

worlds() {
    cargo build --locked --release -p sidestep-tests --features simulation --bin simulate &&
        "$CARGO_TARGET_DIR/release/simulate" test "${docs[@]}"
}

log=$(mktemp)
trap 'rm -f -- "$log"' EXIT
run_suite tests tests
run_suite worlds worlds > >(tee -- "$log")
wait $!
show_sum simulation
status=$?
grep '^sim: ' "$log" | tail -n 1
exit "$status"
