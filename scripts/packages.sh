#!/usr/bin/env bash
# Lists this module's packages of one kind:
#   unit         everything outside test/ whose tests start no server
#   integration  everything outside test/ whose tests start servers (they use devstack), and the suites of test/ that are neither
#                end to end nor chaos nor benchmarks
#   bench        everything that has a benchmark
set -euo pipefail

kind="${1:?unit, integration or bench}"
go="${GO:-go}"
server='internal/devstack'

# One line a package: its import path, then the imports of its tests.
list() { "$go" list -f '{{.ImportPath}} {{join .TestImports " "}} {{join .XTestImports " "}}' ./...; }

case "$kind" in
unit) list | awk -v server="$server" '$1 !~ /\/test\/(e2e|chaos|bench)(\/|$)/ { if (index(substr($0, length($1) + 1), server) == 0 && $1 !~ "/" server) print $1 }' ;;
integration) list | awk -v server="$server" '$1 !~ /\/test\/(e2e|chaos|bench)(\/|$)/ { if (index(substr($0, length($1) + 1), server) != 0 || $1 ~ "/" server) print $1 }' ;;
bench)
	"$go" list -f '{{.ImportPath}} {{.Dir}}' ./... | while read -r package dir; do
		if [[ "$package" != */test/bench* ]] && grep -qs '^func Benchmark' "$dir"/*_test.go; then echo "$package"; fi
	done
	;;
*)
	echo "packages.sh: no kind $kind" >&2
	exit 2
	;;
esac
