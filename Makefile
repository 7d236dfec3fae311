# Front door. The work is done by CMake, Ninja and the programs under scripts/.
# Each target fetches the Debian packages that it lacks (scripts/setup); git, make and apt are enough to start.

PREFIX ?= /usr/local
DATA ?=
FILTER ?=
BUILD ?= build

.DEFAULT_GOAL := help
.PHONY: help setup build test test-parallel bench check format sanitize demo loss-picture schedule-pictures plan-pictures plan-examples chapter-check validation-pictures install test-onednn3 test-mpich test-cluster test-kills clean

help: ## lists the targets
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
	    awk -F'|' '{printf "%-22s %s\n", $$1, $$2}'

setup: ## installs the Debian packages that are missing
	@scripts/setup

build: setup ## builds the program, build/weft
	@cmake -G Ninja -S . -B $(BUILD) >$(BUILD).log 2>&1 || { cat $(BUILD).log; rm -f $(BUILD).log; exit 1; }
	@sed -n 's/^-- \(weft .*\|  .*\)/\1/p' $(BUILD).log; rm -f $(BUILD).log
	@cmake --build $(BUILD)

test: build ## runs all tests; DATA=DIR adds external data, FILTER=WORD picks tests by name
	@WEFT_TEST_DATA="$(abspath $(DATA))" scripts/run-tests $(BUILD) "$(FILTER)"

test-parallel: build ## the whole equivalence matrix: every layout of tests/parallel (about two minutes on two idle cores)
	@WEFT_TEST_ALL=1 scripts/run-tests $(BUILD) matrix

bench: build ## runs the benchmarks of docs/performance.md
	@scripts/bench $(BUILD)

check: ## clang-tidy, cppcheck and format check
	@scripts/setup check
	@cmake -G Ninja -S . -B build >/dev/null
	@scripts/check build

format: ## lays the sources out as .clang-format says
	@scripts/setup check
	@git ls-files -co --exclude-standard '*.c' '*.h' | xargs clang-format-14 -i

sanitize: setup ## runs the tests built with AddressSanitizer and UBSan (DATA=, FILTER= as in test)
	@cmake -G Ninja -S . -B build-sanitize -DWEFT_SANITIZE=ON >/dev/null
	@cmake --build build-sanitize
	@WEFT_TEST_DATA="$(abspath $(DATA))" scripts/run-tests build-sanitize "$(FILTER)"

demo: ## trains a tokenizer and a small model on real English, plots, writes text, exports (about five minutes)
	@scripts/setup demo
	@$(MAKE) --no-print-directory build
	@scripts/demo $(BUILD)/weft

loss-picture: build ## redraws docs/loss.svg, the picture in the README, from the last demo
	@$(BUILD)/weft plot demo/run --svg docs/loss.svg --title "A small model learns to read Jane Austen"

schedule-pictures: build ## redraws docs/schedule-*.svg, the pipeline schedules of docs/parallelism.md
	@for kind in gpipe 1f1b interleaved zb-h1 zb-v; do \
	    $(BUILD)/weft schedule --kind $$kind --svg docs/schedule-$$kind.svg >/dev/null || exit 1; \
	done

plan-pictures: build ## redraws docs/plan-*.svg, the pictures of docs/planning.md and docs/reliability.md
	@$(BUILD)/weft simulate run configs/simulate/llama3-70b.yaml --svg docs/plan-interval.svg >/dev/null
	@$(BUILD)/weft plan llama3-70b configs/clusters/512xh100.yaml --svg $(BUILD)/pictures >/dev/null
	@$(BUILD)/weft plan llama3-70b configs/clusters/512xh100.yaml --fix tp=8,pp=4 --global-batch 256 --context 4096 \
	    --svg $(BUILD)/pictures/pinned >/dev/null
	@for name in waterfall memory pinned/scaling-strong; do \
	    cp $(BUILD)/pictures/$$name.svg docs/plan-$$(basename $$name).svg || exit 1; \
	done

plan-examples: build ## runs the examples of docs/planning.md anew
	@scripts/refresh-examples $(BUILD)/weft docs/planning.md

chapter-check: build ## writes docs/chapter-check.md anew: the chapters' figures beside those computed here
	@WEFT_CHAPTER_PAGE="$(CURDIR)/docs/chapter-check.md" $(BUILD)/test_chapter

validation-pictures: build ## redraws docs/validation-*.svg from a table of published measurements: DATA=FILE.csv
	@$(BUILD)/weft plan validate "$(DATA)" --svg docs

install: build ## installs the program and its man page under PREFIX (default /usr/local)
	@cmake --install $(BUILD) --prefix "$(abspath $(PREFIX))"

test-onednn3: ## builds and tests against oneDNN 3.x in a folder of its own
	@scripts/setup onednn3
	@scripts/test-onednn3

test-cluster: build ## trials on hosts that are namespaces of this machine, and under a Slurm; needs root, and scripts/setup cluster
	@scripts/test-cluster $(BUILD) $(FILTER)

test-kills: build ## kill -9 of ranks or of all of a run at random moments, 200 runs (10 to 15 minutes on two idle cores); SEEDS=FROM-TO
	@scripts/test-kills $(BUILD) $(SEEDS)

test-mpich: ## builds with MPICH instead of Open MPI and runs the tests that use MPI
	@scripts/setup mpich
	@cmake -G Ninja -S . -B build-mpich -DWEFT_MPI=mpich >/dev/null
	@cmake --build build-mpich --target weft test_comm test_parallel
	@build-mpich/test_comm $(FILTER)
	@build-mpich/test_parallel launched

clean: ## removes what was built
	rm -rf build build-sanitize build-onednn3 build-mpich
