"""Runs the effects of group shards on share states: initialize, replace, delete.

A group's shard asks for an effect (coordinator/group/share/requests.py). The share coordinator is
called for each partition, wherever its shards are. The result is reported until the group's shard
has recorded it or has moved: its next host runs the effects again that were not reported.
"""

from collections.abc import Mapping
from typing import TypeAlias

from odradek.coordinator.group.share.requests import (
    DeleteStates,
    InitializeStates,
    RestartStates,
    StatesDeleted,
    StatesInitialized,
    StatesRestarted,
)
from odradek.coordinator.share.requests import DeleteShareState, InitializeShareState, ShareKey
from odradek.node.bus.reply import Reply, drive
from odradek.node.router.shards.coordinator_type import EffectContext
from odradek.node.router.share.persister import SharePersister
from odradek.node.router.share.sessions import TopicIdPartition
from odradek.node.router.share.state_reload import ShareStateReloader
from odradek.node.structured_log import get_logger
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.types import Uuid

log = get_logger(__name__)

ShareStateEffect: TypeAlias = InitializeStates | RestartStates | DeleteStates
_Calls: TypeAlias = Mapping[Uuid, Mapping[int, Reply[None]]]


class ShareStateEffects:
    """See the module's docstring."""

    def __init__(self, persister: SharePersister, reloader: ShareStateReloader) -> None:
        self._persister = persister
        self._reloader = reloader

    def run(self, effect: ShareStateEffect, context: EffectContext) -> None:
        """Begin; the shard gets the result through `context`."""
        drive(self._run(effect, context), _log_failure)

    async def _run(self, effect: ShareStateEffect, context: EffectContext) -> None:
        group_id = effect.group_id
        codes = await _collect_codes(group_id, self._call(effect))
        if isinstance(effect, InitializeStates):
            await context.report(StatesInitialized(group_id, codes, effect.request_id))
        elif isinstance(effect, DeleteStates):
            await context.report(StatesDeleted(group_id, codes, effect.request_id))
        else:
            # The new state is persisted by now: a leader that loads it reads nothing older.
            reloaded = await self._reloader.reload_on_leaders(
                group_id,
                [
                    TopicIdPartition(topic_id, index)
                    for topic_id, by_index in codes.items()
                    for index, code in by_index.items()
                    if code is ErrorCode.NONE
                ],
            )
            for (topic_id, index), code in reloaded.items():
                codes[topic_id][index] = code
            await context.report(StatesRestarted(group_id, effect.state_epoch, codes))

    def _call(self, effect: ShareStateEffect) -> _Calls:
        group_id, persister = effect.group_id, self._persister
        if isinstance(effect, DeleteStates):
            return {
                topic_id: {
                    index: persister.call(DeleteShareState(ShareKey(group_id, topic_id, index)))
                    for index in sorted(indexes)
                }
                for topic_id, indexes in effect.topics.items()
            }
        return {
            topic_id: {
                index: persister.call(
                    InitializeShareState(
                        ShareKey(group_id, topic_id, index),
                        state_epoch=effect.state_epoch,
                        start_offset=offset,
                    )
                )
                for index, offset in partitions.items()
            }
            for topic_id, partitions in effect.topics.items()
        }


async def _collect_codes(group_id: str, calls: _Calls) -> dict[Uuid, dict[int, ErrorCode]]:
    codes: dict[Uuid, dict[int, ErrorCode]] = {}
    for topic_id, replies in calls.items():
        by_index = codes[topic_id] = {}
        for index, reply in replies.items():
            by_index[index] = ErrorCode.NONE
            try:
                await reply
            except ApiError as error:
                by_index[index] = error.code
                log.info("a share state could not be changed", group=group_id, reason=str(error))
    return codes


def _log_failure(_result: None, error: BaseException | None) -> None:
    if error is not None:
        log.error("share states could not be changed", exc_info=error)
