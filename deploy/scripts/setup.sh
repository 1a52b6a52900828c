#!/bin/bash
# Installs what is missing to build, lint or test Sidestep on Debian 12, and says what. Asks nothing, and does nothing
# if all is there.
#
#   setup.sh build       a C linker, and the headers and libclang from which the verbs bindings are made
#   setup.sh lint        rustfmt, clippy, cargo-deny
#   setup.sh test-verbs  QEMU and what is used inside the Soft-RoCE machine
#   setup.sh fuzz        a nightly compiler and a C++ one, for the fuzz targets
#
# Nothing of RDMA is linked: libibverbs and librdmacm are looked for when a program runs.
set -euo pipefail
project=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)

# libclang 14: newer ones are not understood by the bindgen that rdma-sys builds with.
BUILD_PACKAGES=(gcc libc6-dev pkg-config libibverbs-dev librdmacm-dev libclang-14-dev)
# The fuzzer itself is in C++.
FUZZ_PACKAGES=(g++)
CARGO_DENY_VERSION=0.20.2

say() { printf 'setup: %s\n' "$*" >&2; }

as_root() {
    if [[ $EUID -eq 0 ]]; then
        "$@"
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        sudo -n -- "$@"
    else
        say "only root can do this, and sudo would ask for a password. Please run: $*"
        return 1
    fi
}

apt_get() { as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" >&2; }

install_packages() { # PACKAGE...
    local package missing=()
    for package; do
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
    done
    [[ ${#missing[@]} -gt 0 ]] || return 0
    say "installing ${missing[*]}"
    # apt's lists may be absent (fresh images) or too old to download from: one update, then once more.
    apt_get install -y --no-install-recommends "${missing[@]}" || {
        apt_get update
        apt_get install -y --no-install-recommends "${missing[@]}"
    }
}

need_rust() {
    command -v cargo >/dev/null && return
    say "cargo is missing: install Rust $(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$project/Cargo.toml") or newer (https://rustup.rs)"
    return 1
}

need_apt() { # PACKAGE...
    command -v apt-get dpkg-query >/dev/null && return
    say "this is no Debian: please install what these packages hold, if it is not there: $*"
    return 1
}

setup_build() {
    need_rust
    # Elsewhere the build itself says what it misses.
    if need_apt "${BUILD_PACKAGES[@]}"; then install_packages "${BUILD_PACKAGES[@]}"; fi
}

setup_lint() {
    local component missing=()
    for component in rustfmt clippy; do
        cargo "${component/rust/}" --version >/dev/null 2>&1 || missing+=("$component")
    done
    if [[ ${#missing[@]} -gt 0 ]]; then
        command -v rustup >/dev/null || { say "missing, and there is no rustup to get them: ${missing[*]}"; return 1; }
        say "installing ${missing[*]}"
        rustup component add "${missing[@]}"
    fi
    if ! command -v cargo-deny >/dev/null && [[ ! -x ${CARGO_HOME:-$HOME/.cargo}/bin/cargo-deny ]]; then
        say "building cargo-deny $CARGO_DENY_VERSION (some minutes)"
        cargo install --locked cargo-deny --version "$CARGO_DENY_VERSION"
    fi
}

setup_test_verbs() {
    local packages
    mapfile -t packages < <("$project/tests/softroce/vm" packages)
    # Without them the tests are skipped, and say so.
    if need_apt "${packages[@]}"; then install_packages "${packages[@]}" || true; fi
}

setup_fuzz() {
    if need_apt "${FUZZ_PACKAGES[@]}"; then install_packages "${FUZZ_PACKAGES[@]}"; fi
    local toolchain name
    toolchain=$("$project/tests/scripts/fuzz.sh" --toolchain)
    for name in "$toolchain" nightly; do
        rustup run "$name" rustc --version >/dev/null 2>&1 && return
    done
    # Without it the targets are skipped, and say so.
    command -v rustup >/dev/null || { say "there is no rustup to get $toolchain with"; return 0; }
    say "installing $toolchain"
    rustup toolchain install "$toolchain" --profile minimal >&2 || say "$toolchain can't be had"
}

[[ $# -gt 0 ]] || { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 2; }
for part; do
    case $part in
        build) setup_build ;;
        lint) setup_lint ;;
        test-verbs) setup_test_verbs ;;
        fuzz) setup_fuzz ;;
        *) say "no such part: $part"; exit 2 ;;
    esac
done
