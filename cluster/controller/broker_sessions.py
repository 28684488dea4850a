"""The sessions of brokers: the active controller's soft state about their heartbeats.

Nothing here is in the log. A new active controller gives every broker a whole session timeout
(`reset`), so that a change of controllers fences no broker. A controller that did not run for a
while, stopped or without CPU, has received no heartbeats in that time: it extends the sessions by
the gap. Times are of any monotonic clock, in milliseconds.

    event               session
    -----------------------------------------------------------------------------------
    record_contact      lasts until `timeout_ms` from now
    suspect             lasts at most half of it from then; `record_contact` clears it
    extend_after_pause  after a gap: all sessions last longer by the gap
    remove              none
    deadline passed     expired: the brokers' module fences its broker, once
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

UNKNOWN_OFFSET: Final = -1
"""The metadata offset of a broker that has not sent it yet."""
_CHECKS_PER_TIMEOUT: Final = 4
"""The checks in a session timeout. A gap of two checks counts as a pause of the controller."""


@dataclass(slots=True)
class BrokerSession:
    """The session of one broker. `shutdown_offset` is the log offset at which its leaders had
    moved."""

    broker_epoch: int
    last_contact_ms: int
    metadata_offset: int = UNKNOWN_OFFSET
    shutdown_offset: int | None = None


class BrokerHeartbeatTracker:
    """The sessions by broker."""

    def __init__(self) -> None:
        self._sessions: dict[int, BrokerSession] = {}
        self._last_check_ms: int | None = None

    def reset(self, brokers: Iterable[tuple[int, int]], now_ms: int) -> None:
        """Begin new sessions for these (broker id, broker epoch) only."""
        self._last_check_ms = now_ms
        self._sessions = {broker: BrokerSession(epoch, now_ms) for broker, epoch in brokers}

    def extend_after_pause(self, now_ms: int, *, timeout_ms: int) -> None:
        """The controller runs. If it has not for half a timeout, all sessions are extended."""
        if self._last_check_ms is not None:
            gap_ms = now_ms - self._last_check_ms
            if gap_ms > 2 * self.check_interval_ms(timeout_ms):
                for session in self._sessions.values():
                    session.last_contact_ms = min(now_ms, session.last_contact_ms + gap_ms)
        self._last_check_ms = now_ms

    def record_contact(self, broker_id: int, broker_epoch: int, now_ms: int) -> BrokerSession:
        """The broker has sent a heartbeat; with a new epoch that begins a new session."""
        session = self._sessions.get(broker_id)
        if session is None or session.broker_epoch != broker_epoch:
            session = self._sessions[broker_id] = BrokerSession(broker_epoch, now_ms)
        session.last_contact_ms = max(session.last_contact_ms, now_ms)
        return session

    def suspect(self, broker_id: int, *, since_ms: int, timeout_ms: int) -> None:
        """The broker may have died: its controller process has ended. Its session expires after
        half a timeout, in which a restarted controller process would be back."""
        session = self._sessions.get(broker_id)
        if session is not None:
            session.last_contact_ms = min(
                session.last_contact_ms, since_ms + timeout_ms // 2 - timeout_ms
            )

    def remove(self, broker_id: int) -> None:
        """End the broker's session."""
        self._sessions.pop(broker_id, None)

    def is_alive(self, broker_id: int, broker_epoch: int, *, now_ms: int, timeout_ms: int) -> bool:
        """Whether the broker has a session of that epoch that has not expired."""
        session = self._sessions.get(broker_id)
        return (
            session is not None
            and session.broker_epoch == broker_epoch
            and now_ms < session.last_contact_ms + timeout_ms
        )

    def expired(self, now_ms: int, *, timeout_ms: int) -> list[int]:
        """The brokers whose sessions have expired, by id."""
        return sorted(
            broker
            for broker, session in self._sessions.items()
            if now_ms >= session.last_contact_ms + timeout_ms
        )

    def have_all_applied(self, brokers: Iterable[int], metadata_offset: int) -> bool:
        """Whether all of the brokers that have sessions have applied the log up to that offset."""
        return all(
            session.metadata_offset >= metadata_offset
            for broker in brokers
            if (session := self._sessions.get(broker)) is not None
        )

    def next_check_ms(self, timeout_ms: int) -> int | None:
        """When `extend_after_pause` and `expired` have to be called at the latest; None without
        sessions."""
        if not self._sessions or self._last_check_ms is None:
            return None
        first = min(session.last_contact_ms for session in self._sessions.values()) + timeout_ms
        return min(first, self._last_check_ms + self.check_interval_ms(timeout_ms))

    @staticmethod
    def check_interval_ms(timeout_ms: int) -> int:
        """The interval between two checks, in milliseconds."""
        return max(1, timeout_ms // _CHECKS_PER_TIMEOUT)
