"""What holds for every coordinator type."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from odradek.cluster.metadata.config_tables import TOPIC_CONFIGS
from odradek.cluster.metadata.settings import broker_settings
from odradek.cluster.metadata.topic_names import INTERNAL_TOPICS
from odradek.coordinator.transaction.requests import MarkersWritten
from odradek.node.bus.reply import Reply, drive
from odradek.node.router.shards.coordinator_type import CoordinatorType, EffectContext
from odradek.node.router.shards.group_coordinator_type import GroupCoordinatorType
from odradek.node.router.shards.share_coordinator_type import ShareCoordinatorType
from odradek.node.router.shards.transaction_coordinator_type import TransactionCoordinatorType
from odradek.protocol.errors import ApiError, ErrorCode
from tests.support.share_harness import ShareHarness


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ShareHarness]:
    with ShareHarness(tmp_path) as harness:
        yield harness


def kinds(harness: ShareHarness) -> list[CoordinatorType[Any, Any]]:
    services = harness.services
    return [
        GroupCoordinatorType(services.patterns, lambda _effect, _context: None),
        TransactionCoordinatorType(lambda _effect, _context: None),
        ShareCoordinatorType(services.metadata, services.logs, services.worker_client),
    ]


def test_each_internal_topic_belongs_to_one_type(harness: ShareHarness) -> None:
    assert sorted(kind.topic_name for kind in kinds(harness)) == sorted(INTERNAL_TOPICS)


def test_the_topics_are_created_with_valid_configs(harness: ShareHarness) -> None:
    settings = broker_settings(harness.image, 0, {})
    for kind in kinds(harness):
        configs = kind.topic_config(settings).configs
        assert configs
        for key, value in configs:
            assert TOPIC_CONFIGS[key].parse(value) is not None, (kind.topic_name, key, value)


def test_an_unchanged_image_needs_no_update_of_an_empty_shard(
    harness: ShareHarness,
) -> None:
    settings = broker_settings(harness.image, 0, {})
    for kind in kinds(harness):
        kind.configure(settings, harness.image)
        kind.apply_image(harness.image, harness.image)
        assert not kind.apply_image(harness.image, harness.image)
        assert kind.missed_topic_deletions(kind.new_shard(), harness.image) is None


DONE = MarkersWritten("tx", 1, 0)


class Shard:
    """A shard that records a report after `refusal_count` errors and moves after `wanted_count`
    checks."""

    def __init__(self, refusal_count: int, wanted_count: int = 1_000) -> None:
        self.refusals_left = refusal_count
        self.wanted_left = wanted_count
        self.told: list[object] = []
        self.pauses: list[float] = []
        self.is_over = False

    def is_current(self) -> bool:
        self.wanted_left -= 1
        return self.wanted_left >= 0

    def tell(self, report: object) -> Reply[object]:
        reply: Reply[object] = Reply()
        self.told.append(report)
        if len(self.told) <= self.refusals_left:
            reply.fail(ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            reply.resolve(None)
        return reply

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def hear(self, report: MarkersWritten) -> None:
        context = EffectContext(0, self.is_current, self.tell, 0)
        drive(context.report(report, self.pause), self._ended)

    def _ended(self, _result: None, error: BaseException | None) -> None:
        assert error is None
        self.is_over = True


def test_a_report_is_repeated_with_growing_pauses_until_the_shard_records_it() -> None:
    shard = Shard(8)
    shard.hear(DONE)
    assert shard.is_over
    assert shard.told == [DONE] * 9
    assert shard.pauses == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]


def test_a_report_ends_when_the_shard_has_moved() -> None:
    shard = Shard(8, wanted_count=3)
    shard.hear(DONE)
    assert shard.is_over
    assert shard.told == [DONE] * 3
