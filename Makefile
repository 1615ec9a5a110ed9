# `make demo` and `make test` need a Debian or Ubuntu with make and Python 3.11 to 3.13 with venv,
# and install the rest. `make help` lists all targets.
.DEFAULT_GOAL := help
.PHONY: help demo quick test test-models coverage lint drills image install-test docs docs-test rigs bench bench-inference bench-volumes bench-queue bench-operators bench-exchange bench-segment bench-meshes bench-models gpu-check peers clean

BIN := .venv/bin
READY := .venv/.ready

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start thousands of processes. Without cached bytecode, each of them would compile the
# package again; some containers switch the cache off.
export PYTHONDONTWRITEBYTECODE :=

# Tests often wait for processes they start, so pytest has two processes more than cores, each with
# one thread. tests/conftest.py puts long tests first; each process gets few tests at a time, so
# that the long ones are spread over all processes.
PROCESSES := -n $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 2))) --maxschedchunk=4
SHORT := not (drill and slow) and not long and not container and not models
quick test test-models coverage drills docs-test: export OMP_NUM_THREADS := 1

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 26

demo: $(READY) ## segment neurons in the shipped electron microscopy volume; results in demo-output/
	@$(BIN)/python examples/fib25/demo.py

quick: $(READY) ## lint, tests of the files that you changed, and a fixed core, in 3 minutes
	@$(MAKE) --no-print-directory lint
	@$(BIN)/pytest $(PROCESSES) -q -m "$(SHORT) and not slow" $$($(BIN)/python tests/quick.py $(BASE))

# Collecting the tests beside lint caches the assertions that pytest rewrites, for all its processes.
test: $(READY) ## lint, then all tests except long ones and long drills
	@$(BIN)/pytest --collect-only -q >/dev/null & \
	  $(MAKE) --no-print-directory -j 2 rigs lint && wait
	@$(BIN)/pytest $(PROCESSES) -rs -m "$(SHORT)"

coverage: $(READY) rigs ## the same tests; fail if they cover less than 90 % of the package
	@$(BIN)/pytest $(PROCESSES) -m "$(SHORT)" --cov=chunkflow_py --cov-report=term:skip-covered --cov-fail-under=90

lint: $(READY) ## ruff, mypy --strict, and the import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

drills: $(READY) rigs ## long tests: kill workers, cut connections, damage data; ARGS='-k NAME' selects
	@$(BIN)/pytest $(PROCESSES) -rs -m '(drill or long) and not models' tests $(ARGS)

test-models: $(READY) ## compare networks of other formats with the packages that trained them
	@$(BIN)/python tests/rigs/build.py models
	@OMP_NUM_THREADS=1 $(BIN)/pytest -rs -m models tests

image: $(READY) ## build the image and try it; needs buildah and debootstrap
	@$(BIN)/pytest -rs -s -m container tests/deploy

install-test: $(READY) ## install lowest and highest versions into new environments; ARGS='--python 3.12'
	@$(BIN)/python tests/install/try_install.py $(ARGS)

docs: $(READY) ## build the documentation as a site, build/site; a warning is an error
	@$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -c docs -d build/site-pages . build/site
	@echo "file://$(CURDIR)/build/site/index.html"

docs-test: $(READY) rigs ## run only the commands of README.md, docs/ and examples/
	@$(BIN)/pytest $(PROCESSES) -rs tests/docs

rigs: | .venv/pyvenv.cfg ## create the environments of servers and readers used by the tests
	@$(BIN)/python tests/rigs/build.py

bench: bench-inference bench-volumes bench-queue bench-operators bench-exchange bench-segment ## run the benchmarks; each prints a ratio to its limit
	@$(BIN)/python benchmarks/startup.py

bench-inference: peers ## inference compared with limits and other tools; ARGS=--quick is shorter
	@$(BIN)/python benchmarks/inference.py $(ARGS)

bench-volumes: peers rigs ## reading and writing compared with limits and other tools; ARGS=--quick
	@$(BIN)/python benchmarks/volumes.py $(ARGS)

bench-queue: peers rigs ## queues, leases and ledger compared with limits and other tools; ARGS=--quick
	@$(BIN)/python benchmarks/queues.py $(ARGS)

bench-operators: peers ## each operator compared with chunkflow 1.2.0; ARGS=--quick
	@$(BIN)/python benchmarks/operators.py $(ARGS)

bench-exchange: peers rigs ## the exchange of patches compared with large tasks and with none; ARGS=--quick
	@$(BIN)/python benchmarks/exchange.py $(ARGS)

bench-models: $(READY) ## networks of other formats compared with the packages that trained them; ARGS=--quick
	@$(BIN)/python tests/rigs/build.py models
	@$(BIN)/python benchmarks/models.py $(ARGS)

bench-segment: $(READY) ## segment-affinity compared with waterz; ARGS=--quick
	@$(BIN)/python benchmarks/segmentation.py $(ARGS)

bench-meshes: $(READY) ## sharded meshes compared with igneous; ARGS=--quick
	@$(BIN)/python benchmarks/meshes.py $(ARGS)

gpu-check: ## check a GPU machine: tests, errors, speed; needs `pip install . pytest` only; PYTHON=python3
	@$(firstword $(PYTHON) $(wildcard $(BIN)/python) python3) benchmarks/gpu_check.py $(ARGS)

peers: $(READY) ## create the environments of the tools in the benchmarks
	@$(BIN)/python benchmarks/peers/build.py

clean: ## remove the virtual environment and all generated files
	rm -rf .venv .rigs .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache \
	  benchmarks/peers/.envs .coverage .coverage.* build demo-output *.egg-info

# torch is installed first and alone, so that pip chooses the build for this machine. atomicwrites
# exists only as source; without it, pip would silently choose an old neuroglancer. compileall uses
# all cores, unlike pip, and skips files that are not valid Python, like pip. A broken environment is
# created again; one whose pins changed is updated. The U-Nets of dynamic-network-architectures need
# nothing of what it depends on, such as torchvision.
$(READY): pyproject.toml constraints.txt | .venv/pyvenv.cfg
	@$(BIN)/python -c 'import pip' 2>/dev/null || $(MAKE) --no-print-directory -B .venv/pyvenv.cfg
	@echo "Installing into .venv (minutes, the first time)"
	@$(BIN)/python -m pip install --quiet --no-compile torch==2.13.0
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --no-compile -c constraints.txt --no-binary atomicwrites -e '.[all,skeleton,dev,docs]'
	@$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt --no-deps dynamic-network-architectures
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
	@$(BIN)/python -m pip install --quiet pip==26.3 # older versions take twice as long
