#!/usr/bin/env bash
# Lists this module's packages of one kind:
#   unit         everything outside test/ whose tests start no server
#   integration  everything outside test/ whose tests start servers (they use devstack, the demo or the harness of test/)
#   bench        everything that has a benchmark
set -euo pipefail

kind="${1:?unit, integration or bench}"
go="${GO:-go}"
server='internal/(devstack|demo)|test/harness'

# One line a package: its import path, then the imports of its tests.
list() { "$go" list -f '{{.ImportPath}} {{join .TestImports " "}} {{join .XTestImports " "}}' ./...; }

# The packages whose tests need servers ("yes") or do not ("no"), leaving out the suites that have targets of their own.
by_need() {
	list | awk -v server="$server" -v want="$1" '
		$1 ~ /\/test\/(e2e|chaos|bench)
	"$go" list -f '{{.ImportPath}} {{.Dir}}' ./... | while read -r package dir; do
		if [[ "$package" != */test/bench* ]] && grep -qs '^func Benchmark' "$dir"/*_test.go; then echo "$package"; fi
	done
	;;
*)
	echo "packages.sh: no kind $kind" >&2
	exit 2
	;;
esac
