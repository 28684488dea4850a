"""The members that this node knows, and where they are: whom the peers' bus speaks to.

    source                       counts
    ---------------------------------------------------------------------------
    `peers` of the configuration  always: an operator has said so
    what a member says of itself  over what others say; every frame has it
    voters of the log             where nobody has been heard yet, as after a start
    hearsay (`PeerDirectoryUpdate`)          where nothing else is known
    `join` of the configuration   while no member is known that listens there

So a node finds the quorum by any node that is there at its first start, and by its own log ever
after: who came later, or has moved, need not be named anywhere. Whoever asks to be fed is told of
the others. A member that has no vote and is no broker is forgotten when it has been silent for a
while.
"""

import time
from collections.abc import Callable, Collection, Container

from odradek.cluster.raft.configuration import Configuration, node_id_of
from odradek.cluster.raft.messages import ALL_MEMBERS
from odradek.node.bus.peer_messages import (
    PEER_VERSION,
    MemberAddress,
    PeerDirectoryUpdate,
    PeerHeader,
    PeerMessage,
    PeerRejected,
)
from odradek.node.bus.peers import PeerAddress, PeerBus, Socket
from odradek.node.config import NodeConfig
from odradek.node.controller.voter_changes import voter_context

EXPIRY_MS = 30_000


class PeerDirectory:
    """See the module's docstring. Times are of a clock that does not go back, in milliseconds."""

    def __init__(
        self,
        config: NodeConfig,
        own_id: int,
        *,
        refuses: Callable[[PeerHeader], PeerRejected | None],
        watch: Callable[[Socket, bool], None],
    ) -> None:
        """`own_id` is this node's member id; `refuses` and `watch` are as PeerBus has them. Raises
        PeerBusError if peer.listen cannot be bound."""
        self._own = own = _header(config, own_id)
        self._bus = _bus(config, own, refuses, watch)
        self._configured = {
            peer.node_id: PeerAddress(peer.host, peer.port)
            for peer in config.peers
            if peer.node_id != config.node_id
        }
        seeds = (PeerAddress(seed.host, seed.port) for seed in config.join)
        self._own_address = PeerAddress(own.host, own.port)
        self._seeds = {-1 - at: seed for at, seed in enumerate(seeds) if seed != self._own_address}
        self._headers: dict[int, PeerHeader] = {}
        self._heard_ms: dict[int, int] = {}
        self._voters: dict[int, PeerAddress] = {}
        self._reported: dict[int, PeerAddress] = {}
        self.has_news = True
        """Whether somebody has said something new of itself. To be taken back by who heeds it."""
        self._connect()

    @property
    def bus(self) -> PeerBus | None:
        """To hear them; None for a node on its own."""
        return self._bus

    def send(self, to: int, message: PeerMessage) -> None:
        """Say something to a member or, with EVERYBODY, to all that can be reached."""
        if self._bus is None:
            return
        for member in self._bus.others if to == ALL_MEMBERS else (to,):
            self._bus.send(member, message)

    @property
    def headers(self) -> Collection[PeerHeader]:
        """What members have said of themselves since our start, this one included if others may
        find it."""
        return (
            [*self._headers.values()] if self._bus is None else [self._own, *self._headers.values()]
        )

    def header_of(self, member: int) -> PeerHeader | None:
        """What a member has said of itself; None if it has not been heard since our start."""
        return self._own if member == self._own.member else self._headers.get(member)

    def record_header(self, header: PeerHeader, now_ms: int) -> None:
        """Somebody speaks, and says who it is and where it listens."""
        member = header.member
        self._heard_ms[member] = now_ms
        if self._headers.get(member) == header:
            return
        self._headers[member] = header
        self.has_news = True
        self._connect()

    def send_directory(self, member: int) -> None:
        """Tell somebody of all the others."""
        if self._bus is not None:
            known = tuple(
                MemberAddress(other, *address)
                for other, address in self._bus.others.items()
                if other >= 0 and other != member
            )
            self._bus.send(member, PeerDirectoryUpdate(known))

    def add_reported(self, message: PeerDirectoryUpdate, now_ms: int) -> None:
        """Somebody tells of others."""
        for told in message.members:
            if told.member not in self._reported and told.port:
                self._reported[told.member] = PeerAddress(told.host, told.port)
                self._heard_ms.setdefault(told.member, now_ms)
        self._connect()

    def follow(self, configuration: Configuration) -> None:
        """These vote now."""
        voters = {}
        for voter in configuration.voters:
            place = voter_context(voter)
            if place is not None and place.port:
                voters[voter.member_id] = PeerAddress(place.host, place.port)
        if voters != self._voters:
            self._voters = voters
            self._connect()

    def forget(self, brokers: Container[int], now_ms: int) -> None:
        """Give up those who have been silent and are neither voters nor one of the `brokers`."""
        kept = self._voters.keys() | self._configured.keys()
        silent = [
            member
            for member, heard_ms in self._heard_ms.items()
            if member not in kept
            and node_id_of(member) not in brokers
            and heard_ms + EXPIRY_MS <= now_ms
        ]
        for member in silent:
            del self._heard_ms[member]
            self._headers.pop(member, None)
            self._reported.pop(member, None)
        if silent:
            self._connect()

    def _connect(self) -> None:
        """Have the bus speak to whom we know, where we know them to be."""
        if self._bus is None:
            return
        heard = {
            member: PeerAddress(header.host, header.port)
            for member, header in self._headers.items()
            if header.port
        }
        everybody = self._reported | self._voters | heard | self._configured
        # A replica that this node was before is where it is now.
        wanted = {m: address for m, address in everybody.items() if address != self._own_address}
        known = {*wanted.values()}
        wanted.update((at, seed) for at, seed in self._seeds.items() if seed not in known)
        for member in self._bus.others.keys() - wanted.keys():
            self._bus.disconnect(member)
        for member, address in wanted.items():
            self._bus.connect(member, address)


def _header(config: NodeConfig, own_id: int) -> PeerHeader:
    """What this node says of itself."""
    own = config.own_peer
    return PeerHeader(
        PEER_VERSION,
        config.cluster_id,
        config.node_id,
        config.directory_id,
        time.time_ns(),
        config.store_count,
        own_id,
        "" if own is None else own.host,
        0 if own is None else own.port,
    )


def _bus(
    config: NodeConfig,
    own: PeerHeader,
    refuses: Callable[[PeerHeader], PeerRejected | None],
    watch: Callable[[Socket, bool], None],
) -> PeerBus | None:
    if not config.is_clustered:
        return None
    bus = PeerBus(
        header=own,
        listen=PeerAddress(config.peer_host, config.peer_port),
        others={},
        secret=config.cluster_secret,
        refuses=refuses,
        watch=watch,
    )
    for socket in bus.sockets:
        watch(socket, True)
    return bus
