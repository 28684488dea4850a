"""A connection to one broker: a blocking socket, over TLS and authenticated if that is wanted.

Requests may be sent before earlier answers were received; a broker answers in order. An answer that
nobody waits for any longer is dropped when it comes.
"""

import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.wire.errors import BrokerError, error_name
from odradek.pipeline.wire.primitives import MessageReader
from odradek.pipeline.wire.requests import (
    API_VERSIONS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    BrokerAddress,
    WireApi,
    decode_api_versions,
    decode_sasl_authenticate,
    decode_sasl_handshake,
    encode_api_versions,
    encode_sasl_authenticate,
    encode_sasl_handshake,
)
from odradek.pipeline.wire.sasl import sasl_exchange
from odradek.pipeline.wire.security import WireSecurity

FRAME_BYTES_MAX: Final = 256 * 1024 * 1024
"""No answer is longer. What a TLS or an HTTP server sends would be, read as a length."""
SESSION_PART: Final = 0.85
"""A session of SASL is renewed after this part of its lifetime, as Kafka's clients do."""

_LENGTH = struct.Struct(">i")
_TIMEVAL = struct.Struct("@ll")


class ConnectionLost(PipelineError):
    """The broker cannot be reached at the moment, or did not answer in time."""


class BrokerConnection:
    """Connected, authenticated, and with the broker's versions known, once it exists."""

    def __init__(
        self,
        address: BrokerAddress,
        security: WireSecurity,
        *,
        client_id: str,
        timeout_s: float,
    ) -> None:
        """Connects. Raises ConnectionLost where trying again can help, and else PipelineError.

        No answer takes longer than `timeout_s`.
        """
        self.address = address
        self._security = security
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._correlation_id = 0
        self._expected: deque[tuple[int, bool]] = deque()
        self._arrived: dict[int, MessageReader] = {}
        self._forgotten: set[int] = set()
        self._versions: dict[int, tuple[int, int]] = {}
        self._renew_at_s: float | None = None
        self._socket = self._connect()
        try:
            self._negotiate()
            if security.uses_sasl:
                self._authenticate()
        except BaseException:
            self.close()
            raise

    def version_of(self, api: WireApi) -> int:
        """The newest version that both sides have."""
        oldest, newest = self._versions.get(api.key, (0, -1))
        version = min(newest, api.newest)
        if version < max(oldest, api.oldest):
            raise PipelineError(
                f"The broker at {self.address} has {api.name} {oldest} to {newest}; "
                f"{api.oldest} to {api.newest} can be used here. Kafka 2.1 and later have them."
            )
        return version

    @property
    def is_due_for_renewal(self) -> bool:
        """Whether the session of SASL ends soon. Then connect anew, when no answer is due."""
        return (
            self._renew_at_s is not None
            and not self._expected
            and time.monotonic() > self._renew_at_s
        )

    def send(self, api: WireApi, version: int, body: bytes) -> int:
        """Send a request. Returns what `receive` wants to know."""
        self._correlation_id += 1
        is_flexible = api.is_flexible(version)
        client_id = self._client_id.encode()
        header = struct.pack(">hhih", api.key, version, self._correlation_id, len(client_id))
        header += client_id + (b"\0" if is_flexible else b"")
        frame = _LENGTH.pack(len(header) + len(body)) + header + body
        try:
            self._socket.sendall(frame)
        except OSError as error:
            raise self._lost(error) from error
        # The header of ApiVersions' answers never has tagged fields (KIP-511).
        self._expected.append((self._correlation_id, is_flexible and api is not API_VERSIONS))
        return self._correlation_id

    def receive(self, correlation_id: int, *, is_flexible: bool) -> MessageReader:
        """The body of an answer. Answers to others, which come before, are kept for them."""
        while correlation_id not in self._arrived:
            if not self._expected:
                raise ConnectionLost(f"{self.address} does not owe this answer.")
            expected, has_tagged_fields = self._expected.popleft()
            reader = MessageReader(self._receive_frame(), is_flexible=has_tagged_fields)
            if reader.int32() != expected:
                raise self._lost("it answers another request")
            reader.end_structure()
            if expected in self._forgotten:
                self._forgotten.remove(expected)
            else:
                self._arrived[expected] = reader
        reader = self._arrived.pop(correlation_id)
        reader.is_flexible = is_flexible
        return reader

    def ask(self, api: WireApi, encode: Callable[[int], bytes]) -> tuple[int, MessageReader]:
        """Send a request, written by `encode` in the version it is given, and wait for the answer.
        Returns the version, too."""
        version = self.version_of(api)
        correlation_id = self.send(api, version, encode(version))
        return version, self.receive(correlation_id, is_flexible=api.is_flexible(version))

    def forget(self, correlation_id: int) -> None:
        """Nobody waits for this answer any longer."""
        if self._arrived.pop(correlation_id, None) is None:
            self._forgotten.add(correlation_id)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _connect(self) -> socket.socket:
        try:
            plain = socket.create_connection(self.address, self._timeout_s)
        except OSError as error:
            raise self._lost(error) from error
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self._security.uses_tls:
            # A blocking socket, on which one call waits for a whole answer, with a timeout of the
            # system instead of Python's.
            plain.settimeout(None)
            seconds = int(self._timeout_s)
            limit = _TIMEVAL.pack(seconds, int((self._timeout_s - seconds) * 1e6))
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            return plain
        try:
            context = self._security.tls_context()
            return context.wrap_socket(plain, server_hostname=self.address.host)
        except ssl.SSLCertVerificationError as error:
            plain.close()
            raise PipelineError(
                f"The certificate of {self.address} is not accepted: {error.verify_message}. "
                "Set ssl.truststore.location to the PEM file of its authority."
            ) from error
        except OSError as error:
            plain.close()
            raise self._lost(error) from error
        except BaseException:
            plain.close()
            raise

    def _negotiate(self) -> None:
        for version in (API_VERSIONS.newest, 0):
            correlation_id = self.send(API_VERSIONS, version, encode_api_versions(version, "1"))
            body = self.receive(correlation_id, is_flexible=API_VERSIONS.is_flexible(version))
            if version and body.data[body.at : body.at + 2] == _UNSUPPORTED:
                # Written in version 0 by a broker that does not know this one (KIP-511).
                continue
            error, self._versions = decode_api_versions(body)
            if error:
                raise PipelineError(f"{self.address} refuses ApiVersions: {error_name(error)}.")
            return

    def _authenticate(self) -> None:
        mechanism = self._security.mechanism
        _, body = self.ask(SASL_HANDSHAKE, lambda _: encode_sasl_handshake(mechanism))
        error, enabled = decode_sasl_handshake(body)
        if error:
            raise PipelineError(
                f"{self.address} does not have the SASL mechanism {mechanism}. "
                f"Set sasl.mechanism to one of {', '.join(enabled) or 'those it is set to'}."
            )
        exchange = sasl_exchange(self._security)
        lifetime_ms = 0
        mine = next(exchange)
        try:
            while True:
                lifetime_ms, theirs = self._sasl_step(mine)
                mine = exchange.send(theirs)
        except StopIteration:
            pass
        if lifetime_ms > 0:
            self._renew_at_s = time.monotonic() + SESSION_PART * lifetime_ms / 1000

    def _sasl_step(self, mine: bytes) -> tuple[int, bytes]:
        version, body = self.ask(
            SASL_AUTHENTICATE, lambda version: encode_sasl_authenticate(version, mine)
        )
        answer = decode_sasl_authenticate(version, body)
        if answer.error:
            detail = answer.message or error_name(answer.error)
            raise PipelineError(
                f"{self.address} refuses {self._security.mechanism}: {detail.rstrip('.')}. "
                "Check the user, the password or the token."
            )
        return answer.lifetime_ms, answer.data

    def _receive_frame(self) -> bytes:
        (length,) = _LENGTH.unpack(self._receive_bytes(_LENGTH.size))
        if not _LENGTH.size <= length <= FRAME_BYTES_MAX:
            self.close()
            raise PipelineError(
                f"{self.address} does not answer as a Kafka broker ({length} bytes). Check the "
                "port, and security.protocol: it may expect TLS."
            )
        return self._receive_bytes(length)

    def _receive_bytes(self, size: int) -> bytes:
        if isinstance(self._socket, ssl.SSLSocket):
            return self._receive_encrypted(size)
        try:
            received = self._socket.recv(size, socket.MSG_WAITALL)
            while len(received) < size:
                more = self._socket.recv(size - len(received), socket.MSG_WAITALL)
                if not more:
                    raise self._lost("it closed the connection")
                received += more
        except OSError as error:
            raise self._lost(error) from error
        return received

    def _receive_encrypted(self, size: int) -> bytes:
        received = bytearray(size)
        with memoryview(received) as view:
            at = 0
            while at < size:
                try:
                    count = self._socket.recv_into(view[at:])
                except OSError as error:
                    raise self._lost(error) from error
                if not count:
                    raise self._lost("it closed the connection")
                at += count
        return bytes(received)

    def _lost(self, reason: object) -> ConnectionLost:
        if isinstance(reason, BlockingIOError | TimeoutError):
            reason = f"no answer within {self._timeout_s:g} s"
        elif isinstance(reason, OSError):
            reason = reason.strerror or reason
        return ConnectionLost(f"{self.address}: {reason}")


_UNSUPPORTED: Final = struct.pack(">h", BrokerError.UNSUPPORTED_VERSION)
