"""Scripts: contracts are read, counts are checked, snippets are spliced, flags are per server."""

from __future__ import annotations

import hashlib
import sys
from typing import TYPE_CHECKING

import pytest

from fencepost._core import script as scripts
from fencepost._core.port import OtherServer
from fencepost._core.script import SERVER, Call, Script, load_script, read_contract

if TYPE_CHECKING:
    from pathlib import Path

ACQUIRE = """\
-- acquire: take the lock if it is free, and draw
--          the next fence.
-- KEYS   lock {ns:lock:name},
--        fence {ns:lock:name}:f
-- ARGV   owner, server, ttl_ms
-- needs: opened, now
-- flags: allow-oom, no-writes
-- resend: harmless, the same attempt is the same request
-- ->     fence   taken: greater than every fence drawn before
-- ->     nil     held by somebody else
local lock, fence = KEYS[1], KEYS[2]
return 1
"""


def make(text: str) -> Script[object]:
    return Script(read_contract(text), text, lambda reply: reply)


def test_contract_is_read() -> None:
    contract = read_contract(ACQUIRE)
    assert contract.verb == "acquire"
    assert contract.says == "take the lock if it is free, and draw the next fence."
    assert contract.keys == ("lock {ns:lock:name}", "fence {ns:lock:name}:f")
    assert contract.argv == ("owner", "server", "ttl_ms")
    assert contract.needs == ("opened", "now")
    assert contract.flags == ("allow-oom", "no-writes")
    assert contract.resend == "harmless, the same attempt is the same request"
    assert contract.replies == (
        "fence   taken: greater than every fence drawn before",
        "nil     held by somebody else",
    )


@pytest.mark.parametrize("text", ["", "return 1", "-- no verb\nreturn 1", "--\n", "\n-- a: b\n"])
def test_script_without_a_first_sentence_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="opens with"):
        read_contract(text)


def test_counts_that_are_not_the_contracts_are_refused() -> None:
    acquire = make(ACQUIRE)
    acquire(["l", "f"], ["o", SERVER, 1])
    for keys, args in ((["l"], ["o", SERVER, 1]), (["l", "f"], ["o", SERVER]), ([], [])):
        with pytest.raises(TypeError, match="acquire takes"):
            acquire(keys, args)
    with pytest.raises(TypeError):
        acquire(["l", "f", "x"], ["o", SERVER, 1])


def test_last_name_may_repeat_or_be_absent() -> None:
    many = make("-- many: of them.\n-- KEYS   first, rest…\n-- ARGV   word…\nreturn 1\n")
    assert many(["a", "b", "c"], ["x", "y"]).keys == ("a", "b", "c")
    assert many(["a"]).keys == ("a",)
    with pytest.raises(TypeError):
        many([])


def test_words_are_the_digest_or_the_text_with_flags_where_they_are_known() -> None:
    call = make(ACQUIRE)(["l", "f"], ["o", SERVER, 7])
    flagged = "#!lua flags=allow-oom,no-writes\n" + ACQUIRE

    def sha(text: str) -> str:
        return hashlib.sha1(text.encode()).hexdigest()

    tail = (2, "l", "f", "o", "me", 7)
    assert call.words("me") == ("EVALSHA", sha(flagged), *tail)
    assert call.words("me", flagged=False) == ("EVALSHA", sha(ACQUIRE), *tail)
    assert call.words("me", whole=True) == ("EVAL", flagged, *tail)
    assert call.words("me", flagged=False, whole=True) == ("EVAL", ACQUIRE, *tail)
    assert call.args == ("o", SERVER, 7)  # stamped when it is sent, never before
    assert call.resend


def test_script_without_flags_is_one_text() -> None:
    plain = make("-- one: text.\nreturn 1\n")
    assert plain.flagged == plain.plain
    assert plain([]).words(flagged=True) == plain([]).words(flagged=False)
    assert not plain([]).resend


def test_call_for_one_server_refuses_another() -> None:
    call = make("-- one: text.\nreturn 1\n")([], only="here")
    assert call.words("here")
    with pytest.raises(OtherServer):
        call.words("there")
    command = Call("get", ("GET", "k"), bytes, only="here")
    assert command.words("here") == ("GET", "k")
    with pytest.raises(OtherServer):
        command.words("there")


def test_other_text_keeps_the_contract() -> None:
    acquire = make(ACQUIRE)
    other = acquire.with_text("return 2")
    assert other.contract is acquire.contract
    assert other.plain_sha != acquire.plain_sha


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    home = tmp_path / "some_scripts"
    home.mkdir()
    (home / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    scripts._text.cache_clear()
    (home / "add.lua").write_text(
        "-- add: one.\n-- needs: now, help\nlocal key = KEYS\nreturn now()\n"
    )
    (home / "_now.lua").write_text("local function now() return 1 end\n")
    (home / "_help.lua").write_text("local function help() end\n")
    (home / "wrong.lua").write_text("-- right: it says.\nreturn 1\n")
    (home / "needy.lua").write_text(
        "-- needy: of what is not there.\n-- needs: nothing\nreturn 1\n"
    )
    yield "some_scripts"  # type: ignore[misc]
    sys.modules.pop("some_scripts", None)


def test_snippets_are_spliced_behind_the_head_in_order(package: str) -> None:
    add = load_script(package, "add", lambda reply: reply)
    assert add.plain == (
        "-- add: one.\n-- needs: now, help\n"
        "local function now() return 1 end\nlocal function help() end\n"
        "local key = KEYS\nreturn now()\n"
    )


def test_file_that_is_not_what_it_says_is_refused(package: str) -> None:
    with pytest.raises(ValueError, match="opens with the verb 'right'"):
        load_script(package, "wrong", lambda reply: reply)
    with pytest.raises(FileNotFoundError):
        load_script(package, "needy", lambda reply: reply)
    with pytest.raises(FileNotFoundError):
        load_script(package, "absent", lambda reply: reply)
