"""The sandbox: a real script on a real server, in a state that it is put into, in one call.

One script restores the state, runs the call and reads back what it became (``sandbox.lua``). So a
step of an exploration is a pure function of (state, script, keys, arguments), and is asked of the
server once. In there ``TIME`` is the simulated clock, ``INFO`` the simulated identity, and a key
that was not declared is a finding: declared keys are what Cluster and reduction rest on.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import Any, Final

from fencepost._core.port import Port, run_sync
from fencepost._core.script import SERVER, Call, Contract, Script
from fencepost.testing.world import ServerState
from fencepost.wire.resp import error_of

_TEXT: Final = resources.files(__package__).joinpath("sandbox.lua").read_text(encoding="utf-8")
_COMMAND: Final = "return redis.call(unpack(ARGV))"
_NOTHING: Final = "return 1"


class UndeclaredKey(AssertionError):
    """A script touched a key that its caller did not declare."""


class Sandbox:
    """Runs calls in states.

    Args:
        port: A ``SyncPort`` to a server that may be emptied.
    """

    def __init__(self, port: Port) -> None:
        self._port = port
        self._wrapped: dict[str, Script[Any]] = {}
        self.calls = 0
        self.reading: Call[Any] = self._script(_DUMP_ONLY, raw=True)((), ())
        """The call that asks for the words of the server's state."""

    def run(self, state: ServerState, call: Call[Any]) -> tuple[Any, ServerState]:
        """Run one call.

        Args:
            state: Where.
            call: A script call or a command. ``only`` is for the caller to check.

        Returns:
            The raw reply (an exception if the server answered with an error), and the state after.

        Raises:
            UndeclaredKey: The script touched a key that is not in ``call.keys``.
        """
        self.calls += 1
        return self._answer(state, call, run_sync(self._port.run(self._question(state, call))))

    def run_all(
        self, asked: Sequence[tuple[ServerState, Call[Any]]]
    ) -> list[tuple[Any, ServerState]]:
        """The same for several calls, each in a state of its own, in one write."""
        self.calls += len(asked)
        replies = run_sync(self._port.all([self._question(*one) for one in asked]))
        return [self._answer(*one, reply) for one, reply in zip(asked, replies, strict=True)]

    def _question(self, state: ServerState, call: Call[Any]) -> Call[Any]:
        body = _COMMAND if call.script is None else call.script.plain
        arguments = [state.greeted if word is SERVER else word for word in call.args]
        # A command declares what it names: the server itself says which of its words are keys.
        keys = (
            [str(word) for word in call.args if word is not SERVER]
            if call.script is None
            else list(call.keys)
        )
        return self._call(body, state, keys, arguments)

    def _answer(self, state: ServerState, call: Call[Any], reply: Any) -> tuple[Any, ServerState]:
        ok, undeclared, words, *rest = reply
        if undeclared:
            raise UndeclaredKey(
                f"{call.verb} used {undeclared.decode()}, which it did not declare: {call}"
            )
        answer = rest[0] if rest else None
        if not ok:
            answer = error_of(bytes(rest[0]).decode())
        return answer, state._replace(words=tuple(words))

    def put(self, state: ServerState) -> None:
        """Make the server hold a state, for steps that run outside the sandbox."""
        self.calls += 1
        run_sync(self._port.run(self.putting(state)))

    def read(self, state: ServerState) -> ServerState:
        """What the server holds now; clock and identity are those of ``state``."""
        self.calls += 1
        return state._replace(words=tuple(run_sync(self._port.run(self.reading))))

    def putting(self, state: ServerState) -> Call[Any]:
        """The call that makes the server hold a state."""
        return self._call(_NOTHING, state, [], [])

    def _call(
        self, body: str, state: ServerState, keys: list[str], arguments: list[Any]
    ) -> Call[Any]:
        run_id, _, replication = state.identity.partition(":")
        head = (state.clock_ms, run_id, replication, state.policy, len(state.words))
        words = (*head, *state.words, len(keys), *keys, *arguments)
        return self._script(body)((), words)

    def _script(self, body: str, raw: bool = False) -> Script[Any]:
        script = self._wrapped.get(body)
        if script is None:
            text = body if raw else _TEXT.replace("--BODY--", body)
            contract = Contract(
                "sandbox", "", (), ("word…",), (), resend="harmless, it begins with a state"
            )
            script = self._wrapped[body] = Script(contract, text, _same)
        return script


def _same(reply: Any) -> Any:
    return reply


# The last part of the sandbox alone.
_DUMP_ONLY: Final = _TEXT[_TEXT.index("local state = {}") :].replace(
    "return {ok and 1 or 0, undeclared, state, reply}", "return state"
)
