"""CURVE between nodes (curvezmq.org, RFC 26): the keys, who may connect, and how keys are replaced.

All nodes derive the same key pair from a cluster secret. A handshake succeeds if both sides use the
same pair: a client needs the server's public key, which is never sent, to begin, and is rejected
(ZAP, RFC 27) if it has not proved that it has the pair's secret key, too.

A node has one secret, or two while the secret is replaced. It listens with the first, so that there
is one key that others may use, and connects with the one that the other node listens with: when a
handshake fails, `ConnectingKeys` goes on to the next. When another secret becomes the first,
`CurveListener` listens with another socket and closes the former, and with it the connections that
were made with the former key. Both have the same port, which is never closed: a connection that is
refused would mean that the process has ended (peers.py).
"""

import hashlib
import os
import socket as sockets
from collections.abc import Callable, Sequence
from typing import NamedTuple

import zmq
from zmq.utils import z85

from odradek.node.bus.endpoint import Context, Socket, SocketOptions, drain_frames, set_options

HANDSHAKE_FAILURES = (
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_AUTH
)
_ZAP_ADDRESS = "inproc://zeromq.zap.01"
_ZAP_DOMAIN = b"peers"
_BACKLOG = 100
_TRIAL_S = 0.05
"""A key is tried for this time at least, so that a peer that has neither is not flooded."""


class KeyPair(NamedTuple):
    """The CURVE key pair of a secret, as Z85 texts of 40 characters. All nodes have the same."""

    public: bytes
    secret: bytes

    @property
    def server_options(self) -> SocketOptions:
        """The options of a listening socket."""
        return (zmq.CURVE_SERVER, 1), (zmq.CURVE_SECRETKEY, self.secret)

    @property
    def client_options(self) -> SocketOptions:
        """The options of a connecting socket."""
        return (
            (zmq.CURVE_SERVERKEY, self.public),
            (zmq.CURVE_PUBLICKEY, self.public),
            (zmq.CURVE_SECRETKEY, self.secret),
        )

    @property
    def fingerprint(self) -> str:
        """Four hexadecimal digits by which operators and nodes compare secrets. So few say nothing
        about a secret, not even whether a guess is right."""
        return hashlib.blake2b(self.public, digest_size=2, person=b"odradek-print-1").hexdigest()


def cluster_keys(secrets: Sequence[str]) -> tuple[KeyPair, ...]:
    """The key pairs that all nodes with these cluster secrets derive, in the same order."""
    return tuple(map(_key_pair, secrets))


def _key_pair(secret: str) -> KeyPair:
    digest = hashlib.blake2b(secret.encode(), digest_size=32, person=b"odradek-peers-1").digest()
    text = z85.encode(digest)
    return KeyPair(zmq.curve_public(text), text)


class ConnectingKeys:
    """The keys that one connecting socket may use, and the one that it uses."""

    __slots__ = ("_at", "_keys", "_tried_until")

    def __init__(self, keys: Sequence[KeyPair]) -> None:
        self._keys = tuple(keys)
        self._at = 0
        self._tried_until = 0.0

    @property
    def count(self) -> int:
        return len(self._keys)

    @property
    def options(self) -> SocketOptions:
        """The socket's options; none without keys."""
        return self._keys[self._at].client_options if self._keys else ()

    def handshake_failed(self, now: float) -> bool:
        """Whether to connect again, with another key. `now` is in seconds. ZeroMQ itself connects
        again with the former key."""
        if len(self._keys) < 2 or now < self._tried_until:
            return False
        self._tried_until = now + _TRIAL_S
        self._at = (self._at + 1) % len(self._keys)
        return True

    def change(self, keys: Sequence[KeyPair]) -> bool:
        """Use these keys. Whether to connect again, because the one in use is not among them."""
        used = self._keys[self._at] if self._keys else None
        self._keys = tuple(keys)
        self._tried_until = 0.0
        self._at = self._keys.index(used) if used in self._keys else 0
        return used not in self._keys


class CurveListener:
    """A port at which other nodes connect; see the module's docstring. Poll `authenticator`, and
    then call `answer_authentication`. One in a ZeroMQ context: ZAP has one address there."""

    def __init__(
        self, context: Context, host: str, port: int, make_socket: Callable[[], Socket]
    ) -> None:
        """`make_socket` returns a new ROUTER. Raises OSError if the address cannot be bound."""
        self._make_socket = make_socket
        self._port = listen(host, port)
        self._key: KeyPair | None = None
        self.authenticator = context.socket(zmq.ROUTER)
        self.authenticator.setsockopt(zmq.LINGER, 0)
        self.authenticator.bind(_ZAP_ADDRESS)

    def listen_with(self, key: KeyPair) -> Socket:
        """A new socket that listens with this key. Close the former one after that."""
        self._key = key
        socket = self._make_socket()
        set_options(socket, (*key.server_options, (zmq.ZAP_DOMAIN, _ZAP_DOMAIN)))
        # The socket has the descriptor to itself and closes it.
        socket.setsockopt(zmq.USE_FD, os.dup(self._port.fileno()))
        socket.bind(f"tcp://*:{self._port.getsockname()[1]}")
        return socket

    def answer_authentication(self) -> None:
        """Accept the clients that have the key with which we listen, secret key and all."""
        zap = self.authenticator
        for parts in drain_frames(zap):
            at = parts.index(b"") + 1
            version, request_id = parts[at], parts[at + 1]
            mechanism, credentials = parts[at + 5], parts[at + 6 :]
            is_ours = (
                mechanism == b"CURVE"
                and len(credentials) == 1
                and self._key is not None
                and z85.encode(credentials[0]) == self._key.public
            )
            code, text = (b"200", b"OK") if is_ours else (b"400", b"not of this cluster")
            zap.send_multipart([*parts[:at], version, request_id, code, text, b"", b""])

    def close(self) -> None:
        """Close all but the socket."""
        self.authenticator.close(0)
        self._port.close()


def listen(host: str, port: int) -> sockets.socket:
    """A listening TCP socket; an empty host is every address of the machine. Raises OSError."""
    if not host and sockets.has_dualstack_ipv6():
        made = sockets.create_server(
            ("", port), family=sockets.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
        )
    else:
        found = sockets.getaddrinfo(host or "0.0.0.0", port, type=sockets.SOCK_STREAM)
        family, _, _, _, address = found[0]
        made = sockets.create_server(address, family=family, backlog=_BACKLOG)
    # Two ZeroMQ sockets may accept from it for a moment; one of them finds nothing.
    made.setblocking(False)
    return made
