"""`odradek group` of share groups."""

import os
from collections.abc import Iterator

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.protocol.messages.share import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from tests.node.cli.conftest import Run
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

pytestmark = pytest.mark.e2e


class Reader:
    """The only member of a share group."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self.wire = WireClient(bootstrap)
        self.group = group
        self.topic = topic
        self.epoch = 0

    def send_heartbeat(self, epoch: int) -> ShareGroupHeartbeatResponse:
        request = ShareGroupHeartbeatRequest(
            group_id=self.group,
            member_id="reader-1",
            member_epoch=epoch,
            subscribed_topic_names=[self.topic] if epoch == 0 else None,
        )
        return self.wire.ask(request, 1, ShareGroupHeartbeatResponse)

    def join(self) -> None:
        """Return when the partitions are its own."""

        def has_partitions() -> bool:
            self.wire.ask(FindCoordinatorRequest(key=self.group), 3, FindCoordinatorResponse)
            response = self.send_heartbeat(self.epoch)
            if response.error_code == ErrorCode.NONE:
                self.epoch = response.member_epoch
            assigned = response.assignment
            return assigned is not None and bool(assigned.topic_partitions)

        wait_until(has_partitions, timeout_s=20, what="the member has partitions")

    def leave(self) -> None:
        assert self.send_heartbeat(-1).error_code == ErrorCode.NONE


@pytest.fixture
def reader(bootstrap: str, topic: str, group_name: str) -> Iterator[Reader]:
    member = Reader(bootstrap, group_name, topic)
    member.join()
    yield member
    member.wire.close()


def test_a_share_group_is_listed_and_described(kafka: Run, topic: str, reader: Reader) -> None:
    listed = kafka("group", "list", "--type", "share", "-o", "json").json()
    assert isinstance(listed, list)
    assert reader.group in {row["group"] for row in listed}
    documents = kafka("group", "describe", reader.group, "-o", "json").json()
    assert isinstance(documents, list)
    [document] = documents
    assert (document["type"], document["state"]) == ("share", "Stable")
    assert document["assignor"] == "simple"
    [member] = document["members"]
    assert member["member"] == "reader-1"
    assert f"{topic}-0" in member["assigned"]
    rows = {(row["topic"], row["partition"]): row for row in document["offsets"]}
    row = rows[topic, 0]
    # It would start at the end (share.auto.offset.reset); Kafka does not report a lag yet.
    lag = None if "TEST_BOOTSTRAP" in os.environ else 0
    assert (row["member"], row["committed"], row["lag"]) == ("reader-1", None, lag)
    shown = kafka("group", "describe", reader.group, "--members")
    assert "reader-1" in shown.stdout


def test_a_share_group_without_members_is_reset_and_deleted(
    kafka: Run, topic: str, reader: Reader
) -> None:
    to = ("--topic", f"{topic}:0", "--to-offset", "0")
    refused = kafka("group", "reset-offsets", reader.group, *to)
    assert refused.exit_code == 1
    assert "Are its consumers stopped?" in refused.stderr
    reader.leave()
    dry = kafka("group", "reset-offsets", reader.group, *to, "--dry-run")
    assert dry.exit_code == 0
    moved = kafka("group", "reset-offsets", reader.group, *to, "-o", "json")
    assert moved.exit_code == 0, moved.stderr
    documents = kafka("group", "describe", reader.group, "-o", "json").json()
    assert isinstance(documents, list)
    rows = {(row["topic"], row["partition"]): row for row in documents[0]["offsets"]}
    assert rows[topic, 0]["committed"] == 0
    deleted = kafka("group", "delete", reader.group, "--yes")
    assert deleted.exit_code == 0, deleted.stderr
    assert kafka("group", "describe", reader.group).exit_code == 1
