"""`odradek group` of streams groups."""

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.protocol.messages.streams import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from tests.node.cli.conftest import Run
from tests.support.streams_playbook import subtopology, topology
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

pytestmark = pytest.mark.e2e


@pytest.fixture
def application(bootstrap: str, topic: str, group_name: str) -> str:
    """A streams group with one member, which has a task for every partition of the topic."""
    with WireClient(bootstrap) as wire:

        def has_tasks() -> bool:
            wire.ask(FindCoordinatorRequest(key=group_name), 3, FindCoordinatorResponse)
            request = StreamsGroupHeartbeatRequest(
                group_id=group_name,
                member_id="thread-1",
                rebalance_timeout_ms=60_000,
                process_id="process-1",
                topology=topology(subtopology("0", topic)),
                active_tasks=[],
                standby_tasks=[],
                warmup_tasks=[],
            )
            joined = wire.ask(request, 0, StreamsGroupHeartbeatResponse)
            return joined.error_code == ErrorCode.NONE and bool(joined.active_tasks)

        wait_until(has_tasks, timeout_s=20, what="the group has its tasks")
    return group_name


def test_a_streams_group_is_listed_and_described(kafka: Run, topic: str, application: str) -> None:
    listed = kafka("group", "list", "--type", "streams", "-o", "json").json()
    assert isinstance(listed, list)
    assert application in {row["group"] for row in listed}
    documents = kafka("group", "describe", application, "-o", "json").json()
    assert isinstance(documents, list)
    [document] = documents
    assert (document["type"], document["state"]) == ("streams", "Stable")
    [member] = document["members"]
    assert (member["member"], member["process"], member["target"]) == ("thread-1", "process-1", [])
    assert "0_0" in member["assigned"]
    assert {(row["topic"], row["member"]) for row in document["offsets"]} == {(topic, "thread-1")}
    assert document["subtopologies"][0]["sources"] == [topic]
    shown = kafka("group", "describe", application, "--members")
    assert "0_0" in shown.stdout
    assert "streams" in shown.stdout


def test_groups_of_other_types_are_described_beside_it(kafka: Run, application: str) -> None:
    ran = kafka("group", "describe", application, "no-such-group", "-o", "json")
    assert ran.exit_code == 1
    assert "no-such-group" in ran.stderr
