"""Connections on a listener with SASL: what a stranger may say, sessions, and failures."""

import asyncio
import base64
import itertools
import json
import os
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
import uvloop
from scramp import ScramClient

from odradek.cluster.metadata.delegation_tokens import (
    DelegationTokensImage,
    token_hmac,
    token_password,
)
from odradek.cluster.metadata.sasl_settings import UNSECURED_TOKENS, SaslSettings
from odradek.cluster.metadata.scram import (
    ScramImage,
    ScramMechanism,
    ScramUser,
    credential_of,
    salted_password,
)
from odradek.node.bus.arena import UNIT_BYTES, Arena
from odradek.node.metrics.process_metrics import resident_bytes
from odradek.node.router.sasl_authentication import FRAMES_MAX, SaslAuthenticator, is_identified
from odradek.node.router.token_verification import TokenVerifiers
from odradek.node.wire.acceptor import Acceptor
from odradek.node.wire.connection import ANONYMOUS, Connection, Slot
from odradek.node.wire.listeners import ClientListener
from odradek.node.wire.socket_server import SocketServer
from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.codec import decode_response, decode_response_header
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.metadata import ApiVersionsRequest, MetadataRequest
from odradek.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tests.support.token_dialogue import scram_messages
from tests.support.token_samples import SECRET_KEY, token_of
from tests.support.wire import frame_of

R = TypeVar("R")
DEADLINE_S = 10.0
FUZZED_EXCHANGES = int(os.environ.get("SASL_FUZZ", "2000"))
GROWTH_BYTES_MAX = 16 << 20
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
PLAIN_USERS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required"
    ' user_alice="alice-secret" user_bob="bob-secret";'
)
SALT = b"0123456789abcdefghijklmnop"
GENERAL = (
    "Authentication failed during {} due to invalid credentials with SASL mechanism SCRAM-SHA-256"
)


def scram_credentials(password: str) -> ScramImage:
    return {
        ScramUser("carol", mechanism): credential_of(
            mechanism, salted_password(mechanism, password, SALT, 4096), SALT, 4096
        )
        for mechanism in ScramMechanism
    }


class SaslWorld:
    """A socket server whose listener has SASL. Requests that pass authentication are in `handled`,
    each with the principal, and are answered with their own bytes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, folder: Path) -> None:
        self.loop = loop
        self.settings = SaslSettings(
            sasl_enabled_mechanisms=MECHANISMS,
            sasl_jaas_config=PLAIN_USERS,
            sasl_server_callback_handler_class=UNSECURED_TOKENS,
            connection_failed_authentication_delay_ms=1,
        )
        self.credentials = scram_credentials("carol-secret")
        self.tokens = DelegationTokensImage({})
        self.token_secret_key: str | None = SECRET_KEY
        self.handled: list[tuple[int, str]] = []
        self.now_ms = 1_000_000
        self.clients: list[SaslClient] = []
        self.arena = Arena.create(folder / "arena", 64 * UNIT_BYTES)
        numbers = itertools.count()
        self.authenticator = SaslAuthenticator(
            loop,
            settings_of=lambda _listener, _mechanism: self.settings,
            credentials=lambda: self.credentials,
            tokens=lambda: self.tokens,
            token_secret_key=lambda: self.token_secret_key,
            verifiers=TokenVerifiers(loop, lambda: self.now_ms / 1000),
            decoy_key=lambda: b"decoy",
            random_text=lambda: f"nonce-{next(numbers)}",
            now_ms=lambda: self.now_ms,
        )
        self.wire = SocketServer(
            loop=loop,
            arena=self.arena,
            on_request=self._on_request,
            on_connected=self.authenticator.on_connected,
        )
        self.listener = Acceptor(
            self.wire,
            ClientListener(name="CLIENTS", security_protocol="SASL_PLAINTEXT"),
            host="127.0.0.1",
            port=0,
        )

    def _on_request(self, slot: Slot, frame: memoryview, _offset: int) -> None:
        gate = slot.connection.gate
        if gate is not None and gate.takes(slot, frame):
            return
        (key,) = struct.unpack_from(">h", frame)
        self.handled.append((key, slot.connection.peer_principal))
        slot.complete([bytes(frame)])

    async def connect(self) -> "SaslClient":
        if self.listener.port == 0:
            await self.listener.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.listener.port)
        self.clients.append(SaslClient(reader, writer))
        return self.clients[-1]

    def run(self, scenario: Callable[[], object]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(6 * DEADLINE_S + FUZZED_EXCHANGES / 50):
                await scenario()  # type: ignore[misc]  # a coroutine function

        self.loop.run_until_complete(bounded())

    def close(self) -> None:
        for connection in list(self.wire.connections.values()):
            connection.abort()
        self.listener.stop()
        for client in self.clients:
            client.writer.close()
        self.loop.run_until_complete(self.wire.wait_until_empty())
        self.loop.run_until_complete(asyncio.sleep(0))
        self.wire.close()
        self.arena.close()


class SaslClient:
    """A client that sends requests and reads answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    def send(self, body: bytes) -> None:
        self.writer.write(struct.pack(">i", len(body)) + body)

    async def frame(self) -> bytes:
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        return await self._reader.readexactly(size)

    async def is_closed(self) -> bool:
        """Wait until the connection is closed; False if there is something to read instead."""
        try:
            return await self._reader.read(1) == b""
        except ConnectionResetError:
            return True

    async def ask(self, request: object, version: int, response: type[R]) -> R:
        self.writer.write(frame_of(request, version, 7))
        (key,) = (api.key for api in APIS.values() if api.request is type(request))
        frame = memoryview(await self.frame())
        _, at = decode_response_header(key, version, frame)
        answer = decode_response(key, version, frame, at)
        assert isinstance(answer, response)
        return answer

    async def handshake(self, mechanism: str, version: int = 1) -> SaslHandshakeResponse:
        return await self.ask(
            SaslHandshakeRequest(mechanism=mechanism), version, SaslHandshakeResponse
        )

    async def authenticate(self, data: bytes, version: int = 2) -> SaslAuthenticateResponse:
        return await self.ask(
            SaslAuthenticateRequest(auth_bytes=data), version, SaslAuthenticateResponse
        )

    async def log_in_plain(self, user: str = "alice") -> SaslAuthenticateResponse:
        assert (await self.handshake("PLAIN")).error_code == ErrorCode.NONE
        return await self.authenticate(f"\0{user}\0{user}-secret".encode())

    async def log_in_scram(
        self, user: str, password: str, mechanism: str = "SCRAM-SHA-256"
    ) -> SaslAuthenticateResponse:
        assert (await self.handshake(mechanism)).error_code == ErrorCode.NONE
        client = ScramClient([mechanism], user, password)
        challenge = await self.authenticate(client.get_client_first().encode())
        if challenge.error_code:
            return challenge
        client.set_server_first(bytes(challenge.auth_bytes).decode())
        final = await self.authenticate(client.get_client_final().encode())
        if not final.error_code:
            client.set_server_final(bytes(final.auth_bytes).decode())
        return final

    async def log_in_with_token(self, user: str, expires_at_s: float) -> SaslAuthenticateResponse:
        assert (await self.handshake("OAUTHBEARER")).error_code == ErrorCode.NONE
        parts = ({"alg": "none"}, {"sub": user, "exp": expires_at_s})
        texts = (base64.urlsafe_b64encode(json.dumps(part).encode()) for part in parts)
        token = ".".join(text.decode().rstrip("=") for text in texts) + "."
        return await self.authenticate(f"n,,\x01auth=Bearer {token}\x01\x01".encode())

    async def log_in_with_delegation_token(
        self, token_id: str, password: str, mechanism: str = "SCRAM-SHA-256"
    ) -> SaslAuthenticateResponse:
        assert (await self.handshake(mechanism)).error_code == ErrorCode.NONE
        messages = scram_messages(token_id, password, mechanism)
        challenge = await self.authenticate(next(messages))
        if challenge.error_code:
            return challenge
        return await self.authenticate(messages.send(bytes(challenge.auth_bytes)))

    async def ask_metadata(self) -> bool:
        """Whether a request reaches dispatch; False if the connection is closed instead."""
        sent = frame_of(MetadataRequest(), 12, 9)
        try:
            self.writer.write(sent)
            return await self.frame() == sent[4:]
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return False


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SaslWorld]:
    loop = uvloop.new_event_loop()
    world = SaslWorld(loop, tmp_path)
    yield world
    world.close()
    loop.close()


def counts(world: SaslWorld) -> dict[tuple[str, ...], int]:
    return {key[1:]: count for key, count in world.authenticator.counts.items()}


# -- who is let in ---------------------------------------------------------------------------------


def test_every_mechanism_authenticates(world: SaslWorld) -> None:
    async def scenario() -> None:
        for name in ("alice", "carol", "dave"):
            client = await world.connect()
            match name:
                case "alice":
                    done = await client.log_in_plain()
                case "carol":
                    done = await client.log_in_scram("carol", "carol-secret")
                case _:
                    done = await client.log_in_with_token("dave", 2_000)
            assert done.error_code == ErrorCode.NONE
            assert await client.ask_metadata()
            assert world.handled[-1] == (ApiKey.METADATA, f"User:{name}")
        client = await world.connect()
        await client.log_in_scram("carol", "carol-secret", "SCRAM-SHA-512")
        assert await client.ask_metadata()
        assert counts(world) == {(each, "success"): 1 for each in MECHANISMS}

    world.run(scenario)


def test_bare_tokens_follow_the_first_version_of_the_handshake(world: SaslWorld) -> None:
    async def scenario() -> None:
        client = await world.connect()
        await client.handshake("SCRAM-SHA-256", version=0)
        scram = ScramClient(["SCRAM-SHA-256"], "carol", "carol-secret")
        client.send(scram.get_client_first().encode())
        scram.set_server_first((await client.frame()).decode())
        client.send(scram.get_client_final().encode())
        scram.set_server_final((await client.frame()).decode())
        assert await client.ask_metadata()
        plain = await world.connect()
        await plain.handshake("PLAIN", version=0)
        plain.send(b"\0alice\0alice-secret")
        assert await plain.frame() == b""
        wrong = await world.connect()
        await wrong.handshake("PLAIN", version=0)
        wrong.send(b"\0alice\0wrong")
        assert await wrong.is_closed()

    world.run(scenario)


def test_one_request_for_versions_passes_before_authentication(world: SaslWorld) -> None:
    async def scenario() -> None:
        client = await world.connect()
        for version in (99, 4):
            client.send(struct.pack(">hhih", ApiKey.API_VERSIONS, version, 1, -1) + b"\0" * 4)
            await client.frame()
        assert world.handled == [(ApiKey.API_VERSIONS, ANONYMOUS)] * 2
        client.send(struct.pack(">hhih", ApiKey.API_VERSIONS, 4, 1, -1) + b"\0" * 4)
        assert await client.is_closed()
        assert len(world.handled) == 2

    world.run(scenario)


# -- who is not ------------------------------------------------------------------------------------


def test_a_refusal_does_not_tell_which_users_there_are(world: SaslWorld) -> None:
    async def scenario() -> None:
        for user in ("carol", "nobody"):
            client = await world.connect()
            refused = await client.log_in_scram(user, "wrong")
            assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert refused.error_message == GENERAL.format("authentication")
            assert await client.is_closed()
        assert counts(world) == {("SCRAM-SHA-256", "failure"): 2}

    world.run(scenario)


def test_a_refused_token_is_answered_as_in_the_rfc(world: SaslWorld) -> None:
    async def scenario() -> None:
        client = await world.connect()
        challenge = await client.log_in_with_token("dave", 1)
        assert challenge.auth_bytes == b'{"status":"invalid_token"}'
        refused = await client.authenticate(b"\x01")
        assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await client.is_closed()

    world.run(scenario)


def test_an_unknown_mechanism_is_answered_with_the_list(world: SaslWorld) -> None:
    async def scenario() -> None:
        for mechanism in ("GSSAPI", "plain", "X" * 10_000):
            client = await world.connect()
            answer = await client.handshake(mechanism)
            assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
            assert answer.mechanisms == [*MECHANISMS]
            assert await client.is_closed()

    world.run(scenario)


@pytest.mark.parametrize("steps", range(3))
def test_nothing_else_is_answered_before_authentication(world: SaslWorld, steps: int) -> None:
    async def scenario() -> None:
        client = await world.connect()
        if steps >= 1:
            await client.handshake("SCRAM-SHA-256")
        if steps >= 2:
            await client.authenticate(b"n,,n=carol,r=abc")
        client.send(frame_of(MetadataRequest(), 12, 1)[4:])
        assert await client.is_closed()
        assert not world.handled

    world.run(scenario)


def test_requests_behind_a_refused_one_are_not_handled(world: SaslWorld) -> None:
    async def scenario() -> None:
        client = await world.connect()
        await client.handshake("PLAIN")
        wrong = frame_of(SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong"), 2, 1)
        right = frame_of(SaslAuthenticateRequest(auth_bytes=b"\0alice\0alice-secret"), 2, 2)
        client.writer.write(wrong + right + frame_of(MetadataRequest(), 12, 3))
        await client.frame()
        assert await client.is_closed()
        assert not world.handled

    world.run(scenario)


def test_requests_behind_a_good_one_are_handled_in_order(world: SaslWorld) -> None:
    async def scenario() -> None:
        client = await world.connect()
        right = frame_of(SaslAuthenticateRequest(auth_bytes=b"\0alice\0alice-secret"), 2, 2)
        handshake = frame_of(SaslHandshakeRequest(mechanism="PLAIN"), 1, 1)
        large = b"\0\0" + b"x" * 600_000
        client.writer.write(handshake + right + frame_of(MetadataRequest(), 12, 3))
        client.send(large)
        sizes = [len(await client.frame()) for _ in range(4)]
        assert sizes[3] == len(large)
        assert world.handled[0] == (ApiKey.METADATA, "User:alice")

    world.run(scenario)


def test_a_second_handshake_and_a_missing_one_are_illegal(world: SaslWorld) -> None:
    async def scenario() -> None:
        client = await world.connect()
        await client.handshake("PLAIN")
        again = await client.handshake("PLAIN")
        assert again.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await client.is_closed()
        hasty = await world.connect()
        hasty.send(frame_of(SaslAuthenticateRequest(), 2, 1)[4:])
        assert await hasty.is_closed()

    world.run(scenario)


def test_a_large_frame_and_many_frames_are_refused(world: SaslWorld) -> None:
    async def scenario() -> None:
        client = await world.connect()
        client.writer.write(struct.pack(">i", world.settings.sasl_server_max_receive_size + 1))
        assert await client.is_closed()
        patient = await world.connect()
        for _ in range(FRAMES_MAX):
            patient.send(struct.pack(">hhih", ApiKey.API_VERSIONS, 99, 1, -1) + b"\0" * 4)
            await patient.frame()
        patient.send(struct.pack(">hhih", ApiKey.API_VERSIONS, 99, 1, -1) + b"\0" * 4)
        assert await patient.is_closed()

    world.run(scenario)


def test_a_client_that_does_not_authenticate_is_overdue(world: SaslWorld) -> None:
    async def scenario() -> None:
        client = await world.connect()
        await client.handshake("PLAIN")
        (connection,) = world.wire.connections.values()
        later_ms = int(world.loop.time() * 1000) + world.wire.settings.half_open_ms_max + 1
        assert connection.overdue(later_ms) == "not authenticated"
        await client.authenticate(b"\0alice\0alice-secret")
        world.wire.now_ms = later_ms
        assert connection.overdue(later_ms) is None

    world.run(scenario)


def test_the_answer_to_a_failure_is_delayed(world: SaslWorld) -> None:
    world.settings = replace(world.settings, connection_failed_authentication_delay_ms=300)

    async def scenario() -> None:
        client = await world.connect()
        await client.handshake("PLAIN")
        since_s = world.loop.time()
        await client.authenticate(b"\0alice\0wrong")
        assert world.loop.time() - since_s >= 0.29
        assert await client.is_closed()

    world.run(scenario)


# -- sessions --------------------------------------------------------------------------------------


def test_a_session_without_an_end_is_no_longer_watched(world: SaslWorld) -> None:
    async def scenario() -> None:
        client = await world.connect()
        assert (await client.log_in_plain()).session_lifetime_ms == 0
        (connection,) = world.wire.connections.values()
        assert connection.gate is None
        client.send(frame_of(SaslHandshakeRequest(mechanism="PLAIN"), 1, 1)[4:])
        await client.frame()
        assert world.handled == [(ApiKey.SASL_HANDSHAKE, "User:alice")]

    world.run(scenario)


def test_an_expired_session_is_closed_at_the_next_request(world: SaslWorld) -> None:
    world.settings = replace(world.settings, connections_max_reauth_ms=20)

    async def scenario() -> None:
        client = await world.connect()
        assert (await client.log_in_plain()).session_lifetime_ms == 20
        assert await client.ask_metadata()
        await asyncio.sleep(0.03)
        assert not await client.ask_metadata()
        assert counts(world) == {("PLAIN", "success"): 1, ("PLAIN", "expired"): 1}

    world.run(scenario)


async def until_renewal(world: SaslWorld) -> None:
    """A second must be between two handshakes: let it pass without waiting for it."""
    for connection in world.wire.connections.values():
        connection.gate._began_at_s -= 2  # type: ignore[union-attr]  # of a SaslConnection


def test_a_client_renews_its_session(world: SaslWorld) -> None:
    world.settings = replace(world.settings, connections_max_reauth_ms=60_000)

    async def scenario() -> None:
        client = await world.connect()
        assert (await client.log_in_scram("carol", "carol-secret")).session_lifetime_ms == 60_000
        client.send(frame_of(SaslHandshakeRequest(mechanism="PLAIN"), 1, 1)[4:])
        await client.frame()
        assert world.handled.pop()[0] == ApiKey.SASL_HANDSHAKE  # too early: as any request
        await until_renewal(world)
        assert (await client.log_in_scram("carol", "carol-secret")).session_lifetime_ms == 60_000
        assert await client.ask_metadata()
        assert counts(world)["SCRAM-SHA-256", "reauthentication_success"] == 1

    world.run(scenario)


def test_a_removed_credential_ends_the_session_at_its_renewal(world: SaslWorld) -> None:
    world.settings = replace(world.settings, connections_max_reauth_ms=60_000)

    async def scenario() -> None:
        client = await world.connect()
        await client.log_in_scram("carol", "carol-secret")
        world.credentials = {}
        assert await client.ask_metadata()
        await until_renewal(world)
        refused = await client.log_in_scram("carol", "carol-secret")
        assert refused.error_message == GENERAL.format("re-authentication")
        assert await client.is_closed()
        assert counts(world)["SCRAM-SHA-256", "reauthentication_failure"] == 1

    world.run(scenario)


def have_token(world: SaslWorld, lifetime_ms: int) -> str:
    """There is token-1 of alice; returns its password."""
    ends_ms = world.now_ms + lifetime_ms
    token = token_of("token-1", max_ms=ends_ms + 1_000, expiry_ms=ends_ms)
    world.tokens = DelegationTokensImage({"token-1": token})
    return token_password(token_hmac(SECRET_KEY, "token-1"))


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_delegation_token_authenticates_as_its_owner_as_long_as_it_is_valid(
    world: SaslWorld, mechanism: str
) -> None:
    password = have_token(world, 60_000)

    async def scenario() -> None:
        client = await world.connect()
        answer = await client.log_in_with_delegation_token("token-1", password, mechanism)
        assert (answer.error_code, answer.session_lifetime_ms) == (ErrorCode.NONE, 60_000)
        assert await client.ask_metadata()
        assert world.handled[-1][1] == "User:alice"
        (connection,) = world.wire.connections.values()
        assert not is_identified(connection)
        world.tokens = DelegationTokensImage({})
        await until_renewal(world)
        refused = await client.log_in_with_delegation_token("token-1", password, mechanism)
        assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await client.is_closed()

    world.run(scenario)


@pytest.mark.parametrize("reason", ["expired", "wrong HMAC", "another key", "no key", "unknown"])
def test_a_delegation_token_that_is_worth_nothing_is_refused(world: SaslWorld, reason: str) -> None:
    password = have_token(world, 60_000)
    token_id = "other" if reason == "unknown" else "token-1"
    if reason == "expired":
        world.now_ms += 60_000
    elif reason == "wrong HMAC":
        password = "wrong"
    elif reason in ("another key", "no key"):
        world.token_secret_key = "rotated" if reason == "another key" else None

    async def scenario() -> None:
        client = await world.connect()
        refused = await client.log_in_with_delegation_token(token_id, password)
        assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert refused.error_message == GENERAL.format("authentication")
        assert await client.is_closed()

    world.run(scenario)


def test_a_session_ends_with_its_delegation_token(world: SaslWorld) -> None:
    password = have_token(world, 20)

    async def scenario() -> None:
        client = await world.connect()
        answer = await client.log_in_with_delegation_token("token-1", password)
        assert answer.session_lifetime_ms == 20
        deadline_s = world.loop.time() + DEADLINE_S
        while await client.ask_metadata():
            assert world.loop.time() < deadline_s

    world.run(scenario)


def test_who_may_ask_for_delegation_tokens(world: SaslWorld) -> None:
    async def scenario() -> None:
        client = await world.connect()
        await client.log_in_plain()
        (connection,) = world.wire.connections.values()
        assert is_identified(connection)
        for protocol, principal, expected in (
            ("PLAINTEXT", ANONYMOUS, False),
            ("SSL", ANONYMOUS, False),
            ("SSL", "User:CN=alice", True),
        ):
            other = Connection(world.wire, ClientListener(name="OTHER", security_protocol=protocol))
            other.peer_principal = principal
            assert is_identified(other) == expected

    world.run(scenario)


def test_principal_and_mechanism_stay_the_same(world: SaslWorld) -> None:
    world.settings = replace(world.settings, connections_max_reauth_ms=60_000)

    async def scenario() -> None:
        client = await world.connect()
        await client.log_in_plain("alice")
        await until_renewal(world)
        refused = await client.log_in_plain("bob")
        assert refused.error_message == (
            "Cannot change principals during re-authentication from User.alice: User.bob"
        )
        assert await client.is_closed()
        other = await world.connect()
        await other.log_in_plain("alice")
        await until_renewal(world)
        refused = await other.log_in_scram("carol", "carol-secret")
        assert "not supported for re-authentication of mechanism 'PLAIN'" in str(
            refused.error_message
        )

    world.run(scenario)


def test_a_session_lasts_as_long_as_its_token(world: SaslWorld) -> None:
    async def scenario() -> None:
        client = await world.connect()
        done = await client.log_in_with_token("dave", world.now_ms / 1000 + 5)
        assert done.session_lifetime_ms == 5_000
        world.settings = replace(world.settings, connections_max_reauth_ms=2_000)
        other = await world.connect()
        assert (await other.log_in_with_token("dave", 2_000)).session_lifetime_ms == 2_000

    world.run(scenario)


def test_a_token_that_has_ended_within_the_clock_skew_opens_no_session(world: SaslWorld) -> None:
    # As in Kafka 4.3.1: it is valid, for no time at all.
    jaas = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
    jaas += " unsecuredValidatorAllowableClockSkewMs=30000;"
    world.settings = replace(world.settings, sasl_jaas_config=jaas)

    async def scenario() -> None:
        for _ in range(20):
            client = await world.connect()
            done = await client.log_in_with_token("dave", world.now_ms / 1000 - 5)
            assert (done.error_code, done.session_lifetime_ms) == (ErrorCode.NONE, 0)
            assert not await client.ask_metadata()

    world.run(scenario)


# -- strangers -------------------------------------------------------------------------------------


def hostile_bytes(chance: random.Random) -> bytes:
    """One frame of an exchange, more or less damaged."""
    good = [
        frame_of(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3, 1),
        frame_of(SaslHandshakeRequest(mechanism=chance.choice(MECHANISMS)), chance.randrange(2), 1),
        frame_of(SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong"), chance.randrange(3), 1),
        frame_of(SaslAuthenticateRequest(auth_bytes=b"n,,n=carol,r=abc"), chance.randrange(3), 1),
        frame_of(SaslAuthenticateRequest(auth_bytes=b"n,,\x01auth=Bearer a.b.c\x01\x01"), 2, 1),
        frame_of(SaslAuthenticateRequest(auth_bytes=b"c=biws,r=abcnonce-0,p=AAAA"), 2, 1),
        frame_of(MetadataRequest(), 12, 1),
    ]
    frame = bytearray(chance.choice(good)[4:])
    for _ in range(chance.choice((0, 0, 1, 3))):
        frame[chance.randrange(len(frame))] = chance.randrange(256)
    if chance.random() < 0.1:
        del frame[chance.randrange(len(frame)) :]
    return struct.pack(">i", len(frame)) + frame


def test_hostile_exchanges_neither_authenticate_nor_leave_anything_behind(
    world: SaslWorld,
) -> None:
    """`SASL_FUZZ=100000` makes a larger run of it, which takes a few minutes."""
    world.settings = replace(world.settings, connection_failed_authentication_delay_ms=0)
    chance = random.Random(7)

    async def exchange() -> None:
        client = await world.connect()
        try:
            for _ in range(chance.randrange(1, 5)):
                client.writer.write(hostile_bytes(chance))
            client.writer.write_eof()
            while not await client.is_closed():
                pass
        except ConnectionResetError:
            pass
        finally:
            client.writer.close()
            world.clients.remove(client)

    async def scenario() -> None:
        rounds = FUZZED_EXCHANGES // 50
        settled_bytes = 0.0
        for number in range(rounds):
            await asyncio.gather(*(exchange() for _ in range(50)))
            world.handled = world.handled[-1:] + [each for each in world.handled if each[0] != 18]
            if number == rounds // 4:
                settled_bytes = resident_bytes()
        await world.wire.wait_until_empty()
        assert resident_bytes() - settled_bytes < GROWTH_BYTES_MAX
        assert {key for key, _ in world.handled} <= {ApiKey.API_VERSIONS}
        assert {who for _, who in world.handled} <= {ANONYMOUS}
        assert not any("success" in outcome for _, outcome in counts(world))

    world.run(scenario)
