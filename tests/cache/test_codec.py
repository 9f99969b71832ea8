"""Values and entries to bytes and back; what is none of ours is never executed and never an error."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost._core.codec import Codec, Undecodable
from fencepost.cache.entry import Known, Unreadable, decode
from fencepost.errors import Refused
from support.cache import packed
from support.require import require

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(plain)
def test_a_value_comes_back(value: Any) -> None:
    codec: Codec[Any] = Codec()
    assert codec.decode(*codec.encode(value)) == value


@given(plain.filter(lambda value: value is not None), st.text(min_size=1))
def test_an_entry_comes_back(value: Any, key: str) -> None:
    raw = packed(value, key=key, revision=5, stamps={"g": "s"})
    stored = decode(raw, key, Codec())
    assert (stored.value, stored.header.key, stored.revision) == (value, key, 5)


@given(st.binary(max_size=200))
def test_bytes_of_anything_are_unreadable_and_no_error(raw: bytes) -> None:
    for data in (raw, b"F1" + raw):
        with pytest.raises(Unreadable):
            decode(data, "k", Codec())


def test_any_byte_of_an_entry_may_be_wrong() -> None:
    """Whatever is changed, it is read as another value of the right key, or not at all."""
    good = packed({"a": [1, "x"]}, key="k")
    for at, byte in itertools.product(range(len(good)), (0, 0x41, 0xC1, 0xFF)):
        bad = good[:at] + bytes([byte]) + good[at + 1 :]
        with contextlib.suppress(Unreadable):
            assert decode(bad, "k", Codec()).header.key == "k"


def test_what_is_known_of_an_entry_is_only_good_for_that_entry() -> None:
    codec: Codec[Any] = Codec()
    known: Known[Any] = Known(None)
    raw = packed("v", key="k", fresh_until=1_000_000, cost_ms=10)
    assert not raw.startswith(known.seen[0])
    known.learn(decode(raw, "k", codec), codec, 40.0)
    head, end, until_ms = known.seen
    assert (until_ms, raw[end:]) == (1_000_000 - 400, codec.encode("v")[1])
    assert raw.startswith(head)
    others: list[dict[str, Any]] = [
        {"key": "l"},
        {"token": "new"},
        {"revision": 1},
        {"fresh_until": 1_000_001},
        {"stamps": {"g": "s"}},
    ]
    for change in others:
        other = packed("v", **{"key": "k", "fresh_until": 1_000_000, "cost_ms": 10, **change})
        assert not other.startswith(head)


@pytest.mark.parametrize("value", [None, "tagged"])
def test_an_entry_with_more_to_decide_is_not_known(value: Any) -> None:
    codec: Codec[Any] = Codec()
    known: Known[Any] = Known(None)
    raw = packed(value, key="k", stamps={"g": "s"} if value else None)
    known.learn(decode(raw, "k", codec), codec, 40.0)
    assert not raw.startswith(known.seen[0])


def test_a_codec_reads_what_another_one_wrote() -> None:
    value = {"a": [1, 2.5, "x"]}
    assert Codec().decode(*Codec(format="json").encode(value)) == value
    assert Codec(format="json").decode(*Codec().encode(value)) == value
    with pytest.raises(Undecodable):
        Codec().decode("p", b"\x80\x04.")  # pickle has no letter


@pytest.mark.parametrize("bad", [object(), {1: {2: object()}}, 2**64, "\ud800", lambda: 1])
def test_what_can_not_be_stored_is_refused(bad: Any) -> None:
    with pytest.raises(Refused):
        Codec().encode(bad)


def test_a_value_has_a_greatest_size() -> None:
    codec: Codec[bytes] = Codec(bytes, max_bytes=100)
    with pytest.raises(Refused, match="larger than 100"):
        codec.encode(b"x" * 200)
    with pytest.raises(Undecodable, match="more than 100"):
        codec.decode(*Codec().encode(b"x" * 200))


@pytest.fixture
def zstd() -> Any:
    require("zstd", importlib.util.find_spec("zstandard") is not None)
    return importlib.import_module("zstandard")


def test_large_values_are_squeezed(zstd: Any) -> None:
    codec: Codec[str] = Codec(str, zstd_above=1_000)
    assert codec.encode("x" * 100)[0] == "m"
    letter, squeezed = codec.encode("x" * 100_000)
    assert letter == "M"
    assert len(squeezed) < 1_000
    assert codec.decode(letter, squeezed) == "x" * 100_000
    assert Codec(str).decode(letter, squeezed) == "x" * 100_000  # by who does not squeeze
    assert Codec(format="json", zstd_above=10).encode("x" * 1_000)[0] == "J"


def test_a_frame_is_asked_for_its_size_before_it_is_unpacked(zstd: Any) -> None:
    codec: Codec[Any] = Codec(max_bytes=10_000)
    bomb = zstd.ZstdCompressor().compress(b"\x00" * 50_000_000)
    assert len(bomb) < 10_000
    with pytest.raises(Undecodable, match="50000000 bytes"):
        codec.decode("M", bomb)
    nameless = zstd.ZstdCompressor(write_content_size=False).compress(b"\xc0")
    with pytest.raises(Undecodable):
        codec.decode("M", nameless)
    for broken in (b"", b"not a frame", bomb[:20]):
        with pytest.raises(Undecodable):
            codec.decode("M", broken)


def test_squeezing_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("fencepost._core.codec.importlib.import_module", missing)
    with pytest.raises(Refused, match=r"fencepost\[zstd\]"):
        Codec(zstd_above=1_000)
    with pytest.raises(Undecodable, match=r"fencepost\[zstd\]"):
        Codec().decode("M", b"x")
