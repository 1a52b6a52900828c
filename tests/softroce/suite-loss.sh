#!/bin/bash
# machine: --bed two-port --delay-us 0 --loss 1 --memory 2048 --timeout 600
# A wire that loses one frame in a hundred: the cards send again, and the store must not notice but by time.
#
#   suite-loss.sh PROGRAMS
set -uo pipefail
programs=$1
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=guest-lib.sh
source "$here/guest-lib.sh"

export SIDESTEP_TEST_FABRICS=verbs SIDESTEP_TEST_SCALE=0.02 SIDESTEP_BIN_DIR=$SIDESTEP_VM_TMP/bin
stage "$programs"/{kvserver,kvbench,store-test}
for story in keys_may_be values_of_every deletes_say an_acknowledged readers_see; do
    rust_tests store-test --test-threads 1 "$story"
done

endpoint=sidestep://$SIDESTEP_RDMA_ADDR:7480
kvserver -l "$SIDESTEP_RDMA_ADDR:7480" -m 128M --transport verbs --admin-listen off >"$SIDESTEP_VM_TMP/server.log" 2>&1 &
server=$!
wait_port "$SIDESTEP_RDMA_ADDR" 7480 60 || tap_not_ok server-starts "$(tail -n 3 "$SIDESTEP_VM_TMP/server.log")"
cd -- "$here/../.." || exit
check ycsb-load kvbench load -e "$endpoint" -P benches/workloads/workloada --records 300 --seed 1 --verify --quiet
check ycsb-a kvbench run -e "$endpoint" -P benches/workloads/workloada --ops 500 --seed 1 --verify --quiet

# The wire is cut under a client. It must end with an error, soon, and say what it knows.
cut_wire() {
    kvbench run -e "$endpoint" -P benches/workloads/workloada --duration 60s --timeout 3s --seed 1 --quiet >"$SIDESTEP_VM_TMP/cut.log" 2>&1 &
    local client=$! began=$SECONDS
    wait_until 20 client_connected && ip link set va down
    wait_until 40 test ! -d "/proc/$client" || kill "$client"
    wait "$client"
    local status=$?
    ip link set va up
    echo "kvbench ended with status $status after $((SECONDS - began)) s"
    tail -n 5 "$SIDESTEP_VM_TMP/cut.log"
    [[ $status -eq 4 || $status -eq 3 ]]
}
client_connected() { rdma resource show qp | grep -q 'type RC.*state RTS'; }
check cut-wire cut_wire
kill -TERM "$server"
wait "$server"

tap_summary verbs
