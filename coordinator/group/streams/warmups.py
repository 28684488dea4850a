"""Warm-up tasks: state is brought along before a task moves to where there is none (KIP-441, 1071).

A task with state that is to move to another process stays where it is until that process has come
close to the end of its changelog. Meanwhile a member there has it as a warm-up task, a few of them
at a time; when one has caught up the group is assigned anew, and the task moves. What members have
told of their tasks' offsets is all that is known: who tells nothing is given tasks at once.

Pure. Called by `streams.assigning` and `streams.heartbeats`.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Final, TypeAlias

from odradek.coordinator.group.streams.assignor import Candidate, TaskId
from odradek.coordinator.group.streams.records import Tasks, TaskSets

ACCEPTABLE_LAG: Final = 10_000
"""Kafka's default: acceptable.recovery.lag, in records."""
WARMUPS_MAX: Final = 2
"""Kafka's default: max.warmup.replicas, of a whole group."""

Lags: TypeAlias = Mapping[str, Mapping[TaskId, int]]
"""By member: how many records each of its tasks is behind, of members that tell such things."""
NO_LAGS: Final[Lags] = {}


def has_caught_up(warmups: Tasks, member_id: str, lags: Lags) -> bool:
    """Whether one of a member's warm-up tasks need not be one any more."""
    told = lags.get(member_id)
    return told is not None and any(
        told.get((subtopology, index), ACCEPTABLE_LAG + 1) <= ACCEPTABLE_LAG
        for subtopology, indexes in warmups.items()
        for index in indexes
    )


def hold_back(
    targets: Mapping[str, TaskSets],
    candidates: Collection[Candidate],
    stateful: Collection[str],
    lags: Lags,
) -> dict[str, TaskSets]:
    """The targets, but that tasks whose state is not where they are to move stay for now."""
    if not lags and not any(candidate.before.warmup for candidate in candidates):
        return dict(targets)
    desk = _Desk(targets, candidates, lags)
    for task in desk.moving():
        if task[0] in stateful and not desk.is_welcome(task):
            desk.keep(task)
    return desk.outcome()


class _Desk:
    """Targets in the making."""

    def __init__(
        self, targets: Mapping[str, TaskSets], candidates: Collection[Candidate], lags: Lags
    ) -> None:
        self._process_of = {each.member_id: each.process_id for each in candidates}
        self._had = {
            task: each.member_id for each in candidates for task in _ids(each.before.active)
        }
        self._warming = {
            (each.process_id, task) for each in candidates for task in _ids(each.before.warmup)
        }
        self._tellers = {self._process_of[name] for name in lags if name in self._process_of}
        self._near = {
            (self._process_of[name], task)
            for name, told in lags.items()
            if name in self._process_of
            for task, lag in told.items()
            if lag <= ACCEPTABLE_LAG
        }
        self._gets = {task: name for name, each in targets.items() for task in _ids(each.active)}
        self._stands_by = {
            (self._process_of[name], task): name
            for name, each in targets.items()
            for task in _ids(each.standby)
        }
        self._warmups: dict[TaskId, str] = {}
        self._members = list(targets)

    def moving(self) -> list[TaskId]:
        """Tasks that are to go from one process to another, in order."""
        return sorted(
            task
            for task, name in self._gets.items()
            if task in self._had and self._process_of[name] != self._process_of.get(self._had[task])
        )

    def is_welcome(self, task: TaskId) -> bool:
        """Whether the task can move at once: its state is there, or nobody will ever say so."""
        process_id = self._process_of[self._gets[task]]
        if (process_id, task) in self._near:
            return True
        return process_id not in self._tellers and (process_id, task) not in self._warming

    def keep(self, task: TaskId) -> None:
        """Leave the task where it is, and have the other one warm up if it is its turn."""
        heir, runner = self._gets[task], self._had[task]
        self._gets[task] = runner
        # No process has a task twice.
        self._stands_by.pop((self._process_of[runner], task), None)
        if len(self._warmups) < WARMUPS_MAX:
            self._warmups[task] = heir

    def outcome(self) -> dict[str, TaskSets]:
        stands_by = [(task, name) for (_, task), name in self._stands_by.items()]
        active, standby, warmup = (
            _by_member(place) for place in (self._gets.items(), stands_by, self._warmups.items())
        )
        return {
            name: TaskSets(_frozen(active[name]), _frozen(standby[name]), _frozen(warmup[name]))
            for name in self._members
        }


def _ids(tasks: Tasks) -> list[TaskId]:
    return [(subtopology, index) for subtopology, found in tasks.items() for index in found]


def _by_member(place: Iterable[tuple[TaskId, str]]) -> dict[str, dict[str, set[int]]]:
    found: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for (subtopology, index), name in sorted(place):
        found[name][subtopology].add(index)
    return found


def _frozen(tasks: Mapping[str, set[int]]) -> dict[str, frozenset[int]]:
    return {subtopology: frozenset(indexes) for subtopology, indexes in tasks.items()}
