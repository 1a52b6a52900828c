#!/bin/bash
# The store doing its main job on this machine: serve a region, load records, run YCSB's workload b, show each verb of
# one get, and say how much of it the server's CPU did. About a minute after the build; asks nothing, leaves nothing.
#
#   DEMO_RECORDS=1000000  DEMO_OPERATIONS=3000000  DEMO_MEMORY_MIB=3072  DEMO_THREADS=2  DEMO_TRANSPORT=auto
set -euo pipefail
project=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
cd -- "$project"

records=${DEMO_RECORDS:-1000000}
operations=${DEMO_OPERATIONS:-3000000}
memory_mib=${DEMO_MEMORY_MIB:-3072}
threads=${DEMO_THREADS:-2}
transport=${DEMO_TRANSPORT:-auto}
# YCSB's name for record 0.
sample_key=user6284781860667377211
# The clients' share: buffers, and the page tables of the region.
CLIENT_MIB=256

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
[[ -t 1 ]] || say() { printf '\n%s\n' "$*"; }
die() { printf 'demo: %s\n' "$*" >&2; exit 1; }

for number in records operations memory_mib threads; do
    [[ ${!number} =~ ^[1-9][0-9]*$ ]] || die "DEMO_${number^^} is '${!number}', want a whole number from 1"
done
available_mib() {
    local available limit used
    available=$(awk '$1 == "MemAvailable:" { print int($2 / 1024) }' /proc/meminfo)
    # A container may have less than its host.
    if limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null) && [[ $limit != max ]]; then
        used=$(cat /sys/fs/cgroup/memory.current 2>/dev/null || echo 0)
        limit=$(((limit - used) / 1048576))
        [[ $limit -ge $available ]] || available=$limit
    fi
    echo "$available"
}
have_mib=$(available_mib)
[[ $have_mib -ge $((memory_mib + CLIENT_MIB)) ]] ||
    die "the demo needs $((memory_mib + CLIENT_MIB)) MiB of memory, $have_mib are available (fewer: DEMO_RECORDS=200000 DEMO_OPERATIONS=500000 DEMO_MEMORY_MIB=700)"

say "Build"
deploy/scripts/setup.sh build
cargo build --locked --release -p sidestep-server -p sidestep-client -p sidestep-bench --bins
bin=${CARGO_TARGET_DIR:-$project/target}/release

# shellcheck source-path=SCRIPTDIR source=serve.sh
source "$project/deploy/scripts/serve.sh"
run() { # COMMAND...
    printf '$ %s\n' "${*/#$bin\//}"
    "$@" || { local status=$?; server_log; die "${1##*/} failed with status $status"; }
}

say "Serve"
serve demo --memory "${memory_mib}M" --transport "$transport" || die "there is no server"
[[ -n $endpoint && -n $admin ]] || { server_log; die "kvserver's ready line names no endpoint or no admin port"; }

say "Load $records records"
run "$bin/kvbench" load -e "$endpoint" --admin "$admin" -P benches/workloads/workloadb \
    --records "$records" --threads "$threads"

say "Run workload b: 95 % reads, 5 % updates, $operations operations"
run "$bin/kvbench" run -e "$endpoint" --admin "$admin" -P benches/workloads/workloadb \
    --ops "$operations" --threads "$threads" | tee -- "$scratch/report"

say "One get, verb by verb"
run "$bin/kvctl" -e "$endpoint" explain get "$sample_key"

say "Stop"
stop_server || die "the server did not end well"
echo "kvserver ended with status 0"

# "server CPU  12.3 ms during the measured phase, ..."  "fabric over NAME"
cpu_ms=$(sed -nE 's/^server CPU +([0-9.]+) ms .*/\1/p' "$scratch/report")
fabric=$(sed -nE '1,/^kvbench run/s/^kvbench run .* over ([a-z]+)$/\1/p' "$scratch/report")
[[ -n $cpu_ms ]] || die "kvbench did not report the server's CPU time"
each_us=$(awk -v ms="$cpu_ms" -v n="$operations" 'BEGIN { printf "%.4f", ms * 1000 / n }')
case $fabric in
    tcp) role="here threads of the server played the network card (tcp), so its CPU was in the path" ;;
    *) role="none of it on an operation's path: the clients read and changed the store themselves, over $fabric" ;;
esac
say "What it means"
echo "For $operations operations the server's CPU worked $cpu_ms ms in all, $each_us us an operation, $role."
