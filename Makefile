# `make demo` and `make test` do everything on a fresh Debian or Ubuntu that has make and
# Python 3.11 to 3.13 with venv. `make help` lists the rest.
.DEFAULT_GOAL := help
.PHONY: help demo quick test coverage lint drills image install-test docs docs-test rigs bench bench-inference bench-volumes bench-queue bench-operators gpu-check peers clean

BIN := .venv/bin
READY := .venv/.ready

export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Tests start processes and wait for them: there are two processes of pytest more than cores, each
# with one thread. tests/conftest.py puts long tests first; a process is given few tests at a time,
# or it would be given all of the long ones.
PROCESSES := -n $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 2))) --maxschedchunk=4
SHORT := not (drill and slow) and not long and not container
quick test coverage drills docs-test: export OMP_NUM_THREADS := 1

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 26

demo: $(READY) ## segment neurons in the shipped electron microscopy volume; results in demo-output/
	@$(BIN)/python examples/fib25/demo.py

quick: $(READY) ## in 3 minutes: lint, the tests of the files that you have changed, and a fixed core
	@$(MAKE) --no-print-directory lint
	@$(BIN)/pytest $(PROCESSES) -q -m "$(SHORT) and not slow" $$($(BIN)/python tests/quick.py $(BASE))

# pytest rewrites the asserts of each test file: once beside lint, not in each of its processes.
test: $(READY) ## lint, then every test but long ones and long drills; pytest's summary is last
	@$(BIN)/pytest --collect-only -q >/dev/null & \
	  $(MAKE) --no-print-directory -j 2 rigs lint && wait
	@$(BIN)/pytest $(PROCESSES) -rs -m "$(SHORT)"

coverage: $(READY) rigs ## the same tests, and how many lines of the package they run: at least 90 %
	@$(BIN)/pytest $(PROCESSES) -m "$(SHORT)" --cov=chunkflow_py --cov-report=term:skip-covered --cov-fail-under=90

lint: $(READY) ## ruff, mypy --strict, and the rules on who may import whom
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

drills: $(READY) rigs ## kill, stop, cut off and damage on purpose, and all that takes long; ARGS=-k NAME for one
	@$(BIN)/pytest $(PROCESSES) -rs -m 'drill or long' tests $(ARGS)

image: $(READY) ## build the image and try it, where buildah and debootstrap are
	@$(BIN)/pytest -rs -m container tests/deploy

install-test: $(READY) ## install into new environments, lowest and highest versions; ARGS='--python 3.12'
	@$(BIN)/python tests/install/try_install.py $(ARGS)

docs: $(READY) ## build the documentation as a site, build/site; a warning is an error
	@$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -c docs -d build/site-pages . build/site
	@echo "file://$(CURDIR)/build/site/index.html"

docs-test: $(READY) rigs ## run every command of README.md, docs/ and examples/ only
	@$(BIN)/pytest $(PROCESSES) -rs tests/docs

rigs: | .venv/pyvenv.cfg ## make the environments of the servers and readers that the tests call
	@$(BIN)/python tests/rigs/build.py

bench: bench-inference bench-volumes bench-queue bench-operators ## run the benchmarks; each prints a ratio to its limit
	@$(BIN)/python benchmarks/startup.py

bench-inference: peers ## inference beside its limits and its peers; ARGS=--quick for a first look
	@$(BIN)/python benchmarks/inference.py $(ARGS)

bench-volumes: peers rigs ## reading and writing beside their limits and peers; ARGS=--quick
	@$(BIN)/python benchmarks/volumes.py $(ARGS)

bench-queue: peers rigs ## queues, leases and ledger beside their limits and peers; ARGS=--quick
	@$(BIN)/python benchmarks/queues.py $(ARGS)

bench-operators: peers ## each operator beside chunkflow 1.2.0; ARGS=--quick
	@$(BIN)/python benchmarks/operators.py $(ARGS)

gpu-check: ## check a GPU machine: tests, errors, speed; needs `pip install . pytest` only; PYTHON=python3
	@$(firstword $(PYTHON) $(wildcard $(BIN)/python) python3) benchmarks/gpu_check.py $(ARGS)

peers: $(READY) ## make the environments of the tools that the benchmarks compare with
	@$(BIN)/python benchmarks/peers/build.py

clean: ## remove the virtual environment and everything that was generated
	rm -rf .venv .rigs .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache \
	  benchmarks/peers/.envs .coverage .coverage.* build demo-output *.egg-info

# torch comes first and alone, so that pip takes the build that suits the machine; atomicwrites
# exists as source only, and without it pip would silently take an old neuroglancer. pip compiles
# files one by one, compileall on all cores, but no tests. Like pip it is not stopped by a file that
# is no Python. An environment that is broken is made anew, and updated when a pin changes.
$(READY): pyproject.toml constraints.txt | .venv/pyvenv.cfg
	@$(BIN)/python -c 'import pip' 2>/dev/null || $(MAKE) --no-print-directory -B .venv/pyvenv.cfg
	@echo "Installing into .venv (minutes, the first time)"
	@$(BIN)/python -m pip install --quiet --no-compile torch==2.13.0
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --no-compile -c constraints.txt --no-binary atomicwrites -e '.[all,skeleton,dev,docs]'
	@$(BIN)/python -W ignore -m compileall -qq -j 0 -x '/tests?/' .venv/lib || true
	@touch $@

.venv/pyvenv.cfg:
	@for python in $(PYTHON) python3 python3.13 python3.12 python3.11 none; do \
	    $$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' \
	      2>/dev/null && break; done; \
	  if [ $$python = none ]; then \
	    echo "Error: no Python 3.11, 3.12 or 3.13 found (python3 is" \
	      "$$(python3 --version 2>/dev/null || echo missing));" \
	      "install one, or name it: make PYTHON=/path/to/python" >&2; exit 1; fi; \
	  version=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	  if ! $$python -c 'import venv, ensurepip' 2>/dev/null; then \
	    echo "Error: $$python cannot make virtual environments;" \
	      "apt-get install python$$version-venv" >&2; exit 1; fi; \
	  echo "Making .venv with Python $$version"; \
	  $$python -m venv --clear .venv
	@$(BIN)/python -m pip install --quiet pip==26.3 # older ones need twice the time
