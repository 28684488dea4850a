"""The step of a shard of groups: the input of one transition, and its outcome so far.

A transition reads the time, the settings and the topics here, and appends its records, replies,
timers and effects. The shard makes one step per command or timer and builds the outcome of it.
"""

from collections.abc import Callable

from odradek.coordinator.group.group_record import GroupRecord
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.group.topics import NO_PARTITIONS, NO_TOPICS, Partitions, TopicCatalog
from odradek.coordinator.outcome import OutcomeBuilder


def _nothing_withheld(_group_id: str) -> Partitions:
    return NO_PARTITIONS


class GroupStep(OutcomeBuilder[GroupRecord], eq=False):
    """See the module's docstring.

    `member_count_total` is the number of members that send heartbeats to this process, and
    `loop_delay_ms` how long a request waits there before it is handled. `withheld` returns the
    partitions that are not assigned while the group is rewound.
    """

    now_ms: int
    settings: GroupSettings
    topics: TopicCatalog = NO_TOPICS
    member_count_total: int = 1
    withheld: Callable[[str], Partitions] = _nothing_withheld
    loop_delay_ms: int = 0
