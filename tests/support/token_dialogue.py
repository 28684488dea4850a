"""A dialogue about delegation tokens (KIP-48, KIP-373), and what Apache Kafka answers to it.

`KAFKA_ANSWERS` was recorded from Apache Kafka 4.3.1 with

    python -m tests.support.token_dialogue SASL_HOST:PORT PLAINTEXT_HOST:PORT FILE

which asks a broker without tokens and ACLs every question in order. The broker has the settings of
`SETTINGS`: PLAIN with the users of `USERS`, whose passwords are their names, SCRAM for the tokens,
a secret key and StandardAuthorizer with the super users admin and ANONYMOUS. Times are given in
hours after the time of the question, ids and HMACs by the name of their token.
"""

import base64
import hashlib
import hmac
import json
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from odradek.protocol.messages.acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from odradek.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from odradek.protocol.messages.tokens import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
    TokenPrincipal,
)
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

KAFKA_ANSWERS: Final = Path(__file__).with_name("delegation_tokens_kafka_4_3_1.json")
USERS: Final = ("admin", "alice", "bob", "carol", "dave")
SETTINGS: Final = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.clients.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        + " ".join(f'user_{name}="{name}"' for name in USERS)
        + ";"
    ),
    "delegation.token.secret.key": "a key for the dialogue",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS",
}
"""Kafka needs a sasl.jaas.config with ScramLoginModule for both SCRAM mechanisms, too."""
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
CREATE, RENEW, EXPIRE, DESCRIBE = 3, 2, 2, 3
_TOKEN_RESOURCE, _USER_RESOURCE, _LITERAL, _ALLOW = 6, 7, 3, 3
_DESCRIBE, _CREATE_TOKENS, _DESCRIBE_TOKENS = 8, 13, 14


@dataclass(frozen=True)
class CreatedToken:
    """What its creator knows of a token."""

    token_id: str
    hmac: bytes

    @property
    def password(self) -> str:
        """What a client authenticates with."""
        return base64.b64encode(self.hmac).decode()


def logged_in(address: str, name: str) -> WireClient:
    """A connection of that user of PLAIN, whose password is its name."""
    wire = WireClient(address)
    wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1, SaslHandshakeResponse)
    data = f"\0{name}\0{name}".encode()
    answer = wire.ask(SaslAuthenticateRequest(auth_bytes=data), 2, SaslAuthenticateResponse)
    assert answer.error_code == 0, answer.error_message
    return wire


def scram_login(
    wire: WireClient,
    name: str,
    password: str,
    *,
    mechanism: str = "SCRAM-SHA-256",
    extensions: str = ",tokenauth=true",
) -> SaslAuthenticateResponse:
    """Authenticate on a connection with a delegation token: the last answer, the error included."""
    wire.ask(SaslHandshakeRequest(mechanism=mechanism), 1, SaslHandshakeResponse)
    messages = scram_messages(name, password, mechanism, extensions)
    request = SaslAuthenticateRequest(auth_bytes=next(messages))
    answer = wire.ask(request, 2, SaslAuthenticateResponse)
    if answer.error_code:
        return answer
    request = SaslAuthenticateRequest(auth_bytes=messages.send(bytes(answer.auth_bytes)))
    return wire.ask(request, 2, SaslAuthenticateResponse)


def scram_messages(
    name: str, password: str, mechanism: str, extensions: str = ",tokenauth=true"
) -> Generator[bytes, bytes, None]:
    """Both messages of a client; the server's challenge is sent in between."""
    digest = "sha256" if mechanism == "SCRAM-SHA-256" else "sha512"
    bare = f"n={name},r=dialogue{extensions}"
    challenge = (yield f"n,,{bare}".encode()).decode()
    fields = dict(part.split("=", 1) for part in challenge.split(","))
    salt, iterations = base64.b64decode(fields["s"]), int(fields["i"])
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", digest)
    unproven = f"c=biws,r={fields['r']}"
    signature = hmac.digest(
        hashlib.new(digest, client_key).digest(),
        f"{bare},{challenge},{unproven}".encode(),
        digest,
    )
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    yield f"{unproven},p={base64.b64encode(proof).decode()}".encode()


def principals(*names: str) -> list[TokenPrincipal]:
    """Users, or with a colon principals of another type."""
    listed = []
    for name in names:
        kind, colon, rest = name.partition(":")
        listed.append(
            TokenPrincipal(
                principal_type=kind if colon else "User", principal_name=rest if colon else name
            )
        )
    return listed


class TokenDialogue:
    """The questions, asked of one broker. `answers` is what it answered."""

    def __init__(self, sasl_address: str, plaintext_address: str) -> None:
        self._addresses = sasl_address, plaintext_address
        self.answers: dict[str, Any] = {}
        self._tokens: dict[str, CreatedToken] = {}
        self._stack = ExitStack()
        self._wires: dict[str, WireClient] = {}

    def run(self) -> dict[str, Any]:
        """Ask everything."""
        with self._stack:
            for name in USERS:
                self._wires[name] = self._opened(logged_in(self._addresses[0], name))
            self._wires["nobody"] = self._opened(WireClient(self._addresses[1]))
            self._create_tokens()
            self._authenticate()
            self._describe_tokens()
            self._renew_tokens()
            self._expire_tokens()
        return self.answers

    def _opened(self, wire: WireClient) -> WireClient:
        return self._stack.enter_context(wire)

    # -- the questions -------------------------------------------------------------------------

    def _create_tokens(self) -> None:
        self.create("alice", "plain")
        self.create("alice", "short", lifetime_ms=HOUR_MS)
        self.create("alice", "long", lifetime_ms=365 * DAY_MS)
        self.create("alice", "zero", lifetime_ms=0)
        self.create("alice", "negative", lifetime_ms=-2)
        self.create("alice", "renewable", renewers=("bob", "bob", "alice"))
        self.create("alice", "foreign renewer", renewers=("bob", "Group:staff"))
        self.create("alice", "renewer without a name", renewers=("User:",))
        self.create("alice", "own", owner="User:alice")
        self.create("alice", "owner without a name", owner="User:")
        self.create("alice", "of another", owner="User:carol")
        self.create("alice", "of another type", owner="Group:alice")
        self.create("admin", "for carol", owner="User:carol", renewers=("bob",))
        self.create(
            "admin", "with foreign renewer for carol", owner="User:carol", renewers=("Group:staff",)
        )
        self.grant("alice", _USER_RESOURCE, "User:dave", _CREATE_TOKENS)
        self.create("alice", "for dave", owner="User:dave")
        self.create("nobody", "without authentication")
        for version in (1, 2):
            self.create("carol", f"version {version}", version=version)

    def _authenticate(self) -> None:
        token = self._tokens["plain"]
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            self.log_in(f"token with {mechanism}", token.token_id, token.password, mechanism)
        self.log_in("token with a wrong HMAC", token.token_id, "wrong", "SCRAM-SHA-256")
        self.log_in("token that does not exist", "absent", token.password, "SCRAM-SHA-256")
        self.log_in(
            "token as a user", token.token_id, token.password, "SCRAM-SHA-256", extensions=""
        )
        for_dave = self._tokens["for dave"]
        wire = self._opened(WireClient(self._addresses[0]))
        assert not scram_login(wire, for_dave.token_id, for_dave.password).error_code
        self._wires["token"] = wire
        self.create("token", "by a token")
        self.renew("token", "for dave", "by a token")
        self.expire("token", "for dave", "by a token", HOUR_MS)
        self.describe("token", "by a token", None)

    def _describe_tokens(self) -> None:
        for user in ("alice", "bob", "carol", "dave", "admin", "nobody"):
            self.describe(user, "all", None)
        self.describe("alice", "nobody's", ())
        self.describe("alice", "those of alice", ("alice",))
        self.describe("alice", "those of bob", ("bob",))
        self.describe("alice", "those of carol", ("carol",))
        self.describe("alice", "those of two", ("carol", "dave"))
        self.describe("alice", "those of another type", ("Group:alice",))
        self.describe("admin", "those of carol", ("carol",))
        self.describe("admin", "those of admin", ("admin",))
        for version in (1, 2):
            self.describe("carol", f"version {version}", None, version=version)
        self.grant("dave", _TOKEN_RESOURCE, self._tokens["plain"].token_id, _DESCRIBE)
        self.describe("dave", "with DESCRIBE on a token", None)
        self.grant("dave", _USER_RESOURCE, "User:carol", _DESCRIBE_TOKENS)
        self.describe("dave", "with DESCRIBE_TOKENS on a user", None)

    def _renew_tokens(self) -> None:
        self.renew("alice", "plain", "by the owner")
        self.renew("alice", "plain", "for an hour", HOUR_MS)
        self.renew("alice", "plain", "for long", 30 * DAY_MS)
        self.renew("alice", "plain", "for no time", 0)
        self.renew("alice", "short", "beyond its end", 2 * HOUR_MS)
        self.renew("bob", "renewable", "by a renewer", HOUR_MS)
        self.renew("carol", "renewable", "by a stranger")
        self.renew("admin", "renewable", "by a super user")
        self.renew("admin", "for carol", "by the requester")
        self.renew("dave", "plain", "by one who may describe it")
        self.renew("alice", "absent", "that does not exist")
        self.renew("nobody", "plain", "without authentication")
        self.renew("alice", "plain", "version 1", HOUR_MS, version=1)

    def _expire_tokens(self) -> None:
        self.expire("alice", "plain", "in an hour", HOUR_MS)
        self.expire("alice", "plain", "in long", 30 * DAY_MS)
        self.expire("bob", "renewable", "by a renewer", 2 * HOUR_MS)
        self.expire("carol", "renewable", "by a stranger", -1)
        self.expire("admin", "for carol", "by the requester", -1)
        self.expire("alice", "absent", "that does not exist", -1)
        self.expire("nobody", "plain", "without authentication", -1)
        self.expire("alice", "own", "version 1", HOUR_MS, version=1)
        self.expire("alice", "own", "now", 0)
        time.sleep(0.05)  # Kafka's clock has milliseconds: the token has to be older than one
        self.renew("alice", "own", "that has expired")
        self.renew("bob", "own", "of another that has expired")
        self.expire("alice", "own", "that has expired", HOUR_MS)
        self.expire("bob", "own", "of another that has expired", HOUR_MS)
        self.describe("alice", "with an expired one", None)
        self.expire("alice", "own", "that has expired, at once", -1)
        self.expire("alice", "plain", "at once", -1)
        wait_until(lambda: "plain" not in self._described("alice", None, DESCRIBE), timeout_s=20)
        self.expire("alice", "plain", "that is removed", -1)
        self.renew("alice", "plain", "that is removed")
        token = self._tokens["plain"]
        self.log_in("token that is removed", token.token_id, token.password, "SCRAM-SHA-256")
        self.describe("alice", "what is left", None)
        # Its client would be User:carol in Kafka.
        self.create("admin", "of another type for carol", owner="Group:carol")

    # -- how they are asked --------------------------------------------------------------------

    def create(
        self,
        user: str,
        name: str,
        *,
        owner: str | None = None,
        renewers: tuple[str, ...] = (),
        lifetime_ms: int = -1,
        version: int = CREATE,
    ) -> None:
        request = CreateDelegationTokenRequest(
            renewers=principals(*renewers), max_lifetime_ms=lifetime_ms
        )
        if owner is not None:
            kind, _, request.owner_principal_name = owner.partition(":")
            request.owner_principal_type = kind
        answer = self._wires[user].ask(request, version, CreateDelegationTokenResponse)
        if not answer.error_code:
            self._tokens[name] = CreatedToken(answer.token_id, bytes(answer.hmac))
            self._wait_until_known(self._tokens[name])
        self.answers[f"create {name}"] = {
            "error": answer.error_code,
            "principal": f"{answer.principal_type}:{answer.principal_name}",
            "requester": (
                f"{answer.token_requester_principal_type}:{answer.token_requester_principal_name}"
            ),
            "expiry": _span(answer.expiry_timestamp_ms, answer.issue_timestamp_ms),
            "max": _span(answer.max_timestamp_ms, answer.issue_timestamp_ms),
            "issue": _span(answer.issue_timestamp_ms, _now_ms()),
            "id and HMAC": [len(answer.token_id), len(answer.hmac)],
        }

    def _wait_until_known(self, token: CreatedToken) -> None:
        """Kafka's brokers know a token a while after it was created."""
        request = DescribeDelegationTokenRequest(owners=None)

        def is_known() -> bool:
            answer = self._wires["admin"].ask(request, DESCRIBE, DescribeDelegationTokenResponse)
            return token.token_id in {each.token_id for each in answer.tokens}

        wait_until(is_known, timeout_s=20)

    def renew(
        self, user: str, name: str, case: str, period_ms: int = -1, *, version: int = RENEW
    ) -> None:
        request = RenewDelegationTokenRequest(hmac=self._hmac(name), renew_period_ms=period_ms)
        answer = self._wires[user].ask(request, version, RenewDelegationTokenResponse)
        self._changed(f"renew {name}: {case}, {user}", answer)

    def expire(
        self, user: str, name: str, case: str, period_ms: int, *, version: int = EXPIRE
    ) -> None:
        request = ExpireDelegationTokenRequest(
            hmac=self._hmac(name), expiry_time_period_ms=period_ms
        )
        answer = self._wires[user].ask(request, version, ExpireDelegationTokenResponse)
        self._changed(f"expire {name}: {case}, {user}", answer)

    def _changed(
        self, question: str, answer: RenewDelegationTokenResponse | ExpireDelegationTokenResponse
    ) -> None:
        self.answers[question] = {
            "error": answer.error_code,
            "expiry": _span(answer.expiry_timestamp_ms, _now_ms()),
        }
        # A change of a token is in force on Kafka's broker a while after its controller answers.
        time.sleep(1.2 if self._is_slow else 0)

    _is_slow = False

    def _hmac(self, name: str) -> bytes:
        return self._tokens[name].hmac if name in self._tokens else b"no HMAC of any token"

    def describe(
        self, user: str, case: str, owners: tuple[str, ...] | None, *, version: int = DESCRIBE
    ) -> None:
        self.answers[f"describe {case}, {user}"] = self._described(user, owners, version)

    def _described(self, user: str, owners: tuple[str, ...] | None, version: int) -> Any:  # noqa: ANN401 - JSON
        request = DescribeDelegationTokenRequest(
            owners=None if owners is None else principals(*owners)
        )
        answer = self._wires[user].ask(request, version, DescribeDelegationTokenResponse)
        if answer.error_code:
            return answer.error_code
        names = {token.token_id: name for name, token in self._tokens.items()}
        return {
            names[each.token_id]: {
                "owner": f"{each.principal_type}:{each.principal_name}",
                "requester": (
                    f"{each.token_requester_principal_type}:{each.token_requester_principal_name}"
                ),
                "renewers": [f"{r.principal_type}:{r.principal_name}" for r in each.renewers],
                "has its HMAC": bytes(each.hmac) == self._tokens[names[each.token_id]].hmac,
                "lifetime": _span(each.max_timestamp, each.issue_timestamp),
                "expiry": _span(each.expiry_timestamp, each.issue_timestamp),
            }
            for each in sorted(answer.tokens, key=lambda each: names[each.token_id])
        }

    def log_in(
        self,
        case: str,
        name: str,
        password: str,
        mechanism: str,
        extensions: str = ",tokenauth=true",
    ) -> None:
        with WireClient(self._addresses[0]) as wire:
            answer = scram_login(wire, name, password, mechanism=mechanism, extensions=extensions)
        self.answers[f"log in: {case}"] = {
            "error": answer.error_code,
            "message": answer.error_message,
            "lifetime": _span(answer.session_lifetime_ms, 0) if answer.session_lifetime_ms else 0,
        }

    def grant(self, user: str, resource_type: int, name: str, operation: int) -> None:
        creation = AclCreation(
            resource_type=resource_type,
            resource_name=name,
            resource_pattern_type=_LITERAL,
            principal=f"User:{user}",
            host="*",
            operation=operation,
            permission_type=_ALLOW,
        )
        request = CreateAclsRequest(creations=[creation])
        answer = self._wires["admin"].ask(request, 3, CreateAclsResponse)
        assert not answer.results[0].error_code, answer
        if self._is_slow:
            time.sleep(1)


class SlowTokenDialogue(TokenDialogue):
    """The same with pauses: what Kafka's controller has done its broker does not know at once."""

    _is_slow = True


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _span(later_ms: int, earlier_ms: int) -> int | str:
    """In hours, rounded; as it is if it is no time."""
    if later_ms <= 0:
        return f"{later_ms}"
    return round((later_ms - earlier_ms) / HOUR_MS)


def differences(answers: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Where the answers differ from Kafka's, which come second."""
    recorded = json.loads(KAFKA_ANSWERS.read_text())["answers"]
    return {
        question: (answers.get(question), recorded.get(question))
        for question in {**recorded, **answers}
        if recorded.get(question) != answers.get(question)
    }


def main() -> None:
    """Write the answers to the file named."""
    sasl_address, plaintext_address, file = sys.argv[1:]
    answers = SlowTokenDialogue(sasl_address, plaintext_address).run()
    content = {"kafka": "4.3.1", "asked by": "tests/support/token_dialogue.py", "answers": answers}
    Path(file).write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
