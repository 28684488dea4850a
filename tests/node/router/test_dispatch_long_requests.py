"""The longest requests of the APIs whose lists are long leave the loop to others while they are
handled."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.node.router.cooperative_iteration import ITEMS_PER_TURN
from odradek.node.router.dispatch import HANDLERS
from odradek.protocol.apis import APIS, ApiKey
from tests.support.largest_requests import RequestFiller
from tests.support.router_harness import RouterHarness

COUNT = 20 * ITEMS_PER_TURN
LONG = (
    (ApiKey.FETCH, 12, "topics"),
    (ApiKey.FETCH, 12, "topics.partitions"),
    (ApiKey.FETCH, 13, "topics.partitions"),
    (ApiKey.LIST_OFFSETS, 11, "topics"),
    (ApiKey.LIST_OFFSETS, 11, "topics.partitions"),
    (ApiKey.METADATA, 12, "topics"),
    (ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, "topics"),
    (ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, "topics.partitions"),
    (ApiKey.DESCRIBE_CONFIGS, 4, "resources"),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, "resources"),
    (ApiKey.ALTER_CONFIGS, 2, "resources"),
    (ApiKey.CREATE_TOPICS, 7, "topics"),
    (ApiKey.DELETE_TOPICS, 6, "topics"),
    (ApiKey.CREATE_PARTITIONS, 3, "topics"),
    (ApiKey.DELETE_RECORDS, 2, "topics"),
    (ApiKey.DELETE_RECORDS, 2, "topics.partitions"),
    (ApiKey.ELECT_LEADERS, 2, "topic_partitions.partitions"),
    (ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, "topics.partitions"),
    (ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, "topics"),
    (ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, "topics"),
)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RouterHarness]:
    loop = asyncio.new_event_loop()
    harness = RouterHarness(tmp_path / "stores", loop=loop)
    harness.controller.has("t", 1, 2)
    harness.follow()
    yield harness
    harness.close()
    loop.close()


@pytest.mark.parametrize(
    ("key", "version", "path"), LONG, ids=lambda value: getattr(value, "name", value)
)
def test_a_long_list_leaves_turns_to_others(
    harness: RouterHarness, key: ApiKey, version: int, path: str
) -> None:
    topic_id = harness.image.topics_by_name["t"].topic_id
    # Nothing of this is to be changed: topics and configs of these names do not exist.
    values: dict[str, object] = {"allow_auto_topic_creation": False, "validate_only": True}
    # A Fetch reads a partition once, however often it is named.
    partition_count = COUNT if key is ApiKey.FETCH else 2
    filler = RequestFiller("t", topic_id, partition_count, values)
    request = filler.request(APIS[key], version, tuple(path.split(".")), COUNT)
    assert turns_during(harness, key, version, request) >= 15


def turns_during(harness: RouterHarness, key: ApiKey, version: int, request: object) -> int:
    """How many turns of the loop others had while a request was handled."""
    turns = 0

    async def ask() -> None:
        nonlocal turns
        pending = harness.begin_request(HANDLERS[key], request, version)
        while not pending.is_done:
            turns += 1
            await asyncio.sleep(0)
        pending.response()

    harness.loop.run_until_complete(ask())
    return turns
