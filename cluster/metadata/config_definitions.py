"""What a config key is: its type, default, bounds, where it can be set, and who enforces it.

The keys are declared as fields of settings classes (see `config_schema`) and listed in
`config_tables`. `config_layers` resolves values, `settings` gives them typed, `config_description`
describes them. Every key either is enforced by the module that it names, or is true by
construction, or is one of Kafka's that has no effect here and says so (`no_effect_configs`). Any
other key is refused as unknown. Values are texts until `parse` has typed them.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final, NamedTuple, TypeAlias

ConfigValue: TypeAlias = bool | int | float | str | tuple[str, ...]

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
BY_CONSTRUCTION: Final = "by construction"
"""In place of an enforcing module: what the key asks for holds for every value."""
WITHOUT_EFFECT: Final = "without effect"
"""In place of an enforcing module: Kafka has the key, and it means nothing here."""


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
    PER_BROKER = "per broker"
    """For one broker, or in its own configuration."""
    ONE_BROKER = "one broker"
    """For one broker, and only while it runs: the other brokers act upon the value, and they do not
    know this broker's own configuration."""


class ConfigError(ValueError):
    """A value that a key cannot take; the message names both and says what would be right."""


class ConfigSynonym(NamedTuple):
    """A broker's key that gives the default of another key; its unit is `factor` times as large."""

    name: str
    factor: int = 1


@dataclass(frozen=True, slots=True)
class Validator:
    """A condition on a typed value, and the condition in words."""

    expectation: str
    is_valid: Callable[[ConfigValue], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDefinition:
    """One key of one type of resource.

    `default` is the text that holds if neither the key nor one of its synonyms is set, null if
    there is none. `synonyms` are the broker's keys that are asked next, in that order. `bounds` are
    the broker's keys for the least and the greatest value of a group's key. `refusal` tells why a
    value that Kafka takes is not taken here; it gives null for a value that is.
    """

    name: str
    type: ConfigType
    default: str | None
    documentation: str
    enforced_by: str
    validator: Validator | None = None
    scope: ConfigScope = ConfigScope.BROKER
    synonyms: tuple[ConfigSynonym, ...] = ()
    bounds: tuple[str | None, str | None] = (None, None)
    refusal: Callable[[ConfigValue], str | None] | None = None

    @property
    def has_effect(self) -> bool:
        """Whether anything depends on the key; False for Kafka's keys that mean nothing here."""
        return self.enforced_by != WITHOUT_EFFECT

    @property
    def is_sensitive(self) -> bool:
        """Whether the value must not be shown."""
        return self.type is ConfigType.PASSWORD

    @property
    def expectation(self) -> str:
        """What the key accepts, in words."""
        words = TYPE_DESCRIPTIONS[self.type]
        if self.validator is None:
            return words
        is_bare = self.type in (ConfigType.STRING, ConfigType.LIST)
        return self.validator.expectation if is_bare else f"{words}, {self.validator.expectation}"

    def parse(self, text: str) -> ConfigValue:
        """The typed value of a text; ConfigError if the key does not take it."""
        value = _PARSERS[self.type](text.strip())
        shown = "(hidden)" if self.is_sensitive else repr(text)
        if value is None or not (self.validator is None or self.validator.is_valid(value)):
            raise ConfigError(f"{self.name}={shown} is not valid: it must be {self.expectation}")
        reason = None if self.refusal is None else self.refusal(value)
        if reason is not None:
            raise ConfigError(f"{self.name}={shown} is not supported: {reason}")
        return value


Definitions: TypeAlias = Mapping[str, ConfigDefinition]


# -- validators -------------------------------------------------------------------------------


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
