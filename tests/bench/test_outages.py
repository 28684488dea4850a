"""The load that measures outages reports gaps and faults correctly."""

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from bench.outages import SteadyProducer

if TYPE_CHECKING:
    from odradek.node.embedded import EmbeddedBroker


def test_a_gap_counts_from_the_last_acknowledgement_before_the_outage() -> None:
    load = SteadyProducer("127.0.0.1:1", "no-topic")
    load.times = [1.0, 1.1, 5.0, 5.1, 5.9]
    assert load.longest_gap_s(2.0) == pytest.approx(3.9)
    assert load.longest_gap_s(5.05) == pytest.approx(0.8)
    assert load.longest_gap_s(6.0) == 0.0


@pytest.mark.e2e
def test_what_is_wrong_with_the_log_is_told(kafka_broker: "EmbeddedBroker") -> None:
    for extra, told in ((None, ""), (b"0", "1 doubled, 1 out of order")):
        topic = f"outage-{uuid4().hex[:8]}"
        kafka_broker.create_topic(topic)
        load = SteadyProducer(kafka_broker.bootstrap_servers, topic)
        load.start()
        load.wait_for_progress()
        if extra is not None:
            stranger = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})
            stranger.produce(topic, extra, partition=0)
            assert stranger.flush(30) == 0
        assert load.finish() == told
