# Starts a kvserver of this build for a script, and ends it with the script. To be sourced.
#
#   serve NAME ARGUMENT...   sets server (its process), endpoint, admin; NAME is the script's, for its messages
#   stop_server              ends it in order
#
# Ports and socket are its own: another kvserver on this machine is not disturbed. What it says is in $scratch/log.
# shellcheck shell=bash

# A setting of the user's own server must not reach this one.
unset "${!SIDESTEP_@}"
scratch=$(mktemp -d)
server=
endpoint=
admin=

end_server() {
    if [[ -n $server ]]; then
        kill -TERM "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
    fi
    rm -rf -- "$scratch"
}
trap end_server EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# Whatever fails from here on, the server's own words are the first thing wanted.
server_log() {
    printf '\nThe server said (its last lines):\n' >&2
    tail -q -n 20 -- "$scratch/ready" "$scratch/log" | sed 's/^/  /' >&2
}

serve() { # NAME ARGUMENT...
    local name=$1 deadline
    shift
    "$bin/kvserver" --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 --socket "$scratch/socket" \
        "$@" >"$scratch/ready" 2>"$scratch/log" &
    server=$!
    deadline=$((SECONDS + 60))
    until grep -q ' ready: ' "$scratch/ready"; do
        kill -0 "$server" 2>/dev/null || { server_log; printf '%s: kvserver ended before it was ready\n' "$name" >&2; return 1; }
        [[ $SECONDS -lt $deadline ]] || { server_log; printf '%s: kvserver was not ready within 60 s\n' "$name" >&2; return 1; }
        sleep 0.05
    done
    cat -- "$scratch/ready"
    endpoint=$(grep -o 'sidestep://[^ ]*' "$scratch/ready")
    # shellcheck disable=SC2034  # for the script that sources this
    admin=$(sed -n 's|.* admin http://\([^ ]*\).*|\1|p' "$scratch/ready")
    [[ -n $endpoint ]] || { server_log; printf '%s: the ready line names no endpoint\n' "$name" >&2; return 1; }
}

stop_server() {
    local status=0
    kill -TERM "$server"
    wait "$server" || status=$?
    server=
    [[ $status -eq 0 ]] || { server_log; printf 'kvserver ended with status %s\n' "$status" >&2; return 1; }
}
