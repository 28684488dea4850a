# The verbs of this repository. Each makes its own environment in .venv and needs nothing but
# Python 3.11 or newer and a package index.
.DELETE_ON_ERROR:
.PHONY: check serve test lint types format-check fix docs bench bench-node bench-cluster bench-coordinators bench-pipeline \
	conformance sim nemesis bank soak raftos spark clean

ifndef PYTHON
PYTHON := $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
endif
export PYTHON
BIN := .venv/bin
PIP = $$(cat .venv/.pip) --quiet --disable-pip-version-check
ARGS ?=

check: format-check lint types test

# Without a pip of its own: to unpack one takes as long as a third of everything else. Where PYTHON has none
# either, the environment gets one.
.venv/.pip:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; name one with PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv --without-pip .venv
	@if $(PYTHON) -c 'import pip, sys; sys.exit(int(pip.__version__.split(".")[0]) < 23)' 2>/dev/null; \
		then echo "$(PYTHON) -m pip --python $(BIN)/python install" >$@; \
		else $(PYTHON) -m venv .venv && echo "$(BIN)/python -m pip install" >$@; fi

# What pyproject.toml lists, and nothing is built. A process that dies is back once its successor has read its
# modules: half a second sooner if somebody has compiled them, which Python is often told not to do by itself.
.venv/.dependencies: .venv/.pip pyproject.toml
	@$(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
		>.venv/requirements.txt
	$(PIP) --no-compile --requirement .venv/requirements.txt
	$(BIN)/python -m compileall -q -j 0 -x /pygments/ .venv/lib protocol storage cluster coordinator node
	@touch $@

# What setup.py compiles. An installation compiles anew; without a C compiler it does not fail.
COMPILED := protocol/message_converter.py protocol/record_walker.py pipeline/wire/record_decoder.py setup.py

.venv/.built: .venv/.pip pyproject.toml $(COMPILED)
	PIP_COMPILE=0 $(PIP) --no-deps --editable .
	@touch $@

# Beside each other: both are busy with one processor most of the time.
.venv/.serve: .venv/.pip pyproject.toml $(COMPILED)
	@$(MAKE) --no-print-directory -j 2 .venv/.dependencies .venv/.built
	@touch $@

.venv/.test: .venv/.serve
	$(PIP) 'odradek[test]'
	@touch $@

# What the tests of the data pipeline need besides: its extras, and Spark's stock Kafka connector where
# there is Maven.
EXTRAS := spark,delta,iceberg,avro
CONNECTOR := .venv/spark-kafka-jars

.venv/.spark: .venv/.test
	$(PIP) 'odradek[test,$(EXTRAS)]'
	@touch $@

$(CONNECTOR): tests/e2e/spark/connector/pom.xml
	@! command -v mvn >/dev/null || { mvn -q -B -f $< dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/$@ >.venv/mvn.log \
		&& touch $@; } || { rm -rf $@; echo "The stock connector could not be fetched: its tests will be skipped"; }

# An environment of its own: raftos stays out of every other one. uv, because pip cannot override the
# pins that raftos comes with.
.venv/raftos/.made: .venv/.pip pyproject.toml
	$(PIP) uv
	$(PYTHON) -m venv .venv/raftos
	$(BIN)/uv pip install --quiet --python .venv/raftos/bin/python --editable '.[test]' --group raftos
	@touch $@

serve: .venv/.serve
	$(BIN)/odradek serve $(ARGS)

test: .venv/.test
	$(BIN)/python -m pytest -o faulthandler_timeout=300 $(ARGS)

# All tests of the data pipeline, of which make test skips the slow ones. make spark KILL_ROUNDS=20: as many rounds of SIGKILL.
spark: .venv/.spark $(CONNECTOR)
	SPARK_TESTS=all SPARK_KAFKA_JARS=$(CURDIR)/$(CONNECTOR) $(if $(KILL_ROUNDS),KILL_ROUNDS=$(KILL_ROUNDS)) \
		$(BIN)/python -m pytest -o faulthandler_timeout=300 tests/pipeline tests/e2e/spark $(ARGS)

# make conformance NODES=3: against three nodes, with three replicas of everything; RESTARTS=1
# restarts them in turn meanwhile. ETL_RECORDS=50000: as many records through franz-go's groups.
conformance: .venv/.test
	$(if $(NODES),CONFORMANCE_NODES=$(NODES)) $(if $(RESTARTS),CONFORMANCE_RESTARTS=$(RESTARTS)) \
		$(BIN)/python -m pytest tests/conformance $(ARGS)

# make sim RUNS=1000: so many schedules of a quorum and so many of a whole cluster; or make sim
# SEED=4711 for the run that a failure named.
sim: .venv/.test
	SIM_RUNS=$(or $(RUNS),$(if $(SEED),1,1000)) $(if $(SEED),SIM_SEED=$(SEED)) \
		$(BIN)/python -m pytest tests/simulation -k "not planted" $(ARGS)

# make nemesis MINUTES=30, or make nemesis MINUTES=1 SEED=4711 for the round that a failure named;
# FAULTS=split,freeze_worker chooses among tests/e2e/nemesis.py's.
nemesis: .venv/.test
	NEMESIS_MINUTES=$(or $(MINUTES),10) $(if $(SEED),TEST_SEED=$(SEED)) \
		NEMESIS_FAULTS=$(FAULTS) $(BIN)/python -m pytest tests/e2e/test_nemesis.py \
		-k any_order $(ARGS)

# make bank MINUTES=5: eight banks and eight auditors while processes and nodes are killed; SEED
# for the kills of a run that failed.
bank: .venv/.test
	TEST_BANK_MINUTES=$(or $(MINUTES),5) $(if $(SEED),TEST_SEED=$(SEED)) \
		$(BIN)/python -m pytest tests/e2e/test_bank.py $(ARGS)

# make soak MINUTES=60: clients of every kind under the nemesis, with the memory and the descriptors of
# each process at the end; SEED for the faults of a run that failed, FAULTS to choose among them.
soak: .venv/.test
	SOAK_MINUTES=$(or $(MINUTES),60) $(if $(SEED),TEST_SEED=$(SEED)) NEMESIS_FAULTS=$(FAULTS) \
		$(BIN)/python -m pytest -s tests/e2e/test_soak.py $(ARGS)

# Stock raftos and our Raft core in the same scenarios (docs/adr/0001-raft.md).
raftos: .venv/raftos/.made
	.venv/raftos/bin/python -m pytest tests/raft_comparison $(ARGS)

format-check: .venv/.test
	$(BIN)/ruff format --check .

lint: .venv/.test
	$(BIN)/ruff check .

types: .venv/.spark
	$(BIN)/mypy

fix: .venv/.test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: .venv/.test
	$(BIN)/python -m tests.support.compatibility_page docs/compatibility.md
	$(BIN)/python -m tests.support.metrics_page docs/metrics.md
	$(BIN)/python -m tests.support.chart_readme helm/odradek/README.md
	$(BIN)/python -m tests.support.monitoring helm/odradek/files/alert-rules.yaml
	$(BIN)/python -m tests.support.dashboard helm/odradek/files/dashboard.json

# Each exits with 1 if a figure falls short of what bench/promises.py promises, and names it.
bench: .venv/.test
	$(BIN)/python -m bench.side_by_side $(ARGS)

bench-node: .venv/.test
	$(BIN)/python -m bench.one_node $(ARGS)

bench-cluster: .venv/.test
	$(BIN)/python -m bench.three_nodes $(ARGS)

bench-coordinators: .venv/.test
	$(BIN)/python -m bench.coordinators $(ARGS)

bench-pipeline: .venv/.spark $(CONNECTOR)
	SPARK_KAFKA_JARS=$(CURDIR)/$(CONNECTOR) $(BIN)/python -m bench.pipeline $(ARGS)

clean:
	rm -rf protocol/*.so .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
