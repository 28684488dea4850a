"""What differs between the coordinators of groups, of transactions and of share states.

CoordinatorService hosts the shards of any type in the same way. A type says how its topic is
created, how a shard is made and configured, and how its effects are run. The types are in
group_coordinator_type.py, transaction_coordinator_type.py and share_coordinator_type.py.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from odradek.cluster.metadata.broker_settings import BrokerSettings
from odradek.cluster.metadata.image import MetadataImage
from odradek.coordinator.runtime import Shard
from odradek.node.bus.reply import Reply
from odradek.node.router.backoff import exponential_backoff
from odradek.node.structured_log import get_logger
from odradek.protocol.errors import ApiError
from odradek.protocol.types import Request, Uuid

log = get_logger(__name__)

S = TypeVar("S", bound=Shard[Any])
S_contra = TypeVar("S_contra", bound=Shard[Any], contravariant=True)
E_contra = TypeVar("E_contra", contravariant=True)

SWEEP_MS_MAX: Final = 600_000
"""Between two sweeps for deleted topics, of types that have no configuration for it."""
REPORT_RETRY_S_MIN: Final = 0.02
REPORT_RETRY_S_MAX: Final = 1.0
"""Pauses between attempts to report."""


class EffectContext(NamedTuple):
    """The circumstances of a shard's effect: the leader epoch in which the shard coordinates,
    whether it is still hosted as it was, how to call it, and its number."""

    coordinator_epoch: int
    is_current: Callable[[], bool]
    call_shard: Callable[[Request[object]], Reply[object]]
    shard: int

    async def report(
        self, result: Request[object], pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        """Call the shard with the effect's result until it has recorded it, or is hosted here no
        longer: its next host runs the effect again. `pause` waits for so many seconds."""
        pauses = exponential_backoff(REPORT_RETRY_S_MIN, REPORT_RETRY_S_MAX)
        while self.is_current():
            try:
                await self.call_shard(result)
            except ApiError as error:
                log.info(
                    "a shard has not recorded the result of an effect yet",
                    shard=self.shard,
                    reason=str(error),
                )
                await pause(next(pauses))
            else:
                return


class InternalTopicConfig(NamedTuple):
    """How a coordinator's topic is created."""

    partition_count: int
    replication_factor: int
    configs: tuple[tuple[str, str], ...]


class CoordinatorType(Protocol[S, E_contra]):
    """See the module's docstring. `configure` is called first, and with every change."""

    topic_name: str
    sweep_interval_ms: int
    """How often `missed_topic_deletions` is called."""

    @property
    def members(self) -> "ShardMembers[S] | None":
        """Of a type whose shards have members."""

    def configure(self, settings: BrokerSettings, image: MetadataImage) -> None:
        """Take over the newest configuration, for shards made from now on."""

    def new_shard(self) -> S:
        """An empty shard, into which a log is loaded."""

    def update(self, shard: S) -> None:
        """Give a shard the newest configuration."""

    def apply_image(self, old: MetadataImage, new: MetadataImage) -> bool:
        """Take over a new image; whether shards must be updated."""

    def topic_config(self, settings: BrokerSettings) -> InternalTopicConfig:
        """How to create the topic."""

    def topics_deleted(self, topics: tuple[tuple[str, Uuid], ...]) -> Request[None] | None:
        """The request that shards get when topics (name, id) were deleted, if any."""

    def missed_topic_deletions(self, shard: S, image: MetadataImage) -> Request[None] | None:
        """The request about deleted topics that a shard still keeps something of, if any."""

    def run_effect(self, effect: E_contra, context: EffectContext) -> None:
        """Run an effect of a shard (Effect.instruction)."""


class ShardMembers(Protocol[S_contra]):
    """The part of a CoordinatorType that concerns members and the topics they read."""

    def is_new_id_needed(self, request: object) -> bool:
        """Whether the shard may have to assign a member id."""

    def metadata_update(self, shard: S_contra) -> Request[None]:
        """The request with what the newest image has changed, for an active shard."""

    def has_missed_updates(self, shard: S_contra) -> bool:
        """Whether images may have come while the shard was loading, or was hosted elsewhere."""

    def full_metadata_update(self, shard: S_contra) -> Request[None]:
        """The request that makes up for missed updates."""

    def is_membership_change(self, request: object) -> bool:
        """Whether the number of members may change with the request."""

    def update_member_counts(self, shards: Sequence[S_contra]) -> None:
        """Set in each of the shards how many members they have together."""
