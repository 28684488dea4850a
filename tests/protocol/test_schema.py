import dataclasses
import inspect

import pytest

from odradek.protocol.messages.fetch import FetchRequest, FetchResponse
from odradek.protocol.messages.produce import ProduceRequest, ProduceResponse
from odradek.protocol.schema import (
    FieldKind,
    array,
    boolean,
    fields_of,
    has_records,
    int8,
    int32,
    nested,
    optional,
    string,
    struct,
    uuid,
)
from odradek.protocol.types import ZERO_UUID, Uuid


@struct
class Endpoint:
    """Something nested."""

    host: str = string()
    port: int = int32(default=9092)


@struct
class Sample:
    """A declaration with a field of each sort."""

    name: str = string(until=12, ignorable=True)
    nickname: str | None = string(nullable_since=2, default=None)
    topic_id: Uuid = uuid(since=13)
    is_internal: bool = boolean()
    replicas: list[int] = array(int32)
    names: list[str] | None = array(string, nullable_since=1, default=None)
    home: Endpoint = nested(Endpoint)
    leader: Endpoint | None = optional(Endpoint, since=10, tag=0)


@struct
class NamedEndpoint(Endpoint):
    """A struct with a base class."""

    name: str = string()


def test_the_fields_of_a_base_class_come_first() -> None:
    assert [field.name for field in fields_of(NamedEndpoint)] == ["host", "port", "name"]
    endpoint = NamedEndpoint(host="h", name="n")
    assert (endpoint.host, endpoint.port, endpoint.name) == ("h", 9092, "n")
    assert repr(endpoint) == "NamedEndpoint(host='h', port=9092, name='n')"
    assert endpoint != NamedEndpoint(host="other", name="n")
    assert dataclasses.replace(endpoint, port=1) == NamedEndpoint(host="h", port=1, name="n")


def test_every_field_has_its_default() -> None:
    sample = Sample()
    assert (sample.name, sample.nickname, sample.is_internal) == ("", None, False)
    assert (sample.topic_id, sample.replicas, sample.names) == (ZERO_UUID, [], None)
    assert (sample.home, sample.leader) == (Endpoint(host="", port=9092), None)


def test_lists_and_structs_are_not_shared_between_instances() -> None:
    one, other = Sample(), Sample()
    one.replicas.append(1)
    one.home.port = 1
    assert (other.replicas, other.home.port) == ([], 9092)


def test_values_that_are_given_are_kept_even_if_they_are_empty() -> None:
    replicas: list[int] = []
    assert Sample(replicas=replicas).replicas is replicas
    assert Sample(names=[]).names == []


def test_a_field_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="rack"):
        Endpoint(rack="a")  # type: ignore[call-arg]  # what is tested
    with pytest.raises(AttributeError):
        Endpoint().rack = "a"  # type: ignore[attr-defined]  # what is tested


def test_a_constructor_is_compiled_on_first_use_and_takes_keywords_only() -> None:
    @struct
    class Fresh:
        """A class without instances so far."""

        level: int = int8(default=3)

    assert Fresh(level=4).level == 4
    assert str(inspect.signature(Fresh)) == "(*, level=3)"
    with pytest.raises(TypeError):
        Fresh(4)  # type: ignore[call-arg]  # what is tested


def test_a_struct_without_fields_can_be_made() -> None:
    @struct
    class Empty:
        """A request without fields."""

    assert Empty() == Empty()


def test_structs_are_equal_if_all_their_fields_are() -> None:
    assert Sample(replicas=[1], home=Endpoint(host="a")) == Sample(
        replicas=[1], home=Endpoint(host="a")
    )
    assert Sample(replicas=[1]) != Sample(replicas=[2])
    assert Sample(leader=Endpoint()) != Sample()
    assert Endpoint() != object()
    with pytest.raises(TypeError, match="unhashable"):
        hash(Endpoint())


def test_a_struct_shows_its_fields() -> None:
    assert repr(Endpoint(host="a")) == "Endpoint(host='a', port=9092)"


def test_structs_are_dataclasses_to_those_who_ask() -> None:
    assert dataclasses.replace(Endpoint(host="a"), port=1) == Endpoint(host="a", port=1)
    assert Endpoint.__doc__ == "Something nested."


def test_the_declaration_is_kept_in_wire_order() -> None:
    fields = fields_of(Sample)
    assert [field.name for field in fields[:3]] == ["name", "nickname", "topic_id"]
    by_name = {field.name: field for field in fields}
    assert by_name["replicas"].element is FieldKind.INT32
    assert by_name["home"].element is Endpoint
    assert by_name["leader"].tag == 0


def test_versions_are_inclusive_at_both_ends() -> None:
    by_name = {field.name: field for field in fields_of(Sample)}
    assert [v for v in (0, 12, 13) if by_name["name"].is_in(v)] == [0, 12]
    assert [v for v in (12, 13, 14) if by_name["topic_id"].is_in(v)] == [13, 14]
    assert [by_name["nickname"].is_nullable(v) for v in (1, 2)] == [False, True]
    assert not by_name["home"].is_nullable(100)


def test_which_messages_carry_records() -> None:
    assert has_records(ProduceRequest)
    assert has_records(FetchResponse)
    assert not has_records(ProduceResponse)
    assert not has_records(FetchRequest)
