"""Records what a broker answers to DescribeConfigs and to changes of log levels.

    python -m tests.support.golden_configs 127.0.0.1:9092 NODE_ID FILE

The file in the repository, `kafka_configs.json`, is what Apache Kafka 4.3.1 answered as a single
combined node with the defaults of its server.properties, to DescribeConfigs v4 of all keys with
synonyms: of a new topic, of the broker, of a group and of the broker's loggers; and to
IncrementalAlterConfigs v1 of loggers. Documentation is left out. Tests compare with it without
Java.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

from odradek.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from odradek.protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tests.support.wire import WireClient

GOLDEN_FILE: Final = Path(__file__).parent / "kafka_configs.json"
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
NODE: Final = "NODE"
"""In the cases: the id of the broker that is asked."""
LOGGER_CASES: Final[list[tuple[str, str, int, str | None, bool]]] = [
    # (broker's name, logger, operation, level, validate only)
    (NODE, "root", SET, "WARN", False),
    (NODE, "root", SET, "INFO", False),
    (NODE, "root", SET, "LOUD", False),
    (NODE, "root", SET, "warn", False),
    (NODE, "root", SET, None, False),
    (NODE, "root", DELETE, None, False),
    (NODE, "root", APPEND, "INFO", False),
    (NODE, "root", SUBTRACT, "INFO", False),
    (NODE, "root", 9, "INFO", False),
    (NODE, "ROOT", SET, "INFO", False),
    (NODE, "no.such.logger", SET, "INFO", False),
    (NODE, "no.such.logger", DELETE, None, False),
    (NODE, "root", SET, "TRACE", True),
    ("4711", "root", SET, "INFO", False),
    ("", "root", SET, "INFO", False),
    ("abc", "root", SET, "INFO", False),
]
DESCRIBED: Final = [
    (TOPIC, "recorded"),
    (TOPIC, "no-such-topic"),
    (TOPIC, "/"),
    (BROKER, NODE),
    (BROKER, ""),
    (BROKER, "4711"),
    (BROKER, "abc"),
    (LOGGER, "4711"),
    (LOGGER, ""),
    (LOGGER, "abc"),
    (LOGGER, NODE),
    (GROUP, "recorded"),
    (GROUP, ""),
    (METRICS, ""),
    (METRICS, "recorded"),
    (99, "x"),
]


def _shown(key: str, value: str | None) -> str | None:
    """The value, or for a folder of the machine only that it is one."""
    return "FOLDER" if value and key in ("log.dir", "log.dirs", "metadata.log.dir") else value


def describe(wire: WireClient, kind: int, name: str) -> dict[str, Any]:
    """One answer, as the file has it."""
    request = DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=kind, resource_name=name)],
        include_synonyms=True,
    )
    (result,) = wire.ask(request, 4, DescribeConfigsResponse).results
    return {
        "error_code": int(result.error_code),
        "error_message": result.error_message,
        "configs": {
            config.name: {
                "value": _shown(config.name, config.value),
                "type": config.config_type,
                "read_only": config.read_only,
                "sensitive": config.is_sensitive,
                "source": config.config_source,
                "synonyms": [[s.name, _shown(s.name, s.value), s.source] for s in config.synonyms],
            }
            for config in sorted(result.configs or [], key=lambda each: each.name)
        },
    }


def alter_logger(
    wire: WireClient, name: str, logger: str, operation: int, level: str | None, is_dry: bool
) -> dict[str, Any]:
    """One answer to IncrementalAlterConfigs."""
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsResource(
                resource_type=LOGGER,
                resource_name=name,
                configs=[
                    IncrementalAlterableConfig(name=logger, config_operation=operation, value=level)
                ],
            )
        ],
        validate_only=is_dry,
    )
    (answer,) = wire.ask(request, 1, IncrementalAlterConfigsResponse).responses
    return {"error_code": int(answer.error_code), "error_message": answer.error_message}


def alter_logger_as_before_kip_339(wire: WireClient, name: str) -> dict[str, Any]:
    """The answer to AlterConfigs of a logger."""
    resource = AlterConfigsResource(resource_type=LOGGER, resource_name=name, configs=[])
    request = AlterConfigsRequest(resources=[resource])
    (answer,) = wire.ask(request, 2, AlterConfigsResponse).responses
    return {"error_code": int(answer.error_code), "error_message": answer.error_message}


def record(wire: WireClient, node: str) -> dict[str, Any]:
    """All answers."""

    def named(name: str) -> str:
        return node if name == NODE else name

    topic = CreatableTopic(name="recorded", num_partitions=1, replication_factor=1)
    wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=20_000), 5, CreateTopicsResponse)
    described = [[kind, name, describe(wire, kind, named(name))] for kind, name in DESCRIBED]
    loggers = [[*case, alter_logger(wire, named(case[0]), *case[1:])] for case in LOGGER_CASES]
    replaced = alter_logger_as_before_kip_339(wire, node)
    return {"described": described, "loggers": loggers, "replaced": replaced}


def _lines(recorded: dict[str, Any]) -> str:
    """JSON with one config on a line, so that two recordings can be compared."""

    def of_resource(entry: list[Any]) -> str:
        kind, name, answer = entry
        configs = ",\n".join(
            f"  {json.dumps(key)}: {json.dumps(config)}"
            for key, config in answer["configs"].items()
        )
        head = json.dumps([kind, name, answer["error_code"], answer["error_message"]])
        return f" [{head},\n {{\n{configs}\n }}]"

    described = ",\n".join(map(of_resource, recorded["described"]))
    loggers = ",\n".join(f" {json.dumps(each)}" for each in recorded["loggers"])
    replaced = json.dumps(recorded["replaced"])
    return (
        f'{{"described": [\n{described}\n],\n"loggers": [\n{loggers}\n],'
        f'\n"replaced": {replaced}}}\n'
    )


def main() -> None:
    """Record the answers of the broker that the arguments name."""
    address, node, file = sys.argv[1:]
    with WireClient(address) as wire:
        recorded = record(wire, node)
    Path(file).write_text(_lines(recorded))


if __name__ == "__main__":
    main()
