"""Plans of kafka-reassign-partitions: what they say, and what is wrong with others."""

import json

import pytest

from odradek.node.cli.reassignment_file import (
    InvalidAssignmentError,
    WantedReplicas,
    assignment_document,
    parse_assignment,
)


def test_replicas_and_their_log_directories_are_read() -> None:
    plan = {
        "version": 1,
        "partitions": [
            {"topic": "a", "partition": 1, "replicas": [3, 1], "log_dirs": ["any", "/mnt/b"]},
            {"topic": "a", "partition": 0, "replicas": [2], "comment": "ignored, as by Kafka"},
        ],
    }
    assert parse_assignment(json.dumps(plan).encode()) == [
        WantedReplicas(topic="a", number=1, replicas=(3, 1), log_dirs={1: "/mnt/b"}),
        WantedReplicas(topic="a", number=0, replicas=(2,)),
    ]
    del plan["version"]
    assert len(parse_assignment(json.dumps(plan).encode())) == 2


def test_the_document_of_an_assignment_is_a_plan_of_it() -> None:
    document = assignment_document({("b", 0): (1, 2), ("a", 3): (4,)})
    assert parse_assignment(json.dumps(document).encode()) == [
        WantedReplicas(topic="a", number=3, replicas=(4,)),
        WantedReplicas(topic="b", number=0, replicas=(1, 2)),
    ]


def of(partition: str) -> str:
    return f'{{"partitions": [{{"topic": "a", "partition": 7, "replicas": [1]}}, {partition}]}}'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it is no JSON: Expecting value: line 1 column 1"),
        ('{"partitions": [}', "it is no JSON: Expecting value: line 1 column 17"),
        ("\ud800", "it is no JSON"),
        ("[" * 100_000, "it is no JSON"),
        ("[]", "Expected `object`, got `array`"),
        ("{}", "missing required field `partitions`"),
        ('{"partitions": []}', "its list of partitions is empty"),
        ('{"version": 2, "partitions": []}', "its version is 2, and not 1"),
        (of('{"topic": "a", "partition": 1}'), "field `replicas` - at `$.partitions[1]`"),
        (of('{"topic": "a", "replicas": [1]}'), "field `partition` - at `$.partitions[1]`"),
        (
            of('{"topic": "a", "partition": 1, "replicas": [1, "2"]}'),
            "Expected `int`, got `str` - at `$.partitions[1].replicas[1]`",
        ),
        (of('{"topic": "a", "partition": -1, "replicas": [1]}'), "`$.partitions[1].partition`"),
        (
            of('{"topic": "a", "partition": 1, "replicas": []}'),
            "there are no replicas at `$.partitions[1]` (a-1)",
        ),
        (
            of('{"topic": "a", "partition": 1, "replicas": [3, 4, 3]}'),
            "node 3 is there more than once at `$.partitions[1]` (a-1)",
        ),
        (of('{"topic": "a", "partition": 7, "replicas": [1]}'), "it has a-7 2 times"),
        (
            of('{"topic": "a", "partition": 1, "replicas": [1, 2], "log_dirs": ["any"]}'),
            "there are 1 log_dirs for 2 replicas at `$.partitions[1]` (a-1)",
        ),
    ],
)
def test_what_is_wrong_with_a_plan_and_where_is_said(text: str, says: str) -> None:
    with pytest.raises(InvalidAssignmentError) as raised:
        parse_assignment(text.encode(errors="surrogatepass"))
    assert says in str(raised.value)
