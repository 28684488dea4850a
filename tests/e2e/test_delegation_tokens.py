"""Delegation tokens as clients meet them, compared with Apache Kafka 4.3.1 (KIP-48)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.node.embedded import EmbeddedBroker
from tests.support.ports import free_port
from tests.support.token_dialogue import SETTINGS, TokenDialogue, differences

pytestmark = pytest.mark.e2e


class TokenNode:
    """A broker with a listener for SASL and one without."""

    def __init__(self, folder: Path) -> None:
        self.sasl, self.plaintext = (f"127.0.0.1:{free_port()}" for _ in range(2))
        listeners = f"PLAINTEXT://{self.plaintext},SASL_PLAINTEXT://{self.sasl}"
        self.broker = EmbeddedBroker(
            folder,
            settings={
                "listeners": listeners,
                "advertised.listeners": listeners,
                "listener.security.protocol.map": (
                    "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT"
                ),
                **SETTINGS,
            },
        )


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenNode]:
    node = TokenNode(tmp_path_factory.mktemp("tokens"))
    with node.broker:
        yield node


def test_every_answer_is_kafkas(node: TokenNode) -> None:
    found = differences(TokenDialogue(node.sasl, node.plaintext).run())
    # A client that had such a token would be User:carol in Kafka, whom nobody was asked about.
    answer, of_kafka = found.pop("create of another type for carol")
    assert (answer["error"], of_kafka["error"]) == (67, 0)
    assert not found, found
    assert "a key for the dialogue" not in node.broker.log()
