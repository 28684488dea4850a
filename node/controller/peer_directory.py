"""The known members of the quorum and their addresses; keeps the peer bus connected to them.

    source of an address            used
    ---------------------------------------------------------------------------
    `peers` of the configuration    always: set by an operator
    the member's own header         before the sources below; every frame has one
    the voters in the log           if the member has sent nothing since the start
    `PeerDirectoryUpdate` of others if nothing else is known
    `join` of the configuration     while no known member has that address

At its first start a node needs the address of any running node; later its log is enough. A member
that sends a FollowRequest gets the addresses of all others. A member that is neither voter nor
broker expires when it sends nothing for EXPIRY_MS.
"""

import time
from collections.abc import Callable, Collection, Container

import msgspec

from odradek.cluster.raft.configuration import Configuration, node_id_of
from odradek.cluster.raft.messages import ALL_MEMBERS
from odradek.node.bus.curve import cluster_keys
from odradek.node.bus.endpoint import Socket
from odradek.node.bus.peer_messages import (
    PEER_VERSION,
    MemberAddress,
    PeerDirectoryUpdate,
    PeerHeader,
    PeerMessage,
    PeerRejected,
)
from odradek.node.bus.peers import PeerAddress, PeerBus
from odradek.node.config import NodeConfig
from odradek.node.controller.voter_changes import voter_context

EXPIRY_MS = 30_000


class PeerDirectory:
    """See the module's docstring. Times are milliseconds of a clock that does not go back."""

    def __init__(
        self,
        config: NodeConfig,
        own_id: int,
        *,
        refuses: Callable[[PeerHeader], PeerRejected | None],
        watch: Callable[[Socket, bool], None],
    ) -> None:
        """`own_id` is this node's member id; `refuses` and `watch` are those of PeerBus. Raises
        PeerBusError if peer.listen cannot be bound."""
        self._own = own = _header(config, own_id)
        self._secrets = config.cluster_secrets
        self.bus: PeerBus | None = None
        """None on a single node."""
        if config.is_clustered:
            self.bus = PeerBus(
                header=own,
                listen=PeerAddress(config.peer_host, config.peer_port),
                others={},
                secrets=config.cluster_secrets,
                refuses=refuses,
                watch=watch,
            )
            for socket in self.bus.sockets:
                watch(socket, True)
        self._configured = {
            peer.node_id: PeerAddress(peer.host, peer.port)
            for peer in config.peers
            if peer.node_id != config.node_id
        }
        seeds = (PeerAddress(seed.host, seed.port) for seed in config.join)
        self._own_address = PeerAddress(own.host, own.port)
        self._seeds = {-1 - at: seed for at, seed in enumerate(seeds) if seed != self._own_address}
        self._headers: dict[int, PeerHeader] = {}
        self._contact_ms: dict[int, int] = {}
        self._voters: dict[int, PeerAddress] = {}
        self._reported: dict[int, PeerAddress] = {}
        self.has_news = True
        """Whether a header is new or has changed. The reader resets it."""
        self._connect()

    def send(self, to: int, message: PeerMessage) -> None:
        """Send to a member or, with ALL_MEMBERS, to all that can be reached."""
        if self.bus is None:
            return
        for member in self.bus.others if to == ALL_MEMBERS else (to,):
            self.bus.send(member, message)

    @property
    def headers(self) -> Collection[PeerHeader]:
        """The headers received since the start, and our own on a node of a cluster."""
        return (
            [*self._headers.values()] if self.bus is None else [self._own, *self._headers.values()]
        )

    def header_of(self, member: int) -> PeerHeader | None:
        """The newest header of a member; None if it has sent nothing since the start."""
        return self._own if member == self._own.member else self._headers.get(member)

    @property
    def other_secrets_count(self) -> int:
        """Members whose cluster secrets are others than ours, or in another order: the next step
        of replacing a secret would disconnect them."""
        return sum(header.secrets != self._own.secrets for header in self._headers.values())

    def change_secrets(self, config: NodeConfig) -> None:
        """Use the cluster secrets of this configuration."""
        if self.bus is None or config.cluster_secrets == self._secrets:
            return
        self._secrets = config.cluster_secrets
        self._own = msgspec.structs.replace(self._own, secrets=fingerprints(config))
        self.bus.change_secrets(self._secrets, self._own)
        for member in self.bus.others:
            self.announce(member)

    def announce(self, member: int) -> None:
        """Tell a member who this node is, and which secrets it has: followers have nothing else to
        tell each other. To be called when it is connected: it may have restarted, or this node."""
        if self.bus is not None:
            # The header says it.
            self.bus.send(member, PeerDirectoryUpdate(()))

    def record_header(self, header: PeerHeader, now_ms: int) -> None:
        """A frame with this header has arrived."""
        member = header.member
        self._contact_ms[member] = now_ms
        if self._headers.get(member) == header:
            return
        self._headers[member] = header
        self.has_news = True
        self._connect()

    def send_directory(self, member: int) -> None:
        """Send a member the addresses of all others."""
        if self.bus is not None:
            known = tuple(
                MemberAddress(other, *address)
                for other, address in self.bus.others.items()
                if other >= 0 and other != member
            )
            self.bus.send(member, PeerDirectoryUpdate(known))

    def add_reported(self, message: PeerDirectoryUpdate, now_ms: int) -> None:
        """A member has sent addresses of others."""
        for member in message.members:
            if member.member not in self._reported and member.port:
                self._reported[member.member] = PeerAddress(member.host, member.port)
                self._contact_ms.setdefault(member.member, now_ms)
        self._connect()

    def update_voters(self, configuration: Configuration) -> None:
        """The voters of the log have changed."""
        voters = {}
        for voter in configuration.voters:
            context = voter_context(voter)
            if context is not None and context.port:
                voters[voter.member_id] = PeerAddress(context.host, context.port)
        if voters != self._voters:
            self._voters = voters
            self._connect()

    def expire(self, brokers: Container[int], now_ms: int) -> None:
        """Expire members that send nothing and are neither voters nor `brokers`."""
        kept = self._voters.keys() | self._configured.keys()
        expired = [
            member
            for member, contact_ms in self._contact_ms.items()
            if member not in kept
            and node_id_of(member) not in brokers
            and contact_ms + EXPIRY_MS <= now_ms
        ]
        for member in expired:
            del self._contact_ms[member]
            self._headers.pop(member, None)
            self._reported.pop(member, None)
        if expired:
            self._connect()

    def _connect(self) -> None:
        """Connect the bus to all known members, each at its best address."""
        if self.bus is None:
            return
        own_headers = {
            member: PeerAddress(header.host, header.port)
            for member, header in self._headers.items()
            if header.port
        }
        addresses = self._reported | self._voters | own_headers | self._configured
        # An earlier member id of this node has this node's address.
        wanted = {m: address for m, address in addresses.items() if address != self._own_address}
        known = {*wanted.values()}
        wanted.update((at, seed) for at, seed in self._seeds.items() if seed not in known)
        for member in self.bus.others.keys() - wanted.keys():
            self.bus.disconnect(member)
        for member, address in wanted.items():
            self.bus.connect(member, address)


def _header(config: NodeConfig, own_id: int) -> PeerHeader:
    """The header in every frame of this process."""
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
        fingerprints(config),
    )


def fingerprints(config: NodeConfig) -> tuple[str, ...]:
    """Those of a node's cluster secrets, the one with which it listens first."""
    return tuple(keys.fingerprint for keys in cluster_keys(config.cluster_secrets))
