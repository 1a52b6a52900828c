#!/bin/bash
# What threads share without a lock, under every order of threads and every old value that a load may still see
# (loom: common/src/sync). Ends with "loom: N passed, ...".
#
#   loom.sh            runs the models
#   loom.sh weakened [PATTERN]
#                      leaves out one ordering after the other (of loom-weakenings.sh, those whose names match), in a copy
#                      of the last commit; a model must fail each time
#
# A failing model fails alike each time; `LOOM_LOG=trace loom.sh` shows what the threads did.
set -uo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." || exit

# Crates that are built for models differ from others, so they lie apart. The server has no models: what it shares is
# under locks, and tokio leaves its sockets out under this flag.
export RUSTFLAGS="--cfg loom --cfg crossbeam_loom" CARGO_TARGET_DIR=$PWD/target/loom
models() { # CRATE...
    cargo test --locked --profile loom --lib --no-default-features --no-fail-fast \
        "${@/#/--package=sidestep-}" -- models:: modelled:: 2>&1
}

run_models() {
    local status
    log=$(mktemp)
    trap 'rm -f -- "$log"' EXIT
    models common client | tee -- "$log"
    status=${PIPESTATUS[0]}
    awk -v label=loom -f tests/scripts/cargo-tally.awk "$log"
    return "$status"
}

# Leaves something out and expects a model of the same crate to fail.
weaken() { # NAME FILE PERL_SUBSTITUTION [WHY_NOT: what survives, and why that is right]
    local name=$1 file=$2 substitution=$3 why_not=${4:-} log=$copy/log
    [[ $name =~ $pattern ]] || return
    git -C "$copy" checkout -q -- .
    perl -0pi -e "$substitution" "$copy/$file"
    if git -C "$copy" diff --quiet; then
        echo "weakened: $name: $file has nothing like that any more"
        failed=$((failed + 1))
        return
    fi
    if (cd -- "$copy" && models "${file%%/*}") >"$log"; then
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
        # Each model once, however many fabrics it ran between.
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
