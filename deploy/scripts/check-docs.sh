#!/bin/bash
# What the pages at the project's front claim and a machine can check: the tests and files that they name exist, and the
# drawings in ARCHITECTURE.md are the modules' own.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."

failed=0
complain() { echo "not ok $*"; failed=1; }
rust_files() { git ls-files -- '*.rs'; }

# Names of tests: three or more words in backticks, joined by underscores. A test is a function of that name.
while read -r name; do
    rust_files | xargs grep -qE "fn $name\\b" || complain "ARCHITECTURE.md names the test $name, which does not exist"
done < <(grep -oE '`[a-z0-9]+(_[a-z0-9]+){2,}`' ARCHITECTURE.md | tr -d '`' | sort -u)

# Links and paths.
for page in README.md ARCHITECTURE.md CONTRIBUTING.md; do
    while read -r target; do
        [[ -e $target ]] || complain "$page links to $target, which does not exist"
    done < <(grep -oE '\]\([^)#:]+\)' "$page" | sed 's/^](//; s/)$//' | sort -u)
    while read -r path; do
        [[ -e $path ]] || complain "$page names $path, which does not exist"
    done < <(grep -oE '`(common|client|server|tests|benches|deploy)/[A-Za-z0-9_./-]+`' "$page" | tr -d '`' | sort -u)
done

# Each drawn row of bytes in ARCHITECTURE.md is a line of some module's documentation too.
drawings=$(rust_files | xargs grep -hE '^//! ' | sed -E 's/^\/\/! *//; s/ *$//')
while IFS= read -r row; do
    grep -qxF -- "$row" <<<"$drawings" || complain "ARCHITECTURE.md draws a row that no module has: $row"
done < <(awk '/^## The region/ { on = 1 } /^## Operations/ { on = 0 } on' ARCHITECTURE.md |
    grep -E '^ *[0-9]* *│' | grep -vE 'LIVE|delete|DELETED' | sed -E 's/^ *//; s/ *$//')

[[ $failed -eq 0 ]] && echo "ok the pages name what is there"
exit "$failed"
