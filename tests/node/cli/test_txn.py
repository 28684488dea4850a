"""`odradek txn` against a cluster."""

from collections.abc import Iterator
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from tests.node.cli.conftest import Run

pytestmark = pytest.mark.e2e

TIMEOUT_S = 30.0


class Open:
    """A transaction with one record, which its client does not end."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.transactional_id = f"cli-{uuid4().hex[:12]}"
        self.topic = topic
        self.producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": self.transactional_id}
        )
        self.producer.init_transactions(TIMEOUT_S)
        self.producer.begin_transaction()
        self.producer.produce(topic, "v", partition=1)
        assert self.producer.flush(TIMEOUT_S) == 0


@pytest.fixture
def opened(bootstrap: str, topic: str) -> Iterator[Open]:
    opened = Open(bootstrap, topic)
    yield opened
    opened.producer.abort_transaction(TIMEOUT_S)


def rows(kafka: Run, *arguments: str) -> list[dict[str, object]]:
    found = kafka("txn", *arguments, "-o", "json").json()
    assert isinstance(found, list)
    return found


def test_transactions_are_listed_by_state_and_age(kafka: Run, opened: Open) -> None:
    def listed(*filters: str) -> list[object]:
        return [row["transactional_id"] for row in rows(kafka, "list", *filters)]

    name = opened.transactional_id
    assert name in listed()
    assert name in listed("--state", "Ongoing")
    assert name not in listed("--state", "CompleteCommit")
    assert name not in listed("--older-than", "1h")


def test_a_transaction_is_described_with_its_partitions(kafka: Run, opened: Open) -> None:
    [found] = rows(kafka, "describe", opened.transactional_id)
    assert found["state"] == "Ongoing"
    assert found["partitions"] == [f"{opened.topic}:1"]
    assert isinstance(found["open_for_s"], float)
    assert opened.topic in kafka("txn", "describe", opened.transactional_id).stdout


def test_an_unknown_transaction_is_an_error(kafka: Run) -> None:
    ran = kafka("txn", "describe", "no-such-id")
    assert ran.exit_code == 1
    assert "no-such-id" in ran.stderr


def test_a_transaction_of_a_coordinator_is_not_hanging_and_needs_force(
    kafka: Run, opened: Open
) -> None:
    assert rows(kafka, "hanging", "-t", opened.topic, "--older-than", "0s") == []
    where = ("txn", "abort", opened.topic, "1", "--start-offset", "0")
    refused = kafka(*where)
    assert refused.exit_code == 1
    assert "--force" in refused.stderr
    assert kafka(*where, "--force").exit_code == 0
    again = kafka(*where, "--force")
    assert again.exit_code == 1
    assert "no open transaction" in again.stderr
