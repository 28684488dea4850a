"""Asks Apache Kafka all requests of `authorization_cases` and writes its answers.

Run by hand, with Java and Kafka's jars (see `java`), for a new release of Kafka or a new case:

    python -m tests.support.record_authorization tests/support/authorization_kafka_4_3_1.json

It starts a broker with StandardAuthorizer and SASL/PLAIN. The super user alice gives bob the rights
of each turn, and bob asks.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from odradek.cluster.metadata.acls import AclBinding
from odradek.node.cli.acl import creation_of
from odradek.protocol.apis import APIS
from odradek.protocol.messages.acls import (
    AclFilter,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from odradek.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.protocol.messages.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
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
)
from odradek.protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from odradek.protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from tests.support.authorization_cases import (
    ADMIN,
    CASES,
    CLUSTER_ID,
    GROUP,
    PRINCIPAL,
    TOPIC,
    TRANSACTIONAL_ID,
    Case,
    Made,
    Right,
    outcome,
)
from tests.support.java import kafka_jars, why_no_java_tools
from tests.support.ports import free_port
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

ACL_VERSION: Final = 3
JAAS: Final = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required"
    ' username="alice" password="alice" user_alice="alice" user_bob="bob";'
)
PROPERTIES: Final = """\
process.roles=broker,controller
node.id=0
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=SASL_PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=SASL_PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
inter.broker.listener.name=SASL_PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT
sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config={jaas}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users={admin};User:ANONYMOUS
delegation.token.secret.key=a key for the cases
log.dirs={folder}/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
"""
LOG4J: Final = """\
Configuration:
  Appenders:
    Console: {name: STDOUT, PatternLayout: {pattern: "[%d] %p %m (%c)%n"}}
  Loggers:
    Root: {level: INFO, AppenderRef: {ref: STDOUT}}
"""


@contextmanager
def running_kafka(folder: Path) -> Iterator[str]:
    """A broker, as HOST:PORT."""
    broker, controller = free_port(), free_port()
    properties = folder / "server.properties"
    properties.write_text(
        PROPERTIES.format(
            broker=broker, controller=controller, jaas=JAAS, admin=ADMIN, folder=folder
        )
    )
    (folder / "log4j2.yaml").write_text(LOG4J)
    java = [
        *("java", "-Xmx512M", "-XX:TieredStopAtLevel=1"),
        f"-Dlog4j2.configurationFile={folder / 'log4j2.yaml'}",
        *("-cp", f"{kafka_jars()}/*"),
    ]
    format_storage = ("kafka.tools.StorageTool", "format", "--standalone", "-t", CLUSTER_ID)
    with (folder / "kafka.log").open("w") as log:
        subprocess.run(
            [*java, *format_storage, "-c", str(properties)], check=True, stdout=log, stderr=log
        )
        process = subprocess.Popen([*java, "kafka.Kafka", str(properties)], stdout=log, stderr=log)
        try:
            yield f"127.0.0.1:{broker}"
        finally:
            process.terminate()
            process.wait(60)


def logged_in(address: str, name: str) -> WireClient:
    """A connection of that user, whose password is its name."""
    wire = WireClient(address)
    wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1, SaslHandshakeResponse)
    token = f"\0{name}\0{name}".encode()
    answer = wire.ask(SaslAuthenticateRequest(auth_bytes=token), 2, SaslAuthenticateResponse)
    assert answer.error_code == 0, answer.error_message
    return wire


def is_up(address: str) -> bool:
    try:
        with logged_in(address, "alice"):
            return True
    except OSError:
        return False


class Recorder:
    """Two connections to one broker: alice's, who gives rights, and bob's."""

    def __init__(self, address: str) -> None:
        self.admin, self.client = logged_in(address, "alice"), logged_in(address, "bob")
        self._address = address
        served = self.admin.ask(
            ApiVersionsRequest(client_software_name="recorder", client_software_version="1"),
            3,
            ApiVersionsResponse,
        )
        self._versions = {api.api_key: api.max_version for api in served.api_keys}
        self._given: list[AclBinding] = []
        self.made = Made(self._prepare(), self._create_token())

    def _create_token(self) -> bytes:
        request = CreateDelegationTokenRequest(max_lifetime_ms=-1)
        created = self.admin.ask(request, 3, CreateDelegationTokenResponse)
        assert not created.error_code
        every = DescribeDelegationTokenRequest(owners=None)
        wait_until(
            lambda: self.admin.ask(every, 3, DescribeDelegationTokenResponse).tokens, timeout_s=30
        )
        return bytes(created.hmac)

    def _prepare(self) -> bytes:
        new = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
        self.admin.ask(CreateTopicsRequest(topics=[new], timeout_ms=9000), 7, CreateTopicsResponse)
        for kind, key in ((0, GROUP), (1, TRANSACTIONAL_ID)):
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
            wait_until(partial(self._is_found, request), timeout_s=60)
        commit = OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=-1,
            topics=[
                OffsetCommitRequestTopic(
                    name=TOPIC,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=0, committed_offset=0, committed_metadata=None
                        )
                    ],
                )
            ],
        )
        wait_until(
            lambda: (
                not self.admin.ask(commit, 9, OffsetCommitResponse)
                .topics[0]
                .partitions[0]
                .error_code
            ),
            timeout_s=60,
        )
        begin = InitProducerIdRequest(
            transactional_id=TRANSACTIONAL_ID, transaction_timeout_ms=60_000
        )
        wait_until(
            lambda: not self.admin.ask(begin, 4, InitProducerIdResponse).error_code, timeout_s=60
        )
        wanted = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
        return self.admin.ask(wanted, 12, MetadataResponse).topics[0].topic_id

    def _is_found(self, request: FindCoordinatorRequest) -> bool:
        [found] = self.admin.ask(request, 4, FindCoordinatorResponse).coordinators
        return not found.error_code

    def give(self, rights: tuple[Right, ...]) -> None:
        """Bob has these rights and no others, in the broker's view."""
        wanted = [binding for each in rights for binding in each.bindings()]
        if wanted == self._given:
            return
        remove = AclFilter(
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=PRINCIPAL,
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        self.admin.ask(DeleteAclsRequest(filters=[remove]), ACL_VERSION, DeleteAclsResponse)
        add = [creation_of(each) for each in wanted]
        if add:
            self.admin.ask(CreateAclsRequest(creations=add), ACL_VERSION, CreateAclsResponse)
        self._given = wanted
        wait_until(lambda: self._known() == set(wanted), timeout_s=30)

    def _known(self) -> set[AclBinding]:
        every = DescribeAclsRequest(
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=PRINCIPAL,
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        found = self.admin.ask(every, ACL_VERSION, DescribeAclsResponse)
        return {
            AclBinding(
                each.resource_type,
                each.pattern_type,
                each.resource_name,
                acl.principal,
                acl.host,
                acl.operation,
                acl.permission_type,
            )
            for each in found.resources
            for acl in each.acls
        }

    def version(self, case: Case) -> int:
        """The newest version that the case, the broker and we have."""
        return min(case.version, APIS[case.key].max_version, self._versions.get(case.key, -1))

    def ask(self, case: Case) -> str:
        """What the broker answers bob."""
        try:
            response: object = self.client.ask(
                case.request(self.made), self.version(case), APIS[case.key].response
            )
        except Exception as error:  # a closed connection is an answer, too
            self.client.close()
            self.client = logged_in(self._address, "bob")
            return f"closed ({type(error).__name__})"
        return outcome(response, self.made.topic_id)


def recorded(recorder: Recorder) -> dict[str, Any]:
    """The answers to all cases that the broker serves."""
    cases = [case for case in CASES if recorder.version(case) >= 0]
    # By what bob has, because giving and taking takes longer than asking.
    turns: dict[tuple[Right, ...], list[tuple[Case, tuple[Right, ...]]]] = {}
    for case in cases:
        for rights in case.rights():
            turns.setdefault((*case.base, *rights), []).append((case, rights))
    texts: dict[str, dict[tuple[Right, ...], str]] = {case.name: {} for case in cases}
    for has, asked in turns.items():
        recorder.give(has)
        for case, rights in asked:
            texts[case.name][rights] = recorder.ask(case)
    answers: dict[str, Any] = {}
    for case in cases:
        denied = texts[case.name][()]
        others: dict[str, list[str]] = {}
        for rights, text in texts[case.name].items():
            if text != denied:
                others.setdefault(text, []).append(" ".join(map(str, rights)))
        version = recorder.version(case)
        answers[case.name] = {"version": version, "denied": denied, "with": others}
    return answers


def main() -> None:
    """Write the answers to the file named."""
    reason = why_no_java_tools()
    assert not reason, reason
    folder = Path(tempfile.mkdtemp(prefix="record-authorization-"))
    try:
        with running_kafka(folder) as address:
            wait_until(lambda: is_up(address), timeout_s=120)
            answers = recorded(Recorder(address))
    finally:
        shutil.rmtree(folder)
    content = {"kafka": "4.3.1", "asked by": "tests/support/record_authorization.py"}
    Path(sys.argv[1]).write_text(json.dumps({**content, "cases": answers}, indent=1) + "\n")


if __name__ == "__main__":
    main()
