#!/bin/bash
# The fuzz targets, each for some seconds. Ends with "fuzz: N passed, N failed, N skipped"; each target is one test.
#
#   fuzz.sh [SECONDS [TARGET...]]   8 seconds each if not said; all of tests/fuzz/fuzz_targets if none is named
#   fuzz.sh --keep [TARGET...]      puts the fewest inputs that reach all that is reached by now into tests/fuzz/corpus
#   fuzz.sh --toolchain             the compiler that is wanted, as rustup names it
#
# A target first repeats the inputs that were kept (tests/fuzz/corpus/TARGET), then looks for new ones. A crash, an input
# that takes longer than 10 s or more memory than allowed is a failure: the input goes to target/fuzz-artifacts/TARGET, and
# how to repeat it is said. What was found on the way stays in target/fuzz-corpus/TARGET, where the next run goes on.
#
# What the fuzzer adds to a program needs a nightly compiler. Without one the targets are skipped and it is said why; with
# CI=true that is a failure: a green run must mean that they ran.
set -uo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." || exit

# Newer ones do as well, as a rule. This one is known to.
TOOLCHAIN=nightly-2026-05-20
SECONDS_DEFAULT=8
INPUT_SECONDS_MAX=10
# With the sanitizer's own, which is most of it.
MEMORY_MIB_MAX=2048
# Nothing that a peer sends makes us take as much at once.
ALLOCATION_MIB_MAX=128

# Of a target's inputs in the repository: how many, and how long each.
KEPT_MAX=64
KEPT_BYTES_MAX=1024

# What cargo-fuzz adds: counters at every edge, comparisons reported, addresses checked.
FLAGS=(
    -Cpasses=sancov-module
    -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares
    -Cllvm-args=-simplifycfg-branch-fold-threshold=0
    --cfg fuzzing
    -Zsanitizer=address
    -Ccodegen-units=1
)

[[ ${1:-} == --toolchain ]] && { echo "$TOOLCHAIN"; exit; }
seconds=${1:-$SECONDS_DEFAULT}
[[ $seconds =~ ^([0-9]+|--keep)$ ]] || { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 2; }
shift $(($# > 0))
targets=("$@")
if [[ ${#targets[@]} -eq 0 ]]; then
    for file in tests/fuzz/fuzz_targets/*.rs; do targets+=("$(basename -- "$file" .rs)"); done
fi
for target in "${targets[@]}"; do
    [[ -f tests/fuzz/fuzz_targets/$target.rs ]] || { echo "no such target: $target" >&2; exit 2; }
done

# The compiler wanted, or whatever other nightly one is there.
toolchain() {
    local name
    for name in "$TOOLCHAIN" nightly; do
        rustup run "$name" rustc --version >/dev/null 2>&1 && { echo "$name"; return; }
    done
    return 1
}

skip_all() { # REASON
    if [[ ${CI:-} == true ]]; then
        echo "fuzz: not run, which is a failure here (CI=true): $1"
        echo "fuzz: 0 passed, ${#targets[@]} failed, 0 skipped"
        exit 1
    fi
    echo "skipped: fuzz: $1"
    echo "fuzz: 0 passed, 0 failed, ${#targets[@]} skipped"
    exit 0
}

compiler=$(toolchain) || skip_all "no nightly compiler (deploy/scripts/setup.sh fuzz installs $TOOLCHAIN)"
# Named, so that build scripts are built without the flags.
host=$(rustup run "$compiler" rustc -vV | sed -n 's/^host: //p')
programs=$PWD/target/fuzz/$host/release

build() {
    local target arguments=()
    for target in "${targets[@]}"; do arguments+=(--bin "$target"); done
    # From its own folder, since cargo takes settings from where it is called.
    (cd tests/fuzz && RUSTFLAGS="${FLAGS[*]}" rustup run "$compiler" cargo build --locked --release \
        --target "$host" --target-dir ../../target/fuzz "${arguments[@]}")
}

# Threads that end after the program look like leaks. What is really lost shows in the memory of a long run.
export ASAN_OPTIONS=detect_leaks=0
log=$(mktemp)
trap 'rm -f -- "$log"' EXIT

# Repeats a target's inputs and looks for more; says how many were tried.
run_target() { # TARGET
    local target=$1 found=target/fuzz-corpus/$1 artifacts=target/fuzz-artifacts/$1 status=0 before after
    mkdir -p -- "$found" "$artifacts"
    before=$(ls -- "$artifacts" | sort)
    # No budget means the kept inputs only, each once.
    local budget=(-max_total_time="$seconds")
    [[ $seconds -gt 0 ]] || budget=(-runs=0)
    "$programs/$target" -timeout="$INPUT_SECONDS_MAX" -rss_limit_mb="$MEMORY_MIB_MAX" \
        -malloc_limit_mb="$ALLOCATION_MIB_MAX" -print_final_stats=1 \
        -artifact_prefix="$artifacts/" "${budget[@]}" "$found" "tests/fuzz/corpus/$target" >"$log" 2>&1 || status=$?
    local tried
    tried=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    if [[ $status -eq 0 && -n $tried ]]; then
        echo "test fuzz::$target ... ok ($tried inputs)"
        return
    fi
    echo "test fuzz::$target ... FAILED (status $status)"
    tail -n 60 -- "$log"
    after=$(ls -- "$artifacts" | sort)
    comm -13 <(echo "$before") <(echo "$after") | while read -r input; do
        [[ -n $input ]] && echo "to repeat: $programs/$target $artifacts/$input"
    done
    return 1
}

# Replaces a target's kept inputs. Places in the code count, not how often each was passed: repeating has to stay quick.
keep() { # TARGET
    local target=$1 found=target/fuzz-corpus/$1 kept=tests/fuzz/corpus/$1 fewest
    mkdir -p -- "$found" "$kept"
    fewest=$(mktemp -d)
    "$programs/$target" -set_cover_merge=1 -use_counters=0 -max_len="$KEPT_BYTES_MAX" \
        -timeout="$INPUT_SECONDS_MAX" "$fewest" "$kept" "$found" >"$log" 2>&1 ||
        { tail -n 20 -- "$log"; return 1; }
    find "$kept" -type f -delete
    # The longest do most; the rest is for the fuzzer to find again.
    find "$fewest" -type f -printf '%s %p\n' | sort -rn | head -n "$KEPT_MAX" | cut -d ' ' -f 2- |
        xargs -d '\n' -r cp -t "$kept" --
    rm -rf -- "$fewest"
    echo "$target: kept $(find "$kept" -type f | wc -l) inputs"
}

if ! build; then
    echo "fuzz: the targets do not build with $compiler" >&2
    exit 1
fi
if [[ $seconds == --keep ]]; then
    status=0
    for target in "${targets[@]}"; do keep "$target" || status=1; done
    exit "$status"
fi
passed=0 failed=0
for target in "${targets[@]}"; do
    if run_target "$target"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
done
echo "fuzz: $passed passed, $failed failed, 0 skipped"
[[ $failed -eq 0 ]]
