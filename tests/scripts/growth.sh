#!/bin/bash
# An index that grows from a thousand keys to twenty million, beginning with one segment: throughput with and without
# rebuilds under way, the longest wait of a put, and what the index takes for each key. Ends with one line of figures.
#
#   GROWTH_TO=20000000 GROWTH_MEMORY_MIB=6144 GROWTH_THREADS=2 GROWTH_TRANSPORT=shm GROWTH_SEGMENTS=1
set -euo pipefail
project=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
cd -- "$project"

cargo build --locked --release -p sidestep-server -p sidestep-client -p sidestep-bench --bins
bin=${CARGO_TARGET_DIR:-$project/target}/release
# shellcheck source-path=SCRIPTDIR source=../../deploy/scripts/serve.sh
source "$project/deploy/scripts/serve.sh"
serve growth --memory "${GROWTH_MEMORY_MIB:-6144}M" --transport "${GROWTH_TRANSPORT:-shm}" \
    --initial-segments "${GROWTH_SEGMENTS:-1}"

status=0
"$bin/kvbench" grow -e "$endpoint" --to "${GROWTH_TO:-20000000}" --threads "${GROWTH_THREADS:-2}" || status=$?
[[ $status -eq 0 ]] || server_log
stop_server || status=$?
exit "$status"
