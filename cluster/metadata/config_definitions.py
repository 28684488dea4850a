"""What a config key is: its type, default, limits, who may set it where, and who makes it true.

The tables themselves are `topic_configs`, `broker_configs` and `group_configs`; `settings` lays the
layers over each other and `config_description` shows them. A key is in a table only if the module
named by `enforced_by` does what the key says, or if it is true by construction; a key that would
be stored and ignored is refused as unknown instead. Values are texts until `parse` has typed them.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final, NamedTuple, TypeAlias

ConfigValue: TypeAlias = bool | int | float | str | tuple[str, ...]

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
BY_CONSTRUCTION: Final = "by construction"
"""In place of an enforcing module: whatever the value, what it asks for is so."""


class ConfigType(IntEnum):
    """The types of values, with the numbers that DescribeConfigs gives them (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """Where a value comes from, with the numbers of the wire."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class ConfigScope(Enum):
    """How a broker's key may be changed while it runs. Topic and group keys always may."""

    READ_ONLY = "read-only"
    """Only in the broker's own configuration, with a restart."""
    CLUSTER = "cluster"
    """For all brokers together (the broker named ""), because they must agree."""
    BROKER = "broker"
    """For all brokers together or for one."""
    ONE_BROKER = "one broker"
    """For one broker, and only while it runs: others act upon it, who do not know its own
    configuration."""


class Importance(Enum):
    """How much a user should care."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class ConfigError(ValueError):
    """A value that a key cannot take; the message names both and says what would be right."""


class ConfigSynonym(NamedTuple):
    """A broker's key that gives the default of another key; its unit is `factor` times as large."""

    name: str
    factor: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDefinition:
    """One key of one table.

    `default` is the text that holds if nobody set the key or one of its synonyms, null if there
    is none. `synonyms` are the broker's keys asked in that order. `is_valid` judges a typed
    value, `expectation` says in words what it accepts.
    """

    name: str
    type: ConfigType
    default: str | None
    documentation: str
    enforced_by: str
    expectation: str
    is_valid: Callable[[ConfigValue], bool] = lambda _value: True
    importance: Importance = Importance.MEDIUM
    scope: ConfigScope = ConfigScope.BROKER
    is_sensitive: bool = False
    synonyms: tuple[ConfigSynonym, ...] = ()

    @property
    def field_name(self) -> str:
        """The key as an attribute of the typed settings."""
        return self.name.replace(".", "_")

    def parse(self, text: str) -> ConfigValue:
        """The typed value of a text; ConfigError if it is none that this key takes."""
        value = _PARSERS[self.type](text.strip())
        if value is None or not self.is_valid(value):
            shown = "(hidden)" if self.is_sensitive else repr(text)
            raise ConfigError(f"{self.name}={shown} is not valid: it must be {self.expectation}")
        return value


Definitions: TypeAlias = Mapping[str, ConfigDefinition]


def definitions_by_name(definitions: Iterable[ConfigDefinition]) -> Definitions:
    """Definitions by name."""
    by_name: dict[str, ConfigDefinition] = {}
    for definition in definitions:
        assert definition.name not in by_name, definition.name
        by_name[definition.name] = definition
    return by_name


# -- limits: what `is_valid` and `expectation` are made of -------------------------------------


@dataclass(frozen=True, slots=True)
class Validator:
    """A condition on a value and its words."""

    expectation: str
    is_valid: Callable[[ConfigValue], bool]


def number_where(expectation: str, holds: Callable[[float], bool]) -> Validator:
    """A number of which `holds` is true."""
    return Validator(expectation, lambda value: isinstance(value, int | float) and holds(value))


def between(low: float, high: float) -> Validator:
    """A number of [low, high], both ends included."""
    return number_where(f"from {low} to {high}", lambda value: low <= value <= high)


def at_least(low: float) -> Validator:
    """A number not below `low`."""
    return number_where(f"{low} or more", lambda value: value >= low)


def one_of(*texts: str) -> Validator:
    """One of some words, spelled exactly."""
    return Validator(f"one of: {', '.join(texts)}", lambda value: value in texts)


def list_of(*texts: str) -> Validator:
    """A list, possibly empty, of some words, spelled exactly."""
    allowed = frozenset(texts)
    return Validator(
        f"a comma-separated list of: {', '.join(texts)}",
        lambda value: isinstance(value, tuple) and allowed.issuperset(value),
    )


# -- texts to values ---------------------------------------------------------------------------

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+\Z")


def _parse_boolean(text: str) -> ConfigValue | None:
    return {"true": True, "false": False}.get(text.lower())


def _integer_parser(low: int, high: int) -> Callable[[str], ConfigValue | None]:
    def typed(text: str) -> ConfigValue | None:
        if _WHOLE_NUMBER.match(text) is None or len(text) > 20:
            return None
        value = int(text)
        return value if low <= value <= high else None

    return typed


def _parse_double(text: str) -> ConfigValue | None:
    try:
        return float(text) if "_" not in text else None
    except ValueError:
        return None


def _parse_list(text: str) -> ConfigValue | None:
    items = tuple(item.strip() for item in text.split(",")) if text else ()
    return items if all(items) else None


def _parse_text(text: str) -> ConfigValue | None:
    return text


_PARSERS: Final[Mapping[ConfigType, Callable[[str], ConfigValue | None]]] = {
    ConfigType.BOOLEAN: _parse_boolean,
    ConfigType.STRING: _parse_text,
    ConfigType.INT: _integer_parser(-(2**31), INT32_MAX),
    ConfigType.SHORT: _integer_parser(-(2**15), 2**15 - 1),
    ConfigType.LONG: _integer_parser(-(2**63), INT64_MAX),
    ConfigType.DOUBLE: _parse_double,
    ConfigType.LIST: _parse_list,
    ConfigType.CLASS: _parse_text,
    ConfigType.PASSWORD: _parse_text,
}

TYPE_DESCRIPTIONS: Final[Mapping[ConfigType, str]] = {
    ConfigType.BOOLEAN: "true or false",
    ConfigType.STRING: "a text",
    ConfigType.INT: "a whole number",
    ConfigType.SHORT: "a whole number",
    ConfigType.LONG: "a whole number",
    ConfigType.DOUBLE: "a number",
    ConfigType.LIST: "a comma-separated list",
    ConfigType.CLASS: "a class name",
    ConfigType.PASSWORD: "a secret text",
}


def define(
    name: str,
    kind: ConfigType,
    default: str | int | float | None,
    documentation: str,
    *,
    enforced_by: str,
    validator: Validator | None = None,
    importance: Importance = Importance.MEDIUM,
    scope: ConfigScope = ConfigScope.BROKER,
    synonyms: tuple[str | ConfigSynonym, ...] = (),
) -> ConfigDefinition:
    """A definition, with `expectation` put into words from its type and limit."""
    words = TYPE_DESCRIPTIONS[kind]
    expectation = words
    if validator is not None:
        is_bare = kind in (ConfigType.STRING, ConfigType.LIST)
        expectation = validator.expectation if is_bare else f"{words}, {validator.expectation}"
    return ConfigDefinition(
        name=name,
        type=kind,
        default=None if default is None else str(default),
        documentation=documentation,
        enforced_by=enforced_by,
        expectation=expectation,
        is_valid=validator.is_valid if validator is not None else lambda _value: True,
        importance=importance,
        scope=scope,
        synonyms=tuple(
            ConfigSynonym(synonym) if isinstance(synonym, str) else synonym for synonym in synonyms
        ),
    )
