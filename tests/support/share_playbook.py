"""A shard of share states on stage: leaders and group coordinators, and the measured log."""

from collections.abc import Sequence

from odradek.cluster.metadata.image import PartitionImage, TopicImage
from odradek.coordinator.loading import LogEntry
from odradek.coordinator.share.batches import NO_OFFSET, StateBatch
from odradek.coordinator.share.requests import (
    Checkpoint,
    Delete,
    DropLog,
    Initialize,
    MeasureLog,
    Read,
    Refused,
    ShareKey,
    StateRead,
    Summarize,
    Summary,
    Write,
)
from odradek.coordinator.share.settings import ShareStateSettings
from odradek.coordinator.share.shard import ShareStateShard
from odradek.coordinator.share.state import NO_COUNT
from odradek.protocol.errors import ErrorCode
from tests.support.controller_room import topic_id
from tests.support.shard_playbook import START_MS, Call, ShardPlaybook

TOPIC = topic_id(1)
OTHER_TOPIC = topic_id(2)
KEY = ShareKey("g", TOPIC, 0)
PARTITION = PartitionImage(replicas=(0,), in_sync_replicas=(0,), leader=0)


def topics(*topic_ids: bytes, partitions: int = 3) -> dict[bytes, TopicImage]:
    return {
        one: TopicImage(name=f"t{at}", topic_id=one, partitions=(PARTITION,) * partitions)
        for at, one in enumerate(topic_ids)
    }


class SharePlaybook(ShardPlaybook[ShareStateShard, Call]):
    """Leaders are of epoch 1, state epochs 1, unless something else is said."""

    def __init__(
        self,
        settings: ShareStateSettings | None = None,
        *,
        log: Sequence[LogEntry] = (),
        now_ms: int = START_MS,
    ) -> None:
        self.settings = settings or ShareStateSettings()
        self.topics = topics(TOPIC, OTHER_TOPIC)
        super().__init__(
            lambda: ShareStateShard(self.settings, self.topics), Call, log=log, now_ms=now_ms
        )

    def outcome(self, request: object) -> ErrorCode:
        """NONE, or why it was refused."""
        answer: object = self.ask(request).response(object)
        return answer.code if isinstance(answer, Refused) else ErrorCode.NONE

    def initialize(
        self, key: ShareKey = KEY, *, state_epoch: int = 1, start_offset: int = 0
    ) -> ErrorCode:
        return self.outcome(Initialize(key, state_epoch, start_offset))

    def read(self, key: ShareKey = KEY, *, leader_epoch: int = 1) -> StateRead | ErrorCode:
        answer: object = self.ask(Read(key, leader_epoch)).response(object)
        if isinstance(answer, Refused):
            return answer.code
        assert isinstance(answer, StateRead)
        return answer

    def write(
        self,
        *batches: StateBatch,
        key: ShareKey = KEY,
        state_epoch: int = 1,
        leader_epoch: int = 1,
        start_offset: int = NO_OFFSET,
        count: int = NO_COUNT,
    ) -> ErrorCode:
        return self.outcome(Write(key, state_epoch, leader_epoch, start_offset, count, batches))

    def delete(self, key: ShareKey = KEY) -> ErrorCode:
        return self.outcome(Delete(key))

    def summary(self, key: ShareKey = KEY) -> Summary | ErrorCode:
        answer: object = self.ask(Summarize(key)).response(object)
        if isinstance(answer, Refused):
            return answer.code
        assert isinstance(answer, Summary)
        return answer

    def carry_out(self) -> int:
        """Measure and drop the log as the shell does; how much of it was dropped."""
        dropped = 0
        while self.sent:
            instruction = self.sent.pop(0)
            if isinstance(instruction, MeasureLog):
                self.ask(Checkpoint(len(self.log)))
            else:
                assert isinstance(instruction, DropLog)
                dropped = instruction.end_offset
        return dropped
