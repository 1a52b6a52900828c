# Counts what `cargo test` said (standard output and standard error in one stream).
#
# Always true: each test program gives a result or counts as one failure, so a program that crashes is never
# overlooked. Printed are one line for each test that was skipped, with the reason, and then
# "LABEL: N passed, N failed, N skipped".
#
# A test is skipped if it is #[ignore]d, or if it says so itself: a line "SKIPPED reason" written past the test
# harness's capture. The harness counts the latter as passed; they are moved here.
#
# Programs with a harness of their own ignore all their tests after a line "SKIP: reason".
#
# Tests that were left out because they need an RDMA card (the reason says so) are not counted here, but where they run:
# in the Soft-RoCE machine (verbs.sh), or as skipped there.

function program_ends() {
    if (program != "" && !has_result) {
        failed++
        print label ": " program " ended without a result"
    }
    program = program_reason = ""
    card_tests = 0
}

# "Running unittests src/lib.rs (target/debug/deps/...)", "Doc-tests sidestep_common"
/^ +(Running|Doc-tests) / {
    program_ends()
    program = $0
    sub(/^ +(Running )?/, "", program)
    has_result = 0
}

/^test result: / {
    has_result = 1
    for (field = 2; field < NF; field++) {
        if ($(field + 1) == "passed;") passed += $field
        if ($(field + 1) == "failed;") failed += $field
        if ($(field + 1) == "ignored;") {
            skipped += $field - card_tests
            if (card_tests) print label ": " card_tests " tests of " program " are for the Soft-RoCE machine"
            card_tests = 0
        }
    }
}

/^SKIP: / { program_reason = substr($0, 7) }

/^test .* \.\.\. ignored/ {
    name = reason = $0
    sub(/^test /, "", name)
    sub(/ *\.\.\. ignored.*/, "", name)
    sub(/^test .* \.\.\. ignored,? */, "", reason)
    if (reason == "") reason = program_reason == "" ? "ignored, and nobody says why" : program_reason
    if (reason ~ /RDMA/) card_tests++
    else reasons[++reason_count] = name ": " reason
}

# With one test thread the harness has already begun the line.
/(^|\.\.\. )SKIPPED[ :]/ {
    said++
    reason = $0
    sub(/.*SKIPPED:? */, "", reason)
    reasons[++reason_count] = reason
}

END {
    program_ends()
    for (at = 1; at <= reason_count; at++) print "skipped: " reasons[at]
    printf "%s: %d passed, %d failed, %d skipped\n", label, passed - said, failed, skipped + said
}
