# Everything a newcomer needs: `make demo` and `make test` set up their own environment in .venv.
PYTHON ?= python3
BIN := .venv/bin
SIM_SEEDS ?= 200
FUZZ_SECONDS ?= 60
# How many processes run the tests: two for each core (tests/scheduling.py); 0 runs all of them in one, as a debugger needs it.
TEST_PROCESSES ?= auto
# `--again` repeats failed tests of processes and sockets, alone, and names those that pass then (tests/real_world.py).
TEST_OPTIONS ?=
# As many clusters of foreign servers run beside each other; each server is a JVM.
INTEROP_PROCESSES ?= 2
EDGE_SECONDS ?= 60
EDGE_TURN_MS ?= 100
STAGE_SECONDS ?= 300
MODEL_STATES ?= 100000
# Bytecode is kept even where the environment forbids it: tests start hundreds of processes, and each would compile every module.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo docs test orders check interop sim sim-slow check-model fuzz edge stages full bench clean

# Bytecode is made when a module is imported: few of all these are, and making it of all takes as long as unpacking them.
export PIP_COMPILE := 0

# Spark is published as sources, from which pip builds a package of 490 MB and unpacks it at once: compressing it would take longer
# than all the rest. The option goes to whatever is built, so `ledgermq` itself is installed without it.
SPARK_OPTIONS := --config-settings=--build-option=--compression=stored
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.venv/created:
	$(PYTHON) -m venv .venv
	touch $@

.venv/ledgermq: pyproject.toml native/_native.pyx | .venv/created
	$(INSTALL) --no-deps --editable .
	touch $@

# What the broker alone needs: a message goes round seconds after `make demo`.
.venv/ready-to-run: .venv/ledgermq
	$(INSTALL) ledgermq
	touch $@

.venv/ready-for-spark: .venv/ready-to-run
	$(BIN)/python -m pip install --progress-bar on --disable-pip-version-check $(SPARK_OPTIONS) 'ledgermq[spark]'
	touch $@

.venv/test-packages: pyproject.toml | .venv/created
	$(BIN)/python harness/requirements.py test > .venv/requirements.txt
	$(INSTALL) $(SPARK_OPTIONS) --requirement .venv/requirements.txt
	touch $@

# One processor compiles `ledgermq` while the other unpacks what the tests need.
.venv/ready: pyproject.toml native/_native.pyx
	$(MAKE) --no-print-directory --jobs=2 .venv/ledgermq .venv/test-packages
	touch $@

.venv/ready-to-check: .venv/ready
	$(INSTALL) --editable '.[check]'
	touch $@

.venv/ready-to-fuzz: .venv/ready
	$(INSTALL) --editable '.[fuzz]'
	touch $@

.venv/ready-for-docs: .venv/ready
	$(INSTALL) --editable '.[docs]'
	touch $@

demo: .venv/ready-to-run  ## a message goes round; then a job on Spark over the topic, with a table, a plot and Parquet files
	rm -rf build/demo && mkdir -p build/demo
	$(BIN)/python examples/demo.py build/demo/store
	@test -f .venv/ready-for-spark || echo "setting Spark up: 590 MB, once"
	$(MAKE) --no-print-directory .venv/ready-for-spark
	$(BIN)/python examples/spark_demo.py build/demo/store build/demo

test: .venv/ready  ## the tests that need nothing but Python, those of the jobs on Spark among them
	$(BIN)/python -m pytest tests --ignore=tests/interop -m "not slow" -q --numprocesses $(TEST_PROCESSES) --dist loadfile --durations 15 $(TEST_OPTIONS)

orders: .venv/ready  ## the tests on virtual time, with three other orders of their tasks, and those that draw examples with others
	set -e; for order in 1 2 3; do \
	  $(BIN)/python -m pytest tests -m "(virtual or hypothesis) and not slow" -q --order $$order --numprocesses $(TEST_PROCESSES) --dist loadfile; done

check: .venv/ready-to-check  ## format, lint, types, layers, generated pages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/python -m harness.import_circles
	$(BIN)/python docs/formats.py --check
	$(BIN)/python docs/raft.py --check
	$(BIN)/python docs/events.py --check
	$(BIN)/python docs/drawn.py --check
	$(BIN)/python docs/commands.py --check
	$(BIN)/python docs/keys.py --check
	$(BIN)/python docs/variables.py --check
	$(BIN)/python docs/pictures.py --check
	$(BIN)/python docs/figures.py --check

docs: .venv/ready-for-docs  ## the manual as a site in build/site; a warning is an error, and nothing is fetched
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	! grep -rlE '(src|<link[^>]+href)="https?:' build/site --include='*.html'

interop: .venv/ready  ## foreign clients and brokers against ours; wants Java, Maven, Go and npm
	$(BIN)/python -m pytest tests/interop -q --numprocesses $(INTEROP_PROCESSES) --dist loadfile --durations 15

sim: .venv/ready  ## the simulated world: SIM_SEEDS=N seeds
	$(BIN)/python -m harness.simulate --seeds $(SIM_SEEDS)

sim-slow: .venv/ready  ## planted bugs that the simulators must find, seeds that once failed, kills of real processes; for half an hour
	$(BIN)/python -m pytest tests --ignore=tests/interop -m slow -q --numprocesses $(TEST_PROCESSES) --dist worksteal

check-model: .venv/ready  ## the Raft core in every order of events of small worlds: MODEL_STATES=N states of each
	$(BIN)/python -m harness.raft.check_model --states $(MODEL_STATES)

fuzz: .venv/ready-to-fuzz  ## every decoder, guided by coverage: FUZZ_SECONDS=N seconds in all; then the compiled path
	$(BIN)/python -m harness.fuzz --seconds $(FUZZ_SECONDS)
	$(BIN)/python -m harness.fuzz.sends --seconds 20

edge: .venv/ready  ## whole requests of strangers at real servers: EDGE_SECONDS=N seconds
	$(BIN)/python -m harness.processes.edge --seconds $(EDGE_SECONDS) --turn-ms $(EDGE_TURN_MS)

stages: .venv/ready  ## what Spark writes exactly once while it repeats stages: STAGE_SECONDS=N seconds
	$(BIN)/python -m harness.processes.spark --seconds $(STAGE_SECONDS)
	$(BIN)/python -m harness.processes.spark --rounds 2 --faults delete,kill --unfenced

# The gates that take long, or that depend on foreign peers and on real time; before a capability counts as finished.
full: docs interop orders sim sim-slow check-model fuzz edge stages  ## all that .ci/run leaves out, for two hours; wants Java, Maven, Go and npm

bench: .venv/ready  ## every figure, briefly, against Apache RocketMQ on this machine
	$(BIN)/python bench/all.py --quick

clean:
	rm -rf .venv build dist
