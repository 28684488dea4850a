"""Tables, plain columns and JSON."""

import json

import pytest

from odradek.node.cli.output import Output, Row, first_names, size_text

ROWS: list[Row] = [
    {"name": "a", "lag": 5, "replicas": [1, 2], "hidden": True},
    {"name": "longer", "lag": None, "replicas": [], "hidden": False},
]


def test_plain_columns_are_aligned_numbers_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    Output(is_json=False).rows(ROWS, ["name", "lag", "replicas"])
    assert capsys.readouterr().out.splitlines() == [
        "NAME    LAG  REPLICAS",
        "a         5  1,2",
        "longer    -  -",
    ]


def test_json_has_every_key_of_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    Output(is_json=True).rows(ROWS, ["name"])
    assert json.loads(capsys.readouterr().out) == ROWS


def test_no_rows_are_a_hint_in_text_and_an_empty_list_in_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Output(is_json=False).rows([], ["name"], empty="Nothing here.")
    people = capsys.readouterr()
    Output(is_json=True).rows([], ["name"], empty="Nothing here.")
    script = capsys.readouterr()
    assert (people.out, people.err) == ("", "Nothing here.\n")
    assert (json.loads(script.out), script.err) == ([], "")


def test_a_terminal_gets_a_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Output(is_json=False)
    output.is_terminal = True
    monkeypatch.setenv("COLUMNS", "100")
    output.rows(ROWS, ["name", "lag"])
    lines = capsys.readouterr().out.splitlines()
    assert "NAME" in lines[1]
    assert "─" in lines[2]


def test_facts_are_lines_of_name_and_value(capsys: pytest.CaptureFixture[str]) -> None:
    Output(is_json=False).facts({"topic": "orders", "configs": {"a": "1", "b": "2"}, "ratio": 0.5})
    assert capsys.readouterr().out.splitlines() == [
        "TOPIC    orders",
        "CONFIGS  a=1, b=2",
        "RATIO    0.5",
    ]


def test_progress_is_shown_on_a_terminal_only(capsys: pytest.CaptureFixture[str]) -> None:
    with Output(is_json=False).progress("reading", 10) as advance:
        advance(10)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_labelled_progress_is_printed_in_lines_without_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Output(is_json=False).labelled_progress("Moving", 10) as tell:
        for done in range(11):
            tell(done, 10, f"{done} of 10")
    lines = capsys.readouterr().err.splitlines()
    # The first at once, others now and then, the last in any case.
    assert (lines[0], lines[-1]) == ("0 of 10", "10 of 10")
    with Output(is_json=True).labelled_progress("Moving", 10) as tell:
        tell(1, 10, "1 of 10")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("byte_count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1_550_000, "1.6 MB"),
        (999_960_000, "1.0 GB"),
        (3 * 10**18, "3000.0 PB"),
    ],
)
def test_sizes_are_in_powers_of_a_thousand(byte_count: int, text: str) -> None:
    assert size_text(byte_count) == text


def test_the_first_names_are_shown_and_the_others_are_counted() -> None:
    assert first_names(["a", "b"]) == "a, b"
    assert first_names("abcdefg", 3) == "a, b, c and 4 more"


def test_numbers_are_plain_in_a_pipe_and_have_separators_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"rate": 1234567.891, "share": 0.25, "count": 9876543, "lag": None}
    Output(is_json=False).rows([row])
    assert capsys.readouterr().out.splitlines()[1].split() == [
        "1234567.891",
        "0.25",
        "9876543",
        "-",
    ]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    Output(is_json=False).rows([row])
    assert "1,234,568" in capsys.readouterr().out
