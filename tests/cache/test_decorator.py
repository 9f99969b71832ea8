"""Keys from arguments: equal keys mean equal arguments. And functions that are cached by them."""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.cache.decorator import key_maker, part
from fencepost.errors import Refused
from support.cachefaces import CacheFace
from support.faces import every_face

Make = Callable[..., CacheFace]


class Colour(enum.Enum):
    RED = "red"


class Shade(enum.StrEnum):
    RED = "red"


DIFFERENT = [
    *(1, "1", True, "True", None, "None", "", "!None", 1.5, "1.5", -1, "-1", b"1", "b", "'1"),
    *((), ("",), ("", ""), [], [()], ((),), (1, 2), ("1", "2"), ("1,2",), "(1,2)", [1, 2]),
    *(frozenset({1, 2}), {"a": 1}, {"a": "1"}, {"a=1": ""}, {}, Colour.RED, Shade.RED, "red"),
    *(datetime.date(2026, 1, 2), "2026-01-02", datetime.datetime(2026, 1, 2)),
    *(
        uuid.UUID(int=1),
        str(uuid.UUID(int=1)),
        decimal.Decimal(1),
        "a b",
        "a%20.b",
        "a:b",
        "ü",
        "~1",
    ),
]


def test_different_values_are_different_parts() -> None:
    parts = [part(value) for value in DIFFERENT]
    assert len(set(parts)) == len(parts), sorted(parts)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary(),
    lambda inner: st.lists(inner).map(tuple) | st.lists(inner),
)


def typed(value: Any) -> Any:
    """A value whose equality tells 1 from True."""
    if isinstance(value, list | tuple):
        return (type(value), *map(typed, value))
    return (type(value), value)


@given(values, values)
def test_equal_parts_mean_equal_values(one: Any, other: Any) -> None:
    assert (part(one) == part(other)) == (typed(one) == typed(other))


@given(st.tuples(values, values), st.tuples(values, values))
def test_equal_keys_of_two_fields_mean_equal_arguments(one: Any, other: Any) -> None:
    make = key_maker(lambda a, b: None, "x:{a}:{b}")
    assert (make(*one) == make(*other)) == (typed(one) == typed(other))


class Bare:
    def get(self, x: int) -> int:
        return x


class Keyed:
    def __init__(self, name: str) -> None:
        self.name = name

    def __cache_key__(self) -> str:
        return self.name

    def get(self, x: int) -> int:
        return x


@pytest.mark.parametrize("value", [object(), Bare(), Bare, lambda: 1, iter([]), (object(),)])
def test_what_nothing_tells_apart_is_refused(value: Any) -> None:
    with pytest.raises(Refused, match="can't be part of a key"):
        part(value)


def test_the_signature_is_bound() -> None:
    def fn(x: int, y: int = 2, *rest: int, z: int = 3, **more: int) -> None: ...

    make = key_maker(fn, None)
    assert make(1) == make(x=1) == make(1, 2) == make(1, y=2, z=3)
    keys = {make(1), make(2), make(1, 3), make(1, 2, 3), make(1, z=4), make(1, w=1), make(1, v=1)}
    assert len(keys) == 7
    assert make(1, a=1, b=2) == make(1, b=2, a=1)
    with pytest.raises(TypeError):
        make()


def test_functions_of_one_name_have_keys_of_their_own() -> None:
    """Two classes, the same method name, one key: wrong data."""

    class Alpha(Keyed):
        def get(self, x: int) -> int:
            return x

    class Beta(Keyed):
        def get(self, x: int) -> int:
            return x

    one, other = key_maker(Alpha.get, None), key_maker(Beta.get, None)
    assert one(Alpha("n"), 1) != other(Beta("n"), 1)
    assert one(Alpha("n"), 1) != one(Alpha("m"), 1)
    assert one(Alpha("n"), 1) == one(Alpha("n"), 1)
    with pytest.raises(Refused, match="can't be part"):
        key_maker(Bare.get, None)(Bare(), 1)


def test_templates() -> None:
    def fn(product_id: Any, lang: str = "en") -> None: ...

    assert key_maker(fn, "{product_id}:{lang}")(42) == "42:en"
    assert key_maker(fn, "{product_id}")(42, "de") == "42"
    assert key_maker(fn, "{product_id}")("42") == "'42"
    assert key_maker(fn, "p/{product_id}")("tea") == "p/tea"
    assert key_maker(fn, lambda product_id, lang="en": "mine")(1) == "mine"


@pytest.mark.parametrize(
    "template", ["", "all", "{x}", "{product_id!r}", "{product_id:d}", "{product_id}{lang}", "{}"]
)
def test_templates_that_could_mix_up_calls_are_refused(template: str) -> None:
    def fn(product_id: int, lang: str) -> None: ...

    with pytest.raises(Refused):
        key_maker(fn, template)


@every_face
async def test_a_decorated_function(make: Make, kind: str) -> None:
    face = make()
    calls: list[Any] = []

    if kind == "async":

        @face.cached("{product_id}", tags=lambda product_id: [f"shop:{product_id % 10}"])
        async def product(product_id: int) -> dict[str, int]:
            """A product."""
            calls.append(product_id)
            return {"id": product_id, "n": len(calls)}

        call = product
    else:

        @face.cached("{product_id}", tags=lambda product_id: [f"shop:{product_id % 10}"])
        def plain(product_id: int) -> dict[str, int]:
            """A product."""
            calls.append(product_id)
            return {"id": product_id, "n": len(calls)}

        async def call(*args: Any) -> Any:
            return plain(*args)

        product = plain

    async def run(method: Any, *args: Any) -> Any:
        answer = method(*args)
        return await answer if kind == "async" else answer

    assert product.__doc__ == "A product."
    assert product.key(42) == "42"
    assert await call(42) == await call(42) == {"id": 42, "n": 1}
    assert await call(41) == {"id": 41, "n": 2}
    await run(product.invalidate, 42)
    assert await call(42) == {"id": 42, "n": 3}
    await face.invalidate_tags("shop:2")
    assert await call(42) == {"id": 42, "n": 4}
    assert await call(41) == {"id": 41, "n": 2}
    assert (await run(product.refresh, 42)).value == {"id": 42, "n": 5}
    assert await call(42) == {"id": 42, "n": 5}
    assert (await face.peek(product.key(42))).tags == ("shop:2",)
    assert await run(product.uncached, 42) == {"id": 42, "n": 6}


@every_face
async def test_a_decorator_takes_functions_of_its_own_kind(make: Make, kind: str) -> None:
    async def coroutine() -> None: ...
    def plain() -> None: ...

    with pytest.raises(Refused):
        make().cached()(plain if kind == "async" else coroutine)


@every_face
async def test_a_decorated_method(make: Make, kind: str) -> None:
    face = make()

    if kind == "async":

        class Shop(Keyed):
            @face.cached()
            async def price(self, x: int) -> str:
                return f"{self.name}{x}"
    else:

        class Shop(Keyed):  # type: ignore[no-redef]
            @face.cached()
            def price(self, x: int) -> str:
                return f"{self.name}{x}"

    async def price(name: str, x: int) -> Any:
        answer: Any = Shop(name).price(x)
        return await answer if kind == "async" else answer

    assert await price("a", 1) == "a1"
    assert await price("b", 1) == "b1"
    assert await price("a", 1) == "a1"
    assert face.count["loads"] == 2
