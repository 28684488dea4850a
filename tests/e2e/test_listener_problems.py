"""A broker whose certificate ends soon and whose keys of access tokens are missing says so."""

import json
import urllib.request
from pathlib import Path

import jwt
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, TopicPartition
from cryptography.hazmat.primitives.asymmetric import ec

from odradek.node.cli.main import cli
from odradek.node.embedded import EmbeddedBroker
from tests.support.certificates import TestAuthority
from tests.support.ports import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

EXPIRES = "listener SECURE: its certificate expires in 20 days"
NO_KEYS = "listener TOKENS: the keys at file://"


def test_problems_of_listeners_are_told_everywhere_until_they_are_mended(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path)
    store = authority.issue("broker.pem", valid_s=20.5 * 86_400)
    keys = tmp_path / "keys.json"
    ports = {name: free_port() for name in ("SECURE", "TOKENS")}
    http = f"127.0.0.1:{free_port()}"
    broker = EmbeddedBroker(
        tmp_path / "node",
        settings={
            "listeners": ",".join(
                ["PLAINTEXT://127.0.0.1:0", *(f"{k}://127.0.0.1:{v}" for k, v in ports.items())]
            ),
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,SECURE:SSL,TOKENS:SASL_PLAINTEXT"
            ),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(store),
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
            "http.listen": http,
        },
    )

    def page(path: str) -> str:
        with urllib.request.urlopen(f"http://{http}{path}", timeout=10) as answer:
            assert answer.status == 200  # others of its listeners can be used
            return str(answer.read().decode())

    def odradek(*arguments: str) -> str:
        return CliRunner().invoke(cli, ["-b", broker.bootstrap_servers, *arguments]).output

    with broker:
        wait_until(lambda: EXPIRES in page("/readyz") and NO_KEYS in page("/readyz"))
        metrics = page("/metrics")
        assert 'odradek_listener_problems{process="router-0",listener="SECURE"} 1\n' in metrics
        assert 'odradek_listener_problems{process="router-0",listener="TOKENS"} 1\n' in metrics
        assert 'odradek_listener_problems{process="router-0",listener="PLAINTEXT"} 0\n' in metrics
        broker.create_topic("orders")
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "billing"})
        consumer.commit(offsets=[TopicPartition("orders", 0, 0)], asynchronous=False)
        consumer.close()
        explains = ("topic", "explain", "orders"), ("group", "explain", "billing")
        for command in (("doctor",), ("cluster", "status"), *explains):
            told = odradek(*command)
            assert EXPIRES in told
            assert NO_KEYS in told

        own_key = ec.generate_private_key(ec.SECP256R1()).public_key()
        jwk = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(own_key)) | {"kid": "k"}
        keys.write_text(json.dumps({"keys": [jwk]}))
        authority.issue("broker.pem")
        wait_until(lambda: "listener" not in page("/readyz"))
        assert "expires in" not in odradek("cluster", "status")
        assert broker.log().count(EXPIRES.partition(": ")[2]) == 1
        assert broker.log().count("cannot be fetched") == 1
