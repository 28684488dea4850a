"""Carries out moves of replicas in batches, and watches them until they are done or cancelled.

States of a move: waiting, in progress (the cluster has accepted it), and then done, deleted (with
its topic) or failed. It is done when the partition has the wanted replicas in the wanted order and
no reassignment. A topic that is deleted, or a partition that another client reassigns meanwhile,
affects no other move.
"""

import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import msgspec

from odradek.cluster.balance.model import Partition, PartitionMove
from odradek.cluster.balance.planner import move_of
from odradek.cluster.balance.replica_distribution import target_replicas
from odradek.node.cli.cluster_client import ClusterClient, error_text, raise_on_error
from odradek.node.cli.offsets import PartitionId, by_id, by_topic
from odradek.node.cli.output import size_text
from odradek.node.cli.replica_placement import (
    describe_partitions,
    list_reassignments,
    log_dir_usage,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from odradek.protocol.messages.partitions import DetailedPartitionResult

POLL_S: Final = 0.25
SIZES_EVERY_S: Final = 1.0
CANCELLED_AFTER_S: Final = 10.0
"""After this long without a reassignment in progress a move counts as cancelled: the metadata of a
broker may be old."""
_ACCEPTED: Final = frozenset(
    {ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
)


@dataclass(slots=True)
class ReassignmentOutcome:
    """Moves by result; `failed` has the reasons."""

    done: list[PartitionMove] = field(default_factory=list)
    deleted: list[PartitionMove] = field(default_factory=list)
    failed: dict[PartitionId, str] = field(default_factory=dict)


class ReassignmentRunner:
    """Carries out moves in order; `in_progress` are moves that have begun already."""

    def __init__(
        self,
        client: ClusterClient,
        moves: Sequence[PartitionMove],
        *,
        in_progress: Sequence[PartitionMove] = (),
        batch: int,
    ) -> None:
        self.outcome = ReassignmentOutcome()
        self._client = client
        self._batch = batch
        self._waiting = deque(moves)
        self._in_progress: dict[PartitionId, PartitionMove] = {
            (m.topic, m.number): m for m in in_progress
        }
        self._idle_since: dict[PartitionId, float] = {}
        self._partitions = len(moves) + len(in_progress)
        self._bytes = sum(move.copied_bytes for move in (*moves, *in_progress))
        self._bytes_done = 0
        self._copied: dict[tuple[PartitionId, int], int] = {}
        self._silent: list[int] = []
        """Nodes that should copy and do not answer."""
        self._began_at = time.monotonic()
        self._sizes_due = self._began_at

    @property
    def in_progress(self) -> Sequence[PartitionId]:
        """What has begun and not ended."""
        return list(self._in_progress)

    def run(self, on_progress: Callable[[int, int, str], None]) -> ReassignmentOutcome:
        """Return when every move is done, deleted or failed. `on_progress` gets the bytes done,
        all bytes, and a text."""
        while self._waiting or self._in_progress:
            self._submit()
            ended = self._poll()
            now = time.monotonic()
            if now >= self._sizes_due:
                self._measure()
                self._sizes_due = now + SIZES_EVERY_S
            on_progress(self._bytes_copied, self._bytes, self._progress_text())
            if not ended:
                time.sleep(POLL_S)
        return self.outcome

    def _submit(self) -> None:
        """Submit as many moves as the batch size allows."""
        batch: list[PartitionMove] = []
        while self._waiting and len(self._in_progress) + len(batch) < self._batch:
            batch.append(self._waiting.popleft())
        if not batch:
            return
        wanted = {(move.topic, move.number): list(move.after) for move in batch}
        results = reassign(self._client, wanted)
        for move in batch:
            name = (move.topic, move.number)
            result = results[name]
            if not result.error_code:
                self._in_progress[name] = move
            elif result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._end(move, self.outcome.deleted)
            else:
                self._fail(move, error_text(result))

    def _poll(self) -> bool:
        """Check which moves have ended; whether any has."""
        if not self._in_progress:
            return True
        # In this order: a reassignment that ends in between counts as in progress a little longer.
        ongoing = list_reassignments(self._client)
        known = describe_partitions(self._client)
        now = time.monotonic()
        before = len(self._in_progress)
        for name, move in list(self._in_progress.items()):
            state = known.get(name)
            if state is None:
                self._end(move, self.outcome.deleted)
            elif name in ongoing:
                self._idle_since.pop(name, None)
            elif tuple(state.replica_nodes) == move.after:
                self._end(move, self.outcome.done)
            elif now - self._idle_since.setdefault(name, now) > CANCELLED_AFTER_S:
                self._fail(move, "its reassignment was cancelled")
        return len(self._in_progress) < before

    def _measure(self) -> None:
        """Measure how many bytes of the moves in progress are copied."""
        wanted: dict[int, list[PartitionId]] = {}
        for name, move in self._in_progress.items():
            for node in move.adding:
                wanted.setdefault(node, []).append(name)
        self._silent = []
        for node, names in sorted(wanted.items()):
            found = log_dir_usage(self._client, node, names)
            if found is None:
                self._silent.append(node)
                continue
            for name, byte_count in found.sizes.items():
                if name in self._in_progress:
                    limit = self._in_progress[name].byte_count
                    self._copied[name, node] = min(byte_count, limit)

    def _end(self, move: PartitionMove, ended: list[PartitionMove]) -> None:
        ended.append(move)
        self._drop(move)
        self._bytes_done += move.copied_bytes

    def _fail(self, move: PartitionMove, reason: str) -> None:
        self.outcome.failed[move.topic, move.number] = reason
        self._drop(move)

    def _drop(self, move: PartitionMove) -> None:
        name = (move.topic, move.number)
        self._in_progress.pop(name, None)
        self._idle_since.pop(name, None)
        for node in move.adding:
            self._copied.pop((name, node), None)

    @property
    def _bytes_copied(self) -> int:
        return self._bytes_done + sum(self._copied.values())

    def _progress_text(self) -> str:
        outcome = self.outcome
        ended = len(outcome.done) + len(outcome.deleted) + len(outcome.failed)
        parts = [
            f"{ended} of {self._partitions} partitions",
            f"{size_text(self._bytes_copied)} of {size_text(self._bytes)}",
        ]
        seconds = time.monotonic() - self._began_at
        rate = self._bytes_copied / seconds if seconds > 0 else 0.0
        if rate >= 1:
            parts.append(f"{size_text(int(rate))}/s")
            parts.append(f"{seconds_text((self._bytes - self._bytes_copied) / rate)} left")
        if self._silent:
            parts.append(f"waiting for node {', '.join(map(str, self._silent))}")
        return ", ".join(parts)


def reassign(
    client: ClusterClient,
    wanted: dict[PartitionId, list[int] | None] | dict[PartitionId, list[int]],
) -> dict[PartitionId, DetailedPartitionResult]:
    """Begin reassignments, or cancel them with null replicas; the result of each."""
    topics: dict[str, ReassignableTopic] = {}
    for (topic, number), replicas in wanted.items():
        entry = topics.setdefault(topic, ReassignableTopic(name=topic))
        entry.partitions.append(ReassignablePartition(partition_index=number, replicas=replicas))
    answer = client.ask(
        AlterPartitionReassignmentsRequest(topics=list(topics.values())),
        again=lambda answer: ErrorCode(answer.error_code).is_retriable,
    )
    raise_on_error(answer, "replicas cannot be moved")
    return by_id(answer.responses)


def cancel_reassignments(
    client: ClusterClient, names: Iterable[PartitionId]
) -> tuple[list[PartitionId], dict[PartitionId, str]]:
    """Cancel reassignments: the partitions that keep their replicas, and the errors of others. A
    reassignment that has ended meanwhile is in neither."""
    wanted: dict[PartitionId, list[int] | None] = dict.fromkeys(names)
    results = reassign(client, wanted) if wanted else {}
    ended = (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return [name for name, result in results.items() if not result.error_code], {
        name: error_text(result)
        for name, result in results.items()
        if result.error_code and result.error_code not in ended
    }


def elect_leaders(
    client: ClusterClient, names: Iterable[PartitionId] | None, *, unclean: bool = False
) -> dict[PartitionId, DetailedPartitionResult]:
    """Elect the preferred leader of each partition; with `unclean` a leader of those that have
    none, in sync or not (KIP-460). The result of each; None names all partitions, and then only
    those have a result that needed an election."""
    topics = None if names is None else by_topic(names)
    if topics == []:
        return {}
    answer = client.ask(
        ElectLeadersRequest(election_type=int(unclean), topic_partitions=topics),
        again=lambda answer: ErrorCode(answer.error_code).is_retriable,
    )
    raise_on_error(answer, "leaders cannot be elected")
    return by_id(answer.replica_election_results)


def elect_preferred_leaders(
    client: ClusterClient, names: Iterable[PartitionId]
) -> dict[PartitionId, str]:
    """Elect the preferred leader of each partition; the errors."""
    return {
        name: error_text(result)
        for name, result in elect_leaders(client, names).items()
        if result.error_code not in _ACCEPTED
    }


def ongoing_move(partition: Partition) -> PartitionMove:
    """The move that an ongoing reassignment makes."""
    move = move_of(partition, target_replicas(partition))
    return msgspec.structs.replace(move, adding=partition.adding, removing=partition.removing)


@contextmanager
def interruptible() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C, and SIGINT also where a shell had it ignored."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def seconds_text(seconds: float) -> str:
    """`42 s`, `3 min`, `2 h 5 min`."""
    if seconds < 90:
        return f"{max(0, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"
