"""RESP in whole values: where each ends, and the words of a request."""

from __future__ import annotations


def frame_end(data: bytes | bytearray, start: int) -> int:
    """Where the RESP value at ``start`` ends; -1 if it is not all there."""
    line = data.find(b"\r\n", start)
    if line < 0:
        return -1
    kind, end = data[start : start + 1], line + 2
    if kind in b"+-:_,#(":
        return end
    number = int(data[start + 1 : line])
    if kind in b"$=!":
        end += number + 2 if number >= 0 else 0
        return end if end <= len(data) else -1
    assert kind in b"*~>%|", f"no RESP: {bytes(data[start : start + 40])!r}"
    for _ in range(number * (2 if kind in b"%|" else 1)):
        end = frame_end(data, end)
        if end < 0:
            return -1
    return frame_end(data, end) if kind == b"|" else end


def split(data: bytes) -> tuple[list[bytes], bytes]:
    """The whole RESP values in ``data``, and what is left."""
    frames, start = [], 0
    while start < len(data) and (end := frame_end(data, start)) >= 0:
        frames.append(data[start:end])
        start = end
    return frames, data[start:]


def words_of(request: bytes) -> tuple[bytes, ...]:
    """The words of a request."""
    words = []
    position = request.index(b"\r\n") + 2
    while position < len(request):
        line = request.index(b"\r\n", position)
        size = int(request[position + 1 : line])
        words.append(request[line + 2 : line + 2 + size])
        position = line + 2 + size + 2
    return tuple(words)
