"""Which requests a session wants, and which topics a request names."""

import pytest

from odradek.cluster.metadata.image import MetadataImage
from odradek.node.router.tracing.trace_filter import TraceFilter, topic_names, topics_of
from odradek.protocol.apis import ApiKey
from odradek.protocol.messages.groups import HeartbeatRequest
from odradek.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.protocol.messages.produce import ProduceRequest, TopicProduceData
from tests.node.worker.test_hosted_partitions import TOPIC_ID, image_after, topic


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        (TraceFilter(), True),
        (TraceFilter(client_ids=frozenset({"app"})), True),
        (TraceFilter(client_ids=frozenset({"other"})), False),
        (TraceFilter(api_keys=frozenset({ApiKey.PRODUCE})), True),
        (TraceFilter(api_keys=frozenset({ApiKey.FETCH})), False),
        (TraceFilter(correlation_id=7), True),
        (TraceFilter(correlation_id=8), False),
    ],
)
def test_the_header_decides_first(wanted: TraceFilter, matches: bool) -> None:
    assert wanted.may_match(ApiKey.PRODUCE, "app", 7) is matches


def test_a_client_without_an_id_is_that_of_the_empty_one() -> None:
    assert TraceFilter(client_ids=frozenset({""})).may_match(ApiKey.PRODUCE, None, 0)


def test_topics_and_duration_decide_in_the_end() -> None:
    wanted = TraceFilter(topics=frozenset({"a"}), slower_than_ns=5)
    assert wanted.matches(["a", "b"], 5)
    assert not wanted.matches(["b"], 5)
    assert not wanted.matches(["a"], 4)


def test_topics_are_found_by_name_and_by_id() -> None:
    image = image_after(MetadataImage.empty(), *topic("a", TOPIC_ID, 0, replicas=(0,)))
    produced = ProduceRequest(
        topic_data=[TopicProduceData(name="b"), TopicProduceData(topic_id=TOPIC_ID)]
    )
    unknown = MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=bytes(15) + b"x")])
    assert topic_names(topics_of(produced), image) == ["a", "b"]
    assert topic_names(topics_of(unknown), image) == []
    assert [*topics_of(HeartbeatRequest())] == [*topics_of(MetadataRequest(topics=None))] == []
