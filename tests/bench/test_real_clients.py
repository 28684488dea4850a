"""The cases with real clients: each client produces single records and tells its figures."""

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench import real_clients
from bench.brokers import Broker
from bench.cases import Bench
from bench.options import REPOSITORY
from tests.support.java import kafka_jars, why_no_java_tools

if TYPE_CHECKING:
    from odradek.node.embedded import EmbeddedBroker

TOLD = """\
5001 records sent, 1000.2 records/sec (0.10 MB/sec), 0.8 ms avg latency, 200.0 ms max latency.
10000 records sent, 1523.2 records/sec (0.15 MB/sec), 0.62 ms avg latency, 213.00 ms max latency, \
1 ms 50th, 2 ms 95th, 7 ms 99th, 40 ms 99.9th.
"""


def test_the_figures_of_kafkas_tool_are_those_of_the_whole_run() -> None:
    assert real_clients.told_by_java(TOLD) == {
        "records": 10_000,
        "records_per_second": 1523.2,
        "p50_ms": 1,
        "p99_ms": 7,
    }
    with pytest.raises(ValueError, match="no result: Exception"):
        real_clients.told_by_java("Exception in thread main")


def test_the_figures_of_kafkas_consumer_are_those_without_the_rebalance() -> None:
    fields = "2026-11-28 20:00:00:000, 2026-11-28 20:00:02:000, 95.4, 31.3, 1000000, 328000.0"
    told = f"WARNING: a line of the log\n{fields}, 310, 1690, 56.4, 591715.9\n"
    assert real_clients.told_by_java_consumer(told) == {
        "records": 1_000_000,
        "mb_per_second": 56.4,
        "records_per_second": 591715.9,
    }
    with pytest.raises(ValueError, match="no result: Exception, in"):
        real_clients.told_by_java_consumer("Exception, in thread main")


def broker_of(embedded: "EmbeddedBroker") -> Broker:
    port = int(embedded.bootstrap_servers.rpartition(":")[2])
    return Broker(name="Odradek", version="", port=port, pid=os.getpid(), start_seconds=0)


@pytest.mark.e2e
def test_a_producer_with_transactions_tells_its_figures(
    tmp_path: Path, kafka_broker: "EmbeddedBroker", monkeypatch: pytest.MonkeyPatch
) -> None:
    jars = kafka_jars()
    if jars is None:
        pytest.skip(why_no_java_tools())
    monkeypatch.setattr(real_clients, "TRANSACTIONAL_RECORDS", 1_000)
    cases = {case.name: case for case in real_clients.cases(jars, tmp_path)}
    bench = Bench(tmp_path, seconds=1)
    result = cases[real_clients.TRANSACTIONS].run(broker_of(kafka_broker), bench)
    assert result.value > 0


@pytest.mark.e2e
@pytest.mark.parametrize("name", real_clients.CONSUMER_ROWS)
def test_each_consumer_reads_a_topic_and_tells_its_figures(
    name: str, tmp_path: Path, kafka_broker: "EmbeddedBroker"
) -> None:
    jars = kafka_jars()
    if real_clients.JAVA_CONSUMER in name and jars is None:
        pytest.skip(why_no_java_tools())
    bench = Bench(tmp_path, seconds=0.2)
    if bench.load is None:
        pytest.skip("needs a C compiler")
    cases = {case.name: case for case in real_clients.consumers(jars or tmp_path)}
    result = cases[name].run(broker_of(kafka_broker), bench)
    assert result.value > 0
    assert result.cpu_us_per_record is not None


@pytest.mark.e2e
@pytest.mark.parametrize("client", real_clients.CLIENTS)
def test_each_client_produces_and_tells_its_figures(
    client: str, tmp_path: Path, kafka_broker: "EmbeddedBroker", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real_clients, "RECORDS", 100)
    jars = kafka_jars()
    if client == real_clients.JAVA and jars is None:
        pytest.skip(why_no_java_tools())
    if client == real_clients.FRANZ_GO and real_clients.build_franz_go(tmp_path) is None:
        pytest.skip("needs go on the PATH, and its modules")
    broker = broker_of(kafka_broker)
    bench = Bench(tmp_path, seconds=1)
    measured = []
    for case in real_clients.cases(jars or tmp_path, tmp_path):
        if case.name.startswith(client) and case.name != real_clients.TRANSACTIONS:
            result = case.run(broker, bench)
            assert result.value > 0
            assert result.p50_ms is not None
            assert result.p99_ms is not None
            assert result.p50_ms <= result.p99_ms
            measured.append(case.name)
    assert len(measured) == len(real_clients.IN_FLIGHT)


def test_a_client_that_cannot_be_had_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    names = [case.name for case in real_clients.cases(tmp_path, tmp_path)]
    assert names == [
        *(
            real_clients.case_name(client, in_flight)
            for client in (real_clients.JAVA, real_clients.LIBRDKAFKA)
            for in_flight in real_clients.IN_FLIGHT
        ),
        real_clients.TRANSACTIONS,
    ]
    assert "no franz-go" in capsys.readouterr().err


def test_a_wrong_call_is_told() -> None:
    command = [sys.executable, "-m", "bench.one_record", "127.0.0.1:1", "t", "10", "0"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert ran.returncode == 2
    assert "Invalid value" in ran.stderr
