"""Preferred leaders of partitions, balanced over the brokers.

The preferred leader is the first of a partition's replicas. To change it copies nothing: only the
order of the replicas changes. A broker that should lead fewer hands a partition to another replica
of it, that broker another partition, and so on to a broker that leads at least two fewer than the
first. When there is no such path, no order of the replicas is balanced better.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

_Handovers = dict[tuple[int, int], dict[int, None]]


def balance_leaders(
    assignments: Sequence[tuple[int, ...]], may_change: Sequence[bool], members: Sequence[int]
) -> list[tuple[int, ...]]:
    """The same replicas of each partition, in an order that balances the leaders among `members`.

    Partitions that may not change count as they are. Preferred leaders that are no members stay.
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
    """Add the brokers to which the preferred leader of a partition could hand it."""
    for other in replicas[1:]:
        if other in leads:
            handovers.setdefault((replicas[0], other), {})[index] = None


def _next_path(leads: dict[int, int], handovers: _Handovers) -> list[int] | None:
    """The shortest path from a broker that leads the most to one that leads at least two fewer."""
    fewest = min(leads.values(), default=0)
    order = sorted(leads, key=lambda node: (leads[node], node))
    for source in sorted(leads, key=lambda node: (-leads[node], node)):
        if leads[source] - fewest < 2:
            return None
        path = shortest_path(source, order, leads, lambda *pair: bool(handovers.get(pair)))
        if path is not None:
            return path
    return None


def shortest_path(
    source: int,
    targets: Sequence[int],
    counts: Mapping[int, int],
    has_edge: Callable[[int, int], bool],
) -> list[int] | None:
    """The shortest path from a broker to one with a count that is lower by two at least, both
    included; None without any. Of several the one whose brokers come first in `targets`."""
    came_from = {source: source}
    queue = [source]
    for node in queue:
        for target in targets:
            if target in came_from or not has_edge(node, target):
                continue
            came_from[target] = node
            if counts[source] - counts[target] >= 2:
                path = [target]
                while path[-1] != source:
                    path.append(came_from[path[-1]])
                return path[::-1]
            queue.append(target)
    return None
