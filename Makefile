# Everything is installed into .venv, from constraints.txt; nothing else on the machine is touched, but for
# python3-venv where Debian has left it out and we are root.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
HOROVOD := .venv-horovod
BIN := $(VENV)/bin
# Most of the tests' time is waiting, for heartbeats and imports: four at once on two cores.
JOBS ?= 4
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Images of containers set it: each `orch`, coordinator and process of pytest would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help
.PHONY: help demo test test-long check format bench scaling faults docs release-check sim fuzz mutants docker-demo clean

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## / - /'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "orch needs Python 3.11 or newer; this is $$($(PYTHON) --version). Name another: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq python3-venv; } || { echo "this Python has no venv: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) install -q -c constraints.txt -e '.[tensorflow,examples]'
	@touch $@

# tf_keras asks for the package `tensorflow`, which is `tensorflow-cpu` here: without its dependencies, then.
$(VENV)/.dev: $(VENV)/.demo
	$(PIP) install -q -c constraints.txt -e '.[tensorflow,tensorboard,examples,dev]'
	$(PIP) install -q -c constraints.txt --no-deps tf_keras
	@touch $@

demo: $(VENV)/.demo  ## train on a real data set with two workers on this machine
	@echo 'In another terminal, while it trains: $(BIN)/orch ui --open shows the page with its curves'
	$(BIN)/orch up cluster_specs/local.yaml --follow

test: check  ## unit, contract, cluster (real sshd) and real TensorFlow; with CI=true a third of the slowest, by the commit
	$(BIN)/python -m pytest tests --ignore tests/unit $(if $(CI),--in-turns) --cache-clear -n $(JOBS) --dist worksteal --durations 20 \
	|| { [ $$? = 1 ] && $(BIN)/python -m tests.alone; }

test-long: $(VENV)/.dev  ## with more cases and longer faults than `make test` has time for: most of an hour
	$(BIN)/python -m pytest tests --long -n $(JOBS) --dist worksteal --durations 20

# TensorFlow 2.15 beside the one of .venv, since Horovod builds against no newer; the wheel is kept in build/.
$(HOROVOD)/.built: tests/horovod/build.sh constraints-horovod.txt
	tests/horovod/build.sh $(HOROVOD) build/horovod constraints-horovod.txt
	@touch $@

.PHONY: test-horovod
test-horovod: $(VENV)/.dev $(HOROVOD)/.built  ## the real Horovod, built once (minutes): needs g++ and Python 3.11 with headers
	ORCH_HOROVOD_PYTHON=$(CURDIR)/$(HOROVOD)/bin/python $(BIN)/python -m pytest tests/horovod

.PHONY: test-slurm
test-slurm: $(VENV)/.dev  ## on a Slurm of three nodes in namespaces, as root: apt install slurmctld slurmd slurm-client munge; ten minutes
	$(BIN)/python -m pytest tests/slurm tests/contract/test_transport.py --long -m slurm -rs --durations 20

.PHONY: public-scripts
public-scripts: RUNS ?= 2,still,3,2x2,keras2
public-scripts: $(VENV)/.dev  ## well-known scripts, plain and transparent, into docs/public-scripts.md: make public-scripts DIR=/path [RUNS=2,still,3,2x2,keras2]; hours
	$(BIN)/python -m tests.public_scripts $(DIR) --fetch --runs $(RUNS)
	$(BIN)/python -m tests.public_scripts $(DIR) --page

# The machine's own Python may be the one with torch and JAX for its GPU; orch's packages must be on its path then.
.PHONY: test-gpu
test-gpu: $(if $(GPU_PYTHON),,$(VENV)/.dev)  ## on a machine with an NVIDIA GPU: make test-gpu [GPU_PYTHON=/path/to/python with torch]
	$(or $(GPU_PYTHON),$(BIN)/python) -m pytest tests/gpu -rs

check: $(VENV)/.dev  ## formatting, lint, types, the direction of imports, unit tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/oxlint orchestrator/page/static
	$(BIN)/mypy & types=$$!; \
	$(BIN)/python -m pytest -q -n auto --cache-clear tests/unit orchestrator/core orchestrator/reporting orchestrator/spec --doctest-modules -m 'not tensorflow and not lab' \
	|| { [ $$? = 1 ] && $(BIN)/python -m tests.alone; }; \
	tests=$$?; wait $$types && exit $$tests

format: $(VENV)/.dev  ## bring the sources into shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.dev  ## the measured claims, into docs/benchmarks.md: start, detection, overhead, cost over hosts; an hour, quiet; Ctrl-C writes what there is
	$(BIN)/python -m benchmarks --write

# torch, Ray, another TensorFlow and Ansible beside .venv: 6 GB.
.venv-peers/.built: constraints-peers.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip --disable-pip-version-check install -q -c constraints-peers.txt torch 'ray[train]' tensorflow-cpu ansible-core
	@touch $@

.PHONY: bench-peers
bench-peers: $(VENV)/.dev .venv-peers/.built  ## beside torchrun, Ray Train, a shell loop and Ansible, into docs/peers.md; over an hour, quiet: make bench-peers [MINUTES=10; 2 takes 20]
	$(BIN)/python -m benchmarks.peers --write --minutes $(or $(MINUTES),10)
	$(BIN)/python -m benchmarks.peers --write --minutes $(or $(MINUTES),10) --save-s 600 "orch, standby" "by hand, while loop" "torchrun elastic" "Ray Train"

.PHONY: bench-gpu
bench-gpu: $(if $(GPU_PYTHON),,$(VENV)/.dev)  ## scaling, standby, overhead and placement on a machine with NVIDIA GPUs, into docs/gpu.md: make bench-gpu [GPU_PYTHON=/path/to/python with JAX or torch]
	$(or $(GPU_PYTHON),$(BIN)/python) -m benchmarks.gpu --write

scaling: $(VENV)/.dev  ## images/s of 1, 2 and 4 replicas, under orch and by hand, into docs/scaling.md; four quiet minutes
	$(BIN)/python -m benchmarks.scaling

faults: $(VENV)/.dev  ## inject every fault of docs/faults.md for real, and write that page (ROWS=15,24: only these, and no page)
	$(BIN)/python -m tests.faults $(if $(ROWS),--rows $(ROWS))

.PHONY: rescues
rescues: $(VENV)/.dev  ## kill workers of a real training, and count the steps that are lost: make rescues KILLS=200 [WORKERS=3] [EVERY=1s] [SEED=1] [KERAS=tf_keras] [AT=save,evaluate,between,first-step,release] [FAULT=stop|oom|cut|alone] [VICTIMS=2] [MEGABYTES=1000] [RESCUE=auto,off]; 10 s a kill
	$(BIN)/python -m tests.rescue --kills $(or $(KILLS),20) --workers $(or $(WORKERS),2) --every $(or $(EVERY),10m) --seed $(or $(SEED),1) --keras $(or $(KERAS),keras) \
	--at "$(AT)" --fault "$(FAULT)" --victims $(or $(VICTIMS),1) --megabytes $(or $(MEGABYTES),0) --rescue $(or $(RESCUE),auto)

.PHONY: trajectory
trajectory: $(VENV)/.dev  ## kill scripts as people write them at chosen moments, and compare what they end with, into docs/trajectory.md: make trajectory [SCRIPTS=arrays,gan] [MOMENTS=step,save] [REPLICAS=2] [SEED=1]; an hour on two quiet cores
	$(BIN)/python -m tests.trajectory $(if $(SCRIPTS),--scripts $(SCRIPTS)) $(if $(MOMENTS),--moments $(MOMENTS)) --replicas $(or $(REPLICAS),1) --seed $(or $(SEED),1); \
	status=$$?; $(BIN)/python -m tests.trajectory --page && exit $$status

.PHONY: seeds
seeds: $(VENV)/.dev  ## run the listings of the course on two workers, plain and transparent, without a fault and with a kill: both workers' models must end alike: make seeds [LISTINGS=ordinary,digits] [WAYS=transparent] [FAULTS=none,kill]; half an hour on two quiet cores
	$(BIN)/python -m tests.seeds $(if $(LISTINGS),--listings $(LISTINGS)) $(if $(WAYS),--ways $(WAYS)) $(if $(FAULTS),--faults $(FAULTS)) --seed $(or $(SEED),1)

release-check: $(VENV)/.dev  ## once before a release: all that `make test` leaves to `make test-long`, what of it was skipped, and whether docs/faults.md is whole and of this very commit
	status=0; $(BIN)/python -m pytest tests --only-long -n $(JOBS) --dist worksteal --durations 20 || status=1; \
	$(MAKE) mutants-changed || status=1; \
	$(BIN)/python -m tests.faults --check && exit $$status

docs: $(VENV)/.dev  ## write docs/protocol.md, docs/events.md and docs/findings.md from the tables that they show
	$(BIN)/python -m tests.protocol_page
	$(BIN)/python -m tests.events_page
	$(BIN)/python -m tests.findings_page

sim: $(VENV)/.dev  ## the simulator: make sim SEEDS=200 [HOURS=10000] [SEED=first] [KIND=lies] [TRACE=1]; exit 1 where a rule is broken
	$(BIN)/python -m tests.sim $(or $(SEEDS),200) --first $(or $(SEED),0) $(if $(HOURS),--hours $(HOURS)) $(if $(KIND),--kind $(KIND)) $(if $(TRACE),--trace)

fuzz: $(VENV)/.dev  ## broken frames, banners, specs, journals and checkpoints for so long: make fuzz MINUTES=10; exit 1 with what was found
	$(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),5)

mutants: $(VENV)/.dev  ## draw mistakes in every room, and count those that the unit tests find: make mutants [PATHS="core head/journal"] [NUMBER=30] [SEED=1] [WRITE=1 for docs/mutants.md]
	$(BIN)/python -m pytest -q -n auto -p tests.mutants.covering tests/unit -m 'not tensorflow and not lab'
	$(BIN)/python -m tests.mutants $(PATHS) --number $(or $(NUMBER),30) --seed $(or $(SEED),1) $(if $(WRITE),--write)

.PHONY: mutants-changed
mutants-changed: $(VENV)/.dev  ## mistakes in the lines that changed since the commit of docs/mutants.md; exit 1 where a room finds less than 85 %
	$(BIN)/python -m pytest -q -n auto -p tests.mutants.covering --changed-only tests/unit -m 'not tensorflow and not lab'
	$(BIN)/python -m tests.mutants --changed --number 60 --seconds 60

.PHONY: mutants-known
mutants-known: $(VENV)/.dev  ## that the tests bite: each of some hundred known mistakes must be found; exit 1 with those that survive
	$(BIN)/python -m tests.mutants.known

docker-demo:  ## the same training across containers, one of which is killed on the way
	$(PYTHON) docker/demo.py

clean:  ## remove what was made here
	rm -rf $(VENV) $(HOROVOD) build .mypy_cache .ruff_cache .pytest_cache
