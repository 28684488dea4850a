"""The rights that docs/pipeline.md says a job needs: with them it works, without any of them it
does not, and says so in one line."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from click.testing import CliRunner, Result
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from pyspark.sql import SparkSession

from odradek.node.embedded import EmbeddedBroker
from odradek.node.secured_broker import SecuredBroker
from odradek.pipeline.cli.pipe import pipe
from odradek.pipeline.group_offsets import commit_offsets, committed_offsets
from odradek.pipeline.kafka_types import PartitionName
from odradek.pipeline.wire.cluster import KafkaCluster
from tests.e2e.spark.offload_job import OffloadJob
from tests.support.offloaded_tables import OffloadedTable
from tests.support.operations_page import DOCS
from tests.support.topic_records import TopicRecords

pytestmark = pytest.mark.e2e

PAGE: Final = (DOCS / "pipeline.md").read_text()
AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
LETTERS: Final = PartitionName("shop.dlq", 0)
RESOURCES: Final = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
OPERATIONS: Final = {
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "Create": AclOperation.CREATE,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
}


class NeededRight(NamedTuple):
    kind: ResourceType
    name: str
    operation: AclOperation

    def binding(self) -> AclBinding:
        is_prefix = self.name.endswith("-")
        pattern = ResourcePatternType.PREFIXED if is_prefix else ResourcePatternType.LITERAL
        allow = AclPermissionType.ALLOW
        return AclBinding(self.kind, self.name, pattern, "User:alice", "*", self.operation, allow)


def rights_of(row: str) -> tuple[NeededRight, ...]:
    """Those of the row that begins so in the table of the page."""
    [line] = [each for each in PAGE.splitlines() if each.startswith(f"| {row} |")]
    return tuple(
        NeededRight(kind, name, OPERATIONS[operation])
        for kind, cell in zip(RESOURCES, line.split("|")[2:5], strict=True)
        for name, operations in re.findall(r"`([^`]+)` ([\w, ]+)", cell)
        for operation in operations.strip().split(", ")
    )


class GuardedCluster:
    """A broker with ACLs, and a user who has the rights that a test gives."""

    def __init__(self, secured: SecuredBroker) -> None:
        self.secured = secured
        self.root = {"bootstrap.servers": secured.broker.bootstrap_servers, "log_level": "0"}
        self.records = TopicRecords(self.root)
        self._admin = AdminClient({**self.root})

    @property
    def login(self) -> dict[str, str]:
        return {**self.secured.properties("PLAIN"), "default.api.timeout.ms": "10000"}

    def grant(self, rights: tuple[NeededRight, ...]) -> None:
        """These, and no others."""
        everything = AclBindingFilter(
            ResourceType.ANY,
            None,  # type: ignore[arg-type]  # any: the stub knows only names
            ResourcePatternType.ANY,
            None,  # type: ignore[arg-type]  # as above
            None,  # type: ignore[arg-type]  # as above
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        for deleted in self._admin.delete_acls([everything]).values():
            deleted.result()
        if rights:
            for made in self._admin.create_acls([each.binding() for each in rights]).values():
                made.result()

    def pipe(self, *arguments: str, prefix: str = "kafka.") -> Result:
        """The command as the user, in this process."""
        login = self.login
        address = login.pop("bootstrap.servers")
        flags = ["-b", address] if prefix == "kafka." else []
        named = [f"{prefix}{name}={value}" for name, value in login.items()]
        flags += [word for each in named for word in ("-X", each)]
        return CliRunner().invoke(pipe, [*arguments, *flags])


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedCluster]:
    settings = {
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:ANONYMOUS",
        "auto.create.topics.enable": "false",
    }
    with SecuredBroker(tmp_path_factory.mktemp("guarded"), settings=settings) as secured:
        found = GuardedCluster(secured)
        for topic in ("orders", "shouts"):
            found.records.create(topic)
        found.records.send("orders", [b'{"id": 1}', b"bad", b'{"id": 2}'], keys=[b"a", b"b", b"c"])
        yield found


@pytest.fixture(scope="module")
def shop(guarded: GuardedCluster, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The options of a job that has run with its rights, with one dead letter and a lag of one."""
    settings = {
        "name": "shop",
        "topics": "orders",
        "table": str(tmp_path_factory.mktemp("tables") / "shop"),
        "value.format": "json",
        "value.schema": "id BIGINT",
    }
    login = guarded.login
    address = {"bootstrap.servers": login.pop("bootstrap.servers")}
    guarded.grant(rights_of("`offload`, `upsert`"))
    job = OffloadJob(
        {**settings, **address, **{f"kafka.{name}": value for name, value in login.items()}}
    )
    ran = job.once()
    assert (ran.exit_code, [plan["bad"] for plan in ran.plans]) == (0, [1]), ran.errors
    guarded.records.send("orders", [b'{"id": 3}'])
    return [f"--{name.replace('.', '-')}={value}" for name, value in settings.items()]


def check(
    guarded: GuardedCluster,
    rights: tuple[NeededRight, ...],
    run: Callable[[int], Result],
    output: pytest.CaptureFixture[str],
) -> None:
    """`run` succeeds with the rights, and fails without any of them; it gets another number each
    time, for names that nothing has been done under."""
    assert rights
    guarded.grant(_numbered(rights, 0))
    result = run(0)
    assert result.exit_code == 0, result.output
    for number, missing in enumerate(rights, start=1):
        guarded.grant(_numbered(tuple(each for each in rights if each != missing), number))
        result = run(number)
        assert result.exit_code == 1, missing
        last = result.stderr.splitlines()[-1]
        assert last.startswith("Error: "), missing
        assert re.search(r"(?i)authoriz|right|write", last), (missing, last)
    captured = output.readouterr()
    assert captured.out + captured.err == "", "librdkafka says nothing by itself"


def _numbered(rights: tuple[NeededRight, ...], number: int) -> tuple[NeededRight, ...]:
    return tuple(each._replace(name=each.name.replace("NEW", f"new{number}")) for each in rights)


def renamed(rights: tuple[NeededRight, ...], name: str) -> tuple[NeededRight, ...]:
    """For a new job, topic or mirror in each run."""
    return tuple(each._replace(name=each.name.replace(name, "NEW")) for each in rights)


def test_upsert(guarded: GuardedCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def run(number: int) -> Result:
        name = f"new{number}"
        flags = ["--value-format", "json", "--value-schema", "id BIGINT", "--once"]
        table = str(tmp_path / name)
        return guarded.pipe("upsert", "--name", name, "--topics=orders", "--table", table, *flags)

    check(guarded, renamed(rights_of("`offload`, `upsert`"), "shop"), run, capfd)


@pytest.mark.parametrize(
    "command", ["verify --commit-verified", "lag shop", "dlq list", "dlq drop", "dlq redrive"]
)
def test_commands_that_look_at_a_job(
    guarded: GuardedCluster, shop: list[str], command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = {"verify": shop, "lag": [], "dlq": ["shop"]}[command.split()[0]]
    more = ["--yes"] if command == "dlq drop" else []

    def run(_number: int) -> Result:
        # As if nobody had handled the letter.
        commit_offsets(guarded.root, "pipe.shop.redriven", {LETTERS: 0}, timeout_s=30)
        return guarded.pipe(*command.split(), *arguments, *more)

    check(guarded, rights_of(f"`{command}`"), run, capfd)


def test_replay(guarded: GuardedCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with KafkaCluster(guarded.root["bootstrap.servers"]) as cluster:
        OffloadedTable(tmp_path / "raw", cluster, "orders").offload()

    def run(number: int) -> Result:
        return guarded.pipe("replay", "--table", str(tmp_path / "raw"), "--to", f"new{number}")

    check(guarded, renamed(rights_of("`replay --to again`"), "again"), run, capfd)


def test_mirror_in_the_source(
    guarded: GuardedCluster, kafka_broker: EmbeddedBroker, capfd: pytest.CaptureFixture[str]
) -> None:
    offset = {PartitionName("orders", 0): 1}
    commit_offsets(guarded.root, "billing", offset, timeout_s=30)
    rights = rights_of("`mirror --name west`, in the source")
    [group] = [each for each in rights if each.kind == ResourceType.GROUP]

    def run(number: int) -> Result:
        return guarded.pipe(
            *("mirror", "--once", "--topics=orders", "--name", f"rights-{number}"),
            *("--topics-prefix", f"rights-{number}.", "--groups-pattern", "billing"),
            *("--source-bootstrap-servers", guarded.secured.bootstrap_servers),
            *("--target-bootstrap-servers", kafka_broker.bootstrap_servers),
            prefix="source.kafka.",
        )

    guarded.grant(rights)
    assert "offsets of 1 groups" in run(100).output
    guarded.grant(tuple(each for each in rights if each != group))
    assert "offsets of 0 groups" in run(101).output
    others = tuple(each for each in rights if each != group)
    check(guarded, others, run, capfd)


def test_mirror_in_the_target(
    guarded: GuardedCluster, kafka_broker: EmbeddedBroker, capfd: pytest.CaptureFixture[str]
) -> None:
    source = {"bootstrap.servers": str(kafka_broker.bootstrap_servers), "log_level": "0"}
    records = TopicRecords(source)
    records.create("rights-of-mirrors")
    records.send("rights-of-mirrors", [b"1", b"2"])
    commit_offsets(source, "billing", {PartitionName("rights-of-mirrors", 0): 1}, timeout_s=30)
    rights = renamed(rights_of("`mirror --name west`, in the target"), "west")
    rights = tuple(
        each._replace(name="NEW.rights-of-mirrors") if each.name == "orders" else each
        for each in rights
    )
    billing = NeededRight(ResourceType.GROUP, "billing", AclOperation.READ)
    assert billing in rights

    def run(number: int) -> Result:
        return guarded.pipe(
            *("mirror", "--once", "--topics=rights-of-mirrors", "--name", f"new{number}"),
            *("--topics-prefix", f"new{number}.", "--groups-pattern", "billing"),
            *("--source-bootstrap-servers", kafka_broker.bootstrap_servers),
            *("--target-bootstrap-servers", guarded.secured.bootstrap_servers),
            prefix="target.kafka.",
        )

    guarded.grant(_numbered(rights, 100))
    assert "offsets of 1 groups" in run(100).output
    check_others = tuple(each for each in rights if each != billing)
    check(guarded, check_others, run, capfd)


@pytest.mark.slow
def test_source_and_sink(guarded: GuardedCluster, spark: SparkSession, tmp_path: Path) -> None:
    kafka = {f"kafka.{name}": value for name, value in guarded.login.items()}
    shown = NeededRight(ResourceType.GROUP, "pipe.shout", AclOperation.READ)
    prefix = tuple(
        NeededRight(kind, "odradek-", operation)
        for kind, operation in zip(
            RESOURCES[1:], (AclOperation.READ, AclOperation.WRITE), strict=True
        )
    )
    guarded.grant((*rights_of("source"), shown, *rights_of("sink"), *prefix))
    rows = (
        spark.readStream.format("odradek")
        .options(
            **kafka, subscribe="orders", startingOffsets="earliest", commitToGroup="pipe.shout"
        )
        .load()
    )
    query = (
        rows.select("key", "value")
        .writeStream.format("odradek")
        .options(**kafka, topic="shouts", checkpointLocation=str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(240)
    spark.createDataFrame([("a", "b")], "key string, value string").write.format("odradek").options(
        **kafka, topic="shouts"
    ).mode("append").save()
    name = PartitionName("orders", 0)
    committed = committed_offsets(guarded.root, "pipe.shout", [name], timeout_s=30)
    with KafkaCluster(guarded.root["bootstrap.servers"]) as cluster:
        ends = cluster.list_offsets(dict.fromkeys([name], -1), read_committed=True)
    assert committed[name] == ends[name].offset
