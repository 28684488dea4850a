"""What an authorizer costs a request, and a SCRAM login, in CPU of the router.

    python -m bench.security [--requests 2000] [--rounds 10] [--bindings 10000]

One node is started. Its authorizer is turned on and off at run time, round after round, so that
both are measured in the same processes; each kind of request is sent over one connection with
several in flight. Prints the least microseconds of all rounds, as others can only disturb, and what
is between them. The time is what the kernel says that the router's threads have run.
"""

import base64
import hashlib
import hmac
import os
import re
import statistics
import struct
import tempfile
import time
from pathlib import Path
from typing import Final

import click

from bench.options import log_progress
from bench.processes import run_ns
from bench.tls import RawClient
from odradek.cluster.metadata.acls import AclBinding, AclOperation, ResourceType
from odradek.cluster.metadata.image import ConfigResourceType
from odradek.cluster.metadata.scram import ScramMechanism, salted_password
from odradek.node.blocking_client import BlockingClient
from odradek.node.cli.acl import creation_of
from odradek.node.embedded import EmbeddedBroker
from odradek.node.router.authorizer import DENIALS
from odradek.node.secured_broker import SecuredBroker
from odradek.protocol.apis import ApiKey
from odradek.protocol.codec import (
    decode_response,
    decode_response_header,
    encode_request,
    encode_request_header,
)
from odradek.protocol.messages.acls import CreateAclsRequest
from odradek.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from odradek.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.protocol.messages.groups import HeartbeatRequest
from odradek.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from odradek.protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from odradek.protocol.records import Record, build_batch

PROMISED_US: Final = 5.0
PROMISED_LOGIN_MS: Final = 15.0
IN_FLIGHT: Final = 8
LOGINS: Final = 100
TOPIC: Final = "bench-0"
GROUP: Final = "bench-group-0"
CLIENT: Final = "User:ANONYMOUS"
STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_TIMEOUT_S: Final = 30.0


def requests() -> dict[str, tuple[ApiKey, int, object]]:
    """One request of each kind, with its API and version. They name one topic or group: each one
    that is named is one decision more."""
    batch = memoryview(build_batch([Record(0, time.time_ns() // 1_000_000, None, b"value", ())]))
    commit = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    return {
        "Produce": (
            ApiKey.PRODUCE,
            9,
            ProduceRequest(
                acks=1,
                timeout_ms=30_000,
                topic_data=[
                    TopicProduceData(
                        name=TOPIC, partition_data=[PartitionProduceData(index=0, records=batch)]
                    )
                ],
            ),
        ),
        "Fetch": (
            ApiKey.FETCH,
            12,
            FetchRequest(
                max_bytes=1_000,
                topics=[
                    FetchTopic(topic=TOPIC, partitions=[FetchPartition(partition_max_bytes=1_000)])
                ],
            ),
        ),
        "Metadata": (
            ApiKey.METADATA,
            12,
            MetadataRequest(
                topics=[MetadataRequestTopic(name=TOPIC)], allow_auto_topic_creation=False
            ),
        ),
        "Heartbeat": (
            ApiKey.HEARTBEAT,
            4,
            HeartbeatRequest(group_id=GROUP, generation_id=1, member_id="nobody"),
        ),
        "OffsetCommit": (
            ApiKey.OFFSET_COMMIT,
            9,
            OffsetCommitRequest(
                group_id=GROUP,
                topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=[commit])],
            ),
        ),
    }


def bindings(count: int) -> list[AclBinding]:
    """What the client needs, among bindings of others: literal and prefixed, of several hosts,
    a few that deny."""
    needed = [
        AclBinding(ResourceType.CLUSTER, 3, "kafka-cluster", CLIENT, "*", AclOperation.ALL, 3),
        AclBinding(ResourceType.TOPIC, 4, "bench-", CLIENT, "127.0.0.1", AclOperation.READ, 3),
        AclBinding(ResourceType.TOPIC, 3, TOPIC, CLIENT, "*", AclOperation.WRITE, 3),
        AclBinding(ResourceType.GROUP, 4, "bench", CLIENT, "127.0.0.1", AclOperation.READ, 3),
    ]
    others = (
        AclBinding(
            (ResourceType.TOPIC, ResourceType.GROUP)[n % 2],
            3 + n // 2 % 2,
            f"bench-{n}" if n % 5 else f"team-{n}-",
            CLIENT if n % 7 == 0 else f"User:{n % 500}",
            ("*", "127.0.0.1", f"10.0.{n // 256 % 256}.{n % 256}")[n % 3],
            AclOperation.READ + n % 4,
            3 if n % 11 else 2,
        )
        for n in range(1, count - len(needed) + 1)
    )
    return [*needed, *others]


class Node:
    """The node that is measured."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker
        self._router = broker.processes["router-0"]
        self._port = int(broker.bootstrap_servers.partition(":")[2])

    def configure(self, **configs: str) -> None:
        """Set configs of all brokers."""
        changes = [
            IncrementalAlterableConfig(name=name.replace("_", "."), config_operation=0, value=value)
            for name, value in configs.items()
        ]
        resource = IncrementalAlterConfigsResource(
            resource_type=ConfigResourceType.BROKER, resource_name="", configs=changes
        )
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        (result,) = self._broker.ask(request).responses
        assert not result.error_code, result.error_message

    def create_acls(self, wanted: list[AclBinding]) -> None:
        """Create the bindings."""
        for start in range(0, len(wanted), 1_000):
            creations = [creation_of(each) for each in wanted[start : start + 1_000]]
            for result in self._broker.ask(CreateAclsRequest(creations=creations)).results:
                assert not result.error_code, result.error_message

    def cost_us(self, api_key: ApiKey, version: int, request: object, count: int) -> float:
        """CPU of the router for each of so many requests, in microseconds."""
        header = encode_request_header(api_key, version, 1, "bench")
        body = b"".join((header, *encode_request(api_key, version, request)))
        frame = struct.pack(">i", len(body)) + body
        client = RawClient(self._port, None)
        client.send(frame)
        _check_allowed(api_key, version, client.receive())
        for _ in range(IN_FLIGHT):
            client.send(frame)
        began = run_ns(self._router)
        for _ in range(count):
            client.receive()
            client.send(frame)
        spent = run_ns(self._router) - began
        for _ in range(IN_FLIGHT):
            client.receive()
        client.close()
        return spent / count / 1e3


def _check_allowed(api_key: int, version: int, frame: memoryview) -> None:
    """Nothing else would be measured of a request that is denied."""
    _, at = decode_response_header(api_key, version, frame)
    text = repr(decode_response(api_key, version, frame, at))
    if re.search(rf"error_code=({'|'.join(str(int(code)) for code in DENIALS.values())})\b", text):
        raise click.ClickException(f"the client is denied: {text}")


def login_ms(broker: SecuredBroker, mechanism: ScramMechanism) -> float:
    """CPU of the router for a connection, ApiVersions and a login, in milliseconds."""
    router = broker.broker.processes["router-0"]
    host, _, port = broker.bootstrap_servers.partition(":")
    began = run_ns(router)
    for _ in range(LOGINS):
        with BlockingClient(host, int(port), _TIMEOUT_S) as client:
            log_in(client, mechanism, broker.user, broker.password)
    return (run_ns(router) - began) / LOGINS / 1e6


def log_in(client: BlockingClient, mechanism: ScramMechanism, user: str, password: str) -> None:
    """Authenticate (RFC 5802)."""
    client.ask(SaslHandshakeRequest(mechanism=mechanism.sasl_name))
    digest = mechanism.digest
    first = f"n={user},r={base64.b64encode(os.urandom(18)).decode()}"
    answer = client.ask(SaslAuthenticateRequest(auth_bytes=f"n,,{first}".encode()))
    assert not answer.error_code, answer.error_message
    server_first = answer.auth_bytes.decode()
    given = dict(part.split("=", 1) for part in server_first.split(","))
    salted = salted_password(mechanism, password, base64.b64decode(given["s"]), int(given["i"]))
    without_proof = f"c=biws,r={given['r']}"
    key = hmac.digest(salted, b"Client Key", digest)
    signed = ",".join((first, server_first, without_proof)).encode()
    signature = hmac.digest(hashlib.new(digest, key).digest(), signed, digest)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
    final = SaslAuthenticateRequest(auth_bytes=f"{without_proof},p={proof}".encode())
    answer = client.ask(final)
    assert not answer.error_code, answer.error_message


@click.command(help=__doc__)
@click.option("--rounds", default=10, show_default=True, type=click.IntRange(min=1))
@click.option("--requests", "request_count", default=2_000, show_default=True)
@click.option("--bindings", "binding_count", default=10_000, show_default=True)
def main(rounds: int, request_count: int, binding_count: int) -> None:
    is_kept = _measure_authorizer(rounds, request_count, binding_count)
    is_kept &= _measure_logins()
    if not is_kept:
        raise click.ClickException("a cost is above what is promised")


def _measure_authorizer(rounds: int, request_count: int, binding_count: int) -> bool:
    costs: dict[tuple[str, bool], list[float]] = {}
    settings = {"allow.everyone.if.no.acl.found": "true"}
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedBroker(Path(folder), settings=settings) as broker,
    ):
        broker.create_topic(TOPIC)
        node = Node(broker)
        node.configure(authorizer_class_name=STANDARD_AUTHORIZER)
        log_progress(f"creates {binding_count:,} bindings")
        node.create_acls(bindings(binding_count))
        for _ in range(rounds):
            for is_on in (False, True):
                log_progress(f"with{'' if is_on else 'out'} an authorizer")
                node.configure(authorizer_class_name=STANDARD_AUTHORIZER if is_on else "")
                for name, (api_key, version, request) in requests().items():
                    node.cost_us(api_key, version, request, request_count // 10)
                    cost = node.cost_us(api_key, version, request, request_count)
                    costs.setdefault((name, is_on), []).append(cost)
    is_kept = True
    for name in requests():
        without, with_it = (min(costs[name, is_on]) for is_on in (False, True))
        is_kept &= with_it - without < PROMISED_US
        click.echo(
            f"{name}: {without:.1f} us, with {binding_count:,} bindings {with_it:.1f} us:"
            f" {with_it - without:+.1f} us"
        )
    return is_kept


def _measure_logins() -> bool:
    is_kept = True
    with tempfile.TemporaryDirectory() as folder, SecuredBroker(Path(folder)) as broker:
        for mechanism in ScramMechanism:
            log_progress(f"logs in with {mechanism.sasl_name}")
            cost = statistics.median(login_ms(broker, mechanism) for _ in range(3))
            is_kept &= cost < PROMISED_LOGIN_MS
            click.echo(f"login with {mechanism.sasl_name}: {cost:.2f} ms")
    return is_kept


if __name__ == "__main__":
    main()
