"""Share sessions (KIP-932): the partitions that a member of a share group fetches from this broker.

A session belongs to a group, a member and this broker, and to the connection of its last request:
the member's records are released when that connection closes. Epoch 0 opens a session and replaces
an earlier one, -1 closes it, any other epoch must be the next. `group.share.max.share.sessions`
limits them; unlike a fetch session, a share session is required.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.share import ShareAcknowledgeRequest, ShareFetchRequest

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
_EPOCH_MAX = 2**31 - 1

PARTITIONS_MAX = 10_000
"""Of one session. Each fetch looks at all of them, even if its request names few."""


class TopicIdPartition(NamedTuple):
    """A partition by topic id."""

    topic_id: bytes
    partition: int


@dataclass(slots=True, eq=False)
class ShareSession:
    """One member's partitions in the order of service: those served last are at the end."""

    group_id: str
    member_id: str
    connection_id: int
    epoch: int = INITIAL_EPOCH
    partitions: "OrderedDict[TopicIdPartition, None]" = field(default_factory=OrderedDict)
    is_open: bool = True

    def advance(self) -> None:
        """Move to the next epoch, which is never 0 again."""
        self.epoch = 1 if self.epoch == _EPOCH_MAX else self.epoch + 1


class ShareSessions:
    """All share sessions of one router."""

    def __init__(self, sessions_max: Callable[[], int]) -> None:
        self._sessions_max = sessions_max
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._by_connection: dict[int, set[ShareSession]] = {}
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def has_any(self, group_id: str) -> bool:
        """Whether a member of the group has a session."""
        return group_id in self._counts

    def for_fetch(
        self, request: ShareFetchRequest, group_id: str, member_id: str, connection_id: int
    ) -> ShareSession:
        """The session of a ShareFetch request: opened, advanced, or to be closed; its partitions
        are updated. ApiError if the whole request fails."""
        epoch = request.share_session_epoch
        named = dict.fromkeys(
            TopicIdPartition(topic.topic_id, partition.partition_index)
            for topic in request.topics
            for partition in topic.partitions
        )
        if epoch != FINAL_EPOCH:
            former = self._sessions.get((group_id, member_id)) if epoch != INITIAL_EPOCH else None
            _check_size(former, named)
        if epoch == INITIAL_EPOCH:
            session = self._open(group_id, member_id, connection_id)
        else:
            session = self._next(group_id, member_id, connection_id, epoch)
        if epoch != FINAL_EPOCH:
            session.partitions.update(named)
            for forgotten in request.forgotten_topics_data:
                for partition in forgotten.partitions:
                    session.partitions.pop(TopicIdPartition(forgotten.topic_id, partition), None)
        return session

    def for_acknowledge(
        self, request: ShareAcknowledgeRequest, group_id: str, member_id: str, connection_id: int
    ) -> ShareSession:
        """The session of a ShareAcknowledge request, advanced or to be closed. ApiError as for a
        fetch; a new session has nothing to acknowledge."""
        if request.share_session_epoch == INITIAL_EPOCH:
            raise ApiError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        return self._next(group_id, member_id, connection_id, request.share_session_epoch)

    def close(self, session: ShareSession) -> None:
        """Close a session. Closing it again does nothing."""
        if not session.is_open:
            return
        session.is_open = False
        del self._sessions[session.group_id, session.member_id]
        self._unbind(session)
        left = self._counts[session.group_id] - 1
        if left:
            self._counts[session.group_id] = left
        else:
            del self._counts[session.group_id]

    def of_connection(self, connection_id: int) -> Iterable[ShareSession]:
        """The sessions of a connection."""
        return tuple(self._by_connection.get(connection_id, ()))

    # -- inside -----------------------------------------------------------------------------------

    def _open(self, group_id: str, member_id: str, connection_id: int) -> ShareSession:
        session = self._sessions.get((group_id, member_id))
        if session is None:
            if len(self._sessions) >= self._sessions_max():
                raise ApiError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
            session = ShareSession(group_id, member_id, connection_id)
            self._sessions[group_id, member_id] = session
            self._by_connection.setdefault(connection_id, set()).add(session)
            self._counts[group_id] = self._counts.get(group_id, 0) + 1
        else:
            # The client has lost its epoch. Its member keeps its records.
            session.epoch = INITIAL_EPOCH
            session.partitions.clear()
            self._bind_to_connection(session, connection_id)
        session.advance()
        return session

    def _next(self, group_id: str, member_id: str, connection_id: int, epoch: int) -> ShareSession:
        session = self._sessions.get((group_id, member_id))
        if session is None:
            raise ApiError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        if epoch != FINAL_EPOCH:
            if epoch != session.epoch:
                raise ApiError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
            session.advance()
        self._bind_to_connection(session, connection_id)
        return session

    def _bind_to_connection(self, session: ShareSession, connection_id: int) -> None:
        if session.connection_id != connection_id:
            self._unbind(session)
            session.connection_id = connection_id
            self._by_connection.setdefault(connection_id, set()).add(session)

    def _unbind(self, session: ShareSession) -> None:
        sessions = self._by_connection[session.connection_id]
        sessions.discard(session)
        if not sessions:
            del self._by_connection[session.connection_id]


def _check_size(session: ShareSession | None, named: Mapping[TopicIdPartition, None]) -> None:
    """ApiError if the session would have too many partitions."""
    count = len(named)
    if session is not None:
        count += len(session.partitions)
        if count > PARTITIONS_MAX:
            # Acknowledgements name partitions that are in the session already.
            count -= sum(partition in session.partitions for partition in named)
    if count > PARTITIONS_MAX:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"A share session has at most {PARTITIONS_MAX} partitions."
        )
