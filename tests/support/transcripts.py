"""Transcripts of command line tools: what was typed, and what was printed by Kafka 4.3.1.

```
# The count can only grow.
$ kafka-topics --alter --topic <topic> --partitions 1 | grep Error
    Error while executing topic command : The topic <topic> currently has 3 partition(s)<*>
    [exit 1]
```

A line begins with what it is:

- `$` a tool and its arguments; with `$?` it is run again until it prints this. `| grep [-v] REGEX`,
  `| head N` and `| sort` may follow: they reduce what is compared.
- `*` something that no tool does: a function of the test, and its arguments.
- `>` a file that is made; its content follows.
- four spaces: what was printed, or the content of a file. `[exit 1]` is a status that is not 0.
- `<` a line that the tool reads.
- `=` the reason why it is something else with Odradek; what follows is that.
- `#` a comment.

`<name>` is a name that is new in each run: of a topic, a group, a file. `<*>` is anything.
`Transcript.render` writes what is printed now in the place of what was; `normalised` says what is
not compared.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

INDENT: Final = "    "
ANYTHING: Final = "<*>"
"""In a line that was printed: whatever is there. Written by hand, and kept by `render`."""

_UUID: Final = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_RULES: Final = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?:127\.0\.0\.1|localhost):\d+(?:,127\.0\.0\.1:\d+)*", "<host:port>"),
        (_UUID, "<uuid>"),
        (
            r"(TopicId: |Cluster ?I[Dd]: |metrics config for |directoryId\W+)[\w-]{22}(?![\w-])",
            r"\1<id>",
        ),
        # The ids that members of KIP-848 give themselves; a topic's id can be a name.
        (r"(?<![\w+/-])[\w+/-]{22}(?= /127)", "<id>"),
        (r"^\d+ 127\.0\.0\.1 \d+ ", "<node> <host> <port> "),
        (r"\b(Epoch|HighWatermark): \d+", r"\1: <n>"),
        (r"\b1[6-9]\d{11}\b", "<ms>"),
        (r"\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d\S*)?", "<time>"),
    )
]
_NODES: Final = re.compile(
    r"((?:\b(?:Leader|Replicas|Isr|Elr|LastKnownElr|LeaderId|replicas|adding|removing):"
    r"|\b(?:replica set is|rather than|replicas list \[)|\"replicas\":\[|\"broker\":|\(id:"
    r"|<host:port> \(|\bbroker(?:s|-logger)?:?|\bcontroller) ?)(\d+(?:,\d+)*)(?!\w|\.\d)"
)
"""Where outputs have ids of nodes."""
_STATIC: Final = re.compile(r"\b(?:segment\.bytes=1073741824|min\.insync\.replicas=\d)(?:,|$)")
"""Configs that kafka-topics shows of topics: those of a broker's configuration file."""
_NOISE: Final = re.compile(r"^(?:WARN|INFO|ERROR) |^ *\([\w.$]+\)$|^\s+at |^\s*\.\.\. \d+ more$")


@dataclass(slots=True)
class TranscriptStep:
    """One thing that is done, and what it must print."""

    kind: str
    """`$`, `$?`, `*` or `>`."""
    text: str
    """The rest of its line."""
    stdin: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    """What follows it: output, or the content of a file."""
    reason: str = ""
    """Why Odradek prints something else."""
    ours: list[str] = field(default_factory=list)
    """What Odradek prints, if there is a reason."""

    def wanted(self, *, of_kafka: bool) -> list[str]:
        """What must be printed by Kafka, or by Odradek."""
        return self.expected if of_kafka or not self.reason else self.ours

    def words(self, names: Mapping[str, str]) -> list[str]:
        """The command's words with these names put in."""
        return [substituted(word, names) for word in shlex.split(self.text.split(" | ")[0])]

    def reduced(self, lines: list[str]) -> list[str]:
        """What the command's filters leave of these lines."""
        for each in self.text.split(" | ")[1:]:
            name, *arguments = shlex.split(each)
            lines = _FILTERS[name](lines, arguments)
        return lines


@dataclass(slots=True)
class Transcript:
    """The steps of a file, and what stands between them."""

    lines: list[str | TranscriptStep]

    @classmethod
    def parse(cls, text: str) -> "Transcript":
        """Read a file. Raises ValueError with the number of a line that is nothing."""
        lines: list[str | TranscriptStep] = []
        for number, line in enumerate(text.splitlines(), start=1):
            last = lines[-1] if lines else None
            if line.startswith(INDENT) and isinstance(last, TranscriptStep):
                (last.ours if last.reason else last.expected).append(line.removeprefix(INDENT))
            elif line.startswith("= ") and isinstance(last, TranscriptStep):
                last.reason = line.removeprefix("= ")
            elif line.startswith("< ") and isinstance(last, TranscriptStep):
                last.stdin.append(line.removeprefix("< "))
            elif found := re.fullmatch(r"(\$\??|\*|>) (.+)", line):
                lines.append(TranscriptStep(found[1], found[2]))
            elif not line or line.startswith("#"):
                lines.append(line)
            else:
                raise ValueError(f"line {number}: {line}")
        return cls(lines)

    def steps(self) -> Iterator[TranscriptStep]:
        """What is to be done, in order."""
        return (line for line in self.lines if isinstance(line, TranscriptStep))

    def render(self) -> str:
        """The file, from which `parse` makes the same."""
        written = []
        for line in self.lines:
            if isinstance(line, str):
                written.append(line)
                continue
            written.append(f"{line.kind} {line.text}")
            written += [f"< {each}" for each in line.stdin]
            written += [f"{INDENT}{each}" for each in line.expected]
            if line.reason:
                written.append(f"= {line.reason}")
                written += [f"{INDENT}{each}" for each in line.ours]
        return "\n".join(written) + "\n"


def substituted(text: str, names: Mapping[str, str]) -> str:
    """The text with the values of these names."""
    return re.sub(r"<([\w.-]+)>", lambda found: names.get(found[1], found[0]), text)


def normalised(
    text: str, names: Mapping[str, str], nodes: Mapping[str, str] | None = None
) -> list[str]:
    """The lines of an output as transcripts have them.

    Without what is logged, the frames of stack traces and empty lines, with one space where there
    are more, and placeholders for names, ids, addresses and times. The ids of nodes get the names
    in `nodes`, or one that hides how many there are.
    """
    for name, value in sorted(names.items(), key=lambda each: len(each[1]), reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", f"<{name}>", text)

    def named(found: re.Match[str]) -> str:
        if nodes is None:
            return f"{found[1]}<nodes>"
        return found[1] + re.sub(r"\d+", lambda each: nodes.get(each[0], each[0]), found[2])

    lines = []
    for line in text.splitlines():
        if _NOISE.search(line):
            continue
        short = " ".join(line.split())
        for pattern, replacement in _RULES:
            short = pattern.sub(replacement, short)
        if "PartitionCount: " in short:
            short = _STATIC.sub("", short).rstrip(", ")
        if nodes is None:
            short = re.sub(r"(ReplicationFactor:) \d+", r"\1 <factor>", short)
        if short:
            lines.append(_NODES.sub(named, short))
    return lines


def is_same(expected: list[str], printed: list[str]) -> bool:
    """Whether these lines are those, with `<*>` for anything."""
    return len(expected) == len(printed) and all(
        _is_same_line(*pair) for pair in zip(expected, printed, strict=True)
    )


def merged(expected: list[str], printed: list[str]) -> list[str]:
    """What was printed, with the lines of before where they allow it."""
    if len(expected) != len(printed):
        return printed
    return [
        old if _is_same_line(old, new) else new for old, new in zip(expected, printed, strict=True)
    ]


def _is_same_line(expected: str, printed: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in expected.split(ANYTHING))
    return re.fullmatch(pattern, printed) is not None


def _grep(lines: list[str], arguments: list[str]) -> list[str]:
    is_wanted = arguments[0] != "-v"
    return [line for line in lines if bool(re.search(arguments[-1], line)) == is_wanted]


_FILTERS: Final[Mapping[str, Callable[[list[str], list[str]], list[str]]]] = {
    "grep": _grep,
    "head": lambda lines, arguments: lines[: int(arguments[0])],
    "sort": lambda lines, arguments: sorted(lines),
}
