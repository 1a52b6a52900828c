#!/bin/bash
# Latencies on a clock that repeats: the median of each operation divided by that of a raw 64-byte READ on the same
# connection. They are shown; what is checked is that all operations come through.
# machine: --bed clock --memory 2048 --timeout 1200
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
        verb-ratios "sidestep://$SIDESTEP_RDMA_ADDR:7480?fabric=verbs" --rounds 500 | tee "$SIDESTEP_VM_RESULTS/ratios-clock" || status=$?
    kill "$server"
    wait "$server" || status=$?
    return "$status"
}
check ratios ratios
sed 's/^/# /' "$SIDESTEP_VM_RESULTS/ratios-clock"

tap_summary verbs
