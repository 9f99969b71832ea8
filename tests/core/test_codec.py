"""Stored values: what was written is read, and nothing else is ever anything but ``Undecodable``."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import math
import pickle
import uuid
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost import Refused
from fencepost._core.codec import Codec, Undecodable

CODECS: list[Codec[Any]] = [Codec(), Codec(format="json")]
IDS = ["msgpack", "json"]
each_codec = pytest.mark.parametrize("codec", CODECS, ids=IDS)

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=20,
)


@dataclass
class Point:
    x: int
    label: str = ""


@each_codec
@given(value=plain)
def test_what_was_written_is_read(codec: Codec[Any], value: Any) -> None:
    letter, packed = codec.encode(value)
    for reader in CODECS:  # a reader with other settings reads it too
        assert reader.decode(letter, packed) == value


@pytest.mark.parametrize("format", ["msgpack", "json"])
@pytest.mark.parametrize(
    ("type", "value"),
    [
        (Point, Point(3, "a")),
        (list[Point], [Point(1), Point(2)]),
        (set[int], {1, 2}),
        (datetime.datetime, datetime.datetime(2026, 3, 8, 2, 30, tzinfo=datetime.UTC)),
        (uuid.UUID, uuid.UUID(int=7)),
        (decimal.Decimal, decimal.Decimal("1.10")),
        (bytes, b"\x00\xff"),
        (dict[int, str], {1: "a"}),
    ],
)
def test_type_is_given_back(format: Any, type: Any, value: Any) -> None:
    codec: Codec[Any] = Codec(type, format=format)
    read = codec.decode(*codec.encode(value))
    assert read == value
    assert read.__class__ is value.__class__


def test_type_is_checked() -> None:
    letter, packed = Codec().encode({"x": "no number"})
    with pytest.raises(Undecodable, match="int"):
        Codec(Point).decode(letter, packed)


HOSTILE = [
    ("m", b""),
    ("j", b""),
    ("x", b"\x01"),
    ("", b"\x01"),
    ("mm", b"\x01"),
    ("M", b"not a frame"),
    ("m", b"\xc1"),
    ("m", b"\x01\x01"),
    ("m", b"\x91" * 100_000),
    ("j", b"[" * 100_000),
    ("j", b'{"a":' * 100_000),
    ("m", b"\xdd\xff\xff\xff\xff"),
    ("m", b"\xdf\xff\xff\xff\xff"),
    ("m", b"\xc6\xff\xff\xff\xff"),
    ("m", b"\x81\x81\x01\x01\x01"),
    ("m", b"\xc7\x0c\xff" + b"\xff" * 12),
    ("m", b"\xa3\xed\xa0\x80"),
    ("j", b'"\\ud800"'),
    ("j", b'"\xed\xa0\x80"'),
    ("j", b"1" * 5000),
    ("j", b"-" + b"9" * 5000),
    ("j", b"NaN"),
    ("j", b"Infinity"),
    ("j", b"{1:2}"),
]


@pytest.mark.parametrize(("letter", "packed"), HOSTILE)
@pytest.mark.parametrize("type", [Any, int, Point, list[int]])
def test_hostile_bytes_are_undecodable(type: Any, letter: str, packed: bytes) -> None:
    with pytest.raises(Undecodable):
        Codec(type).decode(letter, packed)


def test_hostile_bytes_make_the_bare_decoder_raise_other_errors() -> None:
    """The negative control: so many kinds of error would reach a caller."""
    kinds = set()
    for letter, packed in HOSTILE:
        decode: Any = {"m": msgspec.msgpack.decode, "j": msgspec.json.decode}.get(letter)
        if decode is not None:
            try:
                decode(packed)
            except Exception as error:
                kinds.add(type(error))
    assert len(kinds) >= 2
    assert RecursionError in kinds


@given(
    packed=st.binary(max_size=200),
    letter=st.sampled_from("mjMJxZ"),
    type=st.sampled_from([Any, Point]),
)
def test_random_bytes_are_a_value_or_undecodable(packed: bytes, letter: str, type: Any) -> None:
    with contextlib.suppress(Undecodable):
        Codec(type).decode(letter, packed)


@each_codec
@given(value=plain, data=st.data())
def test_mutated_bytes_are_a_value_or_undecodable(
    codec: Codec[Any], value: Any, data: st.DataObject
) -> None:
    letter, packed = codec.encode(value)
    changed = bytearray(packed)
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(st.integers(0, len(changed)))
        changed[where : where + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    with contextlib.suppress(Undecodable):
        codec.decode(letter, bytes(changed))


class Bomb:
    """Says so if it is ever unpickled."""

    exploded = False

    def __reduce__(self) -> Any:
        return (setattr, (Bomb, "exploded", True))


def test_pickle_is_never_executed() -> None:
    payload = pickle.dumps(Bomb())
    for letter in "mjMJp":
        with pytest.raises(Undecodable):
            Codec().decode(letter, payload)
    assert not Bomb.exploded
    pickle.loads(payload)  # the negative control
    assert Bomb.exploded


# -- at the door


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@each_codec
@pytest.mark.parametrize(
    "value", [object(), {object(): 1}, "\ud800", endless()], ids=lambda v: type(v).__name__
)
def test_value_that_can_not_be_stored_is_refused(codec: Codec[Any], value: Any) -> None:
    with pytest.raises(Refused, match="can't be stored"):
        codec.encode(value)


def test_integer_above_64_bits_is_refused_by_msgpack() -> None:
    with pytest.raises(Refused, match="can't be stored"):
        Codec().encode(2**70)


@pytest.mark.parametrize("value", [math.nan, [1, math.inf], {"a": {"b": (-math.inf,)}}])
def test_nan_is_kept_by_msgpack_and_refused_by_json(value: Any) -> None:
    assert repr(Codec().decode(*Codec().encode(value))) == repr(value).replace("(", "[").replace(
        ",)", "]"
    )
    with pytest.raises(Refused, match="NaN"):
        Codec(format="json").encode(value)
    assert Codec(format="json").encode([None, 1.5, "null"]) == ("j", b'[null,1.5,"null"]')


def test_value_above_the_bound_is_refused_and_not_read() -> None:
    small: Codec[Any] = Codec(max_bytes=100)
    assert small.encode(b"x" * 98)[1]
    with pytest.raises(Refused, match="larger than 100"):
        small.encode(b"x" * 99)
    letter, packed = Codec().encode(b"x" * 99)
    with pytest.raises(Undecodable, match="more than 100"):
        small.decode(letter, packed)


@pytest.mark.parametrize(
    "settings", [{"format": "pickle"}, {"format": "yaml"}, {"type": list[int] | tuple[int, ...]}]
)
def test_setting_that_can_not_work_is_refused(settings: Any) -> None:
    with pytest.raises(Refused):
        Codec(**settings)


# -- compressed


def test_compressed_values_are_read_by_everybody_and_small_ones_stay_plain() -> None:
    pytest.importorskip("zstandard")
    codec: Codec[Any] = Codec(zstd_above=100)
    letter, packed = codec.encode("x" * 10_000)
    assert letter == "M"
    assert len(packed) < 100
    assert Codec().decode(letter, packed) == "x" * 10_000
    assert codec.encode("x" * 10)[0] == "m"


def test_frame_that_says_it_is_huge_is_not_unpacked() -> None:
    zstandard = pytest.importorskip("zstandard")
    frame = zstandard.ZstdCompressor(write_content_size=True).compress(b"\x00" * 50_000_000)
    assert len(frame) < 5_000
    with pytest.raises(Undecodable, match="frame holds 50000000"):
        Codec(max_bytes=1_000_000).decode("M", frame)
    nameless = zstandard.ZstdCompressor(write_content_size=False).compress(b"\x00" * 100)
    with pytest.raises(Undecodable):
        Codec().decode("M", nameless)
