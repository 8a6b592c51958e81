#!/usr/bin/env bash
# Fuzzes every fuzz target of the module for the given time each, one after another: go test takes only one at a time.
set -euo pipefail

time="${1:-20s}"
go="${GO:-go}"
found=0
while read -r package dir; do
	for target in $(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$dir"/*_test.go 2>/dev/null); do
		found=$((found + 1))
		echo "== $package $target"
		"$go" test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$package"
	done
done < <("$go" list -f '{{.ImportPath}} {{.Dir}}' ./...)
echo "fuzzed $found targets for $time each"
