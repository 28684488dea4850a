"""How traced requests are printed."""

from odradek.node.cli.trace_text import trace_document, trace_line, trace_lines
from odradek.protocol.messages.traces import TracedAttribute, TracedRequest, TracedStage


def traced() -> TracedRequest:
    return TracedRequest(
        received_us=1_700_000_000_123_456,
        duration_us=1_600,
        request_api_version=9,
        correlation_id=7,
        client_id="app\x1b[2J",
        client_host="10.0.0.7",
        client_port=4711,
        connection_id=3,
        listener="PLAINTEXT",
        principal="User:alice",
        topics=["orders"],
        error_codes=[6],
        stages=[
            TracedStage(name="queue", process="router-0", duration_us=50),
            TracedStage(name="worker_request", process="router-0", start_us=50, duration_us=1_500),
            TracedStage(
                name="append",
                process="worker-0",
                parent_index=1,
                start_us=800,
                duration_us=400,
                attributes=[TracedAttribute(name="partition", value="0")],
            ),
            TracedStage(name="send", process="router-0", start_us=1_550, duration_us=-1),
        ],
    )


def test_a_line_says_who_and_how_long_and_nothing_that_a_terminal_obeys() -> None:
    line = trace_line(2, traced())
    assert line.split("  ", 1)[1] == (
        "broker 2  Produce v9  1.600 ms  client app?[2J  correlation 7  topics orders"
        "  errors NOT_LEADER_OR_FOLLOWER"
    )


def test_stages_stand_below_what_they_are_a_part_of() -> None:
    _, who, *stages = trace_lines(2, traced())
    assert "User:alice at 10.0.0.7:4711, listener PLAINTEXT, connection 3" in who
    assert [line.split()[0] for line in stages] == ["queue", "worker_request", "append", "send"]
    assert stages[2].startswith("      append")
    assert "|                ========        |  partition=0" in stages[2]
    assert " 0.800      0.400 " in stages[2]
    assert stages[3].split()[3] == "-"


def test_a_document_has_all_of_it() -> None:
    document = trace_document(2, traced())
    assert (document["broker"], document["api"], document["duration_us"]) == (2, "Produce", 1_600)
    assert document["errors"] == ["NOT_LEADER_OR_FOLLOWER"]
    stages = document["stages"]
    assert isinstance(stages, list)
    assert stages[2] == {
        "name": "append",
        "process": "worker-0",
        "parent_index": 1,
        "start_us": 800,
        "duration_us": 400,
        "attributes": {"partition": "0"},
    }
    assert isinstance(stages[3], dict)
    assert stages[3]["duration_us"] is None


def test_a_stage_that_claims_to_be_a_part_of_itself_is_shown_once() -> None:
    odd = TracedRequest(stages=[TracedStage(name="queue", process="router-0", parent_index=0)])
    assert [line.split()[0] for line in trace_lines(0, odd)][2:] == ["queue"]
