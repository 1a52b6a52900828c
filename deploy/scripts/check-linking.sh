#!/bin/bash
# What the programs need of the host: no C library of RDMA must be asked for when a program starts (a host without
# cards has none), and none to build without `verbs`.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."

cargo build --locked --workspace --bins
failed=0
for program in kvserver kvctl kvbench; do
    needed=$(readelf -d "target/debug/$program" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | tr '\n' ' ')
    if [[ $needed == *ibverbs* || $needed == *rdmacm* ]]; then
        echo "not ok $program needs $needed"
        failed=1
    else
        echo "ok $program needs $needed"
    fi
done

# A folder of its own, so that nothing built with the headers is found; and pkg-config finds no library at all.
if PKG_CONFIG_LIBDIR=/nonexistent PKG_CONFIG_PATH='' LIBCLANG_PATH=/nonexistent \
    cargo build --locked --workspace --bins --no-default-features --target-dir target/no-verbs; then
    echo "ok builds without verbs"
else
    echo "not ok builds without verbs"
    failed=1
fi
exit "$failed"
