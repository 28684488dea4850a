"""A kind of coordinator: what it keeps in its topic, and what it needs of its router.

`coordinators` hosts the shards of any kind in the same way, and asks this face for what is
particular to one: the topic and how it is made, how a shard is made and configured, and what is
done outside for it. The kinds are in group_kind.py, transaction_kind.py and share_kind.py.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.settings import BrokerSettings
from odradek.coordinator.runtime import Shard
from odradek.node.bus.reply import Reply
from odradek.protocol.errors import ApiError
from odradek.protocol.types import Uuid

log = logging.getLogger(__name__)

SWEEP_MS_MAX: Final = 600_000
"""How often kinds look for missed deletions that have no configuration for it."""
REPORT_AGAIN_S_MIN: Final = 0.02
REPORT_AGAIN_S_MAX: Final = 1.0
"""Between attempts to report: doubled each time."""


class Errand(NamedTuple):
    """What a shard's host gives with an instruction: the epoch in which it coordinates, whether the
    shard is still there to be told, and how, and which one it is."""

    coordinator_epoch: int
    is_wanted: Callable[[], bool]
    tell: Callable[[object], Reply[object]]
    shard: int

    async def deliver(
        self, report: object, pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        """Tell what came of it until the shard has taken that, or is here no more: its next host
        asks again. `pause` lets so many seconds pass."""
        pause_s = REPORT_AGAIN_S_MIN
        while self.is_wanted():
            try:
                await self.tell(report)
            except ApiError as error:
                log.info("shard %d has not recorded yet what was done: %s", self.shard, error)
                await pause(pause_s)
                pause_s = min(2 * pause_s, REPORT_AGAIN_S_MAX)
            else:
                return


class TopicPlan(NamedTuple):
    """How a coordinator's topic is made if there is none."""

    partition_count: int
    replication_factor: int
    configs: tuple[tuple[str, str], ...]


class ShardKind(Protocol):
    """See the module's docstring. `configure` comes before anything else, and with every change."""

    topic_name: str

    def configure(self, settings: BrokerSettings, image: MetadataImage) -> None:
        """Take the newest configuration in, for shards made from now on."""

    def new_shard(self) -> Shard[Any]:
        """A shard for a log to be loaded into."""

    def update(self, shard: Shard[Any]) -> None:
        """Give a shard the newest configuration."""

    def topic_plan(self, settings: BrokerSettings) -> TopicPlan:
        """How to make the topic."""

    def after_deletion(self, topics: tuple[tuple[str, Uuid], ...]) -> object | None:
        """What shards are to be told when topics were deleted, if anything."""

    def sweep_interval_ms(self) -> int:
        """How often to look for what `missed_deletions` finds."""

    def missed_deletions(self, shard: Shard[Any], image: MetadataImage) -> object | None:
        """What a shard is to be told of topics whose deletion it has not heard of, if anything."""

    def carry_out(self, instruction: object, errand: Errand) -> None:
        """Do what a shard asks for (Send)."""

    def needs_id(self, request: object) -> bool:
        """Whether the shard may have to make up an id for who asks."""

    def follow(self, old: MetadataImage, new: MetadataImage) -> bool:
        """Take a new image in; whether shards are to be updated and told `news` of it."""

    def news(self, shard: Shard[Any]) -> object | None:
        """What a shard that serves is to be told of the image that came last."""

    def has_missed_news(self, shard: Shard[Any]) -> bool:
        """Whether images may have come by while the shard was loading, or somewhere else."""

    def all_news(self, shard: Shard[Any]) -> object | None:
        """What makes good for that."""

    def changes_members(self, request: object) -> bool:
        """Whether there may be more or fewer members after the request."""

    def count_members(self, shards: Sequence[Shard[Any]]) -> None:
        """Tell all of these shards how many members they have together."""
