"""TLS between a socket's transport and a connection.

To the event loop it is a protocol, to the connection a transport: bytes are decrypted into the
buffer that the connection gives, and responses are encrypted piece by piece, as fast as the kernel
takes them. asyncio's and uvloop's own TLS would admit a connection only after its handshake, so
that limits of connections would not hold before it, and would encrypt a whole response into memory.

    HANDSHAKE -> OPEN -> CLOSING -> CLOSED      (from each: CLOSED, when the socket is lost)

Memory of a connection is bounded: encrypted input by one read (`READ_BYTES`), as reading pauses
while the connection does; encrypted output by `WRITE_BYTES`, as it pauses while the kernel takes no
more. One invariant: `pause_writing` and `resume_writing` of the connection alternate, and between
them `write` only appends. Called by the event loop and by connection.py.
"""

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import Final, cast

from odradek.cluster.security.certificates import read_certificate
from odradek.cluster.security.principal_mapping import principal_of
from odradek.node.wire.connection import Connection
from odradek.node.wire.framing import Buffer
from odradek.node.wire.tls_context import TlsContext

HANDSHAKE_S_MAX: Final = 30.0
READ_BYTES: Final = 256 * 1024
WRITE_BYTES: Final = 256 * 1024
TURN_BYTES_MAX: Final = 2 << 20
"""Encrypted for one connection in one iteration of the loop: some 2 ms."""
_RECORD_BYTES: Final = 16 * 1024
"""The largest record of TLS. Smaller pieces are joined to one."""

_scratch = memoryview(bytearray(READ_BYTES))
"""All connections of the process read into it, one at a time."""

_FAILURES: Final = {
    "HTTP_REQUEST": "received an HTTP request on a listener with TLS",
    "WRONG_VERSION_NUMBER": (
        "received bytes that are not TLS. Is security.protocol=SSL missing in the client's"
        " configuration?"
    ),
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client has no certificate (ssl.client.auth=required)",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust the broker's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not accept the broker's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not accept the broker's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client says that the broker's certificate has expired",
}


class _State(Enum):
    HANDSHAKE = 1
    OPEN = 2
    CLOSING = 3
    CLOSED = 4


class TlsTransport(asyncio.BufferedProtocol):
    """See the module's docstring."""

    __slots__ = (
        "_app",
        "_backlog",
        "_backlog_bytes",
        "_incoming",
        "_is_app_paused",
        "_is_congested",
        "_is_transport_paused",
        "_outgoing",
        "_ssl",
        "_state",
        "_timer",
        "_tls",
        "_transport",
    )

    _transport: asyncio.Transport
    _ssl: ssl.SSLObject

    def __init__(self, app: Connection, tls: TlsContext) -> None:
        self._app = app
        self._tls = tls
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._backlog: deque[Buffer] = deque()
        self._backlog_bytes = 0
        self._is_app_paused = False
        self._is_congested = False
        self._is_transport_paused = False
        self._state = _State.HANDSHAKE
        self._timer: asyncio.TimerHandle | None = None

    # -- called by the event loop ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected. It counts as a connection before its handshake."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=0)
        self._app.connection_made(cast("asyncio.BaseTransport", self))
        if not self._app.is_closed:
            self._ssl = self._tls.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
            loop = self._app.wire.loop
            self._timer = loop.call_later(HANDSHAKE_S_MAX, self._on_slow_handshake)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _scratch

    def buffer_updated(self, nbytes: int) -> None:
        if self._state is _State.CLOSED or self._app.is_closed:
            return
        self._incoming.write(_scratch[:nbytes])
        if self._state is _State.HANDSHAKE and not self._handshake():
            return
        self._read()

    def eof_received(self) -> bool:
        return self._app.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._state = _State.CLOSED
        self._cancel_timer()
        self._backlog.clear()
        self._app.connection_lost(exc)
        # Else the two refer to each other, and OpenSSL's 20 KiB wait for the garbage collector.
        del self._app

    def pause_writing(self) -> None:
        self._is_transport_paused = True

    def resume_writing(self) -> None:
        self._is_transport_paused = False
        self._continue()

    # -- the handshake -----------------------------------------------------------------------------

    def _handshake(self) -> bool:
        """One step; whether the connection is open now."""
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._send_encrypted()
            return False
        except ssl.SSLError as error:
            self._refuse(f"TLS handshake failed: {_explain(error)}")
            return False
        certificate = self._ssl.getpeercert(binary_form=True)
        if certificate is not None and not self._take_principal(certificate):
            return False
        self._cancel_timer()
        self._state = _State.OPEN
        self._app.wire.counters.tls_handshakes += 1
        self._send_encrypted()
        return True

    def _take_principal(self, certificate: bytes) -> bool:
        try:
            subject = read_certificate(certificate).subject
        except ValueError as error:
            self._refuse(f"the client's certificate cannot be read: {error}")
            return False
        principal = principal_of(subject, self._tls.settings.ssl_principal_mapping_rules)
        if principal is None:
            self._refuse(f"no rule of ssl.principal.mapping.rules applies to {subject!r}")
            return False
        self._app.peer_principal = principal
        return True

    def _on_slow_handshake(self) -> None:
        self._timer = None
        self._refuse(f"the TLS handshake has taken more than {HANDSHAKE_S_MAX:.0f} s")

    def _refuse(self, reason: str) -> None:
        """Close, after the alert that says why, if OpenSSL has made one."""
        self._app.wire.counters.tls_handshakes_failed += 1
        self._app.log_refusal(reason, kind="TLS")
        self._fail()

    def _fail(self) -> None:
        self._cancel_timer()
        self._state = _State.CLOSED
        self._app.is_closed = True
        self._send_encrypted()
        self._transport.close()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- reading -----------------------------------------------------------------------------------

    def _read(self) -> None:
        """Decrypt what has arrived, until the connection pauses."""
        app, tls, incoming = self._app, self._ssl, self._incoming
        while not self._is_app_paused and self._state is _State.OPEN and not app.is_closed:
            buffer = app.get_buffer(-1)
            count, size = 0, len(buffer)
            is_over = False
            try:
                while count < size:
                    read = tls.read(size - count, buffer[count:] if count else buffer)
                    if not read:
                        is_over = True
                        break
                    count += cast("int", read)
                    if not incoming.pending and not tls.pending():
                        break
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                app.wire.counters.protocol_errors += 1
                app.log_refusal(f"a TLS record is not valid: {_explain(error)}", kind="TLS")
                self._fail()
                return
            if count:
                app.buffer_updated(count)
            if is_over:
                # The client has said that it sends no more: its requests need no response.
                self.close()
                return
            if not count or not (incoming.pending or tls.pending()):
                break
        if self._outgoing.pending:
            self._send_encrypted()

    def _read_pending(self) -> None:
        if self._state is _State.OPEN and not self._is_app_paused:
            self._read()
            if not self._is_app_paused and not self._transport.is_closing():
                self._transport.resume_reading()

    # -- called by the connection ------------------------------------------------------------------

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self._transport.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Always 0: the connection hears of all that the kernel does not take at once."""

    def get_write_buffer_size(self) -> int:
        return self._backlog_bytes + self._transport.get_write_buffer_size()

    def is_closing(self) -> bool:
        return self._state in (_State.CLOSING, _State.CLOSED) or self._transport.is_closing()

    def pause_reading(self) -> None:
        self._is_app_paused = True
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._is_app_paused = False
        if self._state is _State.OPEN and (self._incoming.pending or self._ssl.pending()):
            self._app.wire.loop.call_soon(self._read_pending)
        elif not self._transport.is_closing():
            self._transport.resume_reading()

    def write(self, data: Buffer) -> None:
        self.writelines((data,))

    def writelines(self, buffers: Iterable[Buffer]) -> None:
        if self._state is _State.CLOSED:
            return
        for buffer in buffers:
            if len(buffer):
                self._backlog.append(buffer)
                self._backlog_bytes += len(buffer)
        if not self._is_congested:
            self._encrypt()
            if self._backlog or self._is_transport_paused:
                self._is_congested = True
                self._app.pause_writing()

    def close(self) -> None:
        """Close when everything is written; the client is told that no more comes."""
        if self._state is _State.OPEN:
            self._state = _State.CLOSING
            if not self._backlog:
                self._end()
        elif self._state is _State.HANDSHAKE:
            self._state = _State.CLOSED
            self._cancel_timer()
            self._transport.close()

    def abort(self) -> None:
        self._state = _State.CLOSED
        self._cancel_timer()
        self._backlog.clear()
        self._transport.abort()

    # -- writing -----------------------------------------------------------------------------------

    def _encrypt(self) -> None:
        """Encrypt and send the backlog, until the kernel takes no more."""
        tls, outgoing, backlog = self._ssl, self._outgoing, self._backlog
        done = 0
        while backlog and not self._is_transport_paused:
            if done >= TURN_BYTES_MAX:
                self._app.wire.loop.call_soon(self._continue)
                break
            piece = self._next_piece()
            try:
                written = tls.write(piece)
            except ssl.SSLError as error:
                self._app.log_refusal(f"TLS failed: {_explain(error)}", kind="TLS")
                self.abort()
                return
            done += written
            self._backlog_bytes -= written
            if written < len(piece):
                backlog.appendleft(memoryview(piece)[written:])
            if outgoing.pending >= WRITE_BYTES:
                self._transport.write(outgoing.read())
        if outgoing.pending:
            self._transport.write(outgoing.read())

    def _next_piece(self) -> Buffer:
        """The next bytes: a part of a large buffer, or small ones joined to a record."""
        backlog = self._backlog
        first = backlog.popleft()
        if len(first) > WRITE_BYTES:
            view = memoryview(first)
            backlog.appendleft(view[WRITE_BYTES:])
            return view[:WRITE_BYTES]
        if len(first) >= _RECORD_BYTES or not backlog:
            return first
        pieces, size = [first], len(first)
        while backlog and size < _RECORD_BYTES:
            following = backlog.popleft()
            room = _RECORD_BYTES - size
            if len(following) > room:
                view = memoryview(following)
                backlog.appendleft(view[room:])
                following = view[:room]
            pieces.append(following)
            size += len(following)
        return b"".join(pieces)

    def _continue(self) -> None:
        """The kernel takes more, or another iteration of the loop has begun."""
        if self._state is _State.CLOSED or self._is_transport_paused:
            return
        self._encrypt()
        if self._backlog or self._is_transport_paused:
            return
        if self._state is _State.CLOSING:
            self._end()
        elif self._is_congested:
            self._is_congested = False
            self._app.resume_writing()

    def _end(self) -> None:
        self._state = _State.CLOSED
        # The client has not answered yet, and need not: nothing more is read from it.
        with contextlib.suppress(ssl.SSLError, ValueError):
            self._ssl.unwrap()
        self._send_encrypted()
        self._transport.close()

    def _send_encrypted(self) -> None:
        if self._outgoing.pending and not self._transport.is_closing():
            self._transport.write(self._outgoing.read())


def _explain(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {error.verify_message}"
    reason = error.reason or "unknown reason"
    return _FAILURES.get(reason, reason)
