"""A kind of coordinator: what it keeps in its topic, and what it needs of its router.

`coordinators` hosts the shards of any kind in the same way, and asks this face for what is
particular to one: the topic and how it is made, how a shard is made and configured, and what is
done outside for it. The kinds are in group_coordinator_type.py, transaction_coordinator_type.py and
share_coordinator_type.py.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from odradek.cluster.metadata.broker_settings import BrokerSettings
from odradek.cluster.metadata.image import MetadataImage
from odradek.coordinator.runtime import Shard
from odradek.node.bus.reply import Reply
from odradek.protocol.errors import ApiError
from odradek.protocol.types import Request, Uuid

log = logging.getLogger(__name__)

SWEEP_MS_MAX: Final = 600_000
"""How often kinds look for missed deletions that have no configuration for it."""
REPORT_RETRY_S_MIN: Final = 0.02
REPORT_RETRY_S_MAX: Final = 1.0
"""Between attempts to report: doubled each time."""


class EffectContext(NamedTuple):
    """What a shard's host gives with an instruction: the epoch in which it coordinates, whether the
    shard is still there to be told, and how, and which one it is."""

    coordinator_epoch: int
    is_current: Callable[[], bool]
    call_shard: Callable[[Request[object]], Reply[object]]
    shard: int

    async def report(
        self, result: Request[object], pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        """Tell what came of it until the shard has taken that, or is here no more: its next host
        asks again. `pause` lets so many seconds pass."""
        pause_s = REPORT_RETRY_S_MIN
        while self.is_current():
            try:
                await self.call_shard(result)
            except ApiError as error:
                log.info("shard %d has not recorded yet what was done: %s", self.shard, error)
                await pause(pause_s)
                pause_s = min(2 * pause_s, REPORT_RETRY_S_MAX)
            else:
                return


class InternalTopicConfig(NamedTuple):
    """How a coordinator's topic is made if there is none."""

    partition_count: int
    replication_factor: int
    configs: tuple[tuple[str, str], ...]


class CoordinatorType(Protocol):
    """See the module's docstring. `configure` comes before anything else, and with every change."""

    topic_name: str

    def configure(self, settings: BrokerSettings, image: MetadataImage) -> None:
        """Take the newest configuration in, for shards made from now on."""

    def new_shard(self) -> Shard[Any]:
        """A shard for a log to be loaded into."""

    def update(self, shard: Shard[Any]) -> None:
        """Give a shard the newest configuration."""

    def topic_config(self, settings: BrokerSettings) -> InternalTopicConfig:
        """How to make the topic."""

    def topics_deleted(self, topics: tuple[tuple[str, Uuid], ...]) -> object | None:
        """What shards are to be told when topics were deleted, if anything."""

    def sweep_interval_ms(self) -> int:
        """How often to look for what `missed_topic_deletions` finds."""

    def missed_topic_deletions(self, shard: Shard[Any], image: MetadataImage) -> object | None:
        """What a shard is to be told of topics whose deletion it has not heard of, if anything."""

    def run_effect(self, instruction: object, context: EffectContext) -> None:
        """Do what a shard asks for (Send)."""

    def is_new_id_needed(self, request: object) -> bool:
        """Whether the shard may have to make up an id for who asks."""

    def follow(self, old: MetadataImage, new: MetadataImage) -> bool:
        """Take a new image in; whether shards are to be updated and told `metadata_update` of
        it."""

    def metadata_update(self, shard: Shard[Any]) -> object | None:
        """What a shard that serves is to be told of the image that came last."""

    def has_missed_updates(self, shard: Shard[Any]) -> bool:
        """Whether images may have come by while the shard was loading, or somewhere else."""

    def full_metadata_update(self, shard: Shard[Any]) -> object | None:
        """What makes good for that."""

    def is_membership_change(self, request: object) -> bool:
        """Whether there may be more or fewer members after the request."""

    def update_member_counts(self, shards: Sequence[Shard[Any]]) -> None:
        """Tell all of these shards how many members they have together."""
