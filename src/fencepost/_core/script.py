"""Scripts: one verb a ``.lua`` file, whose head is a contract that this module reads.

    -- acquire: take the lock if it is free, and draw the next fence.
    -- KEYS   lock {ns:lock:name}, fence {ns:lock:name}:f
    -- ARGV   owner, attempt, ttl_ms
    -- needs: opened
    -- flags: allow-oom
    -- resend: harmless, the same attempt is the same request
    -- ->     fence   taken: greater than every fence drawn before
    -- ->     nil     held by somebody else

``KEYS`` and ``ARGV`` name what the caller must give, in order; a last name that ends in ``…`` may
repeat. ``needs`` splices snippets (``_whole.lua`` beside the script: Lua has no include).
``flags`` become a ``#!lua`` line on servers that know it (Redis 7, Valkey 7.2). ``resend`` says
that sending the same call twice is harmless, and why; without it a lost reply is reported, never
repeated. ``->`` lines list each reply.

Args that are ``SERVER`` are replaced by the identity of the server behind the connection that
really sends the call, so that no call carries the identity of a server that was there before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Final, Generic, TypeVar

from fencepost._core.port import OtherServer

T = TypeVar("T")
Word = str | bytes | int | float


class _Server:
    """The type of ``SERVER``."""

    def __repr__(self) -> str:
        return "SERVER"


SERVER: Final = _Server()
"""Stands in a call's arguments for the identity of the server that the call is sent to."""


@dataclass(frozen=True, slots=True)
class Contract:
    """The head of a script, read: what it does, what it takes, what it answers."""

    verb: str
    says: str
    keys: tuple[str, ...]
    argv: tuple[str, ...]
    replies: tuple[str, ...]
    needs: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    resend: str = ""


def read_contract(text: str) -> Contract:
    """Read the comment head of a ``.lua`` file.

    Args:
        text: The whole file.

    Returns:
        Its contract.

    Raises:
        ValueError: The head lacks its first sentence, or has a line of no known kind.
    """
    fields: dict[str, list[str]] = {}
    current = ""
    for line in text.splitlines():
        if not line.startswith("--"):
            break
        body = line[2:].strip()
        word, _, rest = body.partition(" ")
        if word in ("KEYS", "ARGV", "->", "needs:", "flags:", "resend:"):
            current = word
            fields.setdefault(current, []).append(rest.strip())
        elif not current:
            verb, colon, rest = body.partition(":")
            if not colon:
                raise ValueError(f"a script opens with '-- verb: what it does', not {line!r}")
            current = "says"
            fields.update({"verb": [verb], "says": [rest.strip()]})
        else:
            fields[current][-1] += " " + body
    if "verb" not in fields:
        raise ValueError("a script opens with '-- verb: what it does'")

    def names(word: str) -> tuple[str, ...]:
        joined = " ".join(fields.get(word, []))
        return tuple(name.strip() for name in joined.split(",") if name.strip())

    return Contract(
        verb=fields["verb"][0],
        says=" ".join(fields["says"]),
        keys=names("KEYS"),
        argv=names("ARGV"),
        replies=tuple(fields.get("->", ())),
        needs=names("needs:"),
        flags=names("flags:"),
        resend=" ".join(fields.get("resend:", ())),
    )


class Call(Generic[T]):
    """One request to one server, and how its reply is read.

    A command has its words in ``args`` and no ``script``; a script call has ``keys`` and ``args``.
    ``only`` names the server identity that the call is meant for: a connection to anybody else
    refuses it unsent (``OtherServer``), so what was learned of one server is never used on another.
    Never changed after birth (a plain class all the same: a frozen dataclass costs 1.5 µs more to
    make, and one is made a call), but for ``packed``: how a command that is kept and sent again and
    again looks on the wire, which is the same on every connection.
    """

    __slots__ = ("args", "keys", "only", "packed", "parse", "resend", "script", "stamped", "verb")

    def __init__(
        self,
        verb: str,
        args: tuple[Any, ...],
        parse: Callable[[Any], T],
        keys: tuple[str, ...] = (),
        script: Script[Any] | None = None,
        resend: bool = False,
        stamped: bool = False,
        only: str = "",
    ) -> None:
        self.verb = verb
        self.args = args
        self.parse = parse
        self.keys = keys
        self.script = script
        self.resend = resend
        self.stamped = stamped
        self.only = only
        self.packed = b""

    def words(
        self, identity: str = "", flagged: bool = True, whole: bool = False
    ) -> tuple[Any, ...]:
        """The command as it goes over the wire.

        Args:
            identity: What ``SERVER`` stands for on this connection.
            flagged: Whether this server knows script flags (``#!lua``).
            whole: Send the script's text (EVAL) instead of its digest.

        Raises:
            OtherServer: The call is meant ``only`` for another server.
        """
        if self.only and self.only != identity:
            raise OtherServer("the server changed since this was decided. Nothing was sent")
        script = self.script
        if script is None:
            return self.args
        args = self.args
        if self.stamped and SERVER in args:
            args = tuple([identity if arg is SERVER else arg for arg in args])
        if whole:
            head, body = "EVAL", script.flagged if flagged else script.plain
        else:
            head, body = "EVALSHA", script.flagged_sha if flagged else script.plain_sha
        return (head, body, len(self.keys), *self.keys, *args)

    def __str__(self) -> str:
        return f"{self.verb}({', '.join(map(str, (*self.keys, *self.args)))})"


def _sha(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class Script(Generic[T]):
    """A script with its contract and a typed way to read its reply.

    Args:
        contract: What its head says.
        plain: The Lua text, snippets spliced in.
        parse: Turns the server's reply into a value; called once a reply.
    """

    contract: Contract
    plain: str
    parse: Callable[[Any], T]
    flagged: str = field(init=False)
    plain_sha: str = field(init=False)
    flagged_sha: str = field(init=False)
    _counts: tuple[int, bool, int, bool, bool, bool, str] = field(init=False)

    def __post_init__(self) -> None:
        flags = self.contract.flags
        flagged = f"#!lua flags={','.join(flags)}\n{self.plain}" if flags else self.plain
        keys, argv = self.contract.keys, self.contract.argv
        more_keys = bool(keys) and keys[-1].endswith("…")
        more_argv = bool(argv) and argv[-1].endswith("…")
        counts = (len(keys) - more_keys, more_keys, len(argv) - more_argv, more_argv)
        tells = (bool(self.contract.resend), self.contract.verb)
        object.__setattr__(self, "flagged", flagged)
        object.__setattr__(self, "plain_sha", _sha(self.plain))
        object.__setattr__(self, "flagged_sha", _sha(flagged))
        object.__setattr__(self, "_counts", (*counts, "server" in argv, *tells))

    def __call__(
        self, keys: Sequence[str], args: Sequence[Word | _Server] = (), only: str = ""
    ) -> Call[T]:
        """Make a call of this script; ``only`` is the server it is meant for.

        Raises:
            TypeError: The numbers of keys or arguments are not the contract's.
        """
        key_count, more_keys, arg_count, more_args, stamped, resend, verb = self._counts
        if len(keys) != key_count and not (more_keys and len(keys) > key_count):
            raise TypeError(f"{self.contract.verb} takes keys {self.contract.keys}, got {keys}")
        if len(args) != arg_count and not (more_args and len(args) > arg_count):
            raise TypeError(f"{self.contract.verb} takes {self.contract.argv}, got {args}")
        return Call(verb, tuple(args), self.parse, tuple(keys), self, resend, stamped, only)

    def with_text(self, plain: str) -> Script[T]:
        """The same script with another Lua text: what tests use to take a guard out."""
        return Script(self.contract, plain, self.parse)


@cache
def _text(package: str, file: str) -> str:
    return resources.files(package).joinpath(file).read_text(encoding="utf-8")


def _snippet(name: str, packages: Sequence[str]) -> str:
    for package in packages:
        if resources.files(package).joinpath(f"_{name}.lua").is_file():
            return _text(package, f"_{name}.lua")
    raise FileNotFoundError(f"there is no _{name}.lua in {', '.join(packages)}")


def load_script(
    package: str, verb: str, parse: Callable[[Any], T], snippets: str = ""
) -> Script[T]:
    """Load ``verb.lua`` of a package, its snippets spliced in behind its head.

    Args:
        package: The package that holds the file, as in ``__package__``.
        verb: The file's name without ``.lua``; its contract must use the same verb.
        parse: Turns the reply into a value.
        snippets: A package whose snippets it may need, beside its own.

    Raises:
        ValueError: The contract is missing or names another verb.
    """
    text = _text(package, f"{verb}.lua")
    contract = read_contract(text)
    if contract.verb != verb:
        raise ValueError(f"{verb}.lua opens with the verb {contract.verb!r}")
    packages = (package, snippets) if snippets else (package,)
    needed = [_snippet(name, packages) for name in contract.needs]
    lines = text.splitlines(keepends=True)
    head = next(i for i, line in enumerate(lines) if not line.startswith("--"))
    plain = "".join([*lines[:head], *needed, *lines[head:]])
    return Script(contract, plain, parse)
