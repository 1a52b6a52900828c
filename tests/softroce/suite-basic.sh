#!/bin/bash
# Correctness on real verbs: the contract of fabrics with contended atomics, whole systems, YCSB's workloads.
# machine: --bed basic --memory 3072 --timeout 2400
set -uo pipefail
programs=$1
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
project=$(cd -- "$here/../.." && pwd -P)
# shellcheck source-path=SCRIPTDIR source=guest-lib.sh
source "$here/guest-lib.sh"

stage "$programs"/kv* "$programs"/busy-client "$programs"/{conformance_verbs,verbs_card,costs,store,failures}-test || exit
export SIDESTEP_TEST_FABRICS=verbs SIDESTEP_BIN_DIR=$SIDESTEP_VM_TMP/bin
# Two emulated processors, with the card's work on them too.
export SIDESTEP_TEST_SCALE=0.1

for program in conformance_verbs verbs_card costs store failures; do
    echo "# $program"
    # One at a time: what is measured or counted in one test must not be disturbed by another's server.
    rust_tests "$program-test" --test-threads=1
done

# The load generator as a user runs it: each workload loads and runs without a miss or an error.
ycsb() { # WORKLOAD
    local server status=0 endpoint="sidestep://$SIDESTEP_RDMA_ADDR:7480?fabric=verbs"
    kvserver -l "$SIDESTEP_RDMA_ADDR:7480" -m 256M --transport verbs --admin-listen 127.0.0.1:7481 &
    server=$!
    wait_port "$SIDESTEP_RDMA_ADDR" 7480 60 &&
        kvbench load -e "$endpoint" -P "$project/benches/workloads/workload$1" --records 2000 --threads 2 --quiet --verify &&
        kvbench run -e "$endpoint" -P "$project/benches/workloads/workload$1" --ops 4000 --threads 2 --quiet --verify \
            --admin 127.0.0.1:7481 || status=$?
    kill "$server"
    wait "$server" || status=$?
    return "$status"
}
for workload in a b c d f; do check "ycsb-$workload" ycsb "$workload"; done

tap_summary verbs
