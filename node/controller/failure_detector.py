"""Peers that cannot be reached: who is doubted, who is suspected, who stands for election.

event                                follows
---------------------------------------------------------------------------------------------
a connection breaks                  doubt: this node's processes are told, for UNREACHABLE_S
a peer's process ends                suspicion: an active controller waits less for its broker;
                                     if it led the quorum, the others stand one after the other
it is connected again                neither
we lead the quorum after a peer      suspicion as well: a machine that died breaks no connection,
                                     but it has lost the quorum. Who handed the lead over in order
                                     is heard of in no time
"""

import time
from collections.abc import Callable, Mapping, Sequence

from odradek.cluster.raft.configuration import node_id_of
from odradek.node.controller.raft_driver import RaftDriver

UNREACHABLE_S = 1.5
"""How long a broken connection counts for more than the metadata: a node that is not fenced by then
is well, and it is the way between us that is not."""
SUCCESSION_MS = 150
"""Between two who stand for election when a leader's process has ended: several rounds of votes."""


class FailureDetector:
    """See the module's docstring. Members below zero are addresses of which nobody knows yet whose
    they are."""

    def __init__(self, driver: RaftDriver, own_id: int) -> None:
        self._driver = driver
        self._own_id = own_id
        self._unreachable: tuple[int, ...] = ()
        self._exited_ms: dict[int, int] = {}
        self._succession: tuple[int, int] | None = None
        self._former_leader: int | None = None

    def set_leader(self, member: int | None) -> None:
        """Who leads the quorum now, as far as is known."""
        if member not in (None, self._own_id):
            self._former_leader = member

    def suspects(self, now_ms: int) -> Sequence[tuple[int, int]]:
        """For who begins to lead: the node that led before, those whose controller's process has
        ended, and since when."""
        former, self._former_leader = self._former_leader, None
        found = [] if former is None else [(node_id_of(former), now_ms)]
        return [*found, *self._exited_ms.items()]

    def peer_reconnected(self, member: int) -> None:
        """It is connected."""
        self._exited_ms.pop(node_id_of(member), None)

    def peer_exited(self, member: int, now_ms: int) -> int | None:
        """Its process has ended. The node that is a suspect now."""
        voters = [v for v in self._driver.node.configuration.voter_ids if v != member]
        if member == self._driver.node.leader_id and self._own_id in voters:
            # Who comes first finds nobody in its way.
            place = (voters.index(self._own_id) + node_id_of(member)) % len(voters)
            self._succession = (now_ms + place * SUCCESSION_MS, member)
        if member < 0:
            return None
        self._exited_ms[node_id_of(member)] = now_ms
        return node_id_of(member)

    def next_deadline_ms(self) -> int | None:
        """When `campaign_if_due` has something to do."""
        return None if self._succession is None else self._succession[0]

    def campaign_if_due(self, now_ms: int) -> None:
        """Stand for election if it is our turn."""
        if self._succession is not None and now_ms >= self._succession[0]:
            _, member = self._succession
            self._succession = None
            self._driver.campaign_now(member)

    def report_unreachable(
        self, disconnected_since: Mapping[int, float], tell: Callable[[tuple[int, ...]], None]
    ) -> None:
        """`tell` which nodes have just become unreachable, if they are others than before.
        `disconnected_since` is by member, on the steady clock in seconds."""
        now = time.monotonic()
        doubted = tuple(
            sorted(
                {
                    node_id_of(member)
                    for member, since in disconnected_since.items()
                    if member >= 0 and now - since < UNREACHABLE_S
                }
            )
        )
        if doubted != self._unreachable:
            self._unreachable = doubted
            tell(doubted)
