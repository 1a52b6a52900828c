#!/bin/bash
# Round trips on a wire: with 500 us each way an operation's median divided by a raw READ's is its number of round
# trips, which must be the design's within 5 %.
# machine: --bed two-port --delay-us 500 --repeatable-clock --memory 2048 --timeout 1200
set -uo pipefail
programs=$1
# shellcheck source-path=SCRIPTDIR source=guest-lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/guest-lib.sh"

stage "$programs"/{kvserver,verb-ratios} || exit
ratios() {
    local server status=0
    kvserver -l "$SIDESTEP_RDMA_ADDR:7480" -m 64M --transport verbs --admin-listen off &
    server=$!
    wait_port "$SIDESTEP_RDMA_ADDR" 7480 60 &&
        verb-ratios "sidestep://$SIDESTEP_RDMA_ADDR:7480?fabric=verbs" --rounds 300 --check-round-trips |
        tee "$SIDESTEP_VM_RESULTS/ratios-two-port" || status=$?
    kill "$server"
    wait "$server" || status=$?
    return "$status"
}
check round-trips ratios
sed 's/^/# /' "$SIDESTEP_VM_RESULTS/ratios-two-port"

tap_summary verbs
