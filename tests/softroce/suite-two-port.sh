#!/bin/bash
# machine: --bed two-port --repeatable-clock --delay-us 500 --memory 2048 --timeout 600
# Round trips, measured: two cards with a wire of 500 us each way between them, so that nothing counts but how often
# an operation waits for the memory node. Each median must be the design's number of raw READs, within 5 %.
#
#   suite-two-port.sh PROGRAMS
set -uo pipefail
programs=$1
# shellcheck source-path=SCRIPTDIR source=guest-lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/guest-lib.sh"

# This clock jumps ahead whenever the machine waits for its host, as for a program's pages: nothing may be in a hurry.
export SIDESTEP_HANDSHAKE_MS=600000 SIDESTEP_LEASE_MS=600000
stage "$programs"/{kvserver,verb-ratios,verbs_card-test,conformance_verbs-test}
kvserver -l "$SIDESTEP_RDMA_ADDR:7480" -m 64M --transport verbs --admin-listen off >"$SIDESTEP_VM_TMP/server.log" 2>&1 &
server=$!
wait_port "$SIDESTEP_RDMA_ADDR" 7480 60 || tap_not_ok server-starts "$(tail -n 3 "$SIDESTEP_VM_TMP/server.log")"

check round-trips-on-the-wire verb-ratios "sidestep://$SIDESTEP_RDMA_ADDR:7480" --rounds 200 --check-round-trips
sed 's/^/# /' "$SIDESTEP_VM_TMP/round-trips-on-the-wire.log"
kill -TERM "$server"
wait "$server"

# Without a wire the bytes have left before anything else happens.
SIDESTEP_TEST_SCALE=0.05 rust_tests conformance_verbs-test bytes_behind --test-threads 1

# Last: the wire does not come back as it was.
rust_tests verbs_card-test a_cut_wire

tap_summary verbs
