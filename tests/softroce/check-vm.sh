#!/bin/bash
# Checks what `vm` promises to its callers: statuses, quoting, results, the host's safety. Runs on the host, about two
# minutes. The beds have a check of their own, check-beds.sh.
# shellcheck disable=SC2317 # functions are called by way of `expect`
set -uo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
project=$(cd -- "$here/../.." && pwd -P)
vm_dir=${SIDESTEP_VM_DIR:-$project/target/softroce}
vm=$here/vm

"$vm" prepare || exit
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT

failed=0
ok() { echo "ok $*"; }
not_ok() { echo "not ok $*"; failed=1; }
# Runs the rest of the line and compares its status; the output is in $scratch/out.
expect() { # NAME STATUS COMMAND...
    local name=$1 wanted=$2 status=0
    shift 2
    "$@" >"$scratch/out" 2>&1 || status=$?
    if [[ $status -eq $wanted ]]; then
        ok "$name"
    else
        not_ok "$name: status $status, not $wanted"
        sed 's/^/# /' "$scratch/out"
    fi
}
holds() { # NAME COMMAND...
    local name=$1
    shift
    if "$@"; then ok "$name"; else not_ok "$name"; fi
}

# Mistakes are refused before anything is booted.
expect usage-no-command 2 "$vm" run --
expect usage-bed 2 "$vm" run --bed three-port -- true
expect usage-delay 2 "$vm" run --bed two-port --delay-us 1ms -- true
expect usage-loss 2 "$vm" run --bed two-port --loss 101 -- true
expect usage-loss-needs-a-wire 2 "$vm" run --loss 1 -- true
expect usage-hugepages 2 "$vm" run --hugepages 1000 -- true
expect usage-missing-file 2 "$vm" run -- ./no-such-file

# No kernel is to be had: apt has no sources and an empty cache.
cat >"$scratch/apt.conf" <<END
Dir::Etc::SourceList "/dev/null";
Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "$scratch/lists";
Dir::State::Status "/dev/null";
Dir::Cache "$scratch/cache";
END
mkdir -p -- "$scratch/lists/partial" "$scratch/cache/archives/partial"
expect skip 77 env APT_CONFIG="$scratch/apt.conf" SIDESTEP_VM_DIR="$scratch/empty" "$vm" run -- true
holds skip-says-why grep -q '^SKIP: ' "$scratch/out"

# Two at once, and the initramfs missing: one builds it, the other finds it.
mkdir -- "$scratch/two"
ln -s -- "$vm_dir/kernel" "$scratch/two/kernel"
two_at_once() {
    local first second
    SIDESTEP_VM_DIR=$scratch/two "$vm" prepare &
    first=$!
    SIDESTEP_VM_DIR=$scratch/two "$vm" prepare &
    second=$!
    wait "$first" && wait "$second"
}
expect prepare-twice-at-once 0 two_at_once
holds prepare-built-once test "$(grep -c 'building' "$scratch/out")" -eq 1

# Arguments arrive as they were, the status comes back, results survive, the host is safe, huge pages are there.
# The project's scripts are taken from under /tmp, where the guest has a tmpfs in place of the host's files.
copy=$(mktemp -d /tmp/sidestep-check-vm.XXXXXX)
trap 'rm -rf -- "$scratch" "$copy"' EXIT
mkdir -p -- "$copy/tests"
cp -r -- "$here" "$copy/tests/softroce"
cat >"$copy/tests/guest" <<'END'
#!/bin/bash
printf '<%s>' "$@" >"$SIDESTEP_VM_RESULTS/arguments"
env >"$SIDESTEP_VM_RESULTS/environment"
echo changed 2>/dev/null >>"$0" && echo "wrote to the project" >"$SIDESTEP_VM_RESULTS/damage"
rm -f "$0" 2>/dev/null && echo "removed a file" >>"$SIDESTEP_VM_RESULTS/damage"
mount -o remount,rw / 2>/dev/null && touch /etc/sidestep-check-vm 2>/dev/null &&
    echo "wrote to the host" >>"$SIDESTEP_VM_RESULTS/damage"
grep HugePages_Total /proc/meminfo >"$SIDESTEP_VM_RESULTS/hugepages"
pwd >"$SIDESTEP_VM_RESULTS/folder"
echo said
exit 7
END
chmod +x -- "$copy/tests/guest"
# shellcheck disable=SC2016,SC1003 # exactly so
awkward=('two words' "it's" '"$HOME"' $'a\nb' '' '*' '--' '\')
in_copy() {
    cd -- "$copy/tests" &&
        SECRET=1 SIDESTEP_VM_DIR=$vm_dir softroce/vm run --hugepages 64 --results "$scratch/results, new" -- ./guest "${awkward[@]}"
}
expect status-comes-back 7 in_copy
printf '<%s>' "${awkward[@]}" >"$scratch/wanted"
results="$scratch/results, new"
holds output-comes-back grep -qx said "$scratch/out"
holds arguments-arrive cmp -s "$scratch/wanted" "$results/arguments"
holds folder-is-the-callers grep -qx "$copy/tests" "$results/folder"
holds huge-pages grep -Eqx 'HugePages_Total: +64' "$results/hugepages"
holds environment-has-the-bed grep -qx 'SIDESTEP_RDMA_ADDR=10.0.0.1' "$results/environment"
holds environment-is-clean test "$(grep -c SECRET "$results/environment")" = 0
holds host-is-safe test ! -e "$results/damage" -a -e "$copy/tests/guest" -a ! -e /etc/sidestep-check-vm

# A guest that dies is a failed machine, whatever it wrote before; and what it wrote is there.
# shellcheck disable=SC2016 # for the guest's shell
expect panic 125 "$vm" run --results "$scratch/panic" -- bash -c \
    'echo before >"$SIDESTEP_VM_RESULTS/written"; echo c >/proc/sysrq-trigger; sleep 60'
holds results-survive-a-panic grep -qx before "$scratch/panic/written"
expect timeout 124 "$vm" run --timeout 40 -- sleep 1000
expect timeout-while-booting 125 "$vm" run --timeout 1 -- true

# Somebody stops it: QEMU goes too.
interrupted() {
    local vm_pid qemu_pid='' waited=0 status=0
    "$vm" run -- sleep 1000 &
    vm_pid=$!
    until qemu_pid=$(pgrep -P "$(pgrep -P "$vm_pid" -x timeout | head -n 1)" 2>/dev/null) && [[ -n $qemu_pid ]]; do
        ((waited++ < 600)) || return 1
        sleep 0.05
    done
    kill -TERM "$vm_pid"
    wait "$vm_pid" || status=$?
    ! kill -0 "$qemu_pid" 2>/dev/null || { echo "QEMU $qemu_pid still runs"; return 1; }
    return "$status"
}
expect interrupted 143 interrupted

[[ $failed -eq 0 ]] && echo "vm: all checks passed"
exit "$failed"
