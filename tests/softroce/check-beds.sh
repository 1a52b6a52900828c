#!/bin/bash
# Proves that each bed is what README.md says, with other people's programs (perftest, rping) and none of ours: when
# a test of Sidestep fails in the machine and this passes, the fault is Sidestep's.
#
# Run on the host, it boots the beds one after the other and runs itself in each. Every check is one line.
set -uo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)

if [[ -z ${SIDESTEP_BED:-} ]]; then
    worst=0
    for options in '--bed basic' '--bed clock' '--bed two-port --delay-us 500' \
        '--bed two-port --delay-us 500 --repeatable-clock' '--bed two-port --delay-us 0 --loss 1'; do
        echo "# vm run $options"
        started=$SECONDS
        # shellcheck disable=SC2086 # several words on purpose
        "$here/vm" run $options -- "$here/check-beds.sh" $options
        status=$?
        echo "# $((SECONDS - started)) s"
        [[ $status -ne 77 ]] || exit 77 # without a machine there is nothing to say about the others either
        [[ $status -eq 0 ]] || worst=$status
    done
    exit "$worst"
fi

source "$here/guest-lib.sh"
delay_us=0 loss=0 repeatable=no
while [[ $# -gt 0 ]]; do
    case $1 in
        --delay-us) delay_us=$2; shift ;;
        --loss) loss=$2; shift ;;
        --repeatable-clock) repeatable=yes ;;
    esac
    shift
done

stage /usr/bin/ib_read_lat /usr/bin/ib_atomic_lat /usr/bin/rping
find_card "$SIDESTEP_RDMA_ADDR" || exit 1
server_device=$device server_gid=$gid_index
find_card "$SIDESTEP_RDMA_CLIENT_ADDR" || exit 1
client_device=$device client_gid=$gid_index
port=18515 # one for each pair of programs, so that none meets an earlier one's remains

# With -R perftest meets through librdmacm, otherwise over TCP.
perftest_listens() { # SECONDS ARGUMENTS...
    local seconds=$1
    shift
    case " $* " in
        *' -R '*) wait_rdma_port "$SIDESTEP_RDMA_ADDR" "$port" "$seconds" ;;
        *) wait_port "$SIDESTEP_RDMA_ADDR" "$port" "$seconds" ;;
    esac
}

# Runs both sides of a perftest program; sets `median_us` and `longest_us`. All ITERATIONS must have completed.
perftest() { # NAME ITERATIONS PROGRAM ARGUMENTS...
    local name=$1 iterations=$2 server_pid row
    shift 2
    port=$((port + 1)) median_us='' longest_us=''
    "$@" -d "$server_device" -x "$server_gid" -p "$port" -n "$iterations" -F >"$SIDESTEP_VM_TMP/$name.server" 2>&1 &
    server_pid=$!
    if ! perftest_listens 20 "$@"; then
        tap_not_ok "$name (the server does not listen)"
        sed 's/^/# /' "$SIDESTEP_VM_TMP/$name.server"
        kill "$server_pid" 2>/dev/null
        return 1
    fi
    timeout 120 "$@" -d "$client_device" -x "$client_gid" -p "$port" -n "$iterations" -F "$SIDESTEP_RDMA_ADDR" \
        >"$SIDESTEP_VM_TMP/$name.client" 2>&1
    local status=$?
    # bytes, iterations, least, greatest, median ("typical"), mean, deviation, 99 %, 99.9 %
    row=$(awk -v n="$iterations" 'NF == 9 && $2 == n { print $5, $4 }' "$SIDESTEP_VM_TMP/$name.client")
    if [[ $status -ne 0 || -z $row ]]; then
        tap_not_ok "$name (status $status)"
        sed 's/^/# /' "$SIDESTEP_VM_TMP/$name.client" "$SIDESTEP_VM_TMP/$name.server"
        kill "$server_pid" 2>/dev/null
        return 1
    fi
    wait "$server_pid"
    read -r median_us longest_us <<<"$row"
}

# A verb works, and its median is at least LOWEST_US and less than HIGHEST_US.
latency() { # NAME LOWEST_US HIGHEST_US ITERATIONS PROGRAM ARGUMENTS...
    local name=$1 lowest=$2 highest=$3
    shift 3
    perftest "$name" "$@" || return
    if awk -v m="$median_us" -v l="$lowest" -v h="$highest" 'BEGIN { exit !(m >= l && m < h) }'; then
        tap_ok "$name median $median_us us, longest $longest_us us, $1 operations"
    else
        tap_not_ok "$name median $median_us us is not in [$lowest, $highest)"
    fi
}

# librdmacm finds the card by address, exchanges private data, and rping checks the bytes that went to and fro (-V).
rping_pair() {
    local server_pid
    rping -s -a "$SIDESTEP_RDMA_ADDR" -p 7174 -C 20 -V &
    server_pid=$!
    wait_rdma_port "$SIDESTEP_RDMA_ADDR" 7174 20 || { kill "$server_pid"; return 1; }
    timeout 120 rping -c -I "$SIDESTEP_RDMA_CLIENT_ADDR" -a "$SIDESTEP_RDMA_ADDR" -p 7174 -C 20 -V -v || { kill "$server_pid"; return 1; }
    wait "$server_pid"
}

# The least time of 20 attempts to connect to a port where nobody listens: one round trip of the kernel's TCP. No
# process is started in between, because that takes longer than what is measured.
refused_us=''
refusal_time() { # ADDRESS
    local started ended taken i
    refused_us=999999
    for ((i = 0; i < 20; i++)); do
        started=${EPOCHREALTIME/./}
        { exec 9<>"/dev/tcp/$1/9"; } 2>/dev/null && { exec 9>&-; return 1; }
        ended=${EPOCHREALTIME/./}
        taken=$((ended - started))
        ((taken >= refused_us)) || refused_us=$taken
    done
}

# NAME: a connection to ADDRESS takes at least LOWEST_US and less than HIGHEST_US.
tcp_time() { # NAME ADDRESS LOWEST_US HIGHEST_US
    if refusal_time "$2" && [[ $refused_us -ge $3 && $refused_us -lt $4 ]]; then
        tap_ok "$1 $refused_us us"
    else
        tap_not_ok "$1 $refused_us us is not in [$3, $4)"
    fi
}

memlock_unlimited() { [[ $(ulimit -l) == unlimited ]]; }
root_is_read_only() { ! touch "$here/.written-by-the-guest"; }
results_writable() { echo "$SIDESTEP_BED" >"$SIDESTEP_VM_RESULTS/check-beds.bed"; }

check memlock-unlimited memlock_unlimited
check root-read-only root_is_read_only
check results-writable results_writable
check rping rping_pair

case $SIDESTEP_BED in
    basic) any=100000 ;; # ordinary emulation: any figure will do, only completion counts
    # The repeatable clock was measured at 20.1 us for READ and 14.3 us for CAS and FAA. A kernel or a QEMU of another
    # version may move that; an ordinary clock would show several times as much.
    clock) any=40 ;;
    two-port) any=200000 ;;
esac

if [[ $SIDESTEP_BED != two-port ]]; then
    latency read-64 1 "$any" 1000 ib_read_lat -s 64
    latency read-1024 1 "$any" 1000 ib_read_lat -s 1024
    latency read-64-rdmacm 1 "$any" 1000 ib_read_lat -R -s 64
    latency compare-and-swap 1 "$any" 1000 ib_atomic_lat -A CMP_AND_SWAP
    latency fetch-and-add 1 "$any" 1000 ib_atomic_lat -A FETCH_AND_ADD
elif [[ $loss == 0 ]]; then
    # Every round trip takes the wire's two delays. On the repeatable clock the rest is exact and small; on the ordinary
    # one it is whatever the host had left, but one round trip must not look like two.
    wire_us=$((2 * delay_us)) highest_us=$((4 * delay_us))
    [[ $repeatable == no ]] || highest_us=$((wire_us + 100))
    latency read-64 "$wire_us" "$highest_us" 500 ib_read_lat -s 64
    latency read-64-rdmacm "$wire_us" "$highest_us" 500 ib_read_lat -R -s 64
    latency compare-and-swap "$wire_us" "$highest_us" 500 ib_atomic_lat -A CMP_AND_SWAP
    latency fetch-and-add "$wire_us" "$highest_us" 500 ib_atomic_lat -A FETCH_AND_ADD
    tcp_time tcp-crosses-the-wire "$SIDESTEP_RDMA_ADDR" "$wire_us" 1000000
    tcp_time loopback-avoids-the-wire 127.0.0.1 0 "$wire_us"
else
    latency read-64-lossy 1 "$any" 2000 ib_read_lat -s 64
    latency fetch-and-add-lossy 1 "$any" 2000 ib_atomic_lat -A FETCH_AND_ADD
    # Without this the two above would pass on a wire that loses nothing.
    dropped=$(tc -s qdisc show | sed -n 's/.*(dropped \([0-9]*\),.*/\1/p' | awk '{ n += $1 } END { print n + 0 }')
    if [[ $dropped -ge 10 ]]; then tap_ok "wire-loses-packets $dropped"; else tap_not_ok "wire-loses-packets $dropped"; fi
fi

tap_summary "bed $SIDESTEP_BED"
