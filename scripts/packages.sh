#!/usr/bin/env bash
# Lists this module's packages of one kind:
#   unit         everything outside test/ whose tests start no server
#   integration  everything outside test/ whose tests start servers (they use devstack, the demo or the harness of test/)
#   bench        everything that has a benchmark
# The end-to-end, chaos and benchmark suites of test/ have targets of their own.
set -euo pipefail

kind="${1:?unit, integration or bench}"
go="${GO:-go}"
suites='/test/(e2e|chaos|bench)(/|$)'
servers='internal/(devstack|demo)|test/harness'

# One line a package: its import path, then the imports of its tests.
list() { "$go" list -f '{{.ImportPath}} {{join .TestImports " "}} {{join .XTestImports " "}}' ./...; }

# The packages whose tests need servers (yes) or do not (no).
by_need() {
	list | awk -v suites="$suites" -v servers="$servers" -v want="$1" \
		'$1 !~ suites { needs = ($0 ~ servers) ? "yes" : "no"; if (needs == want) print $1 }'
}

# The packages with benchmarks.
benchmarks() {
	"$go" list -f '{{.ImportPath}} {{.Dir}}' ./... | while read -r package dir; do
		if [[ ! "$package" =~ $suites ]] && grep -qs '^func Benchmark' "$dir"/*_test.go; then echo "$package"; fi
	done
}

case "$kind" in
unit) by_need no ;;
integration) by_need yes ;;
bench) benchmarks ;;
*)
	echo "packages.sh: no kind $kind" >&2
	exit 2
	;;
esac
