"""What share groups durably know, as Kafka's own tool reads it from the topic."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from odradek.cluster.metadata.topic_names import SHARE_GROUP_STATE
from odradek.node.router.handlers.groups import KEY_TYPE_SHARE
from odradek.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.protocol.messages.share_state import (
    InitializeShareGroupStatePartitionData,
    InitializeShareGroupStateRequest,
    InitializeStateData,
    ShareGroupStateResponse,
    StateBatch,
    WriteShareGroupStatePartitionData,
    WriteShareGroupStateRequest,
    WriteStateData,
)
from odradek.protocol.types import Uuid, uuid_to_text
from tests.conformance.dialogue import (
    EARLIEST,
    LATEST,
    DialogueCluster,
    describe_topic,
    list_offset,
    unique,
)
from tests.support.java import run_java_tool, why_no_java_tools
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(bool(why_no_java_tools()), reason=why_no_java_tools() or "Java is there"),
]

CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
FORMATTER = "org.apache.kafka.tools.consumer.group.share.ShareGroupStateMessageFormatter"
GROUP = unique("shippers")


def has_coordinator(client: WireClient, topic_id: Uuid) -> bool:
    key = f"{GROUP}:{uuid_to_text(topic_id)}:0"
    request = FindCoordinatorRequest(key_type=KEY_TYPE_SHARE, coordinator_keys=[key])
    return not client.ask(request, 6, FindCoordinatorResponse).coordinators[0].error_code


def is_initialized(client: WireClient, topic_id: Uuid) -> bool:
    data = InitializeShareGroupStatePartitionData(partition=0, state_epoch=3, start_offset=10)
    request = InitializeShareGroupStateRequest(
        group_id=GROUP, topics=[InitializeStateData(topic_id=topic_id, partitions=[data])]
    )
    response = client.ask(request, 0, ShareGroupStateResponse)
    return not response.results[0].partitions[0].error_code


def record_count(cluster: DialogueCluster) -> int:
    """How many records are in the topic, of all partitions."""
    with cluster.connect() as client:
        indexes = range(len(describe_topic(client, SHARE_GROUP_STATE).partitions))
        return sum(
            list_offset(client, SHARE_GROUP_STATE, LATEST, partition=index).offset
            - list_offset(client, SHARE_GROUP_STATE, EARLIEST, partition=index).offset
            for index in indexes
        )


def objects(text: str) -> Iterator[dict[str, Any]]:
    """The tool writes one after another, without line ends."""
    decoder, end = json.JSONDecoder(), 0
    text = text.strip()
    while end < len(text):
        found, end = decoder.raw_decode(text, end)
        yield found


def test_kafkas_tool_reads_what_is_kept_of_share_groups(
    cluster: DialogueCluster, topic: str, tmp_path: Path
) -> None:
    batch = StateBatch(first_offset=12, last_offset=14, delivery_state=2, delivery_count=1)
    data = WriteShareGroupStatePartitionData(
        partition=0,
        state_epoch=3,
        leader_epoch=0,
        start_offset=11,
        delivery_complete_count=3,
        state_batches=[batch],
    )
    topic_id = cluster.topic_id(topic)
    with cluster.connect() as client:
        wait_until(lambda: has_coordinator(client, topic_id))
        wait_until(lambda: is_initialized(client, topic_id))
        request = WriteShareGroupStateRequest(
            group_id=GROUP, topics=[WriteStateData(topic_id=topic_id, partitions=[data])]
        )
        written = client.ask(request, 1, ShareGroupStateResponse)
        assert not written.results[0].partitions[0].error_code
    done = run_java_tool(
        CONSUMER,
        *("--bootstrap-server", cluster.bootstrap, "--topic", SHARE_GROUP_STATE),
        *("--from-beginning", "--formatter", FORMATTER),
        # Others have written there as well.
        *("--max-messages", str(record_count(cluster)), "--timeout-ms", "60000"),
        *("--command-property", "exclude.internal.topics=false"),
        directory=tmp_path,
        timeout_s=90.0,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    snapshot, update = (
        found for found in objects(done.stdout) if found["key"]["data"]["groupId"] == GROUP
    )
    key = {"groupId": GROUP, "topicId": uuid_to_text(topic_id), "partition": 0}
    assert snapshot["key"] == {"type": 0, "data": key}
    stored = snapshot["value"]["data"]
    assert (stored["snapshotEpoch"], stored["stateEpoch"], stored["leaderEpoch"]) == (0, 3, 0)
    assert (stored["startOffset"], stored["deliveryCompleteCount"]) == (10, 0)
    assert stored["createTimestamp"] == stored["writeTimestamp"] > 0
    assert stored["stateBatches"] == []
    assert update["key"] == {"type": 1, "data": key}
    assert update["value"] == {
        "version": 0,
        "data": {
            "snapshotEpoch": 0,
            "leaderEpoch": 0,
            "startOffset": 11,
            "deliveryCompleteCount": 3,
            "stateBatches": [
                {"firstOffset": 12, "lastOffset": 14, "deliveryState": 2, "deliveryCount": 1}
            ],
        },
    }
