#!/bin/bash
# machine: --bed clock --memory 2048 --timeout 600
# What operations cost beside a raw READ, and what they cost the server's CPU, on a clock on which a nanosecond is an
# instruction: the same in every run, however busy the host is. The card is software, so the ratios count work requests
# more than round trips, and its work is the kernel's and not the server process's.
#
#   suite-clock.sh PROGRAMS
set -uo pipefail
programs=$1
# shellcheck source-path=SCRIPTDIR source=guest-lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/guest-lib.sh"

export SIDESTEP_TEST_FABRICS=verbs SIDESTEP_BIN_DIR=$SIDESTEP_VM_TMP/bin
# This clock jumps ahead whenever the machine waits for its host, as for a program's pages: nothing may be in a hurry.
export SIDESTEP_HANDSHAKE_MS=600000 SIDESTEP_LEASE_MS=600000
stage "$programs"/{kvserver,verb-ratios,failures-test}
rust_tests failures-test --test-threads 1 --nocapture the_server_does_nothing

kvserver -l "$SIDESTEP_RDMA_ADDR:7480" -m 64M --transport verbs --admin-listen off >"$SIDESTEP_VM_TMP/server.log" 2>&1 &
server=$!
wait_port "$SIDESTEP_RDMA_ADDR" 7480 60 || tap_not_ok server-starts "$(tail -n 3 "$SIDESTEP_VM_TMP/server.log")"

check ratios-on-the-repeatable-clock verb-ratios "sidestep://$SIDESTEP_RDMA_ADDR:7480" --rounds 300
sed 's/^/# /' "$SIDESTEP_VM_TMP/ratios-on-the-repeatable-clock.log"
kill -TERM "$server"
wait "$server"

tap_summary verbs
