"""The cost of /metrics: a node with 1,000 partitions and 100 groups, scraped again and again.

    python -m bench.metrics [--partitions N] [--groups N] [--scrapes N]

Reports the time of a scrape, the CPU time of all processes for it, and how late a request of a
client is answered meanwhile. Fails if the median is above 50 ms, or the CPU above 1 % of a core at
a scrape every 15 s.
"""

import json
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import psutil
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.node.embedded import EmbeddedBroker

SCRAPE_S_MAX = 0.050
CPU_S_MAX = 0.150
"""1 % of a core at a scrape every 15 s."""
INTERVAL_S = 2.5
"""Between two scrapes. The lag of groups is computed for each, as with longer intervals."""
WARM_UP = 3
"""Scrapes that are not measured: the second one tells the interval."""
TIMEOUT_S = 60.0


class Latencies(threading.Thread):
    """Asks for metadata of one topic all the time; the longest wait for the answer is kept."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._client = AdminClient({"bootstrap.servers": bootstrap})
        self._ending = threading.Event()
        self.seconds: list[float] = []

    def run(self) -> None:
        while not self._ending.is_set():
            began = time.perf_counter()
            self._client.list_topics("topic-0", timeout=TIMEOUT_S)
            self.seconds.append(time.perf_counter() - began)
            time.sleep(0.002)

    def finish(self) -> None:
        self._ending.set()
        self.join(TIMEOUT_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeCosts:
    """What scrapes of a node took. `cpu_s` is that of all its processes, for one scrape."""

    seconds: list[float]
    cpu_s: float
    series_count: int
    byte_count: int
    request_seconds: list[float]
    """How long requests of a client took meanwhile."""

    @property
    def median_s(self) -> float:
        """Of the time of a scrape."""
        return statistics.median(self.seconds)


@click.command(help=__doc__)
@click.option("--partitions", default=1_000, show_default=True)
@click.option("--topics", default=100, show_default=True, help="With the partitions evenly.")
@click.option("--groups", default=100, show_default=True, help="Each reads one topic.")
@click.option("--scrapes", default=12, show_default=True)
def main(partitions: int, topics: int, groups: int, scrapes: int) -> None:
    with filled_broker(partitions, topics, groups) as broker:
        costs = measure(broker, scrapes, INTERVAL_S)
    worst = sorted(costs.request_seconds)[-3:]
    click.echo(
        f"{costs.series_count} series, {costs.byte_count / 1024:.0f} KiB\n"
        f"scrape: median {1000 * costs.median_s:.1f} ms,"
        f" longest {1000 * max(costs.seconds):.1f} ms\n"
        f"CPU of all processes: {1000 * costs.cpu_s:.1f} ms a scrape"
        f" ({100 * costs.cpu_s / 15:.2f} % of a core every 15 s)\n"
        "requests meanwhile: median"
        f" {1000 * statistics.median(costs.request_seconds):.1f} ms, longest"
        f" {', '.join(f'{1000 * each:.1f}' for each in worst)} ms"
    )
    if costs.median_s > SCRAPE_S_MAX or costs.cpu_s > CPU_S_MAX:
        raise click.ClickException("a scrape costs more than promised")


@contextmanager
def filled_broker(partitions: int, topics: int, groups: int) -> Iterator[EmbeddedBroker]:
    """A node with /metrics and these topics and groups."""
    settings = {"http.listen": "127.0.0.1:0"}
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedBroker(Path(folder), settings=settings) as broker,
    ):
        _prepare(broker.bootstrap_servers, topics, partitions // topics, groups)
        yield broker


def _prepare(bootstrap: str, topic_count: int, per_topic: int, groups: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(f"topic-{index}", per_topic, 1) for index in range(topic_count)]
    for created in admin.create_topics(topics).values():
        created.result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": bootstrap})
    for each in topics:
        for partition in range(per_topic):
            producer.produce(each.topic, b"x" * 100, partition=partition)
            producer.poll(0)
    assert not producer.flush(TIMEOUT_S)
    for index in range(groups):
        topic = f"topic-{index % topic_count}"
        offsets = [TopicPartition(topic, partition, 0) for partition in range(per_topic)]
        group = ConsumerGroupTopicPartitions(f"group-{index}", offsets)
        if index == 0:
            # The offsets topic is created by the first one who looks for a coordinator.
            consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "group-0"})
            consumer.commit(offsets=offsets, asynchronous=False)
            consumer.close()
        for altered in admin.alter_consumer_group_offsets([group]).values():
            altered.result(TIMEOUT_S)


def measure(broker: EmbeddedBroker, scrapes: int, interval_s: float) -> ScrapeCosts:
    """Scrape a node so many times. The interval has to be above a second: the lag of groups may
    be that old."""
    state = json.loads((broker.data / "node.json").read_text())
    url = f"http://{state['http']}/metrics"
    pids = [state["pid"], *state["children"].values()]
    latencies = Latencies(broker.bootstrap_servers)

    def cpu_s() -> float:
        times = [psutil.Process(pid).cpu_times() for pid in pids]
        return float(sum(each.user + each.system for each in times))

    def scrape() -> bytes:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
            return bytes(response.read())

    def scrape_regularly(count: int) -> list[float]:
        seconds = []
        due = time.monotonic()
        for _ in range(count):
            began = time.perf_counter()
            scrape()
            seconds.append(time.perf_counter() - began)
            due += interval_s
            time.sleep(max(0.0, due - time.monotonic()))
        return seconds

    before = cpu_s()
    time.sleep(scrapes * interval_s)
    idle_s = cpu_s() - before
    scrape_regularly(WARM_UP)
    before = cpu_s()
    seconds = scrape_regularly(scrapes)
    cost_s = (cpu_s() - before - idle_s) / scrapes
    latencies.start()
    scrape_regularly(scrapes // 2)
    latencies.finish()
    text = scrape()
    return ScrapeCosts(
        seconds=seconds,
        cpu_s=cost_s,
        series_count=sum(not line.startswith(b"#") for line in text.splitlines()),
        byte_count=len(text),
        request_seconds=latencies.seconds,
    )


if __name__ == "__main__":
    main()
