"""Kafka's command line tools and a broker with TLS, SASL and an authorizer: each authenticates with
--command-config, and prints what it printed with Kafka 4.3.1 (see `transcript_run`).

To record them: TRANSCRIPTS_PROPERTIES is the file of properties for --command-config, with which
User:admin authenticates, and is a super user, and TRANSCRIPTS_NAMES has SecuredNode.names, as JSON.
Kafka has a delegation.token.secret.key, too.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from odradek.node.embedded import EmbeddedBroker
from tests.conformance.transcript_run import GIVEN, TranscriptRun, play
from tests.support.certificates import TestAuthority
from tests.support.java import why_no_java_tools
from tests.support.kafka_tools import TOOLS, TRANSCRIPTS, tools_in
from tests.support.ports import free_port

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(bool(why_no_java_tools()), reason=why_no_java_tools() or "Java is there"),
]

SECURED = TRANSCRIPTS / "secured"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


class SecuredNode(NamedTuple):
    """A broker with SASL_SSL and an authorizer."""

    address: str
    node_id: int
    properties: Path
    """Those of an admin."""
    names: Mapping[str, str]
    """What transcripts call its listeners, their protocols, and a port that nobody uses."""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNode]:
    if GIVEN:
        properties = Path(os.environ["TRANSCRIPTS_PROPERTIES"])
        yield SecuredNode(GIVEN, 1, properties, json.loads(os.environ["TRANSCRIPTS_NAMES"]))
        return
    folder = tmp_path_factory.mktemp("secured")
    authority = TestAuthority(folder)
    port = free_port()
    listeners = f"PLAINTEXT://127.0.0.1:0,SECURE://127.0.0.1:{port}"
    protocols = "PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL"
    names = {"listeners": listeners, "protocols": protocols, "port": str(free_port())}
    broker = EmbeddedBroker(
        folder / "node",
        settings={
            "listeners": listeners,
            "listener.security.protocol.map": protocols,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(authority.issue("broker.pem")),
            "listener.name.secure.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.secure.plain.sasl.jaas.config": f'{LOGIN} user_admin="geheim";',
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:admin",
            "delegation.token.secret.key": "geheimer",
        },
    )
    properties = folder / "admin.properties"
    properties.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={LOGIN} username="admin" password="geheim";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={authority.certificate}\n"
    )
    with broker:
        yield SecuredNode(f"127.0.0.1:{port}", 0, properties, names)


@pytest.mark.parametrize("path", sorted(SECURED.glob("*.txt")), ids=lambda path: path.stem)
def test_tools_that_authenticate(secured: SecuredNode, tmp_path: Path, path: Path) -> None:
    run = TranscriptRun(secured.address, tmp_path, [secured.node_id], properties=secured.properties)
    run.names.update(secured.names)
    play(path, run)


def test_each_tool_authenticates_once() -> None:
    assert tools_in(SECURED) == TOOLS.keys()
