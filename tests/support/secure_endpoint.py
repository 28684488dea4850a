"""A TLS and SASL listener in front of a broker without them.

It authenticates clients, then forwards bytes. The server side of PLAIN, SCRAM (RFC 5802) and
OAUTHBEARER, written for tests only. Certificates are made with openssl; without it the tests are
skipped.
"""

import base64
import hashlib
import hmac
import json
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.codec import (
    RequestHeader,
    decode_request,
    decode_request_header,
    decode_response,
    decode_response_header,
    encode_response,
    encode_response_header,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.metadata import ApiVersion, ApiVersionsResponse
from odradek.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

USERNAME = "alice,=1"
PASSWORD = "correct horse"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_LENGTH = Struct(">i")
_ITERATIONS = 4096

DAYS = "90"
"""Of certificates: within 30 days of its end one is a finding."""


def has_openssl() -> bool:
    """Whether certificates can be made."""
    return shutil.which("openssl") is not None


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files: a certificate authority, and a certificate for localhost with its key."""

    authority: Path
    certificate: Path
    key: Path


def make_certificates(folder: Path) -> Certificates:
    """A new authority and a certificate for localhost and 127.0.0.1."""
    made = Certificates(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    authority_key, request = folder / "ca.key", folder / "cert.csr"
    names = folder / "names"
    names.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    new = ["-newkey", "rsa:2048", "-nodes", "-keyout"]
    ca = ["-CA", str(made.authority), "-CAkey", str(authority_key), "-CAcreateserial"]
    for command in (
        [
            *("req", "-x509", "-days", DAYS, *new, str(authority_key)),
            *("-subj", "/CN=ca", "-out", str(made.authority)),
        ],
        ["req", *new, str(made.key), "-subj", "/CN=localhost", "-out", str(request)],
        [
            *("x509", "-req", "-days", DAYS, "-in", str(request), *ca),
            *("-extfile", str(names), "-out", str(made.certificate)),
        ],
    ):
        subprocess.run(["openssl", *command], check=True, capture_output=True)
    return made


class SecureEndpoint:
    """Listens on its own port; `target_port` is the broker's, and may be set later."""

    def __init__(
        self, certificates: Certificates | None, *, has_sasl: bool, wants_certificate: bool = False
    ) -> None:
        self.target_port = 0
        self.mechanisms: list[str] = []
        """The mechanisms of the authenticated connections."""
        self._has_sasl = has_sasl
        self._tls: ssl.SSLContext | None = None
        if certificates is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(certificates.certificate, certificates.key)
            if wants_certificate:
                self._tls.verify_mode = ssl.CERT_REQUIRED
                self._tls.load_verify_locations(certificates.authority)
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            client.settimeout(60.0)
            if self._tls is not None:
                client = self._tls.wrap_socket(client, server_side=True)
            with client, socket.create_connection(("127.0.0.1", self.target_port)) as broker:
                if self._has_sasl and not self._authenticate(client, broker):
                    return
                threading.Thread(target=_pump, args=(broker, client), daemon=True).start()
                _pump(client, broker)
        except OSError:
            return

    def _authenticate(self, client: socket.socket, broker: socket.socket) -> bool:
        """Answer until the client has authenticated; the broker answers ApiVersions."""
        exchange: Exchange | None = None
        while (frame := _frame_of(client)) is not None:
            header = decode_request_header(frame)
            if header.api_key == ApiKey.API_VERSIONS:
                broker.sendall(_LENGTH.pack(len(frame)) + frame)
                answer = _frame_of(broker)
                assert answer is not None
                _send(client, header, _with_sasl(header, answer))
                continue
            key, version = ApiKey(header.api_key), header.api_version
            request = decode_request(key, version, memoryview(frame), header.body_offset)
            response: object
            if isinstance(request, SaslHandshakeRequest):
                is_known = request.mechanism in MECHANISMS
                error = ErrorCode.NONE if is_known else ErrorCode.UNSUPPORTED_SASL_MECHANISM
                exchange = Exchange(request.mechanism)
                response = SaslHandshakeResponse(error_code=error, mechanisms=[*MECHANISMS])
            else:
                if not isinstance(request, SaslAuthenticateRequest) or exchange is None:
                    return False  # as a broker does: nothing else is answered before
                response = exchange.answer(bytes(request.auth_bytes))
            _send(client, header, response)
            if exchange is not None and exchange.is_done:
                self.mechanisms.append(exchange.mechanism)
                return True
        return False


class Exchange:
    """The server's side of one authentication."""

    def __init__(self, mechanism: str) -> None:
        self.mechanism = mechanism
        self.is_done = False
        self._messages: list[str] = []

    def answer(self, data: bytes) -> SaslAuthenticateResponse:
        """The response to the client's next bytes."""
        step: Callable[[bytes], bytes | None] = {
            "PLAIN": self._plain,
            "OAUTHBEARER": self._oauthbearer,
        }.get(self.mechanism, self._scram)
        told = step(data)
        if told is None:
            return SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
                error_message="Authentication failed",
            )
        return SaslAuthenticateResponse(auth_bytes=told)

    def _plain(self, data: bytes) -> bytes | None:
        self.is_done = data == f"\0{USERNAME}\0{PASSWORD}".encode()
        return b"" if self.is_done else None

    def _oauthbearer(self, data: bytes) -> bytes | None:
        if data == b"\x01":
            return None
        token = data.decode().partition("auth=Bearer ")[2].partition("\x01")[0]
        claims = token.split(".")[1]
        told = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
        self.is_done = told["sub"] == USERNAME
        return b"" if self.is_done else b'{"status":"invalid_token"}'

    def _scram(self, data: bytes) -> bytes | None:
        name = "sha256" if self.mechanism.endswith("256") else "sha512"
        salt = b"salt of the test"
        fields = dict(part.split("=", 1) for part in data.decode().split(",") if "=" in part)
        if not self._messages:
            first = data.decode().removeprefix("n,,")
            user = fields["n"].replace("=2C", ",").replace("=3D", "=")
            encoded = base64.b64encode(salt).decode()
            challenge = f"r={fields['r']}more,s={encoded},i={_ITERATIONS}"
            self._messages = [first, challenge, user]
            return challenge.encode()
        first, challenge, user = self._messages
        salted = hashlib.pbkdf2_hmac(name, PASSWORD.encode(), salt, _ITERATIONS)
        signed = f"{first},{challenge},{data.decode().partition(',p=')[0]}".encode()
        client_key = hmac.digest(salted, b"Client Key", name)
        signature = hmac.digest(hashlib.new(name, client_key).digest(), signed, name)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        if user != USERNAME or base64.b64decode(fields["p"]) != proof:
            return None
        self.is_done = True
        verifier = hmac.digest(hmac.digest(salted, b"Server Key", name), signed, name)
        return b"v=" + base64.b64encode(verifier)


def _with_sasl(header: RequestHeader, frame: bytes) -> ApiVersionsResponse:
    """The broker's ApiVersions, with SASL added."""
    key, version = ApiKey.API_VERSIONS, header.api_version
    _, at = decode_response_header(key, version, memoryview(frame))
    versions = decode_response(key, version, memoryview(frame), at)
    assert isinstance(versions, ApiVersionsResponse)
    versions.api_keys += (
        ApiVersion(api_key=each, min_version=0, max_version=APIS[each].max_version)
        for each in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
    )
    return versions


def _send(connection: socket.socket, header: RequestHeader, response: object) -> None:
    key, version = ApiKey(header.api_key), header.api_version
    head = encode_response_header(key, version, header.correlation_id)
    body = b"".join((head, *encode_response(key, version, response)))
    connection.sendall(_LENGTH.pack(len(body)) + body)


def _frame_of(connection: socket.socket) -> bytes | None:
    start = _exactly(connection, _LENGTH.size)
    return None if start is None else _exactly(connection, *_LENGTH.unpack(start))


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            return None
        data += piece
    return data


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while piece := source.recv(1 << 16):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return


@contextmanager
def secure_endpoint(
    certificates: Certificates | None, *, has_sasl: bool, wants_certificate: bool = False
) -> Iterator[SecureEndpoint]:
    """An endpoint that listens until the block ends."""
    endpoint = SecureEndpoint(certificates, has_sasl=has_sasl, wants_certificate=wants_certificate)
    try:
        yield endpoint
    finally:
        endpoint.close()
