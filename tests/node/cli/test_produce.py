"""`odradek produce` against a cluster, read back by `odradek consume`."""

import json
from pathlib import Path

import pytest

from tests.node.cli.conftest import Run

pytestmark = pytest.mark.e2e


def read(kafka: Run, *topic: str) -> list[dict[str, object]]:
    return kafka("consume", *topic, "-o", "json").json_lines()


def test_values_from_arguments_with_key_and_headers(kafka: Run, topic: str) -> None:
    made = kafka("produce", topic, "a", "b", "-k", "same", "-H", "n=1", "-H", "n=2", "-o", "json")
    summary = made.json()
    assert isinstance(summary, dict)
    assert summary["records"] == 2
    records = read(kafka, topic)
    assert [record["value"] for record in records] == ["a", "b"]
    assert {record["key"] for record in records} == {"same"}
    assert records[0]["headers"] == [{"key": "n", "value": "1"}, {"key": "n", "value": "2"}]


def test_lines_from_stdin_with_keys_and_tombstones(kafka: Run, topic: str) -> None:
    kafka("produce", topic, "-K", ":", "-p", "0", "--empty-is-null", stdin="x:1:2\ny:\nplain\r\n")
    assert [(record["key"], record["value"]) for record in read(kafka, topic)] == [
        ("x", "1:2"),
        ("y", None),
        (None, "plain"),
    ]


def test_a_key_goes_where_javas_clients_put_it(kafka: Run, topic: str) -> None:
    """murmur2 of the key, modulo the number of partitions, as computed by Kafka's Utils.java."""
    kafka("produce", topic, "-K", ":", stdin="21:\nfoobar:\na-little-bit-long-string:\n")
    hashes = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536}
    found = {record["key"]: record["partition"] for record in read(kafka, topic)}
    assert found == {key: (value & 0x7FFFFFFF) % 3 for key, value in hashes.items()}


def test_the_topic_limits_the_size_of_records(kafka: Run, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(bytes(3_000_000))
    refused = kafka("produce", topic, "--file", str(file), "--format", "raw")
    assert refused.exit_code == 1
    assert "too large" in refused.stderr
    kafka("config", "set", "topic", topic, "max.message.bytes=4000000")
    assert kafka("produce", topic, "--file", str(file), "--format", "raw").exit_code == 0


def test_a_file_as_one_record(kafka: Run, topic: str, tmp_path: Path) -> None:
    blob = bytes(range(256)) * 40
    file = tmp_path / "blob"
    file.write_bytes(blob)
    assert kafka("produce", topic, "--file", str(file), "--format", "raw").exit_code == 0
    (record,) = read(kafka, topic)
    import base64

    assert base64.b64decode(str(record["value_base64"])) == blob


@pytest.mark.usefixtures("keeps_old_records")
def test_json_lines_keep_partition_and_time_with_keep_partitions(kafka: Run, topic: str) -> None:
    lines = [
        {"value": {"id": 1}, "key": "k", "partition": 2, "timestamp": 1234},
        {"value": None, "partition": 1},
    ]
    text = "\n".join(json.dumps(line) for line in lines) + "\n\n"
    kafka("produce", topic, "--format", "json", "--keep-partitions", stdin=text)
    (first,) = read(kafka, f"{topic}:2")
    assert (first["value"], first["timestamp"]) == ('{"id":1}', 1234)
    (second,) = read(kafka, f"{topic}:1")
    assert second["value"] is None


def test_a_topic_is_copied_through_json(kafka: Run, topic: str) -> None:
    kafka("produce", topic, "-K", ":", stdin="".join(f"k{i}:v{i}\n" for i in range(50)))
    copy = f"{topic}-copy"
    kafka("topic", "create", copy, "-p", "1")
    stream = kafka("consume", topic, "-o", "json").stdout
    assert kafka("produce", copy, "--format", "json", stdin=stream).exit_code == 0
    pairs = {(record["key"], record["value"]) for record in read(kafka, copy)}
    assert pairs == {(f"k{i}", f"v{i}") for i in range(50)}
    kafka("topic", "delete", copy, "-y")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["1", "all"])
def test_every_compression_arrives(kafka: Run, topic: str, codec: str, acks: str) -> None:
    text = "".join(f"line {i} " + "x" * 100 + "\n" for i in range(200))
    kafka("produce", topic, "-z", codec, "--acks", acks, "-p", "0", stdin=text)
    assert kafka("consume", topic).stdout == text


def test_an_invalid_line_is_named_by_its_number(kafka: Run, topic: str) -> None:
    ran = kafka("produce", topic, "--format", "json", stdin='{"value": "x"}\n{"vlue": 1}\n')
    assert ran.exit_code == 1
    assert "line 2 of the input: unknown key 'vlue'" in ran.stderr


def test_producing_to_a_partition_that_does_not_exist_fails(kafka: Run, topic: str) -> None:
    ran = kafka("produce", topic, "x", "-p", "77", "--timeout", "5")
    assert ran.exit_code == 1
    assert "Unknown partition" in ran.stderr


def test_values_and_a_file_together_are_wrong_usage(kafka: Run, tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.touch()
    assert kafka("produce", "t", "v", "--file", str(file)).exit_code == 2
    assert kafka("produce", "t", "v", "-k", "a", "-K", ":").exit_code == 2
