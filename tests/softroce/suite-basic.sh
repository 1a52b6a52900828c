#!/bin/bash
# machine: --bed basic --memory 3072 --timeout 1200
# The store on real verbs: the fabric's contract, every operation and its cost, failures, fsck under load, kvserver's own
# tests with a card, kvctl, and a load with YCSB's workloads.
#
#   suite-basic.sh PROGRAMS
set -uo pipefail
programs=$1
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=guest-lib.sh
source "$here/guest-lib.sh"

export SIDESTEP_TEST_FABRICS=verbs
# An emulated processor is some twenty times slower than a real one.
export SIDESTEP_TEST_SCALE=0.05
export SIDESTEP_BIN_DIR=$SIDESTEP_VM_TMP/bin

stage "$programs"/{kvserver,kvctl,kvbench,busy-client} "$programs"/{conformance_verbs,conformance_two_sided,verbs_card,costs,store,growth,failures,fsck,verbs}-test

rust_tests conformance_verbs-test --test-threads 2
rust_tests verbs_card-test --test-threads 1 --skip a_cut_wire # that one has its bed in suite-two-port.sh
rust_tests costs-test --test-threads 1
# As for a card without remote atomics: CAS and FAA are messages that the server's CPU executes.
rust_tests conformance_two_sided-test --test-threads 2
two_sided() { SIDESTEP_TEST_COMMITS=two-sided SIDESTEP_COMMITS=two-sided rust_tests "$@" --test-threads 1; }
two_sided verbs_card-test --skip a_cut_wire
two_sided costs-test
two_sided store-test
two_sided growth-test under_writers
# Its CPU commits, so that it does nothing is not claimed then.
two_sided failures-test --skip the_server_does_nothing_for_gets_and_puts
rust_tests store-test --test-threads 1
# The server's own session changes slots here. How an index fills up takes more keys than an emulated processor has time for.
rust_tests growth-test --test-threads 1 under_writers
rust_tests fsck-test --test-threads 1
rust_tests failures-test --test-threads 1 --skip the_server_does_nothing # suite-clock.sh has a clock for that
# kvserver's tests look for their files beside themselves.
cd -- "$here/../../server" && rust_tests verbs-test --include-ignored --test-threads 1
cd -- "$here/../.." || exit

endpoint=sidestep://$SIDESTEP_RDMA_ADDR:7480
kvserver -l "$SIDESTEP_RDMA_ADDR:7480" -m 256M --transport verbs --admin-listen 127.0.0.1:7481 >"$SIDESTEP_VM_TMP/server.log" 2>&1 &
server=$!
wait_port "$SIDESTEP_RDMA_ADDR" 7480 60 || tap_not_ok server-starts "$(tail -n 3 "$SIDESTEP_VM_TMP/server.log")"

kvctl_round_trip() {
    kvctl -e "$endpoint" put greeting hello && [[ $(kvctl -e "$endpoint" get greeting) == hello ]] &&
        kvctl -e "$endpoint" explain get greeting && kvctl -e "$endpoint" del greeting &&
        ! kvctl -e "$endpoint" get greeting
}
doctor() { kvctl doctor -o json | tee /dev/stderr | grep -q rxe0; }
ycsb() { # WORKLOAD
    kvbench run -e "$endpoint" -P "benches/workloads/workload$1" --ops 1000 --threads 2 --seed 1 --verify --quiet --admin 127.0.0.1:7481
}
check kvctl-round-trip kvctl_round_trip
check kvctl-doctor doctor
check ycsb-load kvbench load -e "$endpoint" -P benches/workloads/workloada --records 1000 --threads 2 --seed 1 --verify --quiet --admin 127.0.0.1:7481
for workload in a b c f; do check "ycsb-$workload" ycsb "$workload"; done
# The last figures are worth showing: round trips and verbs an operation, and the server's CPU.
sed 's/^/# /' "$SIDESTEP_VM_TMP/ycsb-b.log"
kill -TERM "$server"
if wait "$server"; then tap_ok server-ends; else tap_not_ok server-ends "status $?"; fi

tap_summary verbs
