# shellcheck shell=bash
# Helpers for scripts that run inside the Soft-RoCE machine:  source "$(dirname "$0")/guest-lib.sh"
#
# Results are counted in three variables and printed one a line, so that a reader and a script can both follow:
#   ok NAME DETAIL      not ok NAME DETAIL      skip NAME REASON

[[ -n ${SIDESTEP_BED:-} ]] || { echo "guest-lib.sh is for scripts run by tests/softroce/vm" >&2; exit 2; }

passed=0 failed=0 skipped=0

# Copies programs into memory and puts them first on PATH. Each page of a program started from the host's file system
# is fetched over 9p as it is touched, which would be measured too.
stage() { # FILE...
    local file target
    mkdir -p -- "$SIDESTEP_VM_TMP/bin"
    for file; do
        target=$SIDESTEP_VM_TMP/bin/${file##*/}
        # Two programs of one name would silently become one.
        [[ ! -e $target ]] || { echo "stage: there already is a program ${file##*/}" >&2; return 1; }
        cp -- "$file" "$target" || return
        chmod 755 -- "$target" || return
    done
    PATH=$SIDESTEP_VM_TMP/bin:${PATH#"$SIDESTEP_VM_TMP/bin:"}
}

# Waits until CONDITION holds, looking every 0.05 s; status 1 if it does not within SECONDS.
wait_until() { # SECONDS CONDITION...
    local deadline=$((SECONDS + $1))
    shift
    until "$@"; do
        ((SECONDS <= deadline)) || return 1 # SECONDS is cut to whole seconds: wait one longer, never one shorter
        sleep 0.05
    done
}

# Is there a TCP listener on HOST (IPv4 address or localhost) or on every address? The kernel's table is read instead
# of connecting, because some servers (perftest's) serve the first connection and no other.
port_listens() { # HOST PORT
    local host=$1 a b c d hex local_address state wanted
    [[ $host != localhost ]] || host=127.0.0.1
    IFS=. read -r a b c d <<<"$host"
    printf -v hex '%02X%02X%02X%02X' "$d" "$c" "$b" "$a" # addresses are shown as little-endian words
    printf -v wanted ':%04X' "$2"
    while read -r _ local_address _ state _; do
        [[ $state == 0A && $local_address == *"$wanted" ]] || continue # 0A is LISTEN
        case ${local_address%:*} in
            "$hex" | 00000000 | 00000000000000000000000000000000 | "0000000000000000FFFF0000$hex") return 0 ;;
        esac
    done < <(cat /proc/net/tcp /proc/net/tcp6)
    return 1
}
wait_port() { # HOST PORT SECONDS
    wait_until "$3" port_listens "$1" "$2"
}

# The same for a listener of librdmacm, which has no socket.
rdma_port_listens() { # HOST PORT
    rdma resource show cm_id | grep -Eq "state LISTEN .*src-addr (${1//./\\.}|0\.0\.0\.0):$2( |\$)"
}
wait_rdma_port() { # HOST PORT SECONDS
    wait_until "$3" rdma_port_listens "$1" "$2"
}

# Sets `device` and `gid_index` to the card that has an IPv4 address and to its RoCE v2 entry for it. Nothing is
# assumed about the order of the table: entry 0 is usually the link-local address, which routes nowhere.
find_card() { # ADDRESS
    local a b c d gid entry port
    IFS=. read -r a b c d <<<"$1"
    printf -v gid '0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x' "$a" "$b" "$c" "$d"
    for entry in /sys/class/infiniband/*/ports/1/gids/*; do
        [[ $(<"$entry") == "$gid" ]] || continue
        port=${entry%/gids/*} gid_index=${entry##*/}
        [[ $(<"$port/gid_attrs/types/$gid_index") == "RoCE v2" ]] || continue
        device=${port#/sys/class/infiniband/} device=${device%%/*}
        return 0
    done
    echo "find_card: no card has the address $1" >&2
    return 1
}

tap_ok() { passed=$((passed + 1)); echo "ok $*"; }
tap_not_ok() { failed=$((failed + 1)); echo "not ok $*"; }
tap_skip() { skipped=$((skipped + 1)); echo "skip $*"; }

# Runs a command as one check; its output is shown only when it fails.
check() { # NAME COMMAND...
    local name=$1 log=$SIDESTEP_VM_TMP/$1.log
    shift
    if "$@" >"$log" 2>&1; then
        tap_ok "$name"
    else
        tap_not_ok "$name (status $?)"
        sed 's/^/# /' "$log"
    fi
}

# Runs a Rust test program and adds its own counts to ours. One that dies before its last line counts as one failure.
# A test that says "SKIPPED reason" is counted as passed by the program, and as skipped here.
rust_tests() { # PROGRAM ARGUMENTS...
    local log=$SIDESTEP_VM_TMP/${1##*/}.log status counts said
    "$@" 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    counts=$(sed -n 's/^test result: .*\. \([0-9]*\) passed; \([0-9]*\) failed; \([0-9]*\) ignored;.*/\1 \2 \3/p' "$log" | tail -n 1)
    if [[ -n $counts ]]; then
        local now_passed now_failed now_skipped
        read -r now_passed now_failed now_skipped <<<"$counts"
        said=$(grep -cE '(^|\.\.\. )SKIPPED[ :]' "$log")
        passed=$((passed + now_passed - said)) failed=$((failed + now_failed)) skipped=$((skipped + now_skipped + said))
        [[ $status -eq 0 || $now_failed -gt 0 ]] || tap_not_ok "${1##*/} (status $status after its last test)"
    else
        tap_not_ok "${1##*/} (status $status, no result)"
    fi
}

# The last line. Its status is the script's: nothing failed, and something passed.
tap_summary() { # LABEL
    echo "$1: $passed passed, $failed failed, $skipped skipped"
    [[ $failed -eq 0 && $passed -gt 0 ]]
}
