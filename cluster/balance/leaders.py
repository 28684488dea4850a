"""Whose turn it is to lead: the preferred leaders of partitions, level over the nodes.

The preferred leader is the first of a partition's replicas. A change of it copies nothing: only the
order changes. A node that should lead fewer hands a partition to another of its replicas, and that
one another, until somebody is reached who leads at least two fewer: no order of the replicas is
more level than what is left when no such way is found.
"""

from collections.abc import Sequence
from itertools import pairwise

_Hands = dict[tuple[int, int], dict[int, None]]


def level_leaders(
    assignments: Sequence[tuple[int, ...]], may_change: Sequence[bool], members: Sequence[int]
) -> list[tuple[int, ...]]:
    """The same replicas of each partition, in an order that levels who leads among `members`.

    Partitions that may not change count as they are; preferred leaders that are no members stay.
    """
    orders = list(assignments)
    leads = dict.fromkeys(members, 0)
    hands: _Hands = {}
    for index, replicas in enumerate(orders):
        if replicas and replicas[0] in leads:
            leads[replicas[0]] += 1
            if may_change[index]:
                _offer(hands, leads, index, replicas)
    while (path := _path(leads, hands)) is not None:
        for source, target in pairwise(path):
            index = next(iter(hands[source, target]))
            replicas = orders[index]
            for other in replicas[1:]:
                if other in leads:
                    del hands[source, other][index]
            orders[index] = (target, *(node for node in replicas if node != target))
            _offer(hands, leads, index, orders[index])
        leads[path[0]] -= 1
        leads[path[-1]] += 1
    return orders


def _offer(hands: _Hands, leads: dict[int, int], index: int, replicas: tuple[int, ...]) -> None:
    """Note to whom the leader of a partition could hand it."""
    for other in replicas[1:]:
        if other in leads:
            hands.setdefault((replicas[0], other), {})[index] = None


def _path(leads: dict[int, int], hands: _Hands) -> list[int] | None:
    """From a node that leads most to one that leads two fewer at least, the shortest way."""
    fewest = min(leads.values(), default=0)
    for source in sorted(leads, key=lambda node: (-leads[node], node)):
        if leads[source] - fewest < 2:
            return None
        path = _way(source, leads, hands)
        if path is not None:
            return path
    return None


def _way(source: int, leads: dict[int, int], hands: _Hands) -> list[int] | None:
    came_from = {source: source}
    queue = [source]
    order = sorted(leads, key=lambda node: (leads[node], node))
    for node in queue:
        for target in order:
            if target in came_from or not hands.get((node, target)):
                continue
            came_from[target] = node
            if leads[source] - leads[target] >= 2:
                path = [target]
                while path[-1] != source:
                    path.append(came_from[path[-1]])
                return path[::-1]
            queue.append(target)
    return None
