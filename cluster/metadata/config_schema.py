"""Settings objects whose fields declare config keys: the one place where a key stands.

    @settings(ConfigResourceType.TOPIC)
    class TopicSettings:
        retention_ms: int = long(
            604_800_000,
            "How old records may become before they are deleted; -1: no limit.",
            enforced_by="odradek.storage.retention",
            validator=at_least(-1),
            broker=TopicDefault("log.retention.ms"),
        )

A specifier is typed as the value that the field holds, so that a type checker sees an ordinary
frozen class with keyword arguments and a default for every field. `settings` makes that class and
derives from each field the key's definition, and the definitions of the broker's keys that give its
default and its bounds. The key's name is the field's, with dots for underscores, behind the prefix
of the class; `name` replaces it. `settings.py` fills the objects, `config_tables` lists the keys.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import (
    Any,
    Final,
    Generic,
    NamedTuple,
    Required,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    dataclass_transform,
    overload,
)

from odradek.cluster.metadata.config_definitions import (
    ConfigDefinition,
    ConfigScope,
    ConfigSynonym,
    ConfigType,
    ConfigValue,
    Validator,
    at_least,
    config_text,
)
from odradek.cluster.metadata.image import ConfigResourceType

D = TypeVar("D", bool, int, float, str)
S = TypeVar("S")
T = TypeVar("T")
V = TypeVar("V")


class CoarserKey(NamedTuple):
    """A broker's key for the same default in a larger unit, as log.retention.hours."""

    name: str
    unit_ms: int
    default: int | None
    low: int


class TopicDefault(NamedTuple):
    """The broker's key for the default of a topic's key: the same type, default and bounds. With
    coarser keys the coarsest has the default value, and the finest that is set is used."""

    name: str
    scope: ConfigScope = ConfigScope.BROKER
    coarser: tuple[CoarserKey, ...] = ()

    def derive(self, own: ConfigDefinition) -> Iterator[ConfigDefinition]:
        """The topic's definition with its synonyms, then the broker's."""
        synonyms = tuple(ConfigSynonym(key.name, key.unit_ms) for key in self.coarser)
        yield replace(own, synonyms=(ConfigSynonym(self.name), *synonyms))
        documentation = own.documentation[0].lower() + own.documentation[1:]
        yield replace(
            own,
            name=self.name,
            default=None if synonyms else own.default,
            documentation=f"The {own.name} of topics that set none: {documentation}",
            scope=self.scope,
            synonyms=synonyms,
        )
        for key in self.coarser:
            unit = key.name.rpartition(".")[2]
            yield ConfigDefinition(
                name=key.name,
                type=ConfigType.INT,
                default=None if key.default is None else str(key.default),
                documentation=f"The {own.name} of topics that set none, in {unit}. The key in"
                " milliseconds wins.",
                enforced_by=own.enforced_by,
                validator=at_least(key.low),
                scope=self.scope,
            )


class Bound(NamedTuple):
    """A broker's key that bounds what may be set for a group."""

    default: int
    validator: Validator | None = None
    """None: that of the broker's default."""
    name: str = ""
    """Empty: group.<kind>.min.<rest> or group.<kind>.max.<rest>."""


class GroupDefault(NamedTuple):
    """The broker's keys for a group's key: its default, and between what a group may set it."""

    validator: Validator | None = None
    """Of the broker's key; None: that of the group's."""
    low: Bound | None = None
    high: Bound | None = None
    name: str = ""
    """Empty: the group's key behind `group.`."""

    def derive(self, own: ConfigDefinition) -> Iterator[ConfigDefinition]:
        """The group's definition with its synonym and bounds, then the broker's."""
        name = self.name or f"group.{own.name}"
        kind, _, rest = own.name.partition(".")
        validator = self.validator or own.validator
        broker = replace(own, name=name, validator=validator, scope=ConfigScope.CLUSTER)
        keys = [broker]
        names: list[str | None] = []
        for bound, end, word in ((self.low, "min", "smallest"), (self.high, "max", "largest")):
            if bound is None:
                names.append(None)
                continue
            key = replace(
                broker,
                name=bound.name or f"group.{kind}.{end}.{rest}",
                default=str(bound.default),
                documentation=f"The {word} {own.name} that may be set for a group.",
                validator=bound.validator or validator,
                enforced_by=_BOUNDS_CHECK,
            )
            names.append(key.name)
            keys.append(key)
        yield replace(own, synonyms=(ConfigSynonym(name),), bounds=(names[0], names[1]))
        yield from keys


_BOUNDS_CHECK: Final = "odradek.cluster.controller.config_checks"


class KeyOptions(TypedDict, total=False):
    """What a specifier says besides the default and the documentation.

    `is_broker_key`: of a group's settings, a key that only a broker has.
    """

    enforced_by: Required[str]
    name: str
    validator: Validator | None
    scope: ConfigScope
    broker: TopicDefault | GroupDefault
    is_broker_key: bool


@dataclass(frozen=True, slots=True)
class _Key:
    """What a specifier leaves in the class until `settings` takes it."""

    type: ConfigType
    default: str | None
    documentation: str
    options: KeyOptions
    convert: Callable[[Any], Any] | None = None


class _Specifier(Generic[D, V]):
    """Makes fields whose keys are of one type: from a default of type D, values of type V."""

    def __init__(self, config_type: ConfigType) -> None:
        self._type = config_type

    @overload
    def __call__(self, default: D, documentation: str, **options: Unpack[KeyOptions]) -> V: ...
    @overload
    def __call__(
        self, default: None, documentation: str, **options: Unpack[KeyOptions]
    ) -> V | None: ...
    def __call__(
        self, default: D | None, documentation: str, **options: Unpack[KeyOptions]
    ) -> V | None:
        return cast("V", _Key(self._type, config_text(default), documentation, options))


Strings = tuple[str, ...]
boolean: Final = _Specifier[bool, bool](ConfigType.BOOLEAN)
short: Final = _Specifier[int, int](ConfigType.SHORT)
integer: Final = _Specifier[int, int](ConfigType.INT)
long: Final = _Specifier[int, int](ConfigType.LONG)
double: Final = _Specifier[float, float](ConfigType.DOUBLE)
string: Final = _Specifier[str, str](ConfigType.STRING)
class_name: Final = _Specifier[str, str](ConfigType.CLASS)
password: Final = _Specifier[str, str](ConfigType.PASSWORD)
"""A text that is never shown."""
strings: Final = _Specifier[str, Strings](ConfigType.LIST)
"""A comma-separated list of texts; the default is one text."""


def converted(key: V, convert: Callable[[V], T]) -> T:
    """The key's value in the form or unit in which the code uses it."""
    assert isinstance(key, _Key)
    return cast("T", replace(key, convert=convert))


class SettingsField(NamedTuple):
    """A field and the key that sets it. `broker_keys` are derived from it."""

    name: str
    definition: ConfigDefinition
    is_broker_key: bool
    broker_keys: tuple[ConfigDefinition, ...]
    convert: Callable[[Any], Any] | None

    def value(self, typed: ConfigValue | None) -> object:
        """What the field holds for a typed value of the key."""
        return typed if self.convert is None or typed is None else self.convert(typed)


_FIELDS: Final[dict[type, tuple[SettingsField, ...]]] = {}


def fields_of(kind: type) -> tuple[SettingsField, ...]:
    """The fields of a settings class that keys set; empty for any other class."""
    return _FIELDS.get(kind, ())


@dataclass_transform(frozen_default=True, kw_only_default=True)
def settings(resource_type: ConfigResourceType, prefix: str = "") -> Callable[[type[T]], type[T]]:
    """Make a frozen class of typed settings whose keys are those of a type of resource."""

    def decorate(cls: type[T]) -> type[T]:
        fields = tuple(
            _field(name, key, resource_type, prefix)
            for name, key in vars(cls).items()
            if isinstance(key, _Key)
        )
        for field in fields:
            default = field.definition.default
            typed = None if default is None else field.definition.parse(default)
            setattr(cls, field.name, field.value(typed))
        made = dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(cls)
        _FIELDS[made] = fields
        return made

    return decorate


def _field(name: str, key: _Key, resource_type: ConfigResourceType, prefix: str) -> SettingsField:
    options = key.options
    is_group_wide = options.get("is_broker_key", False)
    derived_name = ("group." if is_group_wide else "") + prefix + name.replace("_", ".")
    own = ConfigDefinition(
        name=options.get("name", derived_name),
        type=key.type,
        default=key.default,
        documentation=key.documentation,
        enforced_by=options["enforced_by"],
        validator=options.get("validator"),
        scope=options.get("scope", ConfigScope.CLUSTER),
    )
    broker = options.get("broker")
    own, *broker_keys = [own] if broker is None else broker.derive(own)
    is_broker_key = is_group_wide or resource_type is ConfigResourceType.BROKER
    return SettingsField(name, own, is_broker_key, tuple(broker_keys), key.convert)


# -- settings that are copies ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Copy:
    """What `Copied` leaves in the class until `copies` takes it."""

    source: type
    value: Callable[[Any], Any]


_COPIES: Final[dict[type, dict[str, _Copy]]] = {}


@dataclass(frozen=True, slots=True)
class Copied(Generic[S]):
    """Specifies fields that hold a value of other settings, in the unit that the code uses."""

    source: type[S]

    def __call__(self, value: Callable[[S], T]) -> T:
        """A field; its default is what the defaults of the other settings give."""
        return cast("T", _Copy(self.source, value))


@dataclass_transform(frozen_default=True, kw_only_default=True)
def copies(cls: type[T]) -> type[T]:
    """Make a frozen class of settings some of whose fields are copied; `copy_of` fills it."""
    fields = {name: each for name, each in vars(cls).items() if isinstance(each, _Copy)}
    for name, each in fields.items():
        setattr(cls, name, each.value(each.source()))
    made = dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(cls)
    _COPIES[made] = fields
    return made


def copy_of(kind: type[T], source: object, **others: object) -> T:
    """An object of a class made by `copies`; `others` are the fields that are not copied."""
    return kind(**{name: each.value(source) for name, each in _COPIES[kind].items()}, **others)
