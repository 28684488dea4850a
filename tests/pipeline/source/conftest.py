"""Topics of a real broker for the tests of the source."""

import re

import pytest

from odradek.node.embedded import EmbeddedBroker
from tests.support.topic_records import TopicRecords


@pytest.fixture
def records(kafka_broker: EmbeddedBroker) -> TopicRecords:
    """Sends to the broker of the session."""
    return TopicRecords({"bootstrap.servers": kafka_broker.bootstrap_servers})


@pytest.fixture
def topic(request: pytest.FixtureRequest, records: TopicRecords) -> str:
    """A topic of the test's own, with one partition."""
    name = re.sub(r"[^\w.-]", "-", f"{request.module.__name__}.{request.node.name}")[-120:]
    records.create(name)
    return name
