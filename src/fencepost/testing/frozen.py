"""What a suspended protocol is: where it stands and what it knows, as something hashable.

Two suspended coroutines whose positions and values are equal will do the same for the same replies,
so an exploration needs to follow only one of them. The values are taken from the frame itself
(locals *and* whatever waits on its stack, such as the iterator of a ``for``), through the garbage
collector's own view of it. Where a value can't be read (an object with identity of its own) it
counts as different from all others: then less is merged, and nothing is merged wrongly.
"""

from __future__ import annotations

import dataclasses
import enum
import gc
from collections.abc import Hashable
from types import (
    BuiltinMethodType,
    CellType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
)
from typing import Any, Final, cast

from fencepost._core.script import Call
from fencepost.testing.simulated import Step

_PLAIN: Final = frozenset((int, str, bytes, type(None), CodeType, ModuleType))


class Freezer:
    """Turns values into hashable ones; keeps alive what it tells apart by identity."""

    def __init__(self) -> None:
        self._kept: dict[int, Any] = {}

    def __call__(self, value: Any) -> Hashable:
        """What ``value`` is, by content where it has content."""
        return self._freeze(value, ())

    def _freeze(self, value: Any, above: tuple[int, ...]) -> Hashable:
        kind = type(value)
        if kind in _PLAIN:
            return cast("Hashable", value)
        if kind is bool or kind is float:
            return (kind, value)
        if isinstance(value, (type, enum.Enum)):
            return cast("Hashable", value)
        if kind is FunctionType and value.__closure__ is None and value.__defaults__ is None:
            return cast("Hashable", value.__code__)
        if id(value) in above:
            return ("above", above.index(id(value)))
        inside = (*above, id(value))
        if isinstance(value, (CoroutineType, GeneratorType)):
            return self._suspended(value, inside)
        if isinstance(value, (tuple, list)):
            return (type(value), *(self._freeze(one, inside) for one in value))
        if isinstance(value, dict):
            return (
                dict,
                *((self._freeze(k, inside), self._freeze(v, inside)) for k, v in value.items()),
            )
        if isinstance(value, (set, frozenset)):
            return (type(value), frozenset(self._freeze(one, inside) for one in value))
        if isinstance(value, Call):
            parts = (value.verb, value.args, value.keys, value.script, value.parse, value.only)
            return (Call, *(self._freeze(one, inside) for one in parts))
        if isinstance(value, Step):  # its calls are equal by what they say, not by who they are
            what = (value.kind, value.label, value.calls, value.fn, value.args)
            return (Step, *(self._freeze(one, inside) for one in what))
        if isinstance(value, FunctionType):
            held = (value.__closure__, value.__defaults__, value.__kwdefaults__)
            return (value.__code__, *(self._freeze(one, inside) for one in held))
        if isinstance(value, MethodType):
            return (value.__func__, self._freeze(value.__self__, inside))
        if isinstance(value, BuiltinMethodType):
            return (value.__name__, self._freeze(value.__self__, inside))
        if isinstance(value, CellType):
            return ("cell", *(self._freeze(one, inside) for one in gc.get_referents(value)))
        if isinstance(value, BaseException):
            return (type(value), self._freeze(value.args, inside))
        if dataclasses.is_dataclass(value) and type(value).__eq__ is not object.__eq__:
            if type(value).__hash__ is not None:
                try:  # frozen, all of it: it is its own key
                    hash(value)
                    return cast("Hashable", value)
                except TypeError:
                    pass
            names = [one.name for one in dataclasses.fields(value)]
            return (
                type(value),
                *(self._freeze(getattr(value, name, None), inside) for name in names),
            )
        if type(value).__module__ == "builtins" and hasattr(value, "__next__"):
            return self._iterator(value, inside)
        self._kept[id(value)] = value
        return ("identity", id(value))

    def _suspended(self, value: Any, inside: tuple[int, ...]) -> Hashable:
        frame = value.cr_frame if isinstance(value, CoroutineType) else value.gi_frame
        if frame is None:
            return ("ended", value.__qualname__)
        code, at = frame.f_code, frame.f_lasti
        del frame
        held = [one for one in gc.get_referents(value) if not isinstance(one, FrameType)]
        return (code, at, *(self._freeze(one, inside) for one in held))

    def _iterator(self, value: Any, inside: tuple[int, ...]) -> Hashable:
        try:
            parts = value.__reduce__()
        except TypeError:
            self._kept[id(value)] = value
            return ("identity", id(value))
        return (type(value), self._freeze(parts[1:], inside))
