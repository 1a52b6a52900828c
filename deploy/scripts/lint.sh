#!/bin/bash
# Everything that can be said of the code without running it. The first complaint ends it.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."

step() { printf '\n# %s\n' "$*"; "$@"; }

step cargo fmt --all --check
step rustfmt --check --edition 2024 tests/fuzz/fuzz_targets/*.rs
step cargo clippy --locked --workspace --all-targets -- -D warnings
step cargo clippy --locked --workspace --all-targets --no-default-features -- -D warnings
step cargo clippy --locked -p sidestep-tests --all-targets --features simulation -- -D warnings
RUSTDOCFLAGS="-D warnings" step cargo doc --locked --workspace --no-deps
step deploy/scripts/check-docs.sh
# rdma-sys names a file instead of a licence; the file is read and judged all the same.
step cargo deny --workspace check --allow no-license-field licenses bans sources
step cargo deny --config tests/fuzz/deny.toml --manifest-path tests/fuzz/Cargo.toml --workspace \
    check --allow no-license-field licenses bans sources
