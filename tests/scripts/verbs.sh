#!/bin/bash
# The tests on real verbs, inside the Soft-RoCE machine. Ends with "verbs: N passed, N failed, N skipped".
#
#   verbs.sh [SUITE...]        all of tests/softroce/suite-*.sh, or suite-SUITE.sh only
#
# A suite says in a line "# machine: OPTIONS" how it wants its machine (see tests/softroce/vm --help), is run inside
# as `suite-NAME.sh PROGRAMS`, where PROGRAMS is a folder with everything that was built, and ends with the line
# "verbs: N passed, N failed, N skipped" (tap_summary of guest-lib.sh).
#
# Where no machine can be had, a suite is skipped and says why. With CI=true that is a failure: a green run must mean
# that verbs were tested.
set -uo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
project=$(cd -- "$here/../.." && pwd -P)
cd -- "$project" || exit
# shellcheck source-path=SCRIPTDIR source=tally.sh
source "$here/tally.sh"
softroce=tests/softroce
programs=target/softroce/programs
STATUS_SKIPPED=77

# Optimised, because an emulated processor is slow; with debug information left out, because every byte is copied.
PROFILE=softroce

# Builds all programs and the integration tests that suites run, and puts them into one folder: kvserver is a program,
# costs-test is tests/tests/costs.rs. Unit tests gain nothing from a card, and some others are for features that no product
# is built with.
build_programs() {
    rm -rf -- "$programs"
    mkdir -p -- "$programs" || return
    local messages name file
    messages=$(mktemp)
    local tests=()
    mapfile -t tests < <(sed -nE 's/.*\b(rust_tests|two_sided) ([a-z_]+)-test\b.*/--test=\2/p' "$softroce"/suite-*.sh | sort -u)
    local cargo=(--locked --profile "$PROFILE" --workspace --message-format=json-render-diagnostics)
    if ! { cargo build "${cargo[@]}" --bins && cargo test "${cargo[@]}" --no-run "${tests[@]}"; } >"$messages"; then
        rm -f -- "$messages"
        return 1
    fi
    # Cargo writes one JSON object a line, with its keys in a fixed order.
    sed -nE 's/.*"reason":"compiler-artifact".*"kind":\["([a-z]+)"\].*"name":"([^"]+)".*"executable":"([^"]+)".*/\1 \2 \3/p' "$messages" |
        while read -r kind name file; do
            case $kind:$file in
                # The tests inside a program: the program itself is wanted under its name.
                bin:*/deps/*) ;;
                bin:*) cp -- "$file" "$programs/$name" ;;
                test:*) cp -- "$file" "$programs/$name-test" ;;
            esac || exit
        done
    local status=$?
    rm -f -- "$messages"
    return "$status"
}

# Runs one suite in a machine of its own; its last line is its summary, also if there is no machine.
machine_suite() { # SCRIPT
    local script=$1 name options status=0
    name=$(basename -- "$script" .sh)
    options=$(sed -n 's/^# machine: *//p' "$script" | head -n 1)
    local log
    log=$(mktemp)
    echo "# vm run $options -- $script"
    # shellcheck disable=SC2086 # several words on purpose
    "$softroce/vm" run $options -- "$script" "$PWD/$programs" 2>&1 | tee -- "$log" || status=${PIPESTATUS[0]}
    local reason
    reason=$(tr -d '\r' <"$log" | sed -n 's/^SKIP: //p' | tail -n 1)
    # What was left out inside the machine, in the words that tally.sh looks for.
    tr -d '\r' <"$log" | sed -nE "s/^(skip |SKIPPED:? *)/skipped: $name: /p; s/^test (.*) \.\.\. ignored,? */skipped: \1: /p"
    rm -f -- "$log"
    [[ $status -eq $STATUS_SKIPPED ]] || return "$status"
    if [[ ${CI:-} == true ]]; then
        echo "$name: not run, which is a failure here (CI=true): $reason"
        echo "verbs: 0 passed, 1 failed, 0 skipped"
        return 1
    fi
    echo "skipped: $name: $reason"
    echo "verbs: 0 passed, 0 failed, 1 skipped"
}

suites=()
if [[ $# -gt 0 ]]; then
    for name; do suites+=("$softroce/suite-$name.sh"); done
else
    suites=("$softroce"/suite-*.sh)
fi
for suite in "${suites[@]}"; do
    [[ -f $suite ]] || { echo "no such suite: $suite" >&2; exit 2; }
done

if ! build_programs; then
    echo "verbs: the programs for the machine do not build" >&2
    exit 1
fi
for suite in "${suites[@]}"; do
    started=$SECONDS
    run_suite verbs machine_suite "$suite"
    echo "# $((SECONDS - started)) s"
done
show_sum verbs && exit
# That nothing passed because nothing could run is no failure where skipping is allowed.
# shellcheck disable=SC2154 # from tally.sh
[[ $failed -eq 0 && $skipped -gt 0 ]]
