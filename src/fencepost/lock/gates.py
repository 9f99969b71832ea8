"""Gates: where a fence is worth something. The resource itself refuses who comes too late.

A holder may be paused between its check and its act for longer than its lease lasts. No lock can
prevent that; whoever is acted upon can: it remembers the greatest fence that it has seen, and compares
in the same atomic step that acts. For SQL see ``fencepost.sql``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from fencepost._core.fenced import Fenced, refusal
from fencepost._core.keys import gate_of
from fencepost._core.script import Call, Script, Word, load_script
from fencepost.errors import Refused, ServerError


def _set(reply: list[Any]) -> None:
    if reply[0] == b"REFUSED":
        raise refusal("the write", int(reply[1]))


FENCED_SET: Final = load_script(__package__, "fenced_set", _set)
_FENCED: Final = load_script(__package__, "fenced", lambda reply: reply)


def milliseconds(name: str, seconds: float | None) -> int:
    """Whole milliseconds; 0 for None.

    Raises:
        Refused: It is no positive number of seconds.
    """
    if seconds is None:
        return 0
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise Refused(f"{name} is in seconds, got {seconds!r}")
    if not 0.001 <= seconds <= 100 * 366 * 86_400:
        raise Refused(f"{name} is in seconds, 0.001 to a hundred years, got {seconds!r}")
    return int(seconds * 1000)


def fenced_set(
    key: str, value: Word, lease: Fenced, ttl: float | None, remember: float | None
) -> Call[None]:
    """The call of ``AsyncClient.fenced_set``."""
    remember_ms, ttl_ms = milliseconds("remember", remember), milliseconds("ttl", ttl)
    if 0 < remember_ms < ttl_ms:
        raise Refused("remember is at least ttl: a gate must not be forgotten before its value")
    return FENCED_SET((gate_of(key), key), (lease.fence, lease.token, remember_ms, value, ttl_ms))


class Gated:
    """A Lua script behind a gate; make it with ``client.fenced_script``.

    Args:
        text: Its text, with ``KEYS`` and ``ARGV`` as ever.

    Raises:
        Refused: It is empty, or opens with ``#!``.
    """

    def __init__(self, text: str) -> None:
        if not text.strip() or text.lstrip().startswith("#!"):
            raise Refused("a fenced script is Lua text without a '#!lua' line")
        self._script: Script[Any] = _FENCED.with_text(_FENCED.plain.replace("--BODY--", text))

    def call(
        self,
        lease: Fenced,
        keys: Sequence[str],
        args: Sequence[Word],
        gate: str | None,
        remember: float | None,
    ) -> Call[Any]:
        """The call of ``AsyncFencedScript.__call__``."""
        if gate is None:
            if not keys:
                raise Refused("a fenced script has a key, or a gate that is named")
            gate = gate_of(keys[0])
        return self._script(
            (gate, *keys), (lease.fence, lease.token, milliseconds("remember", remember), *args)
        )


def told(error: ServerError) -> Exception:
    """A refusal by a script's gate, or the error itself."""
    if error.code == "FENCED":
        return refusal("the script", int(str(error).split()[1]))
    return error


class AsyncFencedScript:
    """A script behind a gate, as ``AsyncClient.fenced_script`` makes it."""

    def __init__(self, client: Any, text: str) -> None:
        self._client = client
        self._script = Gated(text)

    async def run(
        self,
        lease: Fenced,
        keys: Sequence[str],
        args: Sequence[Word] = (),
        *,
        gate: str | None = None,
        remember: float | None = None,
    ) -> Any:
        """Run it, unless a newer holder has.

        Args:
            lease: Who acts.
            keys: As the script takes them.
            args: As the script takes them.
            gate: The key of the gate, in the keys' slot; None is that of the first key.
            remember: Seconds after which the gate may be forgotten; None keeps it.

        Returns:
            What the script answers.

        Raises:
            FenceRefused: A newer holder has been here; nothing was changed.
            OutcomeUnknown: The reply was lost; it ran once or not at all.
            ServerError: The script's own error.
        """
        call = self._script.call(lease, keys, args, gate, remember)
        try:
            return await self._client.port.run(call)
        except ServerError as error:
            raise told(error) from None


class FencedScript:
    """A script behind a gate, for threads; see ``AsyncFencedScript``."""

    def __init__(self, client: Any, text: str) -> None:
        self._client = client
        self._script = Gated(text)

    def run(
        self,
        lease: Fenced,
        keys: Sequence[str],
        args: Sequence[Word] = (),
        *,
        gate: str | None = None,
        remember: float | None = None,
    ) -> Any:
        call = self._script.call(lease, keys, args, gate, remember)
        try:
            return self._client._server.run(call)  # noqa: SLF001
        except ServerError as error:
            raise told(error) from None
