"""Kafka's own Java producer in transactions, of version 2 where the broker has it, and its tool for
looking at them."""

import re
from pathlib import Path

import pytest

from tests.conformance.dialogue import DialogueCluster, unique
from tests.conformance.test_java_tools import CONSUMER, PRODUCER_TEST, TIMEOUT_S
from tests.support.java import run_java_tool, why_no_java_tools

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(bool(why_no_java_tools()), reason=why_no_java_tools() or "Java is there"),
]

TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
COUNT = 3_000


class Tools:
    """Runs tools against the broker under test; they must end well."""

    def __init__(self, cluster: DialogueCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder

    def run(self, name: str, *arguments: str) -> str:
        done = run_java_tool(name, *arguments, directory=self.folder, timeout_s=TIMEOUT_S)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def transactions(self, *arguments: str) -> str:
        return self.run(TRANSACTIONS, "--bootstrap-server", self.cluster.bootstrap, *arguments)


@pytest.fixture
def tools(cluster: DialogueCluster, tmp_path: Path) -> Tools:
    return Tools(cluster, tmp_path)


def test_a_producer_that_commits_every_few_milliseconds(
    tools: Tools, cluster: DialogueCluster, topic: str
) -> None:
    transactional_id = unique("java")
    printed = tools.run(
        PRODUCER_TEST,
        *("--topic", topic),
        *("--num-records", str(COUNT)),
        *("--record-size", "100"),
        *("--throughput", "2000"),
        *("--transactional-id", transactional_id),
        *("--transaction-duration-ms", "20"),
        *("--producer-props", f"bootstrap.servers={cluster.bootstrap}"),
    )
    assert f"{COUNT} records sent" in printed
    read = tools.run(
        CONSUMER,
        *("--bootstrap-server", cluster.bootstrap),
        *("--topic", topic),
        "--from-beginning",
        *("--max-messages", str(COUNT)),
        *("--isolation-level", "read_committed"),
        *("--timeout-ms", "20000"),
    )
    assert len(read.split()) == COUNT
    described = tools.transactions("describe", "--transactional-id", transactional_id)
    found = re.search(rf"{transactional_id}\s+\d+\s+(\d+)\s+CompleteCommit", described)
    assert found, described
    # Version 2: each transaction has ended an epoch.
    assert int(found[1]) > 5
