#!/bin/bash
# Keys that come and go in a store that is 90 % full, for as long as is wanted: memory must not drift, latencies must not
# grow, and the region must be sound at the end. Ends with one line of figures:
#
#   churn: ops N rate R errors 0 checked N wrong 0 p99_first_us .. p99_last_us .. p99_ratio .. rss_.. used_..
#
#   OPS=200000000 or HOURS=8; CHURN_MEMORY_MIB=4096 CHURN_THREADS=2 CHURN_FILL=90 CHURN_VALUES=16-512
#   CHURN_GRACE_MS=1000 CHURN_TRANSPORT=shm
set -euo pipefail
project=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
cd -- "$project"

end=(--ops "${OPS:-20000000}")
[[ -z ${HOURS:-} ]] || end=(--duration "${HOURS}h")

cargo build --locked --release -p sidestep-server -p sidestep-client -p sidestep-bench --bins
bin=${CARGO_TARGET_DIR:-$project/target}/release
# shellcheck source-path=SCRIPTDIR source=../../deploy/scripts/serve.sh
source "$project/deploy/scripts/serve.sh"
serve churn --memory "${CHURN_MEMORY_MIB:-4096}M" --transport "${CHURN_TRANSPORT:-shm}" \
    --grace-ms "${CHURN_GRACE_MS:-1000}"

status=0
"$bin/kvbench" churn -e "$endpoint" "${end[@]}" --threads "${CHURN_THREADS:-2}" --fill "${CHURN_FILL:-90}" \
    --values "${CHURN_VALUES:-16-512}" >"$scratch/report" || status=$?
head -n -1 -- "$scratch/report"
"$bin/kvctl" -e "$endpoint" fsck || status=$?
[[ $status -eq 0 ]] || server_log
stop_server || status=$?
tail -n 1 -- "$scratch/report"
exit "$status"
