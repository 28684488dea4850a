"""The authentication of client connections on listeners with SASL (KIP-12, KIP-152, KIP-368).

A connection passes its frames to a `SaslConnection` before dispatch. Nothing reaches a handler
before authentication is complete, but one ApiVersions request.

| state | frame | next |
| --- | --- | --- |
| versions | ApiVersions, answered by its handler | handshake |
| versions, handshake | SaslHandshake v0 with an enabled mechanism | tokens |
| versions, handshake | SaslHandshake v1 with an enabled mechanism | authenticate |
| tokens | a bare token | tokens, or authenticated |
| authenticate | SaslAuthenticate | authenticate, or authenticated |
| authenticated | SaslHandshake a second after the last, if the session expires | authenticate |
| authenticated | anything | handled; after the end of the session: closed |
| any | anything else, or a refused credential | failed |

A failure is answered after connection.failed.authentication.delay.ms, and the connection is closed.
What the client is told does not say which users there are; the log does. A principal and its
mechanism stay the same as long as the connection (KIP-368).
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from functools import lru_cache, partial
from typing import Final

from odradek.cluster.metadata.delegation_tokens import DelegationTokensImage
from odradek.cluster.metadata.sasl_settings import SERVED_MECHANISMS, SaslSettings
from odradek.cluster.metadata.scram import (
    SCRAM_MECHANISMS,
    ScramImage,
    ScramMechanism,
    ScramUser,
)
from odradek.cluster.security.access_token import UnknownTokenKeyError
from odradek.cluster.security.jaas import parse_jaas
from odradek.cluster.security.oauthbearer_server import OAUTHBEARER, OAuthBearerServer
from odradek.cluster.security.plain_server import PLAIN, PlainServer
from odradek.cluster.security.sasl import (
    Authenticated,
    SaslRefusedError,
    SaslServer,
    general_refusal_text,
    named,
)
from odradek.cluster.security.scram_server import ScramIdentity, ScramServer
from odradek.node.bus.reply import drive
from odradek.node.router.token_verification import TokenVerifiers
from odradek.node.structured_log import get_logger
from odradek.node.wire.connection import ANONYMOUS, Connection, Slot
from odradek.node.wire.framing import Buffer
from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.codec import (
    RequestHeader,
    decode_request,
    decode_request_header,
    encode_response,
    encode_response_header,
)
from odradek.protocol.errors import ErrorCode, ProtocolError
from odradek.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

log = get_logger(__name__)

FRAMES_MAX: Final = 16
"""Frames of one authentication. The longest exchange of Kafka's clients has five."""
REAUTHENTICATION_INTERVAL_S: Final = 1.0
"""As in Kafka: a SaslHandshake within a second of the last is refused."""
_HANDSHAKE_KEY: Final = ApiKey.SASL_HANDSHAKE.to_bytes(2)
_SASL_KEYS: Final = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})

SettingsOf = Callable[[str, str], SaslSettings]
"""From a listener and a mechanism, empty for the listener's own, to the settings."""


class SaslAuthenticator:
    """What the connections of one router share.

    `credentials` are the SCRAM credentials at the moment, `tokens` the delegation tokens, of which
    those made with `token_secret_key` can be used. `decoy_key` is a secret, the same on all
    nodes of a cluster: from it come the salts of users who do not exist. `random_text` makes
    nonces. `counts` has the ends of authentications by listener, mechanism and outcome.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        settings_of: SettingsOf,
        credentials: Callable[[], ScramImage],
        tokens: Callable[[], DelegationTokensImage],
        token_secret_key: Callable[[], str | None],
        verifiers: TokenVerifiers,
        decoy_key: Callable[[], bytes],
        random_text: Callable[[], str],
        now_ms: Callable[[], int],
    ) -> None:
        self.loop = loop
        self.settings_of = settings_of
        self.now_ms = now_ms
        self.counts: Counter[tuple[str, ...]] = Counter()
        self._credentials = credentials
        self._tokens = tokens
        self._token_secret_key = token_secret_key
        self._verifiers = verifiers
        self._decoy_key = decoy_key
        self._random_text = random_text

    def on_connected(self, connection: Connection) -> None:
        """A client came in; on a listener with SASL it has to authenticate first."""
        if connection.listener.is_sasl:
            settings = self.settings_of(connection.listener.name, "")
            connection.require_authentication(
                SaslConnection(self, connection), settings.sasl_server_max_receive_size
            )

    def mechanisms(self, listener: str) -> list[str]:
        """The enabled mechanisms that are served."""
        enabled = self.settings_of(listener, "").sasl_enabled_mechanisms
        return [name for name in enabled if name in SERVED_MECHANISMS]

    def server(self, listener: str, mechanism: str) -> SaslServer:
        """A new exchange of an enabled mechanism."""
        settings = self.settings_of(listener, mechanism)
        if mechanism == PLAIN:
            jaas = settings.sasl_jaas_config
            return PlainServer(_users(jaas) if jaas else {})
        if mechanism == OAUTHBEARER:
            return OAuthBearerServer(partial(self._verifiers.verify, settings))
        scram = SCRAM_MECHANISMS[mechanism]
        credentials = self._credentials()

        def find(name: str, is_token: bool) -> ScramIdentity | None:
            if is_token:
                return self._token_identity(name, scram)
            credential = credentials.get(ScramUser(name, scram))
            return None if credential is None else ScramIdentity(credential=credential, name=name)

        return ScramServer(scram, nonce=self._random_text(), decoy_key=self._decoy_key(), find=find)

    def _token_identity(self, token_id: str, mechanism: ScramMechanism) -> ScramIdentity | None:
        """The owner of a delegation token, as long as the token is valid (KIP-48)."""
        token = self._tokens().get(token_id)
        if token is None or token.is_expired(self.now_ms() + 1):
            return None
        if not token.is_of(self._token_secret_key()):
            return None
        return ScramIdentity(
            credential=token.credential(mechanism),
            name=token.owner.partition(":")[2],
            expires_at_ms=token.expiry_ms,
        )

    async def fetch_keys(self, listener: str) -> None:
        """Fetch the keys with which access tokens are verified."""
        await self._verifiers.fetch(self.settings_of(listener, OAUTHBEARER))


class _State(Enum):
    VERSIONS = auto()
    HANDSHAKE = auto()
    TOKENS = auto()
    AUTHENTICATE = auto()
    AUTHENTICATED = auto()
    FAILED = auto()


class SaslConnection:
    """The authentication of one connection; `gate` of that connection."""

    def __init__(self, authenticator: SaslAuthenticator, connection: Connection) -> None:
        self._authenticator = authenticator
        self._connection = connection
        self._state = _State.VERSIONS
        self._frame_count = 0
        self._mechanism = ""
        self._principal: str | None = None
        self._refusal_ahead: SaslRefusedError | None = None
        self._server: SaslServer | None = None
        self._expires_at_s: float | None = None
        self._began_at_s = -REAUTHENTICATION_INTERVAL_S
        self.is_token = False
        """Whether the client has authenticated with a delegation token."""

    def takes(self, slot: Slot, frame: memoryview) -> bool:
        """Handle a frame, or return False: it is a request for dispatch."""
        if self._state is _State.AUTHENTICATED:
            return self._takes_of_session(slot, frame)
        if self._state is _State.FAILED:
            slot.complete(None)
            return True
        self._frame_count += 1
        if self._frame_count > FRAMES_MAX:
            self._fail(slot, None, "too many requests without an authentication")
        elif self._state is _State.TOKENS:
            self._respond(slot, bytes(frame), None)
        else:
            return self._takes_request(slot, frame)
        return True

    def _takes_of_session(self, slot: Slot, frame: memoryview) -> bool:
        """A frame of an authenticated client, whose session expires."""
        if self._expires_at_s is None:
            return False
        now_s = self._authenticator.loop.time()
        if frame[:2] == _HANDSHAKE_KEY:
            if now_s - self._began_at_s < REAUTHENTICATION_INTERVAL_S:
                return False
            self._frame_count = 1
            return self._takes_request(slot, frame)
        # The loop's clock has milliseconds: a session without a lifetime has ended at once.
        if now_s < self._expires_at_s:
            return False
        self._count("expired")
        self._connection.log_refusal(
            "the session has expired",
            principal=named(str(self._principal)),
            mechanism=self._mechanism,
        )
        self._state = _State.FAILED
        slot.connection.close()
        slot.complete(None)
        return True

    def _takes_request(self, slot: Slot, frame: memoryview) -> bool:
        try:
            header = decode_request_header(frame)
            key, version = header.api_key, header.api_version
            if key == ApiKey.API_VERSIONS and self._state is _State.VERSIONS:
                # After an unknown version the client asks again (KIP-511).
                if version <= APIS[key].max_version:
                    self._state = _State.HANDSHAKE
                return False
            is_known = key in _SASL_KEYS and 0 <= version <= APIS[key].max_version
            is_exchange = self._state is _State.AUTHENTICATE
            if not is_known or (key == ApiKey.SASL_AUTHENTICATE and not is_exchange):
                self._fail(slot, None, f"API key {key} was requested before authentication")
                return True
            request = decode_request(key, version, frame, header.body_offset)
        except ProtocolError as error:
            self._fail(slot, None, str(error))
            return True
        if isinstance(request, SaslHandshakeRequest):
            self._handshake(slot, header, request)
        else:
            assert isinstance(request, SaslAuthenticateRequest)
            self._respond(slot, bytes(request.auth_bytes), header)
        return True

    # -- the exchange --------------------------------------------------------------------------

    def _handshake(self, slot: Slot, header: RequestHeader, request: SaslHandshakeRequest) -> None:
        authenticator, listener = self._authenticator, self._connection.listener.name
        mechanisms = authenticator.mechanisms(listener)
        response = SaslHandshakeResponse(mechanisms=mechanisms)
        if self._state is _State.AUTHENTICATE:
            response.error_code = ErrorCode.ILLEGAL_SASL_STATE
            self._fail(slot, _encoded(header, response), "a handshake within an exchange")
            return
        if request.mechanism not in mechanisms:
            response.error_code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            reason = f"the mechanism {named(request.mechanism)} is not enabled"
            self._fail(slot, _encoded(header, response), reason)
            return
        if self._principal is not None and request.mechanism != self._mechanism:
            text = (
                f"SASL mechanism '{request.mechanism}' requested by client is not supported for"
                f" re-authentication of mechanism '{self._mechanism}'"
            )
            self._refusal_ahead = SaslRefusedError(text, text)
        else:
            self._mechanism = request.mechanism
            self._server = authenticator.server(listener, request.mechanism)
        self._began_at_s = authenticator.loop.time()
        self._state = _State.AUTHENTICATE if header.api_version else _State.TOKENS
        slot.complete(_encoded(header, response))

    def _respond(self, slot: Slot, data: bytes, header: RequestHeader | None) -> None:
        """Give the exchange the client's next bytes. Without a header they came bare."""
        try:
            if self._refusal_ahead is not None:
                raise self._refusal_ahead
            assert self._server is not None
            outcome = self._server.respond(data)
            if isinstance(outcome, Authenticated):
                self._check_principal(outcome)
        except UnknownTokenKeyError:
            self._connection.hold_back()
            fetching = self._authenticator.fetch_keys(self._connection.listener.name)
            drive(fetching, lambda _result, _error: self._respond_again(slot, data, header))
            return
        except SaslRefusedError as error:
            self._refuse(slot, header, error)
            return
        lifetime_ms = self._begin_session(outcome) if isinstance(outcome, Authenticated) else 0
        if header is None:
            # A bare exchange ends without a last token, if there is none.
            slot.complete([outcome.data])
            return
        response = SaslAuthenticateResponse(
            auth_bytes=outcome.data, session_lifetime_ms=lifetime_ms
        )
        slot.complete(_encoded(header, response))

    def _respond_again(self, slot: Slot, data: bytes, header: RequestHeader | None) -> None:
        """After the keys were fetched, whether that succeeded or not."""
        if self._connection.is_closed:
            slot.complete(None)
            return
        self._respond(slot, data, header)
        if self._state is not _State.FAILED:
            self._connection.resume()

    def _check_principal(self, outcome: Authenticated) -> None:
        """Raise SaslRefusedError if the client is another one than before."""
        if self._principal in (None, f"User:{outcome.name}"):
            return
        before = str(self._principal).replace(":", ".", 1)
        text = (
            f"Cannot change principals during re-authentication from {before}: User.{outcome.name}"
        )
        raise SaslRefusedError(named(text), text)

    def _begin_session(self, outcome: Authenticated) -> int:
        """The client has authenticated. How long that is valid in milliseconds; 0: no limit."""
        authenticator, connection = self._authenticator, self._connection
        self._count("success")
        self._principal = connection.peer_principal = f"User:{outcome.name}"
        self.is_token = outcome.is_token
        self._state, self._server = _State.AUTHENTICATED, None
        log.debug(
            "a client has authenticated", **connection.log_fields(), principal=named(outcome.name)
        )
        settings = authenticator.settings_of(connection.listener.name, self._mechanism)
        limits_ms = []
        if settings.connections_max_reauth_ms:
            limits_ms.append(settings.connections_max_reauth_ms)
        if outcome.expires_at_ms is not None:
            limits_ms.append(max(0, outcome.expires_at_ms - authenticator.now_ms()))
        connection.on_authenticated(is_watched=bool(limits_ms))
        if not limits_ms:
            self._expires_at_s = None
            return 0
        self._expires_at_s = authenticator.loop.time() + min(limits_ms) / 1000
        return min(limits_ms)

    # -- failures ------------------------------------------------------------------------------

    def _refuse(self, slot: Slot, header: RequestHeader | None, error: SaslRefusedError) -> None:
        """The exchange failed."""
        is_renewal = self._principal is not None
        message = error.client_text or general_refusal_text(self._mechanism, is_renewal=is_renewal)
        response = SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=message
        )
        self._fail(slot, None if header is None else _encoded(header, response), error.reason)

    def _fail(self, slot: Slot, answer: Sequence[Buffer] | None, reason: str) -> None:
        """Answer after a delay, and close the connection."""
        authenticator, connection = self._authenticator, self._connection
        self._state, self._server = _State.FAILED, None
        self._count("failure")
        self._connection.log_refusal(f"authentication failed: {reason}", mechanism=self._mechanism)
        connection.hold_back()
        settings = authenticator.settings_of(connection.listener.name, self._mechanism)
        delay_s = settings.connection_failed_authentication_delay_ms / 1000
        authenticator.loop.call_later(delay_s, self._end, slot, answer)

    def _end(self, slot: Slot, answer: Sequence[Buffer] | None) -> None:
        self._connection.close()
        slot.complete(answer)

    def _count(self, outcome: str) -> None:
        if self._principal is not None and outcome != "expired":
            outcome = f"reauthentication_{outcome}"
        key = (self._connection.listener.name, self._mechanism or "none", outcome)
        self._authenticator.counts[key] += 1


def is_identified(connection: Connection) -> bool:
    """Whether the client may ask for delegation tokens: it has said who it is, and not with a
    token. A token that could make tokens would never end."""
    authentication = connection.authentication
    if isinstance(authentication, SaslConnection):
        return not authentication.is_token
    return connection.listener.is_tls and connection.peer_principal != ANONYMOUS


def _encoded(
    header: RequestHeader, response: SaslHandshakeResponse | SaslAuthenticateResponse
) -> list[Buffer]:
    key, version = header.api_key, header.api_version
    return [
        encode_response_header(key, version, header.correlation_id),
        *encode_response(key, version, response),
    ]


@lru_cache(maxsize=16)
def _users(jaas: str) -> Mapping[str, str]:
    return parse_jaas(jaas).users
