"""Which brokers have been heard of lately: the active controller's soft state.

Nothing here is in the log. Who becomes the active controller gives every broker a whole session
timeout to be heard of (`reset`), so that a change of controllers fences nobody. And a controller
that was not running itself, stopped or starved, has heard of nobody for that time: it does not hold
its own sleep against the brokers. Times are any clock that does not go back, in milliseconds.

    event              session
    -----------------------------------------------------------------------------------
    touch              lasts until `timeout_ms` from now
    suspect            lasts until half of it from then at the longest; `record_contact` clears it
    forgive_pause      after a gap: all sessions last longer by the gap
    remove             none
    deadline passed    expired: the brokers' module fences its broker, once
"""

from collections.abc import Iterable
from typing import Final

UNKNOWN_OFFSET: Final = -1
"""The metadata offset of a broker that has not told it yet."""
_CHECKS_PER_TIMEOUT: Final = 4
"""Into how many checks a session timeout is divided; a gap of two is a sleep."""


class BrokerSession:
    """What one broker's heartbeats said. `shutdown_offset` is where its leaders had moved away."""

    __slots__ = ("broker_epoch", "last_contact_ms", "metadata_offset", "shutdown_offset")

    def __init__(self, broker_epoch: int, last_contact_ms: int) -> None:
        self.broker_epoch = broker_epoch
        self.last_contact_ms = last_contact_ms
        self.metadata_offset = UNKNOWN_OFFSET
        self.shutdown_offset: int | None = None


class BrokerHeartbeatTracker:
    """The sessions by broker."""

    __slots__ = ("_last_check_ms", "_sessions")

    def __init__(self) -> None:
        self._sessions: dict[int, BrokerSession] = {}
        self._last_check_ms: int | None = None

    def reset(self, brokers: Iterable[tuple[int, int]], now_ms: int) -> None:
        """Forget all; each (broker id, broker epoch) counts as heard of now."""
        self._last_check_ms = now_ms
        self._sessions = {broker: BrokerSession(epoch, now_ms) for broker, epoch in brokers}

    def forgive_pause(self, now_ms: int, timeout_ms: int) -> None:
        """The controller runs. If it has not for half a timeout, nobody is blamed for that time."""
        if self._last_check_ms is not None:
            gap_ms = now_ms - self._last_check_ms
            if gap_ms > 2 * self.check_interval_ms(timeout_ms):
                for session in self._sessions.values():
                    session.last_contact_ms = min(now_ms, session.last_contact_ms + gap_ms)
        self._last_check_ms = now_ms

    def record_contact(self, broker_id: int, broker_epoch: int, now_ms: int) -> BrokerSession:
        """The broker was heard of, for the first time under this epoch or again."""
        session = self._sessions.get(broker_id)
        if session is None or session.broker_epoch != broker_epoch:
            session = self._sessions[broker_id] = BrokerSession(broker_epoch, now_ms)
        session.last_contact_ms = max(session.last_contact_ms, now_ms)
        return session

    def suspect(self, broker_id: int, since_ms: int, timeout_ms: int) -> None:
        """There is a sign that the broker has died, but none that cannot deceive: its controller's
        process has ended. It has half a timeout to be heard of, in which such a process alone would
        be back."""
        session = self._sessions.get(broker_id)
        if session is not None:
            session.last_contact_ms = min(
                session.last_contact_ms, since_ms + timeout_ms // 2 - timeout_ms
            )

    def remove(self, broker_id: int) -> None:
        """The broker is not waited for any more."""
        self._sessions.pop(broker_id, None)

    def is_alive(self, broker_id: int, broker_epoch: int, now_ms: int, timeout_ms: int) -> bool:
        """Whether the broker's registration of that epoch was heard of within the timeout."""
        session = self._sessions.get(broker_id)
        return (
            session is not None
            and session.broker_epoch == broker_epoch
            and now_ms < session.last_contact_ms + timeout_ms
        )

    def expired(self, now_ms: int, timeout_ms: int) -> list[int]:
        """The brokers that were not heard of for the timeout, by id."""
        return sorted(
            broker
            for broker, session in self._sessions.items()
            if now_ms >= session.last_contact_ms + timeout_ms
        )

    def have_all_applied(self, brokers: Iterable[int], metadata_offset: int) -> bool:
        """Whether each of the brokers that send heartbeats has applied the log up to there."""
        return all(
            session.metadata_offset >= metadata_offset
            for broker in brokers
            if (session := self._sessions.get(broker)) is not None
        )

    def next_check_ms(self, timeout_ms: int) -> int | None:
        """When `forgive_pause` and `expired` have to be asked at the latest; None: nobody has a
        session."""
        if not self._sessions or self._last_check_ms is None:
            return None
        first = min(session.last_contact_ms for session in self._sessions.values()) + timeout_ms
        return min(first, self._last_check_ms + self.check_interval_ms(timeout_ms))

    @staticmethod
    def check_interval_ms(timeout_ms: int) -> int:
        """How often the controller has to look, in milliseconds."""
        return max(1, timeout_ms // _CHECKS_PER_TIMEOUT)
