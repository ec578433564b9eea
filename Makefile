# Two commands for a fresh machine with Python 3.11 or 3.12, git and make: `make demo` and `make test`.
#   make setup [GPU=1]              install the locked packages into .venv (GPU=1: with CUDA libraries)
#   make demo                       Fashion-MNIST through every configuration of params.yaml
#   make demo DATA=photos [PHOTOS=DIR]   JPEG photos, cut from Debian's wallpapers or your own class folders
#   make demo DATA=imagenet [PHOTOS=DIR] photos as ImageNet is trained: random resized crops, evaluated on the center
#   make demo DATA=mails [MAILS=DIR]     6,046 mails, spam and ham, or your own class folders of texts
#   make demo STORE=s3              Fashion-MNIST from a bucket, prepared into it, in an S3 store of this machine
#   make ui [UI=--help]             Prefect server, worker with the deployments, and MLflow, until Ctrl-C
#   make stack [STACK=--help]       the same on Postgres and an S3 store, with passwords, until Ctrl-C
#   make quick | test               unit tests · with pipelines and trainings
#   make test-core | nightly        whole programs, as in CI · browsers, kills, planted faults, fuzz
#   make check | bench              formatting, lint and types · benchmarks
#   make mutations [MUTATIONS=--help]   plant faults in a copy and see that the tests catch them
#   make fuzz [SECONDS=60] [SEED=N]   mutated input for every parser
#   make audit                      ask the vulnerability database about every locked package
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
UV := 0.13.8
# What was set up for a GPU stays so.
GPU ?= $(if $(wildcard .venv/.ready1),1)
override GPU := $(if $(filter-out 0 no false,$(GPU)),1)
DATA ?= fashion_mnist
SECONDS ?= 60
BUDGET ?= full
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: setup demo ui stack quick test test-core test-all nightly check bench mutations fuzz audit
setup: .venv/.ready$(GPU)

.venv/.ready$(GPU): pyproject.toml whowaits/pyproject.toml uv.lock
	@test -x .venv/bin/uv || .venv/bin/python -c "import pip" 2>/dev/null || { echo "setup 1/3: making .venv with $$($(PYTHON) --version)"; $(PYTHON) -m venv --clear .venv; }
	@test -x .venv/bin/uv || { echo "setup 2/3: installing uv $(UV)"; .venv/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV); }
	@echo "setup 3/3: installing $$(grep -c '^name = ' uv.lock) locked packages, about 3 GB on disk; a minute or several, by the network"
	@.venv/bin/uv sync $$(test -t 2 || echo --quiet) --locked --compile-bytecode $(if $(GPU),--extra gpu)
	@rm -f .venv/.ready*
	@touch $@

OVERLAY.fashion_mnist.full :=
OVERLAY.fashion_mnist.small := --overlay infra/demo/small.yaml --name small
OVERLAY.photos.full := --overlay infra/demo/photos.yaml --name photos
OVERLAY.imagenet.full := --overlay infra/demo/imagenet.yaml --name imagenet
OVERLAY.mails.full := --overlay infra/demo/mails.yaml --name mails
OWN := $(PHOTOS)$(MAILS)
# Other commands ignore variables of these names, which the environment may have.
ifneq ($(filter demo,$(MAKECMDGOALS)),)
ifeq ($(origin OVERLAY.$(DATA).$(BUDGET)),undefined)
$(error there is no demo of DATA=$(DATA) BUDGET=$(BUDGET): DATA is fashion_mnist, with BUDGET full or small, or photos, imagenet or mails)
endif
ifneq ($(STORE),)
ifneq ($(STORE) $(DATA) $(OWN),s3 fashion_mnist )
$(error STORE can only be s3, whose demo is Fashion-MNIST: leave out DATA, PHOTOS and MAILS)
endif
endif
ifneq ($(if $(PHOTOS),$(filter-out photos imagenet,$(DATA)))$(if $(MAILS),$(filter-out mails,$(DATA))),)
$(error PHOTOS=DIR goes with DATA=photos or DATA=imagenet, MAILS=DIR with DATA=mails)
endif
endif
# Puts the data into the store's bucket; then runs what follows.
IN_STORE.s3 := python -m infra.local store -- sh -ec 'dvc repro fetch; python -m tasks.upload data/raw/fashion_mnist s3://data/raw; exec "$$@"' demo
FROM_STORE.s3 := --set data.fetch=none --set data.path=s3://data/raw --set storage.url=s3://data/prepared --name s3
demo: setup
	$(IN_STORE.$(STORE)) python -m flows.comparison $(OVERLAY.$(DATA).$(BUDGET)) $(FROM_STORE.$(STORE)) $(if $(OWN),--set data.fetch=none --set data.path="$$(realpath "$(OWN)")")
	@echo
	@echo "Where to look:"
	@echo "  UIs         make ui: Prefect, with this run and a form to start the next one, and MLflow"
	@echo "  DVC         $(if $(findstring --name,$(OVERLAY.$(DATA).$(BUDGET)) $(FROM_STORE.$(STORE))),,.venv/bin/dvc metrics show · ).venv/bin/dvc exp show · .venv/bin/dvc dag"

ui: setup
	@python -m flows.ui $(UI)

stack: setup
	@python -m infra.local up $(STACK)

# Lanes of tests (docs/testing.md); PYTEST= adds options of pytest, such as PYTEST="-x -k shard".
quick test test-core test-all: setup
	python -m tests.run $@ $(if $(PYTEST),-- $(PYTEST))

nightly: setup # all that no lane of continuous integration runs
	@code=0; python -m tests.run nightly $(if $(PYTEST),-- $(PYTEST)) || code=1; \
	python -m tests.mutations.matrix || code=1; python -m tests.fuzz.fuzz_parsers --seconds 600 || code=1; exit $$code

# Checks the rendered manifests against Kubernetes' schemas; tests check those of JobSet and Kueue.
MANIFESTS = $(wildcard infra/kubernetes/base infra/kubernetes/overlays/*)
check: setup
	ruff format --check . && ruff check . && lint-imports --no-logo --no-cache && pyright
	python infra/reference.py --check
	@rendered=$$(cat infra/kubernetes/clone.yaml && for each in $(MANIFESTS); do echo ---; kubectl kustomize $$each || exit; done) \
	&& printf "%s\n" "$$rendered" | kubernetes-validate --kubernetes-version 1.34 --strict --quiet --no-warn -

bench: setup
	@grep -l '^if __name__ == "__main__":' benchmarks/*.py | xargs -r -n1 basename -s .py | xargs -r -I{} echo "python -m benchmarks.{} --help"

mutations: setup
	python -m tests.mutations.matrix $(MUTATIONS)

fuzz: setup
	python -m tests.fuzz.fuzz_parsers --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

audit: setup
	@uv export --quiet --locked --no-emit-workspace --format requirements-txt > .venv/locked.txt
	uvx pip-audit==2.10.1 --requirement .venv/locked.txt --disable-pip
