# SPDX-License-Identifier: BSD-3-Clause
# Every command of the project. A fresh checkout needs Python 3.11, g++ 12 and make; the rest is
# set up in .venv by the first target that needs it.
#
#   make demo            train a small network on the simulated device
#   make test            native tests, then Python tests: before each commit
#   make test-all        the same, and the tests that take long; what CI runs
#   make lint            clang-format, clang-tidy, ruff, mypy, import-linter
#   make format          let clang-format and ruff repair what they can
#   make build           the environment and both extension modules
#   make asan, make tsan  native tests under sanitizers
#   make races           the Python tests and examples/ once more; a race between streams is an error
#   make sweeps          every operator of op_db: bytes touched, races, faults, dry runs, dispatch chains
#   make search          random programs of features together, with an oracle; SECONDS=600 SEED=0
#   make bench           benchmarks, native and beside the CPU backend: docs/reference/performance.md
#   make conformance     npusim through the conformance kit, full profile: build/conformance/matrix.md
#   make rules           torch's own samples under the rules for CUDA
#   make cuda-tests      PyTorch's own CUDA tests, in SOURCES=dir, under the alias; writes a page
#   make truth           npusim's recording of itself, whole, twice, one interrupted; contributed recordings
#   make triton          Triton's kernels through its interpreter: its tutorials, and defects that the check finds
#   make wheels          sdists and wheels of every distribution, in dist/
#   make wheels-test     dist/ in a fresh environment; TORCH_FROM=.venv spares it torch's download
#   make parallel        Trainer, Lightning, accelerate and torchtitan under launchers; pairs of collectives
#   make browser         HTML reports, and a model in ONNX, in a headless Chromium (chromium, chromium-driver, npm)
#   make docs            the documentation site, in build/docs/html; a warning is an error
#   make notebooks       the lessons of the course as notebooks, in build/notebooks
#   make docs-test       the site in a headless Chromium: links, search, console, phone, dark
#   make pictures        the pictures of the site's first page, each by its command (chromium)
#   make dask            sweeps of `npusim fit` on workers of dask, one of which dies
#   make hta             HolisticTraceAnalysis over a trace of npusim's
#   make pages           code blocks of README and docs/, as typed; those too that compile or start processes
#   make foreign         the kit on backends of others in SOURCES=dir, cloned if missing; writes a scoreboard
#   make new-backend     `npusim-conformance new-backend`, its six steps: built, tested, and asked by the kit
#   make nightly         what is too long for every commit; ONLY=parallel runs what contains that word
#   make matrix          other versions of torch and Python, other machines: CELLS=2.15.0-py311
#   make clean           everything but .venv
#   make help            these lines

PYTHON ?= $(or $(shell command -v python3.11),$(shell command -v python3),python3)
JOBS ?= $(shell nproc)
# Of pytest: tests often wait for their children.
WORKERS ?= $(shell expr $(JOBS) + 1)
# The torch of a new environment: `make TORCH=2.15.0`.
TORCH ?= $(patsubst torch==%,%,$(shell grep '^torch==' requirements.txt))
PYTEST_ARGS ?=
# A test without an end stops its worker, which prints where each thread stands; xdist names the test.
LIMITED := --timeout 900 --timeout-method thread

VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
CORE := $(VENV)/.core-installed
ENVIRONMENT := $(VENV)/.requirements-installed
INSTALLED := $(VENV)/.editable-installed
ALL_INSTALLED := $(VENV)/.all-installed
CORE_PACKAGES := cmake joblib narwhals ninja numpy scikit-learn scipy setuptools threadpoolctl tqdm \
                 wheel
OTHERS := lab conformance truth course
PIP := $(PY) -m pip --quiet --disable-pip-version-check
NATIVE := -G Ninja -DNPUSIM_PYTHON=$(CURDIR)/$(PY) -DNPUSIM_BUILD_TORCH=OFF

export PATH := $(CURDIR)/$(BIN):$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
# Hundreds of children import the same modules: without bytecode each would compile them.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all lint format build asan tsan races sweeps search bench conformance rules cuda-tests wheels wheels-test browser dask docs docs-test notebooks pictures new-backend pages parallel triton truth hta nightly matrix foreign clean help
.DEFAULT_GOAL := build
.DELETE_ON_ERROR:

# First what the demo needs: building torch_npusim._C and running the example. Tests, linters and the
# frameworks of the integrations come when a target asks for them. requirements.txt pins both.
$(CORE): requirements.txt
	@$(PYTHON) tools/check_env.py
	@echo "== $(VENV) with torch, the one large download (once)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install torch==$(TORCH)
	@echo "== packages to build and to run the demo: $(CORE_PACKAGES)"
	@$(PIP) install $(foreach name,$(CORE_PACKAGES),$$(grep '^$(name)==' requirements.txt))
	@touch $@

$(ENVIRONMENT): $(CORE)
	@echo "== packages for tests, linters and integrations (once)"
	@grep -v '^torch==' requirements.txt > $(VENV)/requirements.txt
	@# Of 13,000 modules the tests import few, which are compiled then.
	@$(PIP) install --no-compile -r $(VENV)/requirements.txt
	@touch $@

# setup.py runs CMake where its progress can be seen, then pip has only to register the package;
# from then on ninja alone knows what is out of date.
$(INSTALLED): $(CORE) setup.py pyproject.toml
	@echo "== compiling torch_npusim._C ($(JOBS) jobs), and editable install"
	@$(PY) setup.py --quiet build_ext --inplace
	@$(PIP) install --no-build-isolation --no-deps -e .
	@touch $@

$(ALL_INSTALLED): $(ENVIRONMENT) $(INSTALLED) lab/setup.py $(OTHERS:=/pyproject.toml)
	@echo "== npusim-lab, npusim-conformance, npusim-truth and npusim-course"
	@$(PIP) install --no-build-isolation --no-deps $(addprefix -e ,$(OTHERS))
	@touch $@

build: $(ALL_INSTALLED)
	@echo "== everything, native tests too"
	@cmake --build build/release

demo: $(INSTALLED)
	@cmake --build build/release --target _C
	@echo "== training"
	@$(PY) examples/train_digits.py --device npusim

# Of tests that cost much, another part at each commit (tests/parts.toml).
test: SELECTION := --part
test-all: export NPUSIM_TEST_SECONDS = build/seconds.json
test test-all: build
	@echo "== native tests"
	@ctest --test-dir build/release --output-on-failure -j $(JOBS)
	@echo "== smoke test"
	@$(PY) -m pytest tests/test_tiny.py $(PYTEST_ARGS)
	@echo "== tests ($(WORKERS) workers, a file at a time)"
	@$(PY) -m pytest tests -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(SELECTION) \
	  $(LIMITED) $(PYTEST_ARGS) || { \
	  echo "== what failed, alone: what passes now depends on its neighbours or on the load,"; \
	  echo "   which is a defect of that test; build/tests-alone.txt names it"; \
	  NPUSIM_TEST_SECONDS= NPUSIM_TESTS_ALONE=build/tests-alone.txt \
	    $(PY) -m pytest tests -rA --last-failed --last-failed-no-failures none $(LIMITED) $(PYTEST_ARGS); }
	@$(if $(SELECTION)$(PYTEST_ARGS),,$(PY) tests/budgets.py $$NPUSIM_TEST_SECONDS)

CPP = $(sort $(foreach layer,backend allocator lab csrc torch_npusim examples tests/native tools/bench tools/cuda_allocator tests/conformance,\
        $(shell find $(layer) -name '*.h' -o -name '*.cpp')))
TIDY = $(sort $(wildcard backend/*.cpp allocator/*.cpp allocator/placement/*.cpp lab/engine/*.cpp))

# clang-tidy reads backend/, allocator/ and lab/engine/ only: they need no torch header, so it takes seconds.
lint: $(ENVIRONMENT)
	@echo "== clang-format"
	@clang-format --dry-run -Werror $(CPP)
	@echo "== clang-tidy"
	@cmake -S . -B build/lint $(NATIVE) -DNPUSIM_UNITY=OFF > /dev/null
	@printf '%s\n' $(TIDY) | xargs -P $(JOBS) -n 1 \
	  clang-tidy --quiet -p build/lint --extra-arg=-Wno-unused-command-line-argument
	@echo "== ruff"
	@ruff check --quiet .
	@ruff format --check --quiet .
	@echo "== mypy"
	@mypy --no-error-summary torch_npusim torch_npusim_common torch_npusim_entry_points lab/npusim_lab \
	  conformance/npusim_conformance course/npusim_course truth/npusim_truth examples claims tools/build_wheels.py tools/try_wheels.py
	@echo "== import-linter"
	@PYTHONPATH=.:lab:conformance:truth:course lint-imports --no-cache > build/imports.txt || { cat build/imports.txt; exit 1; }
	@echo "== sentences, comments and sizes of files"
	@$(PY) -m pytest -q --noconftest $(addprefix tests/repo/test_,sentences.py files.py comments.py)
	@echo "== lint is clean"

format: $(ENVIRONMENT)
	@clang-format -i $(CPP)
	@ruff check --quiet --fix .
	@ruff format --quiet .

asan tsan: sanitizer = $(if $(filter asan,$@),address,thread)
tsan: export NPUSIM_STRESS_SECONDS ?= 20
asan tsan: $(ENVIRONMENT)
	@cmake -S . -B build/$@ $(NATIVE) -DNPUSIM_SANITIZE=$(sanitizer) > /dev/null
	@cmake --build build/$@
	@ctest --test-dir build/$@ --output-on-failure -j $(JOBS)

# Tests that race on purpose say so themselves.
races: export NPUSIM_RACES = error
races: build
	@$(PY) -m pytest tests -n $(JOBS) --dist loadfile $(PYTEST_ARGS)
	@$(PY) examples/train_digits.py --device npusim

# What `make test` leaves out, or samples: tests/conftest.py.
browser dask docs-test hta new-backend pages parallel sweeps triton truth: export NPUSIM_TESTS = $@

# `make test` takes one operator in twelve.
sweeps: build
	@$(PY) -m pytest tests/races/test_accesses.py tests/alias/test_no_race.py \
	  tests/ops/test_faults_everywhere.py tests/profiling/test_dry_operators.py \
	  tests/inside/test_dispatch.py -n $(JOBS) $(PYTEST_ARGS)

search: build
	@$(PY) tests/search/run.py --seconds $(or $(SECONDS),600) --seed $(or $(SEED),0)

bench: build
	@for bench in build/release/*_bench; do echo "== $$bench"; $$bench || exit 1; done
	@echo "== the allocator laboratory"
	@$(PY) tools/bench/lab.py --json build/bench/lab.json
	@echo "== npusim beside the CPU backend"
	@$(PY) tools/bench/run.py --json build/bench/results.json --page docs/reference/performance.md

conformance: build
	@npusim-conformance run --device npusim --expect tests/conformance/npusim.toml --profile full \
	  --out build/conformance
	@npusim-conformance report build/conformance --format matrix --output build/conformance/matrix.md

foreign: build
	@$(PY) tools/pages/foreign.py "$(SOURCES)" --page --defects

cuda-tests: build
	@$(PY) tools/cuda_tests/run.py "$(SOURCES)" --page

wheels: $(ENVIRONMENT)
	@$(PY) tools/build_wheels.py --out dist

wheels-test: $(ENVIRONMENT)
	@$(PY) tools/try_wheels.py dist $(if $(TORCH_FROM),--torch-from $(TORCH_FROM))

# Every sample that torch has, under the rules for CUDA.
rules: build
	@$(PY) tests/rules/op_db_run.py

# In a folder of its own, for this target alone; its packages bring no other torch.
TITAN := build/titan/torchtitan-0.1.0.dist-info
$(TITAN): $(ENVIRONMENT) tests/distributed/titan.txt
	@$(PIP) install --no-deps --upgrade --target build/titan -r tests/distributed/titan.txt

parallel: build $(TITAN)
	@$(PY) -m pytest tests/distributed/test_launched.py tests/distributed/test_orders.py $(PYTEST_ARGS)

# In a folder of its own: packages that nothing else needs, and no other torch.
DOCS := build/docs-env
$(DOCS)/.installed: $(ENVIRONMENT) docs/requirements.txt
	@$(PIP) install --no-deps --upgrade --target $(DOCS) -r docs/requirements.txt
	@touch $@

# The browser's ONNX runtime comes from npm.
ONNX_WEB := build/onnx-web/node_modules/onnxruntime-web
$(ONNX_WEB):
	@npm install --no-audit --no-fund --ignore-scripts --prefix build/onnx-web onnxruntime-web@1.30.0

browser: build $(DOCS)/.installed $(ONNX_WEB)
	@$(PY) -m pytest tests/browser $(PYTEST_ARGS)

docs: build $(DOCS)/.installed
	@rm -rf build/docs
	@PYTHONPATH=$(CURDIR)/$(DOCS) $(PY) -m sphinx -W --keep-going -q -j $(JOBS) -d build/docs/doctrees \
	  docs build/docs/html
	@echo "== build/docs/html/index.html"

notebooks: build $(DOCS)/.installed
	@PYTHONPATH=$(CURDIR)/$(DOCS) $(PY) tools/pages/notebooks.py build/notebooks

docs-test: docs
	@$(PY) -m pytest tests/site $(PYTEST_ARGS)

pictures: build
	@$(PY) tools/pages/door_pictures.py

# In an environment of its own: without the notebook server that the package asks for, and without
# torch, which reads no trace.
HTA := build/hta
$(HTA)/.installed: tests/hta/requirements.txt
	@$(PYTHON) -m venv $(HTA)
	@$(HTA)/bin/python -m pip --quiet --disable-pip-version-check install --no-deps -r $<
	@touch $@

hta: build $(HTA)/.installed
	@HTA_PYTHON=$(CURDIR)/$(HTA)/bin/python $(PY) -m pytest tests/hta $(PYTEST_ARGS)

pages: build
	@$(PY) -m pytest tests/repo/test_pages.py $(PYTEST_ARGS)

new-backend: build
	@$(PY) -m pytest -s tests/new_backend $(PYTEST_ARGS)

# In a folder of its own: torch asks whether Triton is there, and does other things then.
TRITON_PIN := $(shell grep '^triton==' docs/requirements.txt)
TRITON := build/triton/$(subst ==,-,$(TRITON_PIN)).dist-info
$(TRITON): $(ENVIRONMENT)
	@$(PIP) install --no-deps --target build/triton $(TRITON_PIN)

triton: build $(TRITON)
	@TRITON_INTERPRET=1 PYTHONPATH=build/triton $(PY) -m pytest tests/triton_kernels $(PYTEST_ARGS)

dask: build
	@$(PY) -m pytest tests/on_dask $(PYTEST_ARGS)

truth: build
	@$(PY) -m pytest -s tests/truth $(PYTEST_ARGS)

# Each cell in a clone and an environment of its own; a cell with a result of this commit is left out.
matrix: $(CORE)
	@$(PY) tools/matrix.py run $(CELLS)

nightly: build
	@$(PY) tools/nightly.py $(ONLY)

clean:
	rm -rf build dist *.egg-info lab/build $(OTHERS:=/*.egg-info)
	rm -f $(INSTALLED) $(ALL_INSTALLED) torch_npusim/*.so lab/npusim_lab/*.so

help:
	@sed -n 's/^#   //p' Makefile
