"""A shard of share states, with requests of leaders and group coordinators, and its log."""

from collections.abc import Sequence

from odradek.cluster.metadata.image import PartitionImage, TopicImage
from odradek.coordinator.loader import LogEntry
from odradek.coordinator.share.requests import (
    Checkpoint,
    DeleteShareState,
    DropLog,
    InitializeShareState,
    MeasureLog,
    PersistedShareState,
    ReadShareState,
    ShareKey,
    ShareStateError,
    ShareStateSummary,
    SummarizeShareState,
    WriteShareState,
)
from odradek.coordinator.share.settings import ShareStateSettings
from odradek.coordinator.share.shard import ShareStateShard
from odradek.coordinator.share.state import NO_COUNT
from odradek.coordinator.share.state_batches import PersisterStateBatch
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import NO_OFFSET
from tests.support.controller_harness import topic_id
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
    """Leader epochs and state epochs are 1 by default."""

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
        """NONE, or the error."""
        answer: object = self.ask(request).response(object)
        return answer.code if isinstance(answer, ShareStateError) else ErrorCode.NONE

    def initialize(
        self, key: ShareKey = KEY, *, state_epoch: int = 1, start_offset: int = 0
    ) -> ErrorCode:
        return self.outcome(
            InitializeShareState(key, state_epoch=state_epoch, start_offset=start_offset)
        )

    def read(
        self, key: ShareKey = KEY, *, leader_epoch: int = 1
    ) -> PersistedShareState | ErrorCode:
        answer: object = self.ask(ReadShareState(key, leader_epoch)).response(object)
        if isinstance(answer, ShareStateError):
            return answer.code
        assert isinstance(answer, PersistedShareState)
        return answer

    def write(
        self,
        *batches: PersisterStateBatch,
        key: ShareKey = KEY,
        state_epoch: int = 1,
        leader_epoch: int = 1,
        start_offset: int = NO_OFFSET,
        count: int = NO_COUNT,
    ) -> ErrorCode:
        return self.outcome(
            WriteShareState(
                key,
                state_epoch=state_epoch,
                leader_epoch=leader_epoch,
                start_offset=start_offset,
                delivery_complete_count=count,
                batches=batches,
            )
        )

    def delete(self, key: ShareKey = KEY) -> ErrorCode:
        return self.outcome(DeleteShareState(key))

    def summary(self, key: ShareKey = KEY) -> ShareStateSummary | ErrorCode:
        answer: object = self.ask(SummarizeShareState(key)).response(object)
        if isinstance(answer, ShareStateError):
            return answer.code
        assert isinstance(answer, ShareStateSummary)
        return answer

    def carry_out(self) -> int:
        """Measure and delete the log as the host does; returns how much of it was deleted."""
        dropped = 0
        while self.sent:
            instruction = self.sent.pop(0)
            if isinstance(instruction, MeasureLog):
                self.ask(Checkpoint(len(self.log)))
            else:
                assert isinstance(instruction, DropLog)
                dropped = instruction.end_offset
        return dropped
