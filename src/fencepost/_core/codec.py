"""Values to bytes and back: msgpack or JSON, typed if a type is given, never pickle.

A codec names what it wrote in one letter, so that a reader with other settings still reads it:
``m`` msgpack, ``j`` JSON, and ``M``, ``J`` the same in a zstd frame. A frame says how large its
content is; that is looked at before anything is unpacked, so a few bytes can't become gigabytes.
"""

from __future__ import annotations

import importlib
import math
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from fencepost.errors import Refused

T = TypeVar("T")
Format = Literal["msgpack", "json"]

MAX_BYTES: Final = 64 * 1024 * 1024
"""A value is no longer, packed or not."""


class Undecodable(Exception):
    """These bytes are no value of this codec."""


class Codec(Generic[T]):
    """How values of one type are stored.

    Args:
        type: What values are: a type that msgspec knows (builtins, dataclasses, attrs, Structs,
            TypedDicts, datetimes, UUIDs, Decimals …). What is read is checked against it.
        format: ``msgpack`` or ``json``.
        zstd_above: Bytes above which a value is compressed; None never does. Needs ``zstandard``.
        max_bytes: The most that a value may be, unpacked.

    Raises:
        Refused: A setting that can't work.
    """

    __slots__ = (
        "_decoders",
        "_encode",
        "_letter",
        "_zstd",
        "_zstd_above",
        "decode_plain",
        "max_bytes",
        "plain",
    )

    def __init__(
        self,
        type: Any = Any,
        *,
        format: Format = "msgpack",
        zstd_above: int | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        if format not in ("msgpack", "json"):
            raise Refused(f"format is msgpack or json, got {format!r}")
        try:
            decoders = {
                "m": msgspec.msgpack.Decoder(type).decode,
                "j": msgspec.json.Decoder(type).decode,
            }
        except TypeError as error:
            raise Refused(f"values of type {type!r} can't be stored: {error}") from None
        self._decoders = decoders
        self._letter = "m" if format == "msgpack" else "j"
        self._encode = (msgspec.msgpack if format == "msgpack" else msgspec.json).Encoder().encode
        self._zstd_above = zstd_above
        self._zstd: Any = _zstandard() if zstd_above is not None else None
        self.max_bytes = max_bytes
        # What most values take: no step between a reader and the decoder.
        self.plain = self._letter
        self.decode_plain = decoders[self._letter]

    def encode(self, value: T) -> tuple[str, bytes]:
        """The letter and the bytes of a value.

        Raises:
            Refused: It can't be stored, or is larger than ``max_bytes``.
        """
        try:
            packed = self._encode(value)
        except (
            TypeError,
            ValueError,
            OverflowError,
            RecursionError,
            msgspec.MsgspecError,
        ) as error:
            raise Refused(f"a {type(value).__name__} can't be stored: {error}") from error
        if self._letter == "j" and b"null" in packed and _not_finite(msgspec.to_builtins(value)):
            raise Refused("JSON has no NaN and no infinity, it would be read as None: use msgpack")
        if len(packed) > self.max_bytes:
            raise Refused(f"a value of {len(packed)} bytes is larger than {self.max_bytes}")
        if self._zstd_above is not None and len(packed) > self._zstd_above:
            squeezed = self._zstd.ZstdCompressor(write_content_size=True).compress(packed)
            if len(squeezed) < len(packed):
                return self._letter.upper(), squeezed
        return self._letter, packed

    def decode(self, letter: str, packed: bytes) -> T:
        """The value of such bytes.

        Raises:
            Undecodable: They are none, or of another type, or too large.
        """
        if letter == self.plain:  # nearly all
            decode = self.decode_plain
        else:
            known = self._decoders.get(letter.lower())
            if known is None:
                raise Undecodable(f"unknown format {letter!r}")
            decode = known
            if letter.isupper():
                packed = self._unpack(packed)
        if len(packed) > self.max_bytes:
            raise Undecodable(f"{len(packed)} bytes are more than {self.max_bytes}")
        try:
            value: T = decode(packed)
        except (ValueError, TypeError, RecursionError, msgspec.MsgspecError) as error:
            raise Undecodable(str(error)) from error
        return value

    def _unpack(self, packed: bytes) -> bytes:
        try:
            zstd = self._zstd = self._zstd or _zstandard()
        except Refused as error:
            raise Undecodable(f"it is compressed: {error}") from None
        try:
            size = zstd.get_frame_parameters(packed).content_size
            if size > self.max_bytes:  # an unknown size is the largest number
                raise Undecodable(f"its frame holds {size} bytes, more than {self.max_bytes}")
            unpacked: bytes = zstd.ZstdDecompressor().decompress(packed, max_output_size=size)
        except zstd.ZstdError as error:
            raise Undecodable(str(error)) from error
        return unpacked


def _not_finite(value: Any) -> bool:
    """Whether a NaN or an infinity is in it."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_not_finite, value.values()))
    return isinstance(value, list | tuple) and any(map(_not_finite, value))


def _zstandard() -> Any:
    try:
        return importlib.import_module("zstandard")
    except ImportError:
        raise Refused("zstd_above needs zstandard: install fencepost[zstd]") from None
