# shellcheck shell=bash
# Sums suites. Each suite is a command whose last summary line is "LABEL: N passed, N failed, N skipped" and which
# says "skipped: NAME: REASON" for each test that it left out.
#
# Always true: a suite that fails without saying so, or says nothing, is one failure; so is no test at all.

passed=0 failed=0 skipped=0
skip_reasons=()

# Runs one suite, shows what it prints, and adds its counts.
run_suite() { # LABEL COMMAND...
    local label=$1 log status=0 counts line
    shift
    log=$(mktemp)
    "$@" 2>&1 | tee -- "$log" || status=${PIPESTATUS[0]}
    # What comes through a virtual machine's console has carriage returns.
    counts=$(tr -d '\r' <"$log" | sed -nE "s/^$label: ([0-9]+) passed, ([0-9]+) failed, ([0-9]+) skipped\$/\1 \2 \3/p" | tail -n 1)
    if [[ -n $counts ]]; then
        local now_passed now_failed now_skipped
        read -r now_passed now_failed now_skipped <<<"$counts"
        passed=$((passed + now_passed)) failed=$((failed + now_failed)) skipped=$((skipped + now_skipped))
        if [[ $status -ne 0 && $now_failed -eq 0 ]]; then
            failed=$((failed + 1))
            echo "$label: status $status, though no test failed"
        fi
    else
        failed=$((failed + 1))
        echo "$label: status $status, and no counts"
    fi
    while IFS= read -r line; do skip_reasons+=("$line"); done < <(tr -d '\r' <"$log" | sed -n 's/^skipped: //p')
    rm -f -- "$log"
}

# Says why tests were skipped.
show_skips() {
    local reason
    for reason in "${skip_reasons[@]}"; do echo "skipped: $reason"; done
}

# The sum, without a label. Its status is the run's: nothing failed, and something passed.
show_sum() { # [LABEL]
    echo "${1:+$1: }$passed passed, $failed failed, $skipped skipped"
    [[ $failed -eq 0 && $passed -gt 0 ]]
}
