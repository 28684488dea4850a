"""Kafka's command line tools: how each is called, and what the transcripts ask of it.

The transcripts are files in tests/conformance/transcripts (see `tests.support.transcripts`). A test
compares what they ask with what each tool offers; the page of compatibility lists it.
"""

from collections.abc import Mapping, Set
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.transcripts import Transcript

TRANSCRIPTS: Final = Path(__file__).parents[1] / "conformance" / "transcripts"


class Tool(NamedTuple):
    """How a tool is called."""

    main: str
    """The class in Kafka's jars."""
    server: str = "--bootstrap-server"
    server_is_last: bool = False
    """Whether it is an option of the subcommand."""
    config: str = "--command-config"
    """The option with a file of client properties."""


_TOOLS = "org.apache.kafka.tools"
TOOLS: Final[Mapping[str, Tool]] = {
    "kafka-acls": Tool(f"{_TOOLS}.AclCommand"),
    "kafka-broker-api-versions": Tool(f"{_TOOLS}.BrokerApiVersionsCommand"),
    "kafka-client-metrics": Tool(f"{_TOOLS}.ClientMetricsCommand"),
    "kafka-cluster": Tool(f"{_TOOLS}.ClusterTool", server_is_last=True),
    "kafka-configs": Tool("kafka.admin.ConfigCommand"),
    "kafka-console-consumer": Tool(f"{_TOOLS}.consumer.ConsoleConsumer"),
    "kafka-console-producer": Tool(f"{_TOOLS}.ConsoleProducer"),
    "kafka-console-share-consumer": Tool(f"{_TOOLS}.consumer.ConsoleShareConsumer"),
    "kafka-consumer-groups": Tool(f"{_TOOLS}.consumer.group.ConsumerGroupCommand"),
    "kafka-consumer-perf-test": Tool(f"{_TOOLS}.ConsumerPerformance"),
    "kafka-delegation-tokens": Tool(f"{_TOOLS}.DelegationTokenCommand"),
    "kafka-delete-records": Tool(f"{_TOOLS}.DeleteRecordsCommand"),
    "kafka-e2e-latency": Tool(f"{_TOOLS}.EndToEndLatency"),
    "kafka-features": Tool(f"{_TOOLS}.FeatureCommand"),
    "kafka-get-offsets": Tool(f"{_TOOLS}.GetOffsetShell"),
    "kafka-groups": Tool(f"{_TOOLS}.GroupsCommand"),
    "kafka-leader-election": Tool(f"{_TOOLS}.LeaderElectionCommand"),
    "kafka-log-dirs": Tool(f"{_TOOLS}.LogDirsCommand"),
    "kafka-metadata-quorum": Tool(f"{_TOOLS}.MetadataQuorumCommand"),
    "kafka-producer-perf-test": Tool(f"{_TOOLS}.ProducerPerformance"),
    "kafka-reassign-partitions": Tool(f"{_TOOLS}.reassign.ReassignPartitionsCommand"),
    "kafka-share-consumer-perf-test": Tool(f"{_TOOLS}.ShareConsumerPerformance"),
    "kafka-share-groups": Tool(f"{_TOOLS}.consumer.group.ShareGroupCommand"),
    "kafka-streams-application-reset": Tool(f"{_TOOLS}.StreamsResetter"),
    "kafka-streams-groups": Tool(f"{_TOOLS}.streams.StreamsGroupCommand"),
    "kafka-topics": Tool(f"{_TOOLS}.TopicCommand"),
    "kafka-transactions": Tool(f"{_TOOLS}.TransactionsCommand"),
}


SUBCOMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "kafka-cluster": ("cluster-id", "unregister", "list-endpoints"),
    "kafka-features": (
        *("describe", "upgrade", "downgrade", "disable"),
        *("version-mapping", "feature-dependencies"),
    ),
    "kafka-metadata-quorum": ("describe", "add-controller", "remove-controller"),
    "kafka-transactions": (
        *("list", "describe", "describe-producers", "abort", "find-hanging"),
        "forceTerminateTransaction",
    ),
}
EVERYWHERE: Final = frozenset({"--help", "--version", "--bootstrap-server", "--command-config"})
"""Options of nearly all tools. transcripts/secured has each tool with the last one."""
NOT_ASKED_FOR: Final[Mapping[str, Mapping[str, str]]] = {
    "Controllers have no listener for clients here: brokers answer for them.": {
        "kafka-acls": "--bootstrap-controller",
        "kafka-cluster": "--bootstrap-controller",
        "kafka-configs": "--bootstrap-controller",
        "kafka-features": "--bootstrap-controller",
        "kafka-metadata-quorum": "--bootstrap-controller",
        "kafka-reassign-partitions": "--bootstrap-controller",
    },
    "An older name of another option.": {
        "kafka-cluster": "--config",
        "kafka-console-consumer": "--consumer-property --consumer.config --property",
        "kafka-console-producer": "--producer-property --producer.config --property",
        "kafka-console-share-consumer": "--consumer-config --consumer-property --property",
        "kafka-consumer-perf-test": "--consumer.config --messages",
        "kafka-leader-election": "--admin.config",
        "kafka-producer-perf-test": "--producer-props --producer.config",
        "kafka-share-consumer-perf-test": "--consumer.config --messages",
        "kafka-streams-application-reset": "--config-file --intermediate-topics",
    },
    "A class or file of settings for what the client alone does with records.": {
        "kafka-console-consumer": "--formatter-config",
        "kafka-console-producer": "--line-reader --reader-config",
        "kafka-console-share-consumer": (
            "--command-property --enable-systest-events --formatter --formatter-config"
            " --key-deserializer --reject-message-on-error --release --value-deserializer"
        ),
    },
}
"""Reason, tool, and its options."""


def asked(tool: str) -> frozenset[str]:
    """The words that the transcripts give to this tool: options, subcommands, values."""
    return frozenset(_asked(TRANSCRIPTS).get(tool, ()))


def tools_in(folder: Path) -> Set[str]:
    """The tools in the transcripts of this folder."""
    return _asked(folder).keys()


@cache
def _asked(folder: Path) -> Mapping[str, set[str]]:
    words: dict[str, set[str]] = {}
    for path in folder.rglob("*.txt"):
        for step in Transcript.parse(path.read_text()).steps():
            if step.kind in ("$", "$?"):
                tool, *arguments = step.words({})
                words.setdefault(tool, set()).update(arguments)
    return words
