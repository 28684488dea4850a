"""kcat, the command that people have at hand."""

import json
import shutil
import subprocess

import pytest

from tests.conformance.dialogue import DialogueCluster, unique

TIMEOUT_S = 30


@pytest.fixture(autouse=True)
def kcat_is_installed() -> None:
    """Skip where there is none."""
    if shutil.which("kcat") is None:
        pytest.skip("needs kcat on the PATH")


def kcat(cluster: DialogueCluster, *arguments: str, stdin: str = "") -> str:
    """What kcat prints."""
    done = subprocess.run(
        ["kcat", "-b", cluster.bootstrap, "-m", "20", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_lines_go_in_and_come_out(cluster: DialogueCluster, topic: str) -> None:
    kcat(cluster, "-P", "-t", topic, "-K", ":", stdin="a:one\nb:two\n:three\n")
    out = kcat(cluster, "-C", "-t", topic, "-e", "-q", "-f", "%o %k=%s\n")
    assert out.splitlines() == ["0 a=one", "1 b=two", "2 =three"]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_compression(cluster: DialogueCluster, topic: str, codec: str) -> None:
    lines = [f"{number} " * 20 for number in range(200)]
    kcat(cluster, "-P", "-t", topic, "-z", codec, stdin="\n".join(lines))
    assert kcat(cluster, "-C", "-t", topic, "-e", "-q").splitlines() == lines


def test_headers_and_null_values(cluster: DialogueCluster, topic: str) -> None:
    headers = ["-H", "a=1", "-H", "b=2"]
    kcat(cluster, "-P", "-t", topic, "-K", ":", "-Z", *headers, stdin="k:\nk:v\n")
    out = kcat(cluster, "-C", "-t", topic, "-e", "-q", "-J")
    null, value = (json.loads(line) for line in out.splitlines())
    assert (null["key"], null["headers"], null["payload"]) == ("k", ["a", "1", "b", "2"], None)
    assert (value["key"], value["payload"]) == ("k", "v")


def test_offsets_from_the_end_and_by_time(cluster: DialogueCluster, topic: str) -> None:
    kcat(cluster, "-P", "-t", topic, stdin="".join(f"{number}\n" for number in range(10)))
    assert kcat(cluster, "-C", "-t", topic, "-o", "-3", "-e", "-q").split() == ["7", "8", "9"]
    assert len(kcat(cluster, "-C", "-t", topic, "-o", "s@1000", "-e", "-q").split()) == 10
    assert f"{topic} [0] offset 10" in kcat(cluster, "-Q", "-t", f"{topic}:0:-1")


def test_a_group_of_kcats(cluster: DialogueCluster, group: str) -> None:
    topic = cluster.new_topic(3)
    for partition in range(3):
        kcat(cluster, "-P", "-t", topic, "-p", str(partition), stdin=f"from {partition}\n")
    out = kcat(cluster, "-G", group, "-X", "auto.offset.reset=earliest", "-c", "3", "-q", topic)
    assert sorted(out.splitlines()) == ["from 0", "from 1", "from 2"]


def test_the_metadata(cluster: DialogueCluster) -> None:
    topic = cluster.new_topic(4)
    listed = json.loads(kcat(cluster, "-L", "-J", "-t", topic))
    (described,) = listed["topics"]
    assert (described["topic"], len(described["partitions"])) == (topic, 4)
    assert listed["brokers"]


def test_producing_creates_a_topic(cluster: DialogueCluster) -> None:
    topic = unique("created-by-kcat")
    kcat(cluster, "-P", "-t", topic, stdin="first\n")
    assert kcat(cluster, "-C", "-t", topic, "-e", "-q") == "first\n"
