"""AlterShareGroupOffsets and DeleteShareGroupOffsets: plans and responses."""

from odradek.coordinator.group.share.records import NamedPartitions, StatePartitions
from odradek.coordinator.group.share.start_offsets import (
    alter_response,
    alterable_offsets,
    deletable_topics,
    delete_response,
)
from odradek.coordinator.group.topics import TopicCatalog
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.partitions import PartitionOffset, TopicName, TopicOffsets
from odradek.protocol.messages.share import (
    AlterShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequest,
)
from odradek.protocol.types import ZERO_UUID
from tests.support.consumer_playbook import id_of, image_of

A, B = id_of("a"), id_of("b")
TOPICS = TopicCatalog(image_of({"a": 2, "b": 1}))
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
AWAY = ErrorCode.COORDINATOR_NOT_AVAILABLE


def to_alter(**topics: dict[int, int]) -> AlterShareGroupOffsetsRequest:
    return AlterShareGroupOffsetsRequest(
        group_id="g",
        topics=[
            TopicOffsets(
                name=name,
                partitions=[
                    PartitionOffset(partition_index=index, offset=offset)
                    for index, offset in partitions.items()
                ],
            )
            for name, partitions in topics.items()
        ],
    )


def to_delete(*names: str) -> DeleteShareGroupOffsetsRequest:
    return DeleteShareGroupOffsetsRequest(
        group_id="g",
        topics=[TopicName(name=name) for name in names],
    )


def test_offsets_are_set_for_existing_partitions() -> None:
    request = to_alter(a={0: 5, 2: 6, -1: 7}, none={0: 1})
    assert alterable_offsets(request, TOPICS) == {A: {0: 5}}


def test_start_offsets_below_minus_one_are_invalid() -> None:
    request = to_alter(a={0: -1, 1: -2})
    offsets = alterable_offsets(request, TOPICS)
    assert offsets == {A: {0: -1}}
    [topic] = alter_response(request, offsets, {A: {0: ErrorCode.NONE}}, TOPICS).responses
    codes = [partition.error_code for partition in topic.partitions]
    assert codes == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]


def test_every_partition_gets_its_result() -> None:
    request = to_alter(a={0: 5, 1: 6, 2: 7}, b={0: 1}, none={0: 1})
    offsets = alterable_offsets(request, TOPICS)
    response = alter_response(request, offsets, {A: {0: ErrorCode.NONE, 1: AWAY}}, TOPICS)
    results = [
        (topic.topic_name, topic.topic_id, [part.error_code for part in topic.partitions])
        for topic in response.responses
    ]
    assert results == [
        ("a", A, [ErrorCode.NONE, AWAY, UNKNOWN]),
        ("b", B, [AWAY]),
        ("none", ZERO_UUID, [UNKNOWN]),
    ]
    assert response.responses[0].partitions[0].error_message is None
    assert response.responses[0].partitions[1].error_message == AWAY.message


def test_states_of_topics_with_any_state_can_be_deleted() -> None:
    known = {A: NamedPartitions("a", frozenset({0}))}
    for states in (
        StatePartitions(known),
        StatePartitions({}, known),
        StatePartitions({}, {}, {A: "a"}),
    ):
        names = deletable_topics(to_delete("a", "b", "none"), states, TOPICS)
        assert names == {A: "a"}


def test_every_topic_gets_its_result() -> None:
    request = to_delete("a", "b", "none")
    names = {A: "a", B: "b"}
    response = delete_response(
        request, names, {A: {0: ErrorCode.NONE, 1: AWAY}, B: {0: ErrorCode.NONE}}
    )
    assert [(topic.topic_name, topic.error_code) for topic in response.responses] == [
        ("a", AWAY),
        ("b", ErrorCode.NONE),
        ("none", UNKNOWN),
    ]
    assert [topic.topic_id for topic in response.responses] == [A, B, ZERO_UUID]
    assert response.responses[2].error_message == "There is no offset information to delete."
    assert [topic.error_code for topic in delete_response(request, names, {}).responses] == [
        AWAY,
        AWAY,
        UNKNOWN,
    ]
