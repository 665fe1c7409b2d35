"""Docs are tests: console blocks are run and compared, each command is in the README, the examples of --help and the doctests run."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import typer.main

from tfm.cli.app import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = sorted(
    {*ROOT.glob("*.py"), *(path for folder in ("presets", "estimators", "kernels", "cli") for path in (ROOT / folder).rglob("*.py"))}
    - {ROOT / "setup.py"}
)
SECONDS = 300
BLOCK = re.compile(r"(?P<mark><!-- not run: [^\n]*\S -->\n+)?^```console\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
# An example of --help that cannot run as it stands, and why.
NOT_RUN: dict[str, str] = dict.fromkeys(
    (
        "tfm bench bandwidth", "tfm bench bandwidth --size 1MiB,16MiB,256MiB,1GiB --json",
        "tfm bench gemm --m 1,16,256 --k 4096 --n 11008", "tfm bench gemm --m 512 --dtype fp32,bf16",
        "tfm bench attention --impl sdpa,grouped --ctx 1k,4k,16k", "tfm bench attention --ctx 512 --tokens 512 --dtype fp32",
        "tfm bench decode", "tfm bench decode llama-7b --layers all --dtype bf16",
        "tfm bench decode llama-3-8b --ctx 1k,4k,16k --weight-dtype int8", "tfm bench prefill",
        "tfm bench prefill gpt-2 --ctx 128,256,512 --dtype fp32 --layers all", "tfm bench prefill vit-b-16 --batch 4",
        "tfm calibrate", "tfm calibrate --threads 4 --json",
        "tfm bench train", "tfm bench train gpt-2 --batch 1,4 --ctx 128 --dtype fp32",
        "tfm bench train bert-base --optimizer sgd --layers all",
        "tfm train-demo", "tfm train-demo --model decoder-only --task copy --save copy.safetensors",
        "tfm train-demo --resume copy.safetensors --steps 1200 --json",
    ),
    "measures for up to two minutes in gigabytes of memory; tests/cli/test_bench.py runs the same at tiny sizes",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Example:
    """One command of a page and what the page says it prints."""

    place: str
    command: str
    output: str


def examples(text: str, name: str) -> Iterator[Example]:
    """The commands of every console block that is not marked as one that is not run."""
    for block in BLOCK.finditer(text):
        if block["mark"]:
            continue
        line = text.count("\n", 0, block.start("body")) + 1
        for part in re.split(r"^(?=\$ )", block["body"], flags=re.MULTILINE):
            command, _, output = part.partition("\n")
            if part.startswith("$ "):
                yield Example(place=f"{name}:{line}", command=command[2:], output=output)
            elif part.strip():
                raise ValueError(f"{name}:{line}: a console block starts with a command: `$ tfm ...`")
            line += part.count("\n")


def tidy(text: str) -> str:
    """Without the blanks at the end of lines, which tables have and editors remove, and without blank lines around."""
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines()).strip("\n")


def matches(expected: str, actual: str) -> bool:
    """Whether the output is what the page says; a line `...` stands for any lines, also none."""
    lines = [r"(?:[^\n]*\n)*?" if line.strip() == "..." else re.escape(line) + r"\n" for line in tidy(expected).splitlines()]
    return re.fullmatch("".join(lines), f"{tidy(actual)}\n" if actual.strip() else "") is not None


EXAMPLES = [example for page in PAGES if page.exists() for example in examples(page.read_text(encoding="utf-8"), page.name)]


# --- running --------------------------------------------------------------------------------------------------------

Done = subprocess.CompletedProcess[str]
Shell = Callable[[str], Done]


@pytest.fixture(scope="session")
def shell(home: Path, request: pytest.FixtureRequest) -> Iterator[Shell]:
    """Run a command line as a reader would, each one once; those that are asked for start early, a few at a time.

    They run in a folder that holds the checkout's examples/ and nothing else, so that what they write does no harm.
    """
    (home / "examples").symlink_to(ROOT / "examples", target_is_directory=True)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

    def run(command: str) -> Done:
        return subprocess.run(
            ["bash", "-c", command],
            env=os.environ | {"PATH": path},
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # a console shows both
            text=True,
            timeout=SECONDS,
            check=False,
        )

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        started: dict[str, Future[Done]] = {}

        def start(command: str) -> Future[Done]:
            if command not in started:
                started[command] = pool.submit(run, command)
            return started[command]

        for command in wanted(request.session.items):
            start(command)
        yield lambda command: start(command).result()
        pool.shutdown(cancel_futures=True)


def wanted(items: list[pytest.Item]) -> Iterator[str]:
    """The command lines that the selected tests will run."""
    for item in items:
        if isinstance(item, pytest.Function) and "shell" in item.fixturenames and hasattr(item, "callspec"):
            if "example" in item.callspec.params:
                yield cast(Example, item.callspec.params["example"]).command
            elif "command" in item.callspec.params:
                yield f"{item.callspec.params['command']} --help"


# --- the pages --------------------------------------------------------------------------------------------------------


def test_the_pages_have_examples() -> None:
    assert any(example.place.startswith("README.md") for example in EXAMPLES)


@pytest.mark.parametrize("example", [pytest.param(example, id=f"{example.place} {example.command}") for example in EXAMPLES])
def test_console_block(shell: Shell, example: Example) -> None:
    actual = shell(example.command).stdout
    if not matches(example.output, actual):
        assert tidy(actual) == tidy(example.output), f"{example.place}: what is printed is not what the page says"


@pytest.mark.parametrize(
    ("expected", "actual", "same"),
    [
        pytest.param("a\nb\n", "a\nb\n", True, id="equal"),
        pytest.param("a\n\n", "a  \n", True, id="blanks at the end"),
        pytest.param("a\n  b\n", "a\nb\n", False, id="blanks at the start count"),
        pytest.param("a\n...\nd\n", "a\nb\nc\nd\n", True, id="lines left out"),
        pytest.param("a\n...\n", "a\n", True, id="no line left out"),
        pytest.param("...\nd\n", "a\nd\ne\n", False, id="the end must match"),
        pytest.param("a...\n", "abc\n", False, id="dots within a line are dots"),
        pytest.param("6.74 B\n", "6x74 B\n", False, id="no regular expressions"),
        pytest.param("", "", True, id="nothing printed"),
        pytest.param("", "a\n", False, id="something printed"),
        pytest.param("a\n", "", False, id="nothing printed but expected"),
    ],
)
def test_matching(expected: str, actual: str, same: bool) -> None:
    assert matches(expected, actual) is same


def test_blocks_are_read() -> None:
    page = "x\n```console\n$ tfm a\n1\n\n2\n$ tfm b\n```\n<!-- not run: needs a GPU -->\n\n```console\n$ tfm c\n```\n```sh\n$ tfm d\n```\n"
    assert [(e.place, e.command, e.output) for e in examples(page, "p")] == [("p:3", "tfm a", "1\n\n2\n"), ("p:7", "tfm b", "")]


def test_a_block_without_a_command_is_refused() -> None:
    with pytest.raises(ValueError, match="p:2: a console block starts with a command"):
        list(examples("```console\ntfm a\n```\n", "p"))


# --- the commands -----------------------------------------------------------------------------------------------------


def commands() -> list[str]:
    """Every visible command of the app, as one types it: `tfm params`, `tfm bench gemm`."""

    def walk(command: object, name: str) -> Iterator[str]:
        inner: dict[str, Any] = getattr(command, "commands", {})  # a group has them
        if not inner:
            yield name
        for key in sorted(inner):
            if not inner[key].hidden:
                yield from walk(inner[key], f"{name} {key}")

    return list(walk(typer.main.get_command(app), "tfm"))


@pytest.mark.parametrize("command", commands())
def test_the_readme_names(command: str) -> None:
    assert re.search(rf"\b{command}\b", (ROOT / "README.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("command", commands())
def test_the_examples_of_help_run(shell: Shell, command: str) -> None:
    shown = shell(f"{command} --help")
    assert shown.returncode == 0, shown.stdout
    found = re.findall(r"^  +(tfm .*\S)", shown.stdout, re.MULTILINE)
    assert found, f"{command} --help shows no example (a line of two spaces and `tfm ...`)"
    for line in found:
        if line not in NOT_RUN:
            done = shell(line)
            assert done.returncode == 0, f"{line}\n{done.stdout}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_doctests(path: Path) -> None:
    if ">>>" not in path.read_text(encoding="utf-8"):
        return
    parts = [part for part in path.relative_to(ROOT).with_suffix("").parts if part != "__init__"]
    outcome = doctest.testmod(importlib.import_module(".".join(["tfm", *parts])))
    assert outcome.attempted
    assert not outcome.failed
