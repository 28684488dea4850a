"""Whose turn it is to lead: the preferred leaders of partitions, level over the nodes.

The preferred leader is the first of a partition's replicas. A change of it copies nothing: only the
order changes. A node that should lead fewer hands a partition to another of its replicas, and that
one another, until somebody is reached who leads at least two fewer: no order of the replicas is
more level than what is left when no such way is found.
"""

from collections.abc import Sequence
from itertools import pairwise

_Handovers = dict[tuple[int, int], dict[int, None]]


def balance_leaders(
    assignments: Sequence[tuple[int, ...]], may_change: Sequence[bool], members: Sequence[int]
) -> list[tuple[int, ...]]:
    """The same replicas of each partition, in an order that levels who leads among `members`.

    Partitions that may not change count as they are; preferred leaders that are no members stay.
    """
    orders = list(assignments)
    leads = dict.fromkeys(members, 0)
    handovers: _Handovers = {}
    for index, replicas in enumerate(orders):
        if replicas and replicas[0] in leads:
            leads[replicas[0]] += 1
            if may_change[index]:
                _add_handovers(handovers, leads, index, replicas)
    while (path := _next_path(leads, handovers)) is not None:
        for source, target in pairwise(path):
            index = next(iter(handovers[source, target]))
            replicas = orders[index]
            for other in replicas[1:]:
                if other in leads:
                    del handovers[source, other][index]
            orders[index] = (target, *(node for node in replicas if node != target))
            _add_handovers(handovers, leads, index, orders[index])
        leads[path[0]] -= 1
        leads[path[-1]] += 1
    return orders


def _add_handovers(
    handovers: _Handovers, leads: dict[int, int], index: int, replicas: tuple[int, ...]
) -> None:
    """Note to whom the leader of a partition could hand it."""
    for other in replicas[1:]:
        if other in leads:
            handovers.setdefault((replicas[0], other), {})[index] = None


def _next_path(leads: dict[int, int], handovers: _Handovers) -> list[int] | None:
    """From a node that leads most to one that leads two fewer at least, the shortest way."""
    fewest = min(leads.values(), default=0)
    for source in sorted(leads, key=lambda node: (-leads[node], node)):
        if leads[source] - fewest < 2:
            return None
        path = _shortest_path(source, leads, handovers)
        if path is not None:
            return path
    return None


def _shortest_path(source: int, leads: dict[int, int], handovers: _Handovers) -> list[int] | None:
    came_from = {source: source}
    queue = [source]
    order = sorted(leads, key=lambda node: (leads[node], node))
    for node in queue:
        for target in order:
            if target in came_from or not handovers.get((node, target)):
                continue
            came_from[target] = node
            if leads[source] - leads[target] >= 2:
                path = [target]
                while path[-1] != source:
                    path.append(came_from[path[-1]])
                return path[::-1]
            queue.append(target)
    return None
