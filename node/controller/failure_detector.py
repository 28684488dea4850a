"""Detects peers that have failed, before their sessions or the election timeout run out.

event                                follows
---------------------------------------------------------------------------------------------
a connection breaks                  this node's processes treat the peer as unreachable for
                                     UNREACHABLE_S
a peer's process ends                suspected: the active controller shortens its session; if it
                                     led the quorum, the voters campaign one after the other
it is connected again                not suspected any more
we lead the quorum after a peer      the former leader is suspected: a machine that lost its power
                                     closes no connection. After an orderly transfer, its next
                                     heartbeat clears it
"""

import time
from collections.abc import Callable, Mapping, Sequence

from odradek.cluster.raft.configuration import node_id_of
from odradek.node.controller.raft_driver import RaftDriver

UNREACHABLE_S = 1.5
"""How long a broken connection overrides the metadata. A node that is not fenced by then is alive,
and only the network between the two is broken."""
SUCCESSION_MS = 150
"""Between the campaigns of two voters when a leader's process has ended: several vote rounds."""


class FailureDetector:
    """See the module's docstring. Member ids below zero are addresses whose member is unknown."""

    def __init__(self, driver: RaftDriver, own_id: int) -> None:
        self._driver = driver
        self._own_id = own_id
        self._unreachable: tuple[int, ...] = ()
        self._exited_ms: dict[int, int] = {}
        self._succession: tuple[int, int] | None = None
        self._former_leader: int | None = None

    def set_leader(self, member: int | None) -> None:
        """The leader of the quorum, as far as it is known."""
        if member not in (None, self._own_id):
            self._former_leader = member

    def suspects(self, now_ms: int) -> Sequence[tuple[int, int]]:
        """For a new active controller: the former leader's node and the nodes whose controller
        process has ended, each with the time."""
        former, self._former_leader = self._former_leader, None
        found = [] if former is None else [(node_id_of(former), now_ms)]
        return [*found, *self._exited_ms.items()]

    def peer_reconnected(self, member: int) -> None:
        """The peer is connected."""
        self._exited_ms.pop(node_id_of(member), None)

    def peer_exited(self, member: int, now_ms: int) -> int | None:
        """The peer's process has ended. The node that is suspected now."""
        voters = [v for v in self._driver.node.configuration.voter_ids if v != member]
        if member == self._driver.node.leader_id and self._own_id in voters:
            # One voter after the other, so that votes are not split.
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
        """Campaign if it is our turn."""
        if self._succession is not None and now_ms >= self._succession[0]:
            _, member = self._succession
            self._succession = None
            self._driver.campaign_now(member)

    def report_unreachable(
        self, disconnected_since: Mapping[int, float], report: Callable[[tuple[int, ...]], None]
    ) -> None:
        """`report` which nodes are unreachable, if that has changed. `disconnected_since` maps
        members to seconds of the monotonic clock."""
        now = time.monotonic()
        unreachable = tuple(
            sorted(
                {
                    node_id_of(member)
                    for member, since in disconnected_since.items()
                    if member >= 0 and now - since < UNREACHABLE_S
                }
            )
        )
        if unreachable != self._unreachable:
            self._unreachable = unreachable
            report(unreachable)
