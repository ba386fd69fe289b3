# Every task of a Penstock developer. Each sets up what it needs, which is quick when nothing changed.
#
#   make serve ARGS="--hub orders:8"     the whole product on this machine: broker, portal, Spark, Capture
#   make wheel                           the wheel and the source distribution, into dist/
#   make release                         checks a release: tools/release.py; ARGS=--upload uploads it
#   make demo                            broker, portal, Spark, Capture and a kill -9: two minutes
#   make check                           style, types, import contracts, tidiness: seconds
#   make quick                           check and the tests that need no server: before each commit
#   make test                            everything; what CI runs
#   make test ARGS="tests/unit -k hash"  check, then that selection
#   make test-full ARGS=faults           the long tests of one part: clients, spark, faults, documents;
#                                        ARGS="faults --long" takes the largest counts
#   make figures                         measure everything that README and docs cite: docs/figures.json
#   make docs                            the site of the documents, into build/site
#   make asan                            the compiled kernels under AddressSanitizer

.PHONY: setup serve wheel release demo check quick test test-full bench bench-spark figures docs asan fmt lock clean
.DEFAULT_GOAL := check

BIN := .venv/bin
# Folders with code in them: mypy refuses an empty one.
CODE := $(sort $(foreach d,src tests benchmarks tools,$(if $(wildcard $(d)/*.py $(d)/*/*),$(d))))
QUICK := $(wildcard tests/unit tests/contract tests/protocol tests/faults tests/simulation)
ARGS ?=
# Three workers on two cores: most tests wait for processes and clocks. tests/tidy ran in `check`.
EVERYTHING := -q -n $(or $(TEST_WORKERS),3) --dist loadscope --no-loadscope-reorder \
	--durations 20 --ignore tests/tidy

setup:
	@tools/setup.sh

serve:
	@tools/setup.sh serve
	@exec $(BIN)/penstock serve $(ARGS)

wheel:
	@tools/setup.sh wheel
	@$(BIN)/python -m tools.wheel $(ARGS)

release: setup
	@$(BIN)/python -m tools.release $(ARGS)

demo: setup
	@exec $(BIN)/python tools/demo.py $(ARGS)

check: setup
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy $(CODE)
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/pytest -q tests/tidy

quick: check
	$(BIN)/pytest -q $(QUICK) $(ARGS)

test: check
	$(BIN)/python -m tests.support.toolchains
	$(BIN)/pytest $(or $(ARGS),$(EVERYTHING))

test-full: setup
	$(BIN)/python -m tests.support.toolchains
	@tools/test_full.sh $(ARGS)

bench: setup
	$(BIN)/python -m benchmarks.run $(ARGS)

bench-spark: setup
	$(BIN)/python -m benchmarks.scenarios.spark $(ARGS)

figures: setup
	$(BIN)/python -m tools.figures $(ARGS)

asan: setup
	@tools/asan.sh $(ARGS)

docs: setup
	@NO_COLOR=1 $(BIN)/zensical build --clean --strict --config-file zensical.toml
	@echo "The site is in build/site: open build/site/index.html."

fmt: setup
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

lock: setup
	@tools/lock.sh

clean:
	rm -rf .venv .cache build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
