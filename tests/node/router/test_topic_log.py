"""Created and deleted topics are in the log, with who did it."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.node.router.handlers.metadata import handle_metadata
from odradek.node.router.handlers.topics import handle_create_topics, handle_delete_topics
from odradek.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tests.support.log_lines import log_lines
from tests.support.router_harness import RouterHarness


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RouterHarness]:
    harness = RouterHarness(tmp_path, brokers=2)
    yield harness
    harness.close()


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def create(harness: RouterHarness, *, validate_only: bool = False) -> None:
    topic = CreatableTopic(name="t", num_partitions=3, replication_factor=2)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=1_000, validate_only=validate_only)
    harness.call(handle_create_topics, request, 7)


def about_topics(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in log_lines(caplog) if line.startswith("a topic was ")]


def test_a_created_and_a_deleted_topic_are_logged_once(
    harness: RouterHarness, caplog: pytest.LogCaptureFixture
) -> None:
    create(harness, validate_only=True)
    create(harness)
    create(harness)  # it exists
    harness.follow()
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1_000)
    harness.call(handle_delete_topics, request, 6)
    harness.call(handle_delete_topics, request, 6)
    created, deleted = about_topics(caplog)
    assert created.endswith(" topic=t partitions=3 replication_factor=2")
    assert deleted.endswith(" topic=t")
    for line in (created, deleted):
        assert "principal=User:ANONYMOUS client_id=" in line


def test_a_topic_that_metadata_created_is_logged(
    harness: RouterHarness, caplog: pytest.LogCaptureFixture
) -> None:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name="auto")], allow_auto_topic_creation=True
    )
    harness.call(handle_metadata, request, 9)
    [line] = about_topics(caplog)
    assert line.endswith(" cause='a Metadata request' topic=auto partitions=1 replication_factor=1")
