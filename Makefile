# The commands of this repository; `make help` lists them. None needs root, a fixed port or a service that runs.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help build parts demo demo-down test test-short fresh lint generate check-generate fuzz bench nightly ci clean

# Go, pip and the linter keep caches below HOME. Without a usable one (users such as nobody) they go where ours are.
ifneq ($(shell test -n "$$HOME" -a -w "$$HOME" && echo usable),usable)
export HOME := $(CURDIR)/.cache/home
$(shell mkdir -p $(HOME))
endif

RACE ?= 1
GOTEST := hack/gotest -shuffle=on -timeout=15m $(if $(filter-out 0,$(RACE)),-race)
LINT := .cache/tools/golangci-lint

help: ## Show the commands.
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 18

build: ## Build bin/sidecar.
	go build -o bin/sidecar ./cmd/sidecar

parts: ## Get the real Envoy and Redis into .cache/parts, unless this machine has them.
	@hack/parts

demo: build ## Show a 429 from a real Envoy. KEEP=1 leaves it running; ENVOY=none does without Envoy.
	@go run ./hack/demo up

demo-down: ## End a demo that was left running.
	@go run ./hack/demo down

test: parts ## Run every test, with the race detector (RACE=0: without, where there is no C compiler).
	@$(if $(filter 0,$(RACE)),echo "test: RACE=0: data races are NOT looked for")
	@$(GOTEST) ./...

test-short: parts ## Run the tests that take less than two minutes in all.
	@$(GOTEST) --allow-skips -short ./...

fresh: ## Run demo and test on a fresh clone as a user without rights, then again without network. SHORT=1: test-short.
	@hack/fresh-clone

lint: $(LINT) ## Look for faults and for breaches of the house style.
	go vet ./...
	$(LINT) run ./...

$(LINT): hack/tools/go.mod hack/tools/go.sum
	go build -C hack/tools -o $(abspath $@) github.com/golangci/golangci-lint/v2/cmd/golangci-lint

generate: ## Make the generated files again.
	go generate ./...

check-generate: ## Fail if a generated file is not what generate makes.
	@mkdir -p .cache && (git status --porcelain && git diff) > .cache/before-generate
	@$(MAKE) -s generate
	@(git status --porcelain && git diff) | diff .cache/before-generate - || { echo "check-generate: run make generate and commit"; exit 1; }

fuzz: ## Run each fuzz target for FUZZTIME (default 20s).
	@hack/fuzz

bench: ## Run the benchmarks.
	go test -run='^$$' -bench=. -benchmem ./...

nightly: test ## What takes long: every test, then each fuzz target for ten minutes, then the benchmarks.
	@FUZZTIME=10m hack/fuzz
	@$(MAKE) bench

ci: lint check-generate test ## What a change must pass.

clean: ## Remove everything that was built or fetched.
	@chmod -R u+w .cache 2>/dev/null || true
	rm -rf bin .cache run
