"""`odradek group` against a cluster."""

import pytest

from odradek.protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tests.node.cli.conftest import Run
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

pytestmark = pytest.mark.e2e


@pytest.fixture
def group(kafka: Run, topic: str, keeps_old_records: None, group_name: str) -> str:
    """A group that is behind the five records of partition 0, and has no members."""
    for number in range(5):
        kafka("produce", topic, f"v{number}", "-p", "0", "--timestamp", str(1000 * (number + 1)))
    moved = kafka("group", "reset-offsets", group_name, "-t", f"{topic}:0", "--to", "latest")
    assert moved.exit_code == 0, moved.stderr
    return group_name


def offsets_of(kafka: Run, group: str) -> dict[int, tuple[int, int]]:
    """Partition -> committed offset and lag."""
    documents = kafka("group", "describe", group, "-o", "json").json()
    assert isinstance(documents, list)
    return {row["partition"]: (row["committed"], row["lag"]) for row in documents[0]["offsets"]}


def test_a_group_is_listed_and_described_with_its_lag(kafka: Run, topic: str, group: str) -> None:
    kafka("produce", topic, "new", "-p", "0")
    listed = kafka("group", "list", "-o", "json").json()
    assert isinstance(listed, list)
    assert {row["group"]: (row["state"], row["type"]) for row in listed}[group] == (
        "Empty",
        "classic",
    )
    assert offsets_of(kafka, group)[0] == (5, 1)


def test_only_groups_of_a_state_are_listed(kafka: Run, group: str) -> None:
    stable = kafka("group", "list", "--state", "stable", "-o", "json").json()
    empty = kafka("group", "list", "--state", "empty", "-o", "json").json()
    assert isinstance(stable, list)
    assert isinstance(empty, list)
    assert group not in {row["group"] for row in stable}
    assert group in {row["group"] for row in empty}


@pytest.mark.parametrize(
    ("where", "committed"),
    [
        (("--to", "earliest"), 0),
        (("--to", "latest"), 5),
        (("--to-offset", "3"), 3),
        (("--to-offset", "99"), 5),
        (("--to-time", "2500"), 2),
        (("--to-time", "999999"), 5),
        (("--shift-by", "-2"), 3),
        (("--shift-by", "-50"), 0),
    ],
)
def test_offsets_are_reset_within_the_partition(
    kafka: Run, topic: str, group: str, where: tuple[str, ...], committed: int
) -> None:
    ran = kafka("group", "reset-offsets", group, "-t", f"{topic}:0", *where)
    assert ran.exit_code == 0, ran.stderr
    assert offsets_of(kafka, group)[0] == (committed, 5 - committed)


def test_a_dry_run_commits_nothing(kafka: Run, group: str) -> None:
    planned = kafka("group", "reset-offsets", group, "--to", "earliest", "--dry-run", "-o", "json")
    rows = planned.json()
    assert isinstance(rows, list)
    assert {row["partition"]: row["new_offset"] for row in rows}[0] == 0
    assert offsets_of(kafka, group)[0] == (5, 0)


def test_a_reset_group_reads_again(kafka: Run, topic: str, group: str) -> None:
    kafka("group", "reset-offsets", group, "-t", f"{topic}:0", "--shift-by", "-2")
    assert kafka("consume", topic, "-g", group, "-n", "2").stdout.split() == ["v3", "v4"]


def test_a_group_that_does_not_exist_is_an_error(kafka: Run, group_name: str) -> None:
    described = kafka("group", "describe", group_name)
    assert described.exit_code == 1
    reset = kafka("group", "reset-offsets", group_name, "--to", "latest")
    assert reset.exit_code == 1
    assert "no such group" in reset.stderr
    assert kafka("group", "delete", group_name, "-y").exit_code == 1


def test_an_empty_group_is_deleted(kafka: Run, group: str) -> None:
    assert kafka("group", "delete", group, stdin="n\n").exit_code == 1
    assert kafka("group", "delete", group, "-y").stdout == f"Deleted {group}\n"
    listed = kafka("group", "list", "-o", "json").json()
    assert isinstance(listed, list)
    assert group not in {row["group"] for row in listed}


def test_exactly_one_target_is_required(odradek: Run) -> None:
    assert odradek("group", "reset-offsets", "g").exit_code == 2
    both = odradek("group", "reset-offsets", "g", "--to", "latest", "--shift-by", "1")
    assert both.exit_code == 2
    assert "exactly one of" in both.stderr


def send_heartbeat(wire: WireClient, group: str, topic: str, member: str) -> None:
    """One heartbeat of a member of the consumer protocol."""
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=member,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=[topic],
        topic_partitions=[],
    )
    assert wire.ask(request, 1, ConsumerGroupHeartbeatResponse).error_code == 0


def test_a_consumer_group_is_shown_with_its_type_states_and_targets(
    kafka: Run, topic: str, group_name: str, bootstrap: str
) -> None:
    """librdkafka does not know the states of a group that rebalances."""
    with WireClient(bootstrap) as wire:
        send_heartbeat(wire, group_name, topic, "first")
        wait_until(lambda: state_of(kafka, group_name) == ("Stable", "consumer"))
        send_heartbeat(wire, group_name, topic, "second")
        wait_until(lambda: state_of(kafka, group_name) == ("Reconciling", "consumer"))
    listed = kafka("group", "list", "--state", "reconciling", "-o", "json").json()
    assert isinstance(listed, list)
    assert group_name in {row["group"] for row in listed}
    documents = kafka("group", "describe", group_name, "--members", "-o", "json").json()
    assert isinstance(documents, list)
    members = {row["member"]: row for row in documents[0]["members"]}
    assert members["first"]["target"]
    assert set(members["first"]["target"]) < set(members["first"]["assigned"])


def state_of(kafka: Run, group: str) -> tuple[str, str]:
    documents = kafka("group", "describe", group, "-o", "json").json()
    assert isinstance(documents, list)
    return documents[0]["state"], documents[0]["type"]
