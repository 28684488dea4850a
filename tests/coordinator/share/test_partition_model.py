"""A share partition compared with a simple model of single offsets, in random steps."""

import random

import pytest

from odradek.cluster.metadata.group_settings import ShareGroupSettings
from odradek.coordinator.share.acquisition import AcquireOptions, LogBatch
from odradek.coordinator.share.partition import SharePartition, StateWrite
from odradek.coordinator.share.requests import PersistedShareState
from odradek.coordinator.share.state_batches import RecordState
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.share import AcknowledgementBatch
from tests.support.share_model import DONE, Durable, ShareModel, offsets_of, write_down
from tests.support.share_playbook import SharePlaybook


def batch(first: int, last: int, *types: int) -> AcknowledgementBatch:
    return AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=list(types))


ERRORS = (ErrorCode.INVALID_RECORD_STATE, ErrorCode.INVALID_REQUEST)


class Both:
    """The machine and the model with the same steps; `durable` is the written state."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1_000
        self.group_settings = self.draw_settings()
        self.start = self.random.choice([0, 7])
        self.machine = SharePartition(
            self.start, (), now_ms=self.now, group_settings=self.group_settings
        )
        self.model = ShareModel(self.start)
        self.durable: Durable = {}
        self.durable_start = self.start
        self.log: list[LogBatch] = []
        at = self.start
        while at < self.start + 120:
            at += self.random.choice([0, 0, 0, 0, 2])
            end = at + self.random.choice([1, 1, 3, 8])
            self.log.append(LogBatch(at, end, self.random.random() < 0.1))
            at = end
        self.under_way: StateWrite | None = None
        self.acknowledged: set[int] = set()

    def draw_settings(self) -> ShareGroupSettings:
        draw = self.random.choice
        return ShareGroupSettings(
            lock_duration_ms=draw([50, 200]),
            delivery_count_limit=draw([2, 3, 5, 6]),
            record_locks_max=draw([5, 20, 200]),
            redelivery_delay_ms=draw([0, 0, 30]),
            redelivery_backoff=draw([1.0, 2.0]),
            dead_letter_topic=draw(["", "dlq.t"]),
        )

    def step(self) -> None:
        steps = (
            self.acquire,
            self.acquire,
            self.acknowledge,
            self.acknowledge,
            self.write,
            self.write,
            self.pass_time,
            self.leave,
            self.dead_letters,
            self.log_start,
        )
        weights = (4, 4, 4, 4, 4, 4, 4, 1, 2, 0.3)
        self.random.choices(steps, weights)[0]()
        self.check()

    def acquire(self) -> None:
        options = AcquireOptions(
            records_max=self.random.choice([1, 4, 30]),
            batch_size=self.random.choice([1, 5, 100]),
            is_exact=self.random.random() < 0.5,
        )
        position = self.machine.position(self.now, options.records_max)
        expected = self.model.position(self.now, options.records_max, self.group_settings)
        if position is None or expected is None:
            assert position is expected is None
            return
        # The machine may stop at the end of a run where the model stops within it.
        assert position.offset == expected[0]
        assert (position.end_offset is None) == (expected[1] is None)
        end = position.end_offset or 10**9
        found = [each for each in self.log if each.end > position.offset and each.start < end][
            : self.random.choice([1, 3, 50])
        ]
        member = self.random.choice("abc")
        ranges = self.machine.acquire(
            member,
            position.offset,
            found,
            options,
            now_ms=self.now,
        )
        acquired = self.model.acquire(
            member, position.offset, found, options, self.now, self.group_settings
        )
        assert offsets_of(ranges) == acquired
        assert not self.acknowledged.intersection(acquired), "acquired again"
        for each in ranges:
            for offset in range(each.start, each.end):
                assert self.model.entries[offset].count == each.delivery_count

    def acknowledge(self) -> None:
        member = self.random.choice("abc")
        held = [
            offset
            for offset in self.model.entries
            if self.model.may_acknowledge(member, offset, self.now)
        ]
        if not held or self.random.random() < 0.1:
            lowest, highest = self.model.start - 2, self.model.end + 2
            wanted = sorted({self.random.randint(max(0, lowest), highest) for _ in range(2)})
        else:
            first = self.random.choice(held)
            wanted = [
                offset for offset in held if first <= offset < first + self.random.choice([1, 9])
            ]
        kinds = {offset: self.random.choice([0, 1, 1, 1, 2, 2, 3, 4]) for offset in wanted}
        batches = [batch(offset, offset, kind) for offset, kind in kinds.items()]
        if len(wanted) > 1 and wanted[-1] - wanted[0] + 1 == len(wanted):
            batches = [batch(wanted[0], wanted[-1], *kinds.values())]
        given = self.machine.acknowledge(member, batches, now_ms=self.now)
        relevant = [offset for offset in wanted if offset >= self.model.start]
        expected: ErrorCode | None = None
        for offset in relevant:
            if offset >= self.model.end:
                expected = ErrorCode.INVALID_REQUEST
            elif not self.model.may_acknowledge(member, offset, self.now):
                expected = ErrorCode.INVALID_RECORD_STATE
            else:
                continue
            break
        if expected is not None:
            assert given.error_code in ERRORS
            return
        assert given.error_code == ErrorCode.NONE
        assert (given.write_id == 0) == all(kinds[offset] == 4 for offset in relevant)
        for offset in relevant:
            self.model.acknowledge(offset, kinds[offset], self.now, self.group_settings)

    def write(self) -> None:
        if self.under_way is None:
            self.under_way = self.machine.next_write()
            if self.under_way is None:
                assert not self.model.queued
                return
            self.model.begin_write()
            return
        write, self.under_way = self.under_way, None
        is_done = self.random.random() < 0.8
        if is_done:
            self.durable = write_down(self.durable, write)
            self.durable_start = write.start_offset
            self.acknowledged |= {
                offset
                for offset in self.model.writing
                if (entry := self.model.entries.get(offset)) is not None
                and entry.target is RecordState.ACKNOWLEDGED
            }
            done = [state for state, _ in self.durable.values() if state in DONE]
            assert write.delivery_complete_count == len(done)
        self.machine.on_written(is_done=is_done, now_ms=self.now)
        self.model.end_write(is_done, self.now, self.group_settings)

    def pass_time(self) -> None:
        self.now += self.random.choice([1, 20, 60])
        self.machine.on_deadline(self.now)
        self.model.on_deadline(self.now, self.group_settings)

    def leave(self) -> None:
        member, was_delivered = self.random.choice("abc"), self.random.random() < 0.5
        self.machine.release_member(member, was_delivered=was_delivered, now_ms=self.now)
        self.model.release(member, was_delivered, self.now, self.group_settings)

    def dead_letters(self) -> None:
        for letters in self.machine.take_dead_letters():
            for offset in range(letters.start, letters.end):
                assert self.model.entries[offset].state is RecordState.ARCHIVING
                assert self.durable[offset][0] == RecordState.ARCHIVING
            self.machine.on_dead_lettered(letters.start, letters.end)
            self.model.dead_lettered(letters.start, letters.end)

    def log_start(self) -> None:
        offset = self.model.start + self.random.choice([1, 3, 10])
        self.machine.on_log_start(offset)
        self.model.on_log_start(offset)

    def check(self) -> None:
        machine, model = self.machine, self.model
        assert (machine.start_offset, machine.end_offset) == (model.start, model.end)
        assert machine.open_count == model.open_count()
        at = machine.start_offset
        for run in machine.runs():
            assert run.start == at < run.end, "the runs are adjacent and not empty"
            for offset in range(run.start, run.end):
                entry = model.entries[offset]
                assert run.state is entry.state
                assert (run.target and run.target.state) == entry.target
                if run.state not in DONE:
                    assert (run.delivery_count, run.member_id) == (entry.count, entry.member)
                    assert run.deadline_ms == entry.due
            at = run.end
        assert at == machine.end_offset
        dues = [
            entry.due
            for entry in model.entries.values()
            if entry.due > self.now and entry.target is None
        ]
        deadline = machine.next_deadline_ms()
        assert not dues or (deadline is not None and deadline <= min(dues))
        for offset in self.acknowledged:
            is_kept = offset < self.durable_start or self.durable[offset][0] in DONE
            assert is_kept, "an acknowledged record would come back after a crash"


@pytest.mark.parametrize("seed", range(40))
def test_the_machine_agrees_with_the_model_in_random_steps(seed: int) -> None:
    both = Both(seed)
    for _ in range(250):
        both.step()


@pytest.mark.parametrize("seed", range(10))
def test_a_leader_can_load_every_prefix_of_the_writes(seed: int) -> None:
    """The writes go through the log of a share coordinator."""
    both = Both(seed)
    kept = SharePlaybook()
    kept.initialize(start_offset=both.start)
    moments = {len(kept.log): (both.start, dict(both.durable))}
    for _ in range(250):
        write = both.under_way
        before = both.durable
        both.step()
        if write is not None and both.under_way is None and both.durable is not before:
            assert not kept.write(
                *write.batches,
                start_offset=write.start_offset,
                count=write.delivery_complete_count,
            )
            moments[len(kept.log)] = (both.durable_start, dict(both.durable))
    assert len(moments) > 10
    for length, (start, durable) in moments.items():
        found = SharePlaybook(log=kept.log[:length]).read(leader_epoch=-1)
        assert isinstance(found, PersistedShareState)
        assert found.start_offset == start
        next_leader = SharePartition(
            found.start_offset, found.batches, now_ms=both.now, group_settings=both.group_settings
        )
        below = range(start, next_leader.start_offset)
        assert all(durable[offset][0] in DONE for offset in below)
        for run in next_leader.runs():
            for offset in range(run.start, run.end):
                state, count = durable.get(offset, (RecordState.AVAILABLE, 0))
                assert run.state == state, (length, offset)
                assert state in DONE or run.delivery_count == count, (length, offset)
        assert next_leader.end_offset >= max(durable, default=start)
