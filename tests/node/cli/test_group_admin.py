"""`odradek group create`, `list` and `delete` against a cluster."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, KafkaError

from tests.node.cli.conftest import Run
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif("TEST_BOOTSTRAP" in os.environ, reason="by APIs that only Odradek has"),
]


def listed(kafka: Run, *arguments: str) -> dict[str, dict[str, object]]:
    rows = kafka("group", "list", *arguments, "-o", "json").json()
    assert isinstance(rows, list)
    return {row["group"]: row for row in rows}


def configs(kafka: Run, group: str) -> dict[str, str]:
    rows = kafka("config", "list", "group", group, "-o", "json").json()
    assert isinstance(rows, list)
    # The profile may have set others for all groups.
    own = [row for row in rows if row["source"] == "group_config"]
    return {row["key"]: row["value"] for row in own}


@contextmanager
def consuming(
    bootstrap: str, topic: str, group: str, protocol: str, **properties: str
) -> Iterator[None]:
    """A consumer of confluent-kafka that polls in a thread of its own."""
    is_over = threading.Event()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            **properties,
        }
    )
    consumer.subscribe([topic])

    def poll() -> None:
        while not is_over.is_set():
            consumer.poll(0.1)
        consumer.close()

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


# -- create ---------------------------------------------------------------------------------------


def test_a_created_group_is_listed_before_a_member_joins(kafka: Run, group_name: str) -> None:
    ran = kafka("group", "create", group_name, "--ttl", "10m", "--protocol", "consumer")
    assert ran.exit_code == 0, ran.stderr
    assert configs(kafka, group_name) == {
        "group.ephemeral": "true",
        "group.protocol.allow": "consumer",
        "group.ttl.ms": "600000",
    }
    row = listed(kafka)[group_name]
    assert (row["state"], row["members"], row["configured"]) == ("Empty", 0, True)
    assert isinstance(row["coordinator"], int)
    for command in ("explain", "describe", "lag"):
        ran = kafka("group", command, group_name)
        assert ran.exit_code == 1
        assert "has settings, but no member" in ran.stderr


def test_a_group_is_created_once(kafka: Run, group_name: str) -> None:
    assert kafka("group", "create", group_name).exit_code == 0
    assert configs(kafka, group_name) == {"group.ephemeral": "false"}
    again = kafka("group", "create", group_name)
    assert again.exit_code == 1
    assert "exists" in again.stderr
    assert kafka("group", "create", group_name, "--if-not-exists").exit_code == 0


def test_contradictory_options_are_refused(kafka: Run, odradek: Run, group_name: str) -> None:
    assert odradek("group", "create", "g", "--no-ephemeral", "--ttl", "1s").exit_code == 2
    assert odradek("group", "create", "g", "--protocol", "smoke").exit_code == 2
    refused = kafka("group", "create", group_name, "-c", "consumer.session.timeout.ms=1")
    assert refused.exit_code == 1
    assert "consumer.session.timeout.ms" in refused.stderr


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_an_ephemeral_group_is_deleted_after_its_last_consumer(
    kafka: Run, topic: str, group_name: str, bootstrap: str, protocol: str
) -> None:
    kafka("produce", topic, "one", "-p", "0")
    assert kafka("group", "create", group_name, "--ephemeral").exit_code == 0
    with consuming(bootstrap, topic, group_name, protocol):
        wait_until(lambda: listed(kafka)[group_name]["state"] == "Stable")
        assert listed(kafka)[group_name]["ephemeral"] is True
    wait_until(lambda: listed(kafka)[group_name]["type"] is None)
    assert kafka("group", "lag", group_name).exit_code == 1


def refusal_of(bootstrap: str, topic: str, group: str, protocol: str) -> str:
    """The error of a consumer that may not join."""
    errors: list[KafkaError] = []
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "error_cb": errors.append,
        }
    )
    consumer.subscribe([topic])

    def has_failed() -> bool:
        message = consumer.poll(0.1)
        error = None if message is None else message.error()
        if error is not None:
            errors.append(error)
        return bool(errors)

    wait_until(has_failed)
    consumer.close()
    return str(errors[0])


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_protocol_that_is_not_allowed_is_refused(
    kafka: Run, topic: str, group_name: str, bootstrap: str, protocol: str
) -> None:
    assert kafka("group", "create", group_name, "--protocol", "share").exit_code == 0
    refusal = refusal_of(bootstrap, topic, group_name, protocol)
    assert "Inconsistent group protocol" in refusal


# -- list -----------------------------------------------------------------------------------------


def test_groups_are_listed_with_members_topics_and_lag(
    kafka: Run, topic: str, group_name: str, bootstrap: str
) -> None:
    moved = kafka("group", "reset-offsets", group_name, "-t", f"{topic}:0", "--to", "latest")
    assert moved.exit_code == 0, moved.stderr
    kafka("produce", topic, "one", "two", "-p", "0")
    row = listed(kafka)[group_name]
    assert (row["type"], row["topics"], row["lag"], row["simple"]) == ("classic", [topic], 2, True)
    with consuming(bootstrap, topic, group_name, "consumer"):
        wait_until(lambda: listed(kafka)[group_name]["members"] == 1)
        assert group_name in listed(kafka, "--type", "consumer")
        assert group_name not in listed(kafka, "--type", "classic")
        assert group_name not in listed(kafka, "--state", "empty")


# -- delete ---------------------------------------------------------------------------------------


def test_a_group_is_deleted_with_its_configs(kafka: Run, topic: str, group_name: str) -> None:
    kafka("group", "create", group_name)
    kafka("group", "reset-offsets", group_name, "-t", f"{topic}:0", "--to", "latest")
    assert kafka("group", "delete", group_name, "-y").stdout == f"Deleted {group_name}\n"
    assert group_name not in listed(kafka)
    assert configs(kafka, group_name) == {}


def test_a_group_that_was_only_created_is_deleted(kafka: Run, group_name: str) -> None:
    kafka("group", "create", group_name)
    assert kafka("group", "delete", group_name, "-y").exit_code == 0
    assert group_name not in listed(kafka)
    again = kafka("group", "delete", group_name, "-y")
    assert again.exit_code == 1
    assert group_name in again.stderr


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("instance", [{}, {"group.instance.id": "i"}])
def test_members_are_removed_with_force(
    kafka: Run,
    topic: str,
    group_name: str,
    bootstrap: str,
    protocol: str,
    instance: dict[str, str],
) -> None:
    with consuming(bootstrap, topic, group_name, protocol, **instance):
        wait_until(lambda: group_name in listed(kafka, "--state", "stable"))
        refused = kafka("group", "delete", group_name, "-y")
        assert refused.exit_code == 1
        assert "stop its consumers, or pass --force" in refused.stderr
        forced = kafka("group", "delete", group_name, "-y", "--force")
        assert (forced.exit_code, forced.stdout) == (0, f"Deleted {group_name}\n")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_resetting_a_running_group_is_refused_with_advice(
    kafka: Run, topic: str, group_name: str, bootstrap: str, protocol: str
) -> None:
    with consuming(bootstrap, topic, group_name, protocol):
        wait_until(lambda: listed(kafka).get(group_name, {}).get("state") == "Stable")
        ran = kafka("group", "reset-offsets", group_name, "-t", topic, "--to", "earliest")
    assert ran.exit_code == 1
    assert "Are its consumers stopped? `odradek group rewind`" in ran.stderr
