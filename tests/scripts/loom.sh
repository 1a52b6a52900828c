#!/bin/bash
# What threads share without a lock, under every order of threads and every old value that a load may still see
# (loom: common/src/sync). Ends with "loom: N passed, ...".
#
#   loom.sh            runs the models
#   loom.sh weakened [PATTERN]
#                      leaves out one ordering after the other (of loom-weakenings.sh, those whose names match), in a copy
#                      of the last commit; a model must fail each time, and the first that does ends the run. Each model
#                      has 30 s: more orders than without the weakening may be too many, and one that fails fails early.
#
# A failing model fails alike each time; `LOOM_LOG=trace loom.sh` shows what the threads did.
set -uo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." || exit

# Crates that are built for models differ from others, so they lie apart. The server has no models: what it shares is
# under locks, and tokio leaves its sockets out under this flag.
export RUSTFLAGS="--cfg loom --cfg crossbeam_loom" CARGO_TARGET_DIR=$PWD/target/loom
models_of() { # CRATE...; sets `models`, the command that runs them
    models=(cargo test --locked --profile loom --lib --no-default-features --no-fail-fast
        "${@/#/--package=sidestep-}" -- models:: modelled::)
}

# With something left out: seconds for each model, as loom itself counts them (now and then), and for all of a crate with
# its build, in case one hangs.
MODEL_SECONDS_MAX=30
WEAKENED_SECONDS_MAX=1200

run_models() {
    local models status
    log=$(mktemp)
    trap 'rm -f -- "$log"' EXIT
    models_of common client
    "${models[@]}" 2>&1 | tee -- "$log"
    status=${PIPESTATUS[0]}
    awk -v label=loom -f tests/scripts/cargo-tally.awk "$log"
    return "$status"
}

# Runs the models of the copy until one fails; what they said goes to the log. The status is cargo's, 124 if the time was
# up.
models_until_one_fails() { # CRATE LOG
    local models line pid said
    models_of "$1"
    : >"$2"
    exec {said}< <(cd -- "$copy" && LOOM_MAX_DURATION=$MODEL_SECONDS_MAX LOOM_CHECKPOINT_INTERVAL=1000 \
        exec timeout "$WEAKENED_SECONDS_MAX" "${models[@]}" 2>&1)
    pid=$!
    while IFS= read -r line; do
        printf '%s\n' "$line" >>"$2"
        if [[ $line =~ ^model\ .*:\ fails ]]; then
            # What timeout started ends with it.
            kill "$pid"
            break
        fi
    done <&"$said"
    exec {said}<&-
    wait "$pid"
}

# Leaves something out and expects a model of the same crate to fail.
weaken() { # NAME FILE PERL_SUBSTITUTION [WHY_NOT: what survives, and why that is right]
    local name=$1 file=$2 substitution=$3 why_not=${4:-} log=$copy/log status
    [[ $name =~ $pattern ]] || return
    git -C "$copy" checkout -q -- .
    perl -0pi -e "$substitution" "$copy/$file"
    if git -C "$copy" diff --quiet; then
        echo "weakened: $name: $file has nothing like that any more"
        failed=$((failed + 1))
        return
    fi
    models_until_one_fails "${file%%/*}" "$log"
    status=$?
    if [[ $status -eq 124 ]]; then
        echo "weakened: $name: NO END within $WEAKENED_SECONDS_MAX s"
        failed=$((failed + 1))
    elif [[ $status -eq 0 ]]; then
        if [[ -n $why_not ]]; then
            echo "weakened: $name: no model fails, since $why_not"
            passed=$((passed + 1))
        else
            echo "weakened: $name: NO MODEL FAILS"
            failed=$((failed + 1))
        fi
    elif ! grep -q '^running ' "$log"; then
        echo "weakened: $name: cannot be built"
        tail -n 20 -- "$log"
        failed=$((failed + 1))
    elif ! grep -q '^model .*: fails' "$log"; then
        # A destructor that finds what should not be, while a model is failing already.
        echo "weakened: $name: caught, and the process dies of it"
        passed=$((passed + 1))
    else
        echo "weakened: $name: caught by $(sed -nE 's/^model ([a-z_:]*::)?([a-z_]+): fails in execution ([0-9]+).*/\2 (\3)/p' "$log" |
            sort -u -t' ' -k1,1 | paste -sd, | sed 's/,/, /g')"
        passed=$((passed + 1))
    fi
}

run_weakened() {
    local passed=0 failed=0 pattern=${1:-.}
    # Cargo takes the crates of the copy for those of this tree.
    export CARGO_TARGET_DIR=$CARGO_TARGET_DIR/weakened
    copy=$(mktemp -d)
    trap 'rm -rf -- "$copy"' EXIT
    git clone -q --local --no-hardlinks . "$copy" || return
    # shellcheck source=loom-weakenings.sh
    source tests/scripts/loom-weakenings.sh
    echo "weakened: $passed passed, $failed failed, 0 skipped"
    [[ $failed -eq 0 ]]
}

case ${1:-} in
    '') run_models ;;
    weakened) run_weakened "${2:-}" ;;
    *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 2 ;;
esac
