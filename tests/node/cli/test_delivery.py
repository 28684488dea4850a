"""The limit of a topic's batches, and the text of a refusal. Deliveries are in test_produce.py."""

import pytest

from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.connection import make_connection
from odradek.node.cli.delivery import BATCH_BYTES_MAX, TopicLimit
from tests.node.cli.conftest import Run


def test_a_batch_is_no_larger_than_the_topic_accepts() -> None:
    assert TopicLimit(topic="t", byte_count=5_000).batch_size == 5_000
    assert TopicLimit(topic="t", byte_count=50_000_000).batch_size == BATCH_BYTES_MAX
    assert TopicLimit(topic="t").batch_size == BATCH_BYTES_MAX


def test_a_refusal_says_where_the_limit_comes_from() -> None:
    own = TopicLimit(topic="t", byte_count=10, is_own=True).refusal_text(500)
    assert "500 bytes is larger than max.message.bytes=10 of topic t. Raise it" in own
    assert "max.message.bytes=600" in own
    of_brokers = TopicLimit(topic="t", byte_count=10).refusal_text(500)
    assert "=10 of topic t (from the brokers' message.max.bytes). Raise it" in of_brokers
    unknown = TopicLimit(topic="t").refusal_text(500)
    assert unknown == "a record of 500 bytes is larger than max.message.bytes of topic t"


@pytest.mark.e2e
def test_the_limit_is_that_of_the_topic_or_of_the_brokers(
    kafka: Run, topic: str, bootstrap: str
) -> None:
    with ClusterClient(make_connection(bootstrap, 10.0, None, ())) as client:
        assert TopicLimit.of(client, topic) == TopicLimit(topic=topic, byte_count=1_048_588)
        kafka("config", "set", "topic", topic, "max.message.bytes=123456")
        limit = TopicLimit.of(client, topic)
    assert limit == TopicLimit(topic=topic, byte_count=123_456, is_own=True)
