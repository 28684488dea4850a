"""Has share states made and deleted for the coordinators of groups, and tells them what came of it.

A group's shard sends an instruction (coordinator/group/share/requests.py); the share coordinator,
wherever its shards are, is asked partition by partition. The report goes back until the group's
shard has taken it or has moved: its new host asks again for what was not reported.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Protocol

from odradek.coordinator.group.share.requests import (
    DeleteStates,
    InitializeStates,
    RestartStates,
    StatesDeleted,
    StatesInitialized,
    StatesRestarted,
)
from odradek.node.bus.reply import Reply, drive
from odradek.node.router.shards.coordinator_type import EffectContext
from odradek.node.router.share.sessions import TopicIdPartition
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.types import Uuid

log = logging.getLogger(__name__)


class States(Protocol):
    """Share states, wherever they are kept: ShareStates is that."""

    def initialize(
        self, group_id: str, topic_id: Uuid, partition: int, state_epoch: int, start_offset: int
    ) -> Reply[None]: ...

    def delete(self, group_id: str, topic_id: Uuid, partition: int) -> Reply[None]: ...


class Reloads(Protocol):
    """Leaders that can be told: ShareReloads is that."""

    async def reload_on_leaders(
        self, group_id: str, places: Iterable[TopicIdPartition]
    ) -> dict[TopicIdPartition, ErrorCode]: ...


class Surroundings(Protocol):
    """What is needed of the router: Services has it."""

    @property
    def share_persister(self) -> States: ...

    @property
    def share_state_reloader(self) -> Reloads: ...


class ShareStateEffects:
    """See the module's docstring."""

    def __init__(self, services: Surroundings) -> None:
        self._services = services

    def run_effect(self, instruction: object, context: EffectContext) -> None:
        """Do what a group's shard asks for."""
        states = self._services.share_persister
        if isinstance(instruction, RestartStates):
            drive(self._restart(instruction, context), _log_failure)
            return
        report: type[StatesInitialized | StatesDeleted]
        asked: dict[Uuid, dict[int, Reply[None]]]
        if isinstance(instruction, InitializeStates):
            report, epoch = StatesInitialized, instruction.state_epoch
            asked = {
                topic_id: {
                    index: states.initialize(instruction.group_id, topic_id, index, epoch, offset)
                    for index, offset in partitions.items()
                }
                for topic_id, partitions in instruction.topics.items()
            }
        else:
            assert isinstance(instruction, DeleteStates)
            report = StatesDeleted
            asked = {
                topic_id: {
                    index: states.delete(instruction.group_id, topic_id, index)
                    for index in sorted(indexes)
                }
                for topic_id, indexes in instruction.topics.items()
            }
        group_id, request_id = instruction.group_id, instruction.request_id

        async def run_and_report() -> None:
            outcomes = await _collect_codes(group_id, asked)
            await context.report(report(group_id, outcomes, request_id))

        drive(run_and_report(), _log_failure)

    async def _restart(self, asked: RestartStates, context: EffectContext) -> None:
        """What is begun anew is written first: a leader reads nothing older then."""
        states = self._services.share_persister
        group_id, epoch = asked.group_id, asked.state_epoch
        outcomes = await _collect_codes(
            group_id,
            {
                topic_id: {
                    index: states.initialize(group_id, topic_id, index, epoch, offset)
                    for index, offset in partitions.items()
                }
                for topic_id, partitions in asked.topics.items()
            },
        )
        told = await self._services.share_state_reloader.reload_on_leaders(
            group_id,
            [
                TopicIdPartition(topic_id, index)
                for topic_id, codes in outcomes.items()
                for index, code in codes.items()
                if code is ErrorCode.NONE
            ],
        )
        for (topic_id, index), code in told.items():
            outcomes[topic_id][index] = code
        await context.report(StatesRestarted(group_id, epoch, outcomes))


async def _collect_codes(
    group_id: str, asked: Mapping[Uuid, Mapping[int, Reply[None]]]
) -> dict[Uuid, dict[int, ErrorCode]]:
    """All answers together."""
    found: dict[Uuid, dict[int, ErrorCode]] = {}
    for topic_id, replies in asked.items():
        codes = found[topic_id] = {}
        for index, reply in replies.items():
            try:
                await reply
            except ApiError as error:
                codes[index] = error.code
                log.info("a share state of %s could not be changed: %s", group_id, error)
            else:
                codes[index] = ErrorCode.NONE
    return found


def _log_failure(_result: None, error: BaseException | None) -> None:
    if error is not None:
        log.error("share states could not be changed", exc_info=error)
