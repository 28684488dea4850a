"""Metadata changes count when they are acknowledged, and refusals are reported."""

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from bench.metadata_changes import MetadataChangeError, metadata_changes_per_second

if TYPE_CHECKING:
    from odradek.node.embedded import EmbeddedBroker

pytestmark = pytest.mark.e2e


def test_clients_change_a_topic_all_at_once(kafka_broker: "EmbeddedBroker") -> None:
    topic = f"decisions-{uuid4().hex[:8]}"
    kafka_broker.create_topic(topic)
    port = int(kafka_broker.bootstrap_servers.rpartition(":")[2])
    assert metadata_changes_per_second([port], topic, clients=4, seconds=0.2) > 0


def test_a_refused_change_is_no_figure(kafka_broker: "EmbeddedBroker") -> None:
    port = int(kafka_broker.bootstrap_servers.rpartition(":")[2])
    with pytest.raises(MetadataChangeError, match="error 3"):
        metadata_changes_per_second([port], "no-such-topic", clients=2, seconds=0.2)
