"""Transcripts of command line tools: how they are read, written and compared."""

from pathlib import Path

import pytest

from tests.support.transcripts import Transcript, is_same, merged, normalised, substituted

TEXT = """\
# A comment.

* topic <topic> 2
> plan.json
    {"topic": "<topic>"}
$ tool --topic <topic> "two words" | grep -v b | sort
< first
< second
    c
    a
    [exit 1]
$? tool --list
    theirs
= They have none.
    ours
"""
NAMES = {"topic": "topic-1234", "topic.json": "/tmp/topic.json"}


def test_a_transcript_is_read_and_written_as_it_was() -> None:
    transcript = Transcript.parse(TEXT)
    assert transcript.render() == TEXT
    topic, plan, tool, listed = transcript.steps()
    assert (topic.kind, topic.words(NAMES)) == ("*", ["topic", "topic-1234", "2"])
    assert (plan.kind, plan.text, plan.expected) == (">", "plan.json", ['{"topic": "<topic>"}'])
    assert tool.words(NAMES) == ["tool", "--topic", "topic-1234", "two words"]
    assert tool.stdin == ["first", "second"]
    assert tool.expected == ["c", "a", "[exit 1]"]
    assert tool.reduced(["c", "b", "a"]) == ["a", "c"]
    assert (listed.kind, listed.reason) == ("$?", "They have none.")
    assert listed.wanted(of_kafka=True) == ["theirs"]
    assert listed.wanted(of_kafka=False) == ["ours"]
    assert tool.wanted(of_kafka=False) == tool.wanted(of_kafka=True) == tool.expected


def test_a_line_that_is_nothing_is_told() -> None:
    with pytest.raises(ValueError, match=r"line 2: tool --list"):
        Transcript.parse("# Without a dollar.\ntool --list\n")


@pytest.mark.parametrize("path", sorted(Path(__file__).parent.rglob("transcripts/**/*.txt")))
def test_the_transcripts_are_written_as_render_does(path: Path) -> None:
    text = path.read_text()
    assert Transcript.parse(text).render() == text


def test_names_that_nobody_has_given_stay() -> None:
    assert substituted("<topic>-0 in <topic.json>, <n>", NAMES) == (
        "topic-1234-0 in /tmp/topic.json, <n>"
    )


def test_what_is_not_compared() -> None:
    printed = """
Topic: topic-1234\tTopicId: O2nTVVAPQ3uV3RN-kO9eEQ   Configs: at 1700000000000
    Partition: 0\tLeader: 2  Replicas: 2,11,3 Isr: 2,3
topic-12345 at 127.0.0.1:9092 (id: 2 rack: null), member-0b15a7ba-5b9a-4a5b-8f0e-6c9c9e0a2c11
WARN [AdminClient] something (org.apache.kafka.clients.NetworkClient)
java.lang.Exception: reset to 2026-01-02T03:04:05.678Z
\tat org.apache.kafka.Something.main(Something.java:1)
\t... 11 more
"""
    topic = "Topic: <topic> TopicId: <id> Configs: at <ms>"
    error = "java.lang.Exception: reset to <time>"
    assert normalised(printed, NAMES) == [
        topic,
        "Partition: 0 Leader: <nodes> Replicas: <nodes> Isr: <nodes>",
        "topic-12345 at <host:port> (id: <nodes> rack: null), member-<uuid>",
        error,
    ]
    assert normalised(printed, NAMES, {"2": "<n1>", "3": "<n2>"}) == [
        topic,
        "Partition: 0 Leader: <n1> Replicas: <n1>,11,<n2> Isr: <n1>,<n2>",
        "topic-12345 at <host:port> (id: <n1> rack: null), member-<uuid>",
        error,
    ]


def test_an_asterisk_stands_for_anything() -> None:
    assert is_same(["size: <*> bytes", "b"], ["size: 123 bytes", "b"])
    assert not is_same(["size: <*> bytes"], ["size: 123"])
    assert not is_same(["a"], ["a", "b"])
    assert not is_same(["a.c"], ["abc"])
    assert merged(["size: <*>", "old"], ["size: 2", "new"]) == ["size: <*>", "new"]
    assert merged(["size: <*>"], ["size: 2", "new"]) == ["size: 2", "new"]
