#!/bin/bash
# machine: --bed basic --memory 3072 --timeout 900
# Client processes on real verbs that are killed, stopped and cut off, and servers that are restarted: what every client was
# told must be linearizable. Once with the card's atomics, once with commits by the server's CPU.
#
#   suite-histories.sh PROGRAMS
set -uo pipefail
programs=$1
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=guest-lib.sh
source "$here/guest-lib.sh"

export SIDESTEP_TEST_FABRICS=verbs
# An emulated processor is some twenty times slower than a real one.
export SIDESTEP_TEST_SCALE=0.05
export SIDESTEP_BIN_DIR=$SIDESTEP_VM_TMP/bin
# In memory: each record is written before its call is made.
export SIDESTEP_HISTORIES_DIR=$SIDESTEP_VM_TMP/histories

stage "$programs"/{kvserver,history-client,histories-test}

rust_tests histories-test --test-threads 1
SIDESTEP_COMMITS=two-sided rust_tests histories-test --test-threads 1

# What failed runs left goes to the host.
if [[ -n $(ls -A -- "$SIDESTEP_HISTORIES_DIR" 2>/dev/null) ]]; then
    cp -r -- "$SIDESTEP_HISTORIES_DIR" "$SIDESTEP_VM_RESULTS/"
    echo "# the logs of failed runs are in the results folder"
fi
tap_summary verbs
