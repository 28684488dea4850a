"""SCRAM: RFC 7677's example, another implementation as the client, and what must be refused."""

import base64
import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scramp import ScramClient

from odradek.cluster.metadata.scram import ScramMechanism, credential_of, salted_password
from odradek.cluster.security.sasl import Authenticated, Challenge, SaslRefusedError
from odradek.cluster.security.scram_server import ScramIdentity, ScramServer

SHA_256 = ScramMechanism.SCRAM_SHA_256
NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
FIRST = f"n,,n=user,r={CLIENT_NONCE}".encode()
CHALLENGE = f"r={CLIENT_NONCE}{NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
FINAL = (f"c=biws,r={CLIENT_NONCE}{NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=").encode()
SIGNATURE = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="

IDENTITIES = {
    (mechanism, name): ScramIdentity(
        credential=credential_of(
            mechanism, salted_password(mechanism, password, SALT, 4096), SALT, 4096
        ),
        name=name,
    )
    for mechanism in ScramMechanism
    for name, password in (("user", "pencil"), ("comma,equals=", "geheim"), ("Jürgen", "ä"))
}


def server(mechanism: ScramMechanism = SHA_256, nonce: str = NONCE) -> ScramServer:
    def find(name: str, is_token: bool) -> ScramIdentity | None:
        if is_token:
            identity = IDENTITIES.get((mechanism, "user"))
            if name != "token-id" or identity is None:
                return None
            return ScramIdentity(credential=identity.credential, name="owner", expires_at_ms=99)
        return IDENTITIES.get((mechanism, name))

    return ScramServer(mechanism, nonce=nonce, decoy_key=b"decoy", find=find)


def test_the_example_of_the_rfc() -> None:
    exchange = server()
    assert exchange.respond(FIRST) == Challenge(CHALLENGE)
    assert exchange.respond(FINAL) == Authenticated(name="user", data=SIGNATURE)


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize(
    ("name", "password"), [("user", "pencil"), ("comma,equals=", "geheim"), ("Jürgen", "ä")]
)
def test_another_implementation_authenticates(
    mechanism: ScramMechanism, name: str, password: str
) -> None:
    exchange = server(mechanism)
    client = ScramClient([mechanism.sasl_name], name, password)
    challenge = exchange.respond(client.get_client_first().encode())
    assert isinstance(challenge, Challenge)
    client.set_server_first(challenge.data.decode())
    done = exchange.respond(client.get_client_final().encode())
    assert isinstance(done, Authenticated)
    assert done.name == name
    client.set_server_final(done.data.decode())


@pytest.mark.parametrize("name", ["user", "nobody"])
def test_a_wrong_password_and_an_unknown_user_are_refused_at_the_same_step(name: str) -> None:
    exchange = server()
    client = ScramClient(["SCRAM-SHA-256"], name, "wrong")
    challenge = exchange.respond(client.get_client_first().encode())
    assert isinstance(challenge, Challenge)
    client.set_server_first(challenge.data.decode())
    with pytest.raises(SaslRefusedError) as raised:
        exchange.respond(client.get_client_final().encode())
    assert raised.value.client_text is None


def test_an_unknown_user_always_has_the_same_salt() -> None:
    challenges = {server().respond(b"n,,n=nobody,r=abc") for _ in range(3)}
    assert len(challenges) == 1
    assert challenges != {server().respond(b"n,,n=noone,r=abc")}


@pytest.mark.parametrize("is_token", [False, True])
def test_the_number_of_iterations_does_not_tell_which_users_exist(is_token: bool) -> None:
    # Users have 4,096 or, the first one of a hardened cluster, 16,384; tokens 4,096.
    extension = b",tokenauth=true" if is_token else b""
    told = set()
    for index in range(40):
        challenge = server().respond(b"n,,n=nobody-%d,r=abc%s" % (index, extension))
        told.add(challenge.data.rpartition(b",i=")[2])
    assert told == ({b"4096"} if is_token else {b"4096", b"16384"})


def final_of(first: str, gs2: str, *, password: str = "pencil", extra: str = "") -> bytes:
    """The final message of a client that follows the RFC, for the challenge of `server()`."""
    salted = salted_password(SHA_256, password, SALT, 4096)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    stored_key = credential_of(SHA_256, salted, SALT, 4096).stored_key
    nonce = first.rpartition("r=")[2].partition(",")[0] + NONCE
    unproven = f"c={base64.b64encode(gs2.encode()).decode()},r={nonce}{extra}"
    challenge = f"r={nonce},s={base64.b64encode(SALT).decode()},i=4096"
    signature = hmac.digest(stored_key, f"{first},{challenge},{unproven}".encode(), "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{unproven},p={base64.b64encode(proof).decode()}".encode()


@pytest.mark.parametrize("gs2", ["n,,", "y,,", "n,a=user,"])
@pytest.mark.parametrize("extra", ["", ",x=extension"])
def test_channel_binding_is_that_of_the_header(gs2: str, extra: str) -> None:
    exchange = server()
    exchange.respond(f"{gs2}n=user,r=abc".encode())
    done = exchange.respond(final_of("n=user,r=abc", gs2, extra=extra))
    assert isinstance(done, Authenticated)


def test_a_delegation_token_authenticates_as_its_owner() -> None:
    exchange = server()
    first = "n=token-id,r=abc,tokenauth=true"
    exchange.respond(f"n,,{first}".encode())
    done = exchange.respond(final_of(first, "n,,"))
    assert isinstance(done, Authenticated)
    assert (done.name, done.is_token, done.expires_at_ms) == ("owner", True, 99)


def test_a_users_name_is_no_token() -> None:
    exchange = server()
    first = "n=user,r=abc,tokenauth=true"
    exchange.respond(f"n,,{first}".encode())
    with pytest.raises(SaslRefusedError, match="no delegation token"):
        exchange.respond(final_of(first, "n,,"))


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n,,n=user",
        b"n,,n=,r=abc",
        b"n,,n=us=er,r=abc",
        b"n,,r=abc,n=user",
        b"p=tls-unique,,n=user,r=abc",
        b"n,a=other,n=user,r=abc",
        b"n,,m=mandatory,n=user,r=abc",
        b"n,,n=user,r=a c",
        b"n,,n=us\0er,r=abc",
        b"n,,n=\xff,r=abc",
        b"n,,n=user,r=" + b"a" * 20_000,
    ],
)
def test_malformed_first_messages_are_refused(first: bytes) -> None:
    with pytest.raises(SaslRefusedError):
        server().respond(first)


@pytest.mark.parametrize(
    "final",
    [
        b"",
        FINAL.replace(b"biws", b"eSws"),
        FINAL.replace(b"biws", b"b"),
        FINAL.replace(CLIENT_NONCE.encode(), b"other"),
        FINAL.replace(NONCE.encode(), b""),
        FINAL.replace(b"r=", b"r=x"),
        FINAL.replace(b"dHzb", b"dHzc"),
        FINAL.replace(b"p=dHzb", b"p="),
        FINAL.rpartition(b"p=")[0] + b"p=====",
        FINAL.rpartition(b",")[0],
        FINAL + b",x=1",
        FIRST,
    ],
)
def test_wrong_final_messages_are_refused(final: bytes) -> None:
    exchange = server()
    exchange.respond(FIRST)
    with pytest.raises(SaslRefusedError):
        exchange.respond(final)


def test_a_proof_does_not_work_twice() -> None:
    exchange = server(nonce="another")
    exchange.respond(FIRST)
    with pytest.raises(SaslRefusedError):
        exchange.respond(FINAL)


pieces = st.sampled_from(
    ["n,,", "y,,", "n=user", "r=abc", ",", "tokenauth=true", "c=biws", f"r=abc{NONCE}", "p=AAAA"]
)
messages = st.binary(max_size=100) | st.lists(pieces | st.text(max_size=5)).map(
    lambda parts: "".join(parts).encode()
)


@settings(max_examples=300, deadline=None)
@given(first=messages | st.just(FIRST), final=messages | st.binary(max_size=4).map(FINAL.__add__))
def test_arbitrary_exchanges_do_not_authenticate(first: bytes, final: bytes) -> None:
    exchange = server()
    if first == FIRST and final == FINAL:
        return
    try:
        assert isinstance(exchange.respond(first), Challenge)
    except SaslRefusedError:
        return
    with pytest.raises(SaslRefusedError):
        exchange.respond(final)
