"""The client's side of SASL, against an independent server of SCRAM."""

import pytest
from scramp import ScramMechanism

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.wire.sasl import sasl_exchange
from odradek.pipeline.wire.security import WireSecurity


def security(mechanism: str, username: str = "al,ice=", password: str = "pä") -> WireSecurity:
    return WireSecurity("SASL_PLAINTEXT", mechanism, username, password)


def play_scram(client: WireSecurity, password: str, *, proof: str | None = None) -> bool:
    """Play the exchange to its end; whether the server was content. `proof` is what it sends
    instead of its own at the end."""
    mechanism = ScramMechanism(client.mechanism)
    known = mechanism.make_auth_info(password, iteration_count=4096)
    server = mechanism.make_server(lambda username: known)
    exchange = sasl_exchange(client)
    server.set_client_first(next(exchange).decode())
    final = exchange.send(server.get_server_first().encode())
    server.set_client_final(final.decode())
    with pytest.raises(StopIteration):
        exchange.send((proof or server.get_server_final()).encode())
    return True


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram(mechanism: str) -> None:
    assert play_scram(security(mechanism), "pä")


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_server_that_does_not_know_the_password(mechanism: str) -> None:
    with pytest.raises(PipelineError, match="could not prove"):
        play_scram(security(mechanism), "pä", proof="v=AAAA")


@pytest.mark.parametrize(
    ("challenge", "reason"),
    [
        ("r=other,s=c2FsdA==,i=4096", "not safe"),
        ("r={nonce}x,s=c2FsdA==,i=1", "1 iterations"),
        ("r={nonce}x,s=c2FsdA==,i=99999999", "not safe"),
        ("r={nonce}x,s=c2FsdA==", "does not speak"),
        ("hello", "does not speak"),
    ],
)
def test_challenges_that_are_not_answered(challenge: str, reason: str) -> None:
    exchange = sasl_exchange(security("SCRAM-SHA-256"))
    nonce = next(exchange).decode().rpartition("r=")[2]
    with pytest.raises(PipelineError, match=reason):
        exchange.send(challenge.format(nonce=nonce).encode())


def test_plain() -> None:
    exchange = sasl_exchange(security("PLAIN", "alice", "secret"))
    assert next(exchange) == b"\0alice\0secret"
    with pytest.raises(StopIteration):
        exchange.send(b"")


def test_bearer() -> None:
    tokens = iter(["one"])
    client = WireSecurity("SASL_SSL", "OAUTHBEARER", token=lambda: next(tokens))
    exchange = sasl_exchange(client)
    assert next(exchange) == b"n,,\x01auth=Bearer one\x01\x01"
    assert exchange.send(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(PipelineError, match="invalid_token"):
        exchange.send(b"")


def test_bearer_without_a_token() -> None:
    with pytest.raises(PipelineError, match="access token"):
        next(sasl_exchange(WireSecurity("SASL_SSL", "OAUTHBEARER")))


def test_other_mechanisms() -> None:
    with pytest.raises(PipelineError, match="GSSAPI"):
        sasl_exchange(security("GSSAPI"))
