"""Every command of docs/operations.md, in the order and the state that the page describes.

The chapters run one after another on three nodes; node 2 is the machine on which the commands of a
machine run (`systemctl`, `cp`, `mv`). Commands of Docker are for tests/e2e/containers.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, chdir, contextmanager
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition

from odradek.node.cli.main import cli
from tests.e2e.cluster import Cluster, cluster
from tests.support.disks import SmallDisk, small_disk
from tests.support.helm_chart import CHART, KUBERNETES_VERSION, program
from tests.support.monitoring import ALERTS
from tests.support.operations_page import PAGE, Chapter, PageCommand, chapters
from tests.support.ports import free_port
from tests.support.waiting import wait_until

CHAPTERS: Final = tuple(chapters(PAGE.read_text()))
WITH_ENGINE: Final = {"With compose"}
"""Played by tests/e2e/containers/test_operations_page.py."""
ALONE: Final = {"A single node"}
"""Played by tests/e2e/test_operating.py."""
OURS: Final = [
    chapter for chapter in CHAPTERS if chapter.steps and chapter.title not in WITH_ENGINE | ALONE
]
MACHINE: Final = 2
"""The node of the commands for one machine."""
SETTINGS: Final = {
    "log.retention.check.interval.ms": "200",
    # For commands about users and ACLs; whoever connects may do everything.
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
DISK_BYTES: Final = 256 << 20
SHOWN_S: Final = 30.0
ASKS: Final = {"status", "explain", "list", "lag", "ready", "describe", "offsets"}
"""Commands that change nothing: run until they show what the page shows."""


class Guide:
    """Somebody who follows the page, with a cluster."""

    def __init__(self, folder: Path, nodes: Cluster, disk: SmallDisk | None) -> None:
        self.folder = folder
        self.nodes = nodes
        self.disk = disk
        """That of node 1; None where none can be mounted."""
        self.machine = MACHINE
        self.before: dict[str, Callable[[], None]] = {}
        """What happens before a command, by how it begins."""
        self.environment = {
            **{key: value for key, value in os.environ.items() if "ODRADEK" not in key},
            "XDG_CONFIG_HOME": str(folder),
            "NO_COLOR": "1",
        }

    # -- what the page names, and what it is here --------------------------------------------------

    def here(self, command: str) -> str:
        """The command with the addresses and folders of this machine."""
        node = self.nodes[self.machine]
        replaced = {
            **{f"10.0.0.{n + 1}:9092": self.nodes[n].bootstrap_servers for n in range(3)},
            "10.0.0.3:8080": node.settings["http.listen"],
            "/var/lib/odradek": str(node.directory),
            "/backup": str(self.folder),
            "/etc/odradek/node.toml": str(self.configuration()),
        }
        for theirs, ours in replaced.items():
            command = command.replace(theirs, ours)
        return command

    def configuration(self) -> Path:
        """The settings of the machine's node, as a file."""
        node = self.nodes[self.machine]
        path = self.folder / "node.properties"
        lines = [f"{key}={value}" for key, value in node.settings.items()]
        path.write_text("\n".join([*lines, f"data={node.data}", ""]))
        return path

    # -- commands ----------------------------------------------------------------------------------

    def follow(self, step: PageCommand) -> None:
        """Run a command and compare what it prints. One that only asks is repeated until it says
        so: the state that the text describes may take a moment."""
        for beginning, action in list(self.before.items()):
            if step.command.startswith(beginning):
                del self.before[beginning]
                action()
        words = shlex.split(step.command)
        if words[0] != "odradek" or not ASKS & set(words[1:4]):
            self._check(step)
            return
        wait_until(lambda: self._check(step), timeout_s=SHOWN_S, what=step.command)

    def _check(self, step: PageCommand) -> bool:
        code, output = self._run(step.command)
        assert code == step.exit_code, f"{step.command}: {output}"
        missing = step.missing_line(output)
        assert missing is None, f"{step.command} does not print {missing!r}, but {output}"
        return True

    def _run(self, command: str) -> tuple[int, str]:
        """Its exit code, and what it prints."""
        program_name, *arguments = shlex.split(self.here(command))
        if program_name == "export":
            key, _, value = arguments[0].partition("=")
            self.environment[key] = value
            return 0, ""
        if program_name == "systemctl":
            action, service = arguments
            assert service == "odradek"
            node = self.nodes[self.machine]
            {"stop": node.stop, "start": node.start}[action]()
            return 0, ""
        if program_name == "odradek" and ">" not in arguments:
            with chdir(self.folder):
                ran = CliRunner().invoke(cli, arguments, env=self.environment)
            return ran.exit_code, ran.output
        return self._in_a_shell(command)

    def _in_a_shell(self, command: str) -> tuple[int, str]:
        if command.startswith("helm upgrade "):
            # Without a Kubernetes cluster: what it would install.
            helm = program("helm", "helm.sh")
            command = command.replace("helm upgrade", f"{helm} template").replace(
                "helm/odradek", str(CHART)
            )
            command = command.replace("--reuse-values ", f"--kube-version {KUBERNETES_VERSION} ")
            command = command.replace(" --wait", "")
        shell = f'odradek() {{ {shlex.quote(sys.executable)} -P -m odradek "$@"; }}\n'
        ran = subprocess.run(
            ["bash", "-c", shell + self.here(command)],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return ran.returncode, ran.stdout + ran.stderr

    def odradek(self, *arguments: str) -> str:
        """A command that the page does not have."""
        ran = CliRunner().invoke(cli, arguments, env=self.environment)
        assert ran.exit_code == 0, (arguments, ran.output)
        return ran.output

    # -- clients -----------------------------------------------------------------------------------

    def produce(self, topic: str, count: int, size: int = 10) -> None:
        producer = Producer({"bootstrap.servers": self.nodes.bootstrap_servers, "log_level": 0})
        for number in range(count):
            producer.produce(topic, os.urandom(size), key=str(number))
            producer.poll(0)
        assert producer.flush(60) == 0

    def consumer(self, name: str) -> Consumer:
        """A member of billing."""
        return Consumer(
            {
                "bootstrap.servers": self.nodes.bootstrap_servers,
                "group.id": "billing",
                "client.id": name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.metrics.push": False,
                "log_level": 0,
            }
        )

    def wait_until_whole(self) -> None:
        """Until nothing is wrong."""

        def check() -> bool:
            shown = self.odradek("cluster", "status")
            assert re.search(r"UNDER REPLICATED +0$", shown, re.MULTILINE), shown
            return True

        wait_until(check, what="all replicas are in sync")


@contextmanager
def maybe_small_disk(folder: Path) -> Iterator[SmallDisk | None]:
    with ExitStack() as stack:
        try:
            disk = stack.enter_context(small_disk(folder, DISK_BYTES))
        except pytest.skip.Exception:
            disk = None
            folder.rmdir()
        yield disk


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guide]:
    """A cluster of three, with the topic `orders`, which the group `billing` reads."""
    folder = tmp_path_factory.mktemp("operations")
    with (
        maybe_small_disk(folder / "node-1" / "data") as disk,
        cluster(folder, settings=SETTINGS) as nodes,
    ):
        for node in nodes.nodes.values():
            node.settings["http.listen"] = f"127.0.0.1:{free_port()}"
        nodes[MACHINE].settings["log.dirs"] = str(folder / "second")
        nodes.start()
        nodes.create_at("orders", [[n % 3, (n + 1) % 3, (n + 2) % 3] for n in range(6)])
        guide = Guide(folder, nodes, disk)
        guide.produce("orders", 600)
        consumer = guide.consumer("billing-0")
        consumer.subscribe(["orders"])
        wait_until(lambda: consumer.poll(0.1))
        consumer.commit(asynchronous=False)
        consumer.close()
        yield guide


# -- the states that the page describes ----------------------------------------------------------


@contextmanager
def with_a_dead_node(guide: Guide) -> Iterator[None]:
    """It stays dead for the next chapter."""
    guide.nodes[MACHINE].kill()
    yield


@contextmanager
def with_an_empty_disk(guide: Guide) -> Iterator[None]:
    yield
    guide.wait_until_whole()


@contextmanager
def with_another_node(guide: Guide) -> Iterator[None]:
    """Node 3 takes the place of node 2, which comes back later."""
    guide.nodes.join(3).settings["http.listen"] = "127.0.0.1:0"
    guide.nodes.start(3)
    # A node that does not know of it yet would refuse the drain: there is no place for replicas.
    for at in range(3):
        guide.nodes.wait_for_brokers(at, {0, 1, 2, 3})
    guide.nodes[MACHINE].kill()
    yield
    guide.nodes.start(MACHINE)
    guide.odradek("node", "add", "2")
    guide.odradek("config", "unset", "broker", "2", "cordoned.log.dirs")


@contextmanager
def with_a_new_disk(guide: Guide) -> Iterator[None]:
    guide.nodes[MACHINE].stop()
    shutil.rmtree(guide.nodes[MACHINE].settings["log.dirs"])
    yield
    guide.wait_until_whole()


@contextmanager
def with_a_node_to_remove(guide: Guide) -> Iterator[None]:
    guide.machine = 3
    yield
    guide.machine = MACHINE
    del guide.nodes.nodes[3]


@contextmanager
def with_a_full_disk(guide: Guide) -> Iterator[None]:
    if guide.disk is None:
        pytest.skip("needs to mount a file system, which only root may do")
    guide.nodes.create_at("clicks", [[1, 2, 0]])
    guide.produce("clicks", 40_000, 1000)
    guide.disk.fill()
    yield
    guide.disk.empty()


@contextmanager
def with_one_of_three(guide: Guide) -> Iterator[None]:
    """The next chapter's partition was last written when only node 1 of its replicas ran."""
    guide.nodes.create_at("returns", [[1, 2]])
    guide.nodes[2].kill()
    wait_until(lambda: guide.nodes.partitions("returns", 0)[0].isr_nodes == [1])
    guide.produce("returns", 1)
    guide.nodes[1].kill()
    yield
    guide.nodes.start(2)


@contextmanager
def with_a_partition_without_leader(guide: Guide) -> Iterator[None]:
    yield
    guide.nodes.start(1)
    guide.wait_until_whole()


@contextmanager
def with_a_member_that_does_not_poll(guide: Guide) -> Iterator[None]:
    stuck, waiting = guide.consumer("billing-1"), guide.consumer("billing-2")
    stuck.subscribe(["orders"])
    wait_until(lambda: stuck.poll(0.1))
    # Some were added by an earlier chapter, and are empty.
    every = [
        TopicPartition("orders", n) for n in stuck.list_topics("orders").topics["orders"].partitions
    ]
    ends = [stuck.get_watermark_offsets(each)[1] for each in every]
    offsets = [
        TopicPartition("orders", each.partition, min(1, end))
        for each, end in zip(every, ends, strict=True)
    ]
    stuck.commit(offsets=offsets, asynchronous=False)
    is_over = threading.Event()

    def poll(consumer: Consumer) -> None:
        while not is_over.is_set():
            consumer.poll(0.1)
        consumer.close()

    waiting.subscribe(["orders"])
    threads = [threading.Thread(target=poll, args=(each,)) for each in (waiting, stuck)]
    threads[0].start()
    guide.before["odradek group rewind"] = threads[1].start
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        if threads[1].ident is None:
            stuck.close()


@contextmanager
def with_a_client(guide: Guide) -> Iterator[None]:
    consumer = guide.consumer("nightly")
    consumer.subscribe(["orders"])
    wait_until(lambda: consumer.poll(0.1))
    yield
    consumer.close()


@contextmanager
def as_it_is(_guide: Guide) -> Iterator[None]:
    yield


STATES: Final[Mapping[str, Callable[[Guide], AbstractContextManager[None]]]] = {
    "A dead node": with_a_dead_node,
    "The same node, with an empty disk": with_an_empty_disk,
    "Another node in its place": with_another_node,
    "A broken disk among several": with_a_new_disk,
    "Fewer nodes": with_a_node_to_remove,
    "Disk full": with_a_full_disk,
    "No majority": with_one_of_three,
    "A partition has no leader": with_a_partition_without_leader,
    "A group stands still": with_a_member_that_does_not_poll,
    "One client is slow, or slows the others": with_a_client,
}


def test_every_alert_has_a_chapter() -> None:
    titles = [chapter.title for chapter in CHAPTERS]
    begin, end = titles.index("Alerts") + 1, titles.index("Incidents")
    assert titles[begin:end] == [alert.name for alert in ALERTS]


def test_links_lead_to_chapters() -> None:
    titles = {re.sub(r"[^\w -]", "", chapter.title).lower() for chapter in CHAPTERS}
    anchors = {title.replace(" ", "-") for title in titles}
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE.read_text())) <= anchors


def test_no_command_of_the_page_is_left_out() -> None:
    """A chapter with another kind of block would have commands that nobody runs."""
    kinds = re.findall(r"^```(\w*)$", PAGE.read_text(), re.MULTILINE)[::2]
    assert set(kinds) == {"console"}
    titles = {chapter.title for chapter in CHAPTERS if chapter.steps}
    assert titles > WITH_ENGINE | ALONE | STATES.keys()


@pytest.mark.parametrize("chapter", OURS, ids=lambda chapter: chapter.title)
def test_every_command_works_as_it_is_printed(guide: Guide, chapter: Chapter) -> None:
    with STATES.get(chapter.title, as_it_is)(guide):
        for step in chapter.steps:
            guide.follow(step)
