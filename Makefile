# The same words for people and CI. Needs Python 3.11 or newer; everything else comes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROTO := proto/linkwise/plugin/kubelet
# Demo and tests start hundreds of programs, so Python keeps its bytecode whatever the shell says.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test e2e beside cluster empty-cluster check site proto manifests lock clean

# One stamp per kind of set-up: `make demo` needs only what users install.
$(VENV)/.run: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[simulator]'
	touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.run
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

$(VENV)/.site: pyproject.toml $(VENV)/.run
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[site]'
	touch $@

demo: $(VENV)/.run
	$(BIN)/python -m linkwise.simulator --report demo-report/demo.html examples/*.yaml
	$(BIN)/python -m linkwise.simulator --moves --no-baseline --node gpu-1=dgx-a100 --node gpu-2=dgx-a100 examples/moves/*.yaml

# More workers than a small machine has cores: half of the time, tests wait for leases and programs.
test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 4 --dist worksteal

# On a real Kubernetes, built here: needs Linux, root, Go and some Debian packages, and says which.
e2e: $(VENV)/.dev
	$(BIN)/python -m tests.cluster test

# On the same, beside the real controllers of operators, which are built here too.
# `make beside WITH=jobset,kueue` runs only what needs no others.
beside: $(VENV)/.dev
	$(BIN)/python -m tests.cluster beside $(if $(WITH),--with=$(WITH))

# A shell with kubectl on such a cluster, Linkwise installed; everything is gone when it ends.
cluster: $(VENV)/.dev
	$(BIN)/python -m tests.cluster shell

# The same without Linkwise, to install it there by hand.
empty-cluster: $(VENV)/.dev
	$(BIN)/python -m tests.cluster shell --empty

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# docs/ as a site, in site/. A link that leads nowhere, or a page outside of mkdocs.yml, ends it.
site: $(VENV)/.site
	$(BIN)/mkdocs build --strict

proto: $(VENV)/.dev
	$(BIN)/python -m grpc_tools.protoc -I proto \
	  --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy \
	  --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc \
	  --python_out=plugin --grpc_python_out=plugin --mypy_out=plugin --mypy_grpc_out=plugin \
	  $(PROTO)/deviceplugin.proto $(PROTO)/podresources.proto

# What kubectl applies, from the chart; `make e2e` compares. Needs Go, of which helm is built.
manifests: $(VENV)/.dev
	$(BIN)/python -m tests.cluster manifests

# The packages of the image and of krew's archives, pinned by hash; `rm daemonset/*.lock krew/*.lock`
# first to take newer ones.
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest \
  --generate-hashes --no-annotate --custom-compile-command "make lock"

lock: $(VENV)/.dev
	$(LOCK) -o daemonset/requirements.lock pyproject.toml
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
	  | $(LOCK) -o daemonset/build.lock -
	$(LOCK) --extra krew -c daemonset/requirements.lock -c daemonset/build.lock \
	  -o krew/requirements.lock pyproject.toml

clean:
	rm -rf $(VENV) demo-report dist build site
