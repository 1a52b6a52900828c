#!/bin/bash
# Every test that this machine can run. Ends with "N passed, N failed, N skipped"; fails unless nothing failed.
set -uo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=tally.sh
source "$here/tally.sh"

run_suite unit "$here/unit.sh"
run_suite simulation "$here/sim.sh"
run_suite loom "$here/loom.sh"
run_suite fuzz "$here/fuzz.sh"
run_suite verbs "$here/verbs.sh"
echo
show_skips
show_sum ''
