"""Rewinds with the playbook, with members that read, commit and revoke.

A `RewindMember` behaves as client libraries do, with the eager or the cooperative classic protocol
or the consumer protocol. A silent one keeps its position in partitions that it is assigned again,
and cannot announce this (version 0 of the subscription; kafka-python from 3.0 on). A member commits
what it has read before it revokes a partition, and starts at the committed offset of a new one. So
every record is delivered once, until there is a rewind: `DeliveryLedger` has the next expected
record of each partition.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from odradek.coordinator.group.group_record import GroupRecord
from odradek.coordinator.group.rewind.requests import RewindGroup, RewindPosition, RewindResult
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.runtime import CoordinatorBatch
from odradek.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import (
    ConsumerGroupHeartbeatResponse,
    JoinGroupResponse,
    MemberIdentity,
    SyncGroupResponse,
)
from odradek.protocol.messages.partitions import TopicPartitions
from odradek.protocol.types import ZERO_UUID, Uuid
from tests.support.consumer_playbook import NO_INTERVAL, Consumer, Stage, id_of
from tests.support.group_playbook import GroupCall
from tests.support.subscriptions import encode_subscription

EAGER, SILENT, COOPERATIVE, CONSUMER = "eager", "silent", "cooperative", "consumer"
END = 100
TOPIC = "a"

Key = tuple[str, int]


class RewindStage(Stage):
    """A playbook on which groups can be rewound."""

    def __init__(
        self,
        partition_count: int = 4,
        settings: GroupSettings = NO_INTERVAL,
        *,
        log: Sequence[tuple[bytes, bytes | None]] = (),
    ) -> None:
        # How long the log was after each batch: what a coordinator may be left with.
        self.batch_ends: list[int] = []
        # Which batches the log refuses.
        self.refuses: Callable[[CoordinatorBatch[GroupRecord]], bool] = lambda _batch: False
        super().__init__({TOPIC: partition_count}, settings, log=log)

    def _commit(self, batch: CoordinatorBatch[GroupRecord]) -> None:
        if self.refuses(batch):
            error = ErrorCode.KAFKA_STORAGE_ERROR
            self._hear(self.runtime.append_failed(batch, error, self.now_ms))
            self._settle()
            return
        super()._commit(batch)
        self.batch_ends.append(len(self.log))

    def rewind_call(
        self,
        to: Mapping[Key, int | None],
        *,
        shift: int = 0,
        dry_run: bool = False,
        rewind_id: Uuid = ZERO_UUID,
        undoes: int = 0,
        group: str = "g",
        timeout_ms: int = 30_000,
        start: int = 0,
        end: int = END,
    ) -> GroupCall:
        positions = tuple(
            RewindPosition(
                topic=topic,
                topic_id=id_of(topic),
                partition=index,
                start_offset=start,
                end_offset=end,
                offset=offset,
                shift=shift,
            )
            for (topic, index), offset in to.items()
        )
        request = RewindGroup(
            group_id=group,
            rewind_id=rewind_id,
            positions=positions,
            is_dry_run=dry_run,
            undoes=undoes,
            timeout_ms=timeout_ms,
        )
        return self.ask(request)

    def rewind(self, to: Mapping[Key, int | None], **given: object) -> RewindResult:
        """A rewind that completes at once."""
        return self.rewind_call(to, **given).response(RewindResult)  # type: ignore[arg-type]  # as rewind_call has them

    def undo_call(self, group: str = "g") -> GroupCall:
        """Undo the last rewind, as the router does."""
        points = self.shard.rewinds.undo_points(group)
        number = max(points)
        to = {(move.topic, move.partition): move.previous for move in points[number].moves}
        return self.rewind_call(to, undoes=number, group=group)


class DeliveryLedger:
    """The next expected record of each partition."""

    def __init__(self) -> None:
        self.expected: dict[Key, int] = {}
        self.delivered_count = 0

    def deliver(self, key: Key, offset: int) -> None:
        assert offset == self.expected.get(key, 0), f"{key}: {offset} after {self.expected}"
        self.expected[key] = offset + 1
        self.delivered_count += 1

    def lose(self, key: Key, position: int, committed_offset: int) -> None:
        """A member is removed: its uncommitted records are read again, as in any group."""
        if self.expected.get(key) == position:
            self.expected[key] = max(committed_offset, 0)


class RewindMember:
    """See the module's docstring."""

    def __init__(self, stage: RewindStage, ledger: DeliveryLedger, kind: str, name: str) -> None:
        self.stage = stage
        self.ledger = ledger
        self.kind = kind
        self.name = name
        self.member_id = ""
        self.generation = -1
        self.positions: dict[Key, int] = {}
        self.consumer = self._new_consumer()
        self.commits: list[tuple[str, int, Key, int]] = []
        self.refusals: list[ErrorCode] = []
        self.revoked_count = 0
        # Whether it goes on reading what it has been told to give up.
        self.is_stubborn = False
        # How often it passes over what it is given and joins again, as if it had not heard. A
        # member of the consumer protocol loses as many answers.
        self.deaf_count = 0
        self._call: GroupCall | None = None
        self._is_member = False

    def _new_consumer(self) -> Consumer:
        consumer = Consumer(self.stage, self.name, topics=(TOPIC,))
        consumer.is_terse = True
        return consumer

    @property
    def is_waiting(self) -> bool:
        """Whether a JoinGroup or SyncGroup of it is pending."""
        return self._call is not None

    # -- reading ----------------------------------------------------------------------------------

    def read(self, count: int = 1) -> None:
        """Read up to `count` records of every owned partition."""
        if self.kind in (EAGER, SILENT) and self._call is not None:
            return
        for key, at in self.positions.items():
            for offset in range(at, min(at + count, END)):
                self.ledger.deliver(key, offset)
                self.positions[key] = offset + 1

    def commit(self, keys: Collection[Key] | None = None) -> None:
        """Commit its positions, each partition in its own request, so that a test can repeat it
        later."""
        for key in list(self.positions if keys is None else keys):
            offset = self.positions[key]
            self.commits.append((self.member_id, self.generation, key, offset))
            error = self.stage.commit(
                {key: offset},
                member_id=self.member_id,
                generation_id=self.generation,
                topic_id=id_of(TOPIC),
                version=10,
            )
            if error:
                self.refusals.append(ErrorCode(error))

    def _adopt(self, keys: Collection[Key]) -> None:
        """Take over this assignment: commit and drop lost partitions, look up the offsets of new
        ones."""
        gone = [key for key in self.positions if key not in keys]
        self.commit(gone)
        self.revoked_count += len(gone)
        for key in gone:
            del self.positions[key]
        self._look_up(keys)

    def _look_up(self, keys: Collection[Key]) -> None:
        for key in keys:
            if key not in self.positions:
                found = self.stage.fetch(*key, topic_id=id_of(TOPIC)).committed_offset
                self.positions[key] = max(found, 0)

    # -- being a member ---------------------------------------------------------------------------

    def step(self) -> None:
        """Do what is next: take a response, join, sync, or send a heartbeat."""
        if self.kind == CONSUMER:
            self._step_consumer()
        elif self._call is not None:
            if not self._call.is_parked:
                self._hear(self._call)
        elif not self._is_member:
            self._join()
        else:
            error = self.stage.heartbeat(self.member_id, self.generation)
            if error == ErrorCode.REBALANCE_IN_PROGRESS:
                self._join()
            elif error:
                self._start_anew(ErrorCode(error))

    def leave(self) -> None:
        """Commit and leave. Records whose commit is refused, because the group has just changed,
        are read again."""
        had = dict(self.positions)
        self._adopt(())
        for key, position in had.items():
            committed = self.stage.fetch(*key, topic_id=id_of(TOPIC)).committed_offset
            self.ledger.lose(key, position, committed)
        if self.kind == CONSUMER:
            self.stage.send_heartbeat(self.name, -1)
            self.consumer = self._new_consumer()
        elif self._is_member and self._call is None:
            self.stage.leave(MemberIdentity(member_id=self.member_id))
            self._start_anew(ErrorCode.NONE)

    def _start_anew(self, error: ErrorCode) -> None:
        if error is not ErrorCode.NONE:
            self.refusals.append(error)
        self._is_member = False
        self._call = None
        self._lose_everything()
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE):
            self.member_id, self.generation = "", -1

    def _lose_everything(self) -> None:
        for key, position in self.positions.items():
            committed = self.stage.fetch(*key, topic_id=id_of(TOPIC)).committed_offset
            self.ledger.lose(key, position, committed)
        self.positions.clear()

    def _join(self) -> None:
        if self.kind == EAGER:
            self._adopt(())
        elif self._is_member:
            self.commit()
        owned = sorted(index for _, index in self.positions) if self.kind == COOPERATIVE else []
        subscription = ConsumerProtocolSubscription(
            topics=[TOPIC],
            owned_partitions=[TopicPartitions(name=TOPIC, partitions=owned)] if owned else [],
        )
        version = 0 if self.kind == SILENT else 1
        protocols = [(self.kind, encode_subscription(subscription, version))]
        self._call = self.stage.join(self.member_id, protocols=protocols, client=self.name)

    def _hear(self, call: GroupCall) -> None:
        self._call = None
        if call.refused_with is not None:
            # The coordinator has moved: the next heartbeat tells how things stand.
            return
        answer = call.answer
        assert answer is not None
        response = getattr(answer, "response", None)
        if isinstance(response, JoinGroupResponse):
            self._hear_join(response)
        else:
            assert isinstance(response, SyncGroupResponse)
            self._hear_sync(response)

    def _hear_join(self, response: JoinGroupResponse) -> None:
        error = ErrorCode(response.error_code)
        if error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            self._join()
            return
        if error is not ErrorCode.NONE:
            self._start_anew(error)
            return
        self.member_id, self.generation = response.member_id, response.generation_id
        assignments = None
        if response.leader == self.member_id:
            assignments = _assign(
                {member.member_id: member.metadata for member in response.members},
                len(self.stage.image.topics_by_name[TOPIC].partitions),
                is_cooperative=self.kind == COOPERATIVE,
            )
        self._call = self.stage.sync(
            self.member_id, self.generation, assignments, protocol_name=self.kind
        )

    def _hear_sync(self, response: SyncGroupResponse) -> None:
        error = ErrorCode(response.error_code)
        if error is ErrorCode.REBALANCE_IN_PROGRESS:
            self._is_member = True
            self._join()
            return
        if error is not ErrorCode.NONE:
            self._start_anew(error)
            return
        self._is_member = True
        if self.deaf_count:
            self.deaf_count -= 1
            self._join()
            return
        keys = {
            (topic.name, index)
            for topic in decode_assignment(response.assignment).assigned_partitions
            for index in topic.partitions
        }
        if self.is_stubborn:
            keys |= self.positions.keys()
        has_lost = any(key not in keys for key in self.positions)
        self._adopt(keys)
        if has_lost and self.kind == COOPERATIVE:
            self._join()

    def _step_consumer(self) -> None:
        call = self.consumer.call()
        if self.deaf_count:
            self.deaf_count -= 1
            self.consumer.lose()
            return
        if call.refused_with is not None:
            return
        self.consumer.hear(call.response(ConsumerGroupHeartbeatResponse))
        if self.consumer.errors:
            self.refusals += self.consumer.errors
            self.consumer.errors.clear()
            self._lose_everything()
        self.member_id = self.name
        had = self.generation
        gone = [key for key in self.positions if key not in self.consumer.partitions]
        # What it gives up it commits as the member that it was.
        self.commit(gone) if self.consumer.epoch == had else self._commit_late(gone)
        self.generation = self.consumer.epoch
        for key in gone:
            del self.positions[key]
        self.revoked_count += len(gone)
        self._look_up(self.consumer.partitions)

    def _commit_late(self, keys: Sequence[Key]) -> None:
        self.generation = self.consumer.epoch
        self.commit(keys)


def _assign(
    members: Mapping[str, bytes], partition_count: int, *, is_cooperative: bool
) -> dict[str, bytes]:
    """A leader's assignment: partitions stay with their owners, the rest is distributed in turn."""
    owned: dict[int, str] = {}
    if is_cooperative:
        for member_id, metadata in members.items():
            for topic in decode_subscription(metadata).owned_partitions:
                owned.update((index, member_id) for index in topic.partitions)
    names = sorted(members)
    share = -(-partition_count // len(names))
    given: dict[str, list[int]] = {name: [] for name in names}
    for index, owner in sorted(owned.items()):
        if len(given[owner]) < share:
            given[owner].append(index)
    taken = {index for indexes in given.values() for index in indexes}
    for index in range(partition_count):
        if index not in taken:
            poorest = min(names, key=lambda name: len(given[name]))
            # What somebody must give up first is given in the rebalance after that (KIP-429).
            if index in owned:
                continue
            given[poorest].append(index)
    return {
        name: encode_assignment(
            ConsumerProtocolAssignment(
                assigned_partitions=[TopicPartitions(name=TOPIC, partitions=indexes)]
                if indexes
                else []
            ),
            1,
        )
        for name, indexes in given.items()
    }


def settle(stage: RewindStage, *readers: RewindMember, rounds: int = 40) -> None:
    """Step all members until nothing changes any more."""
    for _ in range(rounds):
        before = [(reader.generation, dict(reader.positions)) for reader in readers]
        for reader in readers:
            reader.step()
        stage.tick(1)
        is_quiet = before == [(reader.generation, dict(reader.positions)) for reader in readers]
        if is_quiet and not any(reader.is_waiting for reader in readers):
            return
    raise AssertionError("the group does not come to rest")
