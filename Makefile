# Everything a person or a CI runs here. `make help` lists the targets.
#
# Needed: Go, npm, a JDK (17 or newer) and Maven; what is missing is named with the command that installs it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# The environment's own GOFLAGS would change what is built here. Without -buildvcs=false a clone that belongs to another user
# does not build: git refuses to describe it.
export GOFLAGS := -buildvcs=false

GO    ?= go
TOOL  := $(GO) tool -modfile=tools/go.mod
BIN   := bin/vitrina
ARGS  ?=

# The profile of `make bench-popularity`, by which the compiler chooses what to inline: a tenth of the CPU of a view. It is not named
# default.pgo because the tests of cmd/vitrina would then compile everything a second time.
PGO   ?= -pgo=$(CURDIR)/cmd/vitrina/vitrina.pgo

# The race detector needs a C compiler; nothing else here does.
ifneq ($(shell command -v $${CC:-gcc} || command -v clang),)
RACE := -race
else
RACE :=
$(info no C compiler: tests run without the race detector; install one with: apt-get install -y gcc)
endif

# Extra flags of every go test, for instance: make test-unit TESTFLAGS='-run Guard -v'
TESTFLAGS      ?=
FUZZTIME       ?= 20s
BENCHTIME      ?= 1s
CHAOS_SHORT    ?= 60s
CHAOS_DURATION ?= 10m

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/vitrina
	$(GO) build $(PGO) -o $(BIN) ./cmd/vitrina

.PHONY: run
run: build ## build and start the demo: make run ARGS="--duration 30s"
	@exec $(BIN) demo $(ARGS)

.PHONY: prepare
prepare: ## download what the local PostgreSQL, ClickHouse and Kafka need
	@$(GO) run ./internal/devstack/prepare

.PHONY: test
test: test-unit test-integration test-e2e test-chaos ## run every test: unit, integration, end to end, a short chaos run

.PHONY: test-unit
test-unit: ## run the packages that need no server, with the race detector
	@packages="$$(scripts/packages.sh unit)"; $(GO) test $(RACE) -timeout 10m $(TESTFLAGS) $$packages

# Packages run one after another: each starts servers of its own, and two cores do not carry many.
.PHONY: test-integration
test-integration: prepare ## run the packages that need real servers, with the race detector
	@packages="$$(scripts/packages.sh integration)"; $(GO) test $(RACE) -p 1 -timeout 15m $(TESTFLAGS) $$packages

.PHONY: test-e2e
test-e2e: prepare build ## run the whole system on Apache Kafka, PostgreSQL and ClickHouse
	VITRINA_BIN="$(CURDIR)/$(BIN)" $(GO) test -p 1 -count 1 -timeout 20m $(TESTFLAGS) ./test/e2e/...

.PHONY: test-chaos
test-chaos: prepare build ## run a short chaos test
	VITRINA_BIN="$(CURDIR)/$(BIN)" VITRINA_CHAOS_DURATION=$(CHAOS_SHORT) \
		$(GO) test -p 1 -count 1 -timeout 15m $(TESTFLAGS) ./test/chaos/...

.PHONY: chaos
chaos: prepare build ## run the long chaos test: make chaos CHAOS_DURATION=30m
	VITRINA_BIN="$(CURDIR)/$(BIN)" VITRINA_CHAOS_DURATION=$(CHAOS_DURATION) \
		$(GO) test -p 1 -count 1 -timeout 0 -v $(TESTFLAGS) ./test/chaos/...

.PHONY: bench
bench: prepare ## run the benchmarks of every package
	@packages="$$(scripts/packages.sh bench)"; \
		$(GO) test -p 1 -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) -timeout 60m $(TESTFLAGS) $$packages

.PHONY: bench-popularity
bench-popularity: prepare build ## measure views per second end to end, from Apache Kafka to PostgreSQL
	VITRINA_BIN="$(CURDIR)/$(BIN)" $(GO) test $(PGO) -p 1 -count 1 -run '^$$' -bench Popularity -benchtime 1x -timeout 60m -v $(TESTFLAGS) ./test/bench/...

.PHONY: pgo
pgo: bench-popularity ## measure, and take the profile over for the next build
	cp "$${VITRINA_BENCH_DIR:-$${TMPDIR:-/tmp}}/vitrina-popularity.prof" cmd/vitrina/vitrina.pgo

.PHONY: fuzz
fuzz: ## fuzz each fuzz target for a while: make fuzz FUZZTIME=5m
	@scripts/fuzz.sh $(FUZZTIME)

.PHONY: lint
lint: lint-format lint-vet lint-golangci lint-vulnerabilities ## check formatting, vet, golangci-lint, known vulnerabilities

.PHONY: lint-format
lint-format:
	@unformatted="$$(find . -name '*.go' -not -path './.cache/*' -not -path './.state/*' -print0 | xargs -0 gofmt -l)"; \
		if [[ -n "$$unformatted" ]]; then echo "not formatted (make fmt formats them):"; echo "$$unformatted"; exit 1; fi

.PHONY: lint-vet
lint-vet:
	$(GO) vet ./...

.PHONY: lint-golangci
lint-golangci:
	$(TOOL) golangci-lint run ./...

.PHONY: lint-vulnerabilities
lint-vulnerabilities:
	@scripts/vulnerabilities.sh

.PHONY: fmt
fmt: ## format the code
	$(TOOL) golangci-lint fmt ./...

.PHONY: clean
clean: ## remove what was built and the demo's data; downloads stay
	rm -rf bin .state coverage.out

.PHONY: clean-cache
clean-cache: ## remove the downloads, too
	rm -rf .cache
