# `make` lists the targets. Everything is built into .venv and build/; nothing of the system changes, except that as
# root missing Debian packages are installed (.ci/install).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Container images set this, and each of the hundreds of programs that the tests start would compile all of vmpin.
unexport PYTHONDONTWRITEBYTECODE

# Processes that share the tests, on two cores: more than half of most tests is waiting.
JOBS := 6
# In CI a failed test is made once more, and one that hangs is ended, with each thread's stack in its report: no test
# takes a quarter of these seconds on a busy machine, but for the node's, which has deadlines of its own.
CI_ONLY := --reruns 1 --timeout 1200 --timeout-method signal -raR

# How `make worth` measures.
WORTH := --rounds 8

# What the tests run, as what has to be there and the Debian package that brings it. What Debian always has
# (coreutils, util-linux) is not named. tests/unit/packaged/test_packaging.py holds this against the tests.
TEST_NEEDS := strace=strace qemu-system-x86_64=qemu-system-x86 crun=crun runc=runc podman=podman conmon=conmon \
	busybox=busybox-static gcc=gcc /usr/include/stdio.h=libc6-dev /usr/bin/python3=python3 git=git \
	ip=iproute2 tc=iproute2 openssl=openssl bash=bash zsh=zsh fish=fish mandoc=mandoc tmux=tmux
# What the lab, the tests with guests and those before a release need besides. virtiofsd comes with Debian 12's
# qemu-system-x86; the QEMU that emulates the node and the guests is the node's own.
LAB_NEEDS := debootstrap=debootstrap modprobe=kmod rpm=rpm rpmbuild=rpm
# Whose package would start a server: its files are only unpacked.
UNPACKED := build/unpacked
UNPACKED_NEEDS := promtool=prometheus
# Where `make bench-peers` installs the other programs, the packages of its libvirt, and its options.
PEERS_HOME := build/peers
PEERS_LIBVIRT := libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients
PEERS :=

.DEFAULT_GOAL := help
.PHONY: help venv demo worth check test test-lab test-cluster test-all lab-shell soak lint bench bench-peers guest wheel image \
	release lock clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(STAMP) ## make .venv with vmpin and what its development needs

# A venv that was left half made is made again. Debian keeps ensurepip in a package of its own.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is missing or older than 3.11: give another, as in make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || .ci/install --must ensurepip=python3-venv
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@.ci/logged "installing vmpin and the tools of its development into $(VENV)" \
		$(BIN)/python -m pip install --editable '.[dev]'
	@touch $@

demo: venv ## pin a real virtual machine, here and now, and show it
	@needs=$$($(BIN)/vmpin demo --needs) && .ci/install $$needs
	@$(BIN)/vmpin demo

worth: venv ## measure what pinning is worth here, into build/worth.txt and .svg (root); WORTH="--rounds 2" for less
	@needs=$$($(BIN)/vmpin demo --needs) && .ci/install $$needs
	@mkdir -p build
	@rm -f build/worth.txt build/worth.svg # of an earlier run: there may be no verdict now
	@$(BIN)/vmpin demo --noise --svg build/worth.svg $(WORTH) >build/worth.new
	@mv build/worth.new build/worth.txt
	@cat build/worth.txt

test: venv ## run the tests; with CI=true as root also those with guests, a node and a cluster, and install what they need
	@if [ "$$CI" = true ]; then .ci/install $(TEST_NEEDS) $(LAB_NEEDS) && \
			.ci/install --unpack $(UNPACKED) $(UNPACKED_NEEDS); \
		else .ci/install --dry-run $(TEST_NEEDS); \
			echo "left out: guests, a node and a cluster (CI=true runs them, too, as root), long stories (make" \
				"test-all); why a test is skipped stands at the end"; fi
	@# Else each process that runs tests does it.
	@[ -d tests/__pycache__ ] || .ci/logged "compiling the tests" \
		$(BIN)/python -m pytest tests --collect-only -qq
	@$(BIN)/python -m pytest tests -m '$(if $(filter true,$(CI)),not release,not lab and not guest and not cluster and not release)' \
		-n $(JOBS) --dist loadfile --no-loadscope-reorder $(if $(filter true,$(CI)),$(CI_ONLY))

test-lab: venv ## boot every node and test in it: two hours (root); LAB="--kernel 6.1 -- -k reconcile" for just that
	@if [ "$$CI" = true ]; then .ci/install $(TEST_NEEDS) $(LAB_NEEDS); \
		else .ci/install --dry-run $(TEST_NEEDS) $(LAB_NEEDS); fi
	$(if $(LAB),PYTHONPATH=tests $(BIN)/python -m lab run $(LAB),$(BIN)/python -m pytest tests/lab -m lab)

test-cluster: venv ## ask an API server of Kubernetes' own libraries, and Helm's engine: a minute, once built
	$(BIN)/python -m pytest tests/cluster tests/bench -m 'cluster and not release' -n $(JOBS) --dist loadfile

test-all: venv ## what CI runs and what it leaves out: every node, long stories (root, hours; before a release)
	$(MAKE) test CI=true
	CI=true $(BIN)/python -m pytest tests -m release
	$(MAKE) soak CI=true

lab-shell: venv ## a shell in a node (root); LAB="--kernel 6.1" for another one
	@PYTHONPATH=tests $(BIN)/python -m lab shell $(LAB)

soak: venv ## let random things happen to a watcher for ten minutes (root); SOAK="--seconds 60 --seed 7"
	@if [ "$$CI" = true ]; then .ci/install $(TEST_NEEDS); else .ci/install --dry-run $(TEST_NEEDS); fi
	PYTHONPATH=tests $(BIN)/python -m soak $(SOAK)

check: lint test ## lint, then the tests: before a push

# Some commits from before this have longer subjects than CONTRIBUTING.md allows.
SUBJECTS_SINCE := 2026-11-25T20:30Z

lint: venv ## ruff, mypy --strict, shellcheck, commit subjects
	@if [ "$$CI" = true ]; then .ci/install --must shellcheck=shellcheck; fi
	$(BIN)/ruff check
	$(BIN)/mypy
	@if command -v shellcheck >/dev/null; then shellcheck .ci/run .ci/install .ci/logged tests/lab/init \
			tests/lab/initramfs-init tests/lab/guest-init guest/prestart/vmpin-agent; \
		else echo "shellcheck is not installed: left out"; fi
	@if [ -e .git ]; then git log --no-merges --since=$(SUBJECTS_SINCE) --format='%h %s' 2>/dev/null | \
		awk 'length($$0) - index($$0, " ") > 60 { print "the subject has more than 60 characters: " $$0; bad = 1 } \
			END { exit bad }'; fi

bench: venv ## measure speed into build/bench.json (root)
	$(BIN)/python tests/bench/run.py -o build/bench.json

bench-peers: venv ## measure beside other programs, into build/peers.json (root); PEERS="--only masks -o markdown"
	@[ -x $(PEERS_HOME)/venv/bin/qemu-affinity ] || { $(PYTHON) -m venv $(PEERS_HOME)/venv && \
		$(PEERS_HOME)/venv/bin/pip install --quiet qemu-affinity; } || echo "qemu-affinity cannot be installed" >&2
	@[ -x $(PEERS_HOME)/debian/usr/sbin/libvirtd ] || \
		.ci/install --unpack $(PEERS_HOME)/debian --needed $(PEERS_LIBVIRT) || echo "libvirt cannot be unpacked" >&2
	@PYTHONPATH=tests/bench $(BIN)/python -m peers --tools $(PEERS_HOME) --file build/peers.json $(PEERS)

guest: venv ## build the guest's agent, build/vmpin-agent.pyz
	$(BIN)/vmpin guest build -o build/vmpin-agent.pyz

wheel: venv ## build the wheel into dist/
	@rm -f dist/vmpin-*.whl
	$(BIN)/python -m build --no-isolation --wheel

image: wheel ## build the container images into build/, as OCI archives (root)
	@.ci/install --must debootstrap=debootstrap
	$(BIN)/python config/image.py --wheel dist/vmpin-*.whl -o build

release: venv ## everything that is published, into build/release (root); RELEASE="--only deb" for less
	@.ci/install --must debootstrap=debootstrap rpmbuild=rpm
	@$(BIN)/python -m pip install --quiet --editable '.[release]'
	$(BIN)/python config/release.py -o build/release $(RELEASE)

lock: venv ## write the lock files of what is installed on nodes, config/requirements*.txt, anew
	@$(BIN)/python -m pip install --quiet --editable '.[release]'
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
		--no-emit-index-url --upgrade pyproject.toml -o config/requirements.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
		--no-emit-index-url --upgrade --extra kubernetes --constraint config/requirements.txt pyproject.toml \
		-o config/requirements-kubernetes.txt

clean: ## remove what was built and cached, but not .venv
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find guest hooks tests vmpin -name __pycache__ -prune -exec rm -rf {} +
