"""`odradek client` against a cluster, with a client that pushes its metrics."""

from collections.abc import Iterator
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from tests.node.cli.conftest import Run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def client_id(bootstrap: str) -> Iterator[str]:
    """A connected producer."""
    name = f"metrics-{uuid4().hex[:8]}"
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": name, "log_level": 0})
    producer.produce(f"topic-of-{name}", b"x")
    producer.flush(30)
    yield name
    producer.flush(30)


def test_a_client_is_listed_with_its_software_and_connections(kafka: Run, client_id: str) -> None:
    rows = kafka("client", "list", "-o", "json").json()
    assert isinstance(rows, list)
    [row] = [row for row in rows if row["client_id"] == client_id]
    assert row["software"] == "confluent-kafka-python"
    assert row["version"]
    assert row["host"] == "127.0.0.1"
    assert row["connections"] >= 1
    assert row["brokers"] == [0]
    assert "CLIENT ID" in kafka("client", "list").stdout


def test_the_metrics_of_a_client_are_shown(kafka: Run, bootstrap: str) -> None:
    name = f"pushing-{uuid4().hex[:8]}"
    subscription = ("client-metrics", name)
    settings = ("metrics=*", "interval.ms=100", f"match=client_id={name}")
    assert kafka("config", "set", *subscription, *settings).exit_code == 0
    listed = kafka("config", "list", *subscription, "-o", "json").json()
    assert isinstance(listed, list)
    assert {row["source"] for row in listed} == {"dynamic_client_metrics_config"}
    properties = {"bootstrap.servers": bootstrap, "client.id": name, "log_level": 0}
    producer = Producer(properties)
    producer.produce(f"topic-of-{name}", b"x")
    producer.flush(30)

    def shown() -> list[dict[str, object]]:
        ran = kafka("client", "show", name, "-o", "json")
        if ran.exit_code:
            return []
        clients = ran.json()
        assert isinstance(clients, list)
        of_all = [each for client in clients for each in client["instances"]]
        return [metric for each in of_all for metric in each["metrics"]]

    wait_until(shown, what="the client has pushed metrics")
    assert "org.apache.kafka.producer.connection.creation.total" in {
        each["metric"] for each in shown()
    }
    text = kafka("client", "show", name)
    assert "REQUESTED METRICS   *" in text.stdout
    assert "org.apache.kafka.producer.connection.creation.total" in text.stdout
    rows = kafka("client", "list", "-o", "json").json()
    assert isinstance(rows, list)
    [row] = [row for row in rows if row["client_id"] == name]
    assert row["metrics"] > 0
    by_instance = kafka("client", "show", row["instance_ids"][0])
    assert by_instance.exit_code == 0
    assert f"CLIENT ID          {name}" in by_instance.stdout
    assert kafka("config", "unset", *subscription, "metrics", "interval.ms", "match").exit_code == 0


def test_a_client_without_metrics_says_what_asks_for_them(kafka: Run, client_id: str) -> None:
    ran = kafka("client", "show", client_id)
    assert ran.exit_code == 0
    assert "metrics" in ran.stderr


def test_a_client_that_is_not_there_is_an_error_with_the_nearest_name(
    kafka: Run, client_id: str
) -> None:
    ran = kafka("client", "show", f"{client_id}x")
    assert ran.exit_code == 1
    assert ran.stderr == f"Error: {client_id}x: no such client; did you mean {client_id}?\n"
