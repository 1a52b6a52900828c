#!/bin/bash
# A kept region: fills it, kills the server, starts the next one, and reads every record. Ends with one line of figures:
#
#   restart: region_mib 1024 records N ready_ms M lost 0
#
#   RESTART_MEMORY_MIB=1024 RESTART_RECORDS=700000 RESTART_DIR=/dev/shm
set -euo pipefail
project=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
cd -- "$project"

memory_mib=${RESTART_MEMORY_MIB:-1024}
records=${RESTART_RECORDS:-700000}
cargo build --locked --release -p sidestep-server -p sidestep-bench --bins
bin=${CARGO_TARGET_DIR:-$project/target}/release
# shellcheck source-path=SCRIPTDIR source=../../deploy/scripts/serve.sh
source "$project/deploy/scripts/serve.sh"
shelf=$(mktemp -d -p "${RESTART_DIR:-/dev/shm}")
trap 'rm -rf -- "$shelf"; end_server' EXIT

settings=(--memory "${memory_mib}M" --transport tcp --keep "$shelf")
workload=(-P benches/workloads/workloadc --records "$records" --threads 2 --verify --quiet)
serve restart "${settings[@]}"
"$bin/kvbench" load -e "$endpoint" "${workload[@]}"
kill -KILL "$server"
wait "$server" || true

began=$(date +%s%N)
serve restart "${settings[@]}"
ready_ms=$((($(date +%s%N) - began) / 1000000))
grep 'took a region over' "$scratch/log"
# Every record once, in order: what is missing or wrong is an error.
status=0
"$bin/kvbench" run -e "$endpoint" "${workload[@]}" -p requestdistribution=sequential --ops "$records" \
    >"$scratch/report" || status=$?
cat -- "$scratch/report"
lost=$(sed -nE 's/.* ([0-9]+) (errors|misses).*/\1/p' "$scratch/report" | awk '{ sum += $1 } END { print sum + 0 }')
stop_server || status=$?
echo "restart: region_mib $memory_mib records $records ready_ms $ready_ms lost $lost"
exit "$status"
