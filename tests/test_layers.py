"""The layers hold: who may import whom, and what the arithmetic commands must not load."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ALLOWED = {
    "presets": set[str](),
    "estimators": {"presets"},
    "kernels": {"presets", "estimators"},
    "cli": {"presets", "estimators", "kernels"},
    "": {"presets", "estimators", "kernels", "cli"},  # the root: the public API over all of them
}
NEVER = {  # not even inside a function
    "presets": {"torch", "rich", "typer"},
    "estimators": {"torch", "rich", "typer"},
    "cli": {"torch"},
    "": {"torch", "rich", "typer"},
}
FOR_ALL = {"__version__"}  # what the layers may take from the root
LAZY = {"numpy", "scipy", "pydantic", "transformers", "tokenizers", "safetensors", "gguf", "huggingface_hub"}  # inside functions only
FILES = [*ROOT.glob("*.py"), *(path for folder in filter(None, ALLOWED) for path in (ROOT / folder).rglob("*.py"))]
SOURCES = sorted(path.relative_to(ROOT).as_posix() for path in FILES if path != ROOT / "setup.py")


@dataclass(frozen=True, kw_only=True)
class Import:
    """One imported module, by its absolute name."""

    module: str
    line: int
    at_start: bool  # runs when the module is imported: not in a function, not for type checkers only
    relative: bool


def imports(source: str, path: str) -> Iterator[Import]:
    """Every import of one file; `path` is relative to the package's root."""
    package = ["tfm", *Path(path).parent.parts]
    for node, at_start in statements(ast.parse(source), at_start=True):
        if isinstance(node, ast.Import):
            names, relative = [alias.name for alias in node.names], False
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])]) if node.level else node.module or ""
            names, relative = [f"{base}.{alias.name}" for alias in node.names], node.level > 0
        else:
            continue
        yield from (Import(module=name, line=node.lineno, at_start=at_start, relative=relative) for name in names)


def statements(node: ast.AST, *, at_start: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Every node below `node`, and whether it runs at import."""
    for child in ast.iter_child_nodes(node):
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        is_typing = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
        inner = at_start and not is_function and not is_typing
        yield child, inner
        yield from statements(child, at_start=inner)


def folder_of(path: str) -> str:
    """The layer of a file, "" for the modules of the root."""
    return Path(path).parent.parts[0] if "/" in path else ""


def violations(source: str, path: str) -> list[str]:
    """What one file imports and must not, in words."""
    folder = folder_of(path)
    found = []
    for item in imports(source, path):
        first, *rest = item.module.split(".")
        if first == "tfm":
            layer = rest[0] if rest and rest[0] in ALLOWED else ""
            wrong = not item.relative or (layer not in {folder, *ALLOWED[folder]} and not FOR_ALL.intersection(rest))
        else:
            wrong = first in NEVER.get(folder, set()) or (first in LAZY and item.at_start and folder != "kernels")
        if wrong:
            found.append(f"{path}:{item.line} imports {item.module}")
    return found


def test_the_sources_are_found() -> None:
    assert {folder_of(path) for path in SOURCES} == set(ALLOWED)


@pytest.mark.parametrize("path", SOURCES)
def test_layer(path: str) -> None:
    assert violations((ROOT / path).read_text(encoding="utf-8"), path) == []


@pytest.mark.parametrize(
    ("path", "source", "wrong"),
    [
        pytest.param("presets/a.py", "from ..estimators.ledger import rows", "tfm.estimators.ledger.rows", id="presets know nobody"),
        pytest.param("presets/hf/a.py", "from ... import kernels", "tfm.kernels", id="three dots from a sub-package"),
        pytest.param("presets/a.py", "def f():\n    import torch", "torch", id="torch hidden in a function"),
        pytest.param("estimators/a.py", "from ..kernels import timer", "tfm.kernels.timer", id="kernels know estimators, not the reverse"),
        pytest.param("estimators/a.py", "import tfm.cli.app", "tfm.cli.app", id="absolute name"),
        pytest.param("estimators/a.py", "if TYPE_CHECKING:\n    from ..cli import render", "tfm.cli.render", id="an arrow for types"),
        pytest.param("estimators/a.py", "import numpy as np", "numpy", id="numpy at module level"),
        pytest.param("estimators/a.py", "try:\n    import numpy.fft\nexcept ImportError:\n    pass", "numpy.fft", id="numpy in a try"),
        pytest.param("estimators/a.py", "class A:\n    import numpy", "numpy", id="a class body runs at import"),
        pytest.param("estimators/a.py", "from rich.table import Table", "rich.table.Table", id="estimators do not print"),
        pytest.param("kernels/a.py", "from ..cli.units import parse", "tfm.cli.units.parse", id="kernels do not know the command line"),
        pytest.param("cli/a.py", "from torch import nn", "torch.nn", id="torch outside kernels"),
        pytest.param("estimators/a.py", "from .. import flops", "tfm.flops", id="the public API is above the layers"),
        pytest.param("presets/a.py", "import tfm", "tfm", id="likewise by its name"),
        pytest.param("cli/a.py", "from tfm.presets import loader", "tfm.presets.loader", id="by its name, which a copy elsewhere has not"),
        pytest.param("api.py", "import numpy", "numpy", id="import tfm stays light"),
    ],
)
def test_a_violation_is_seen(path: str, source: str, wrong: str) -> None:
    assert [line.split()[-1] for line in violations(source, path)] == [wrong]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        pytest.param("presets/a.py", "from .errors import TfmError", id="one's own folder"),
        pytest.param("presets/a.py", "from .kernels import x", id="a module that is called like a layer"),
        pytest.param("estimators/a.py", "from ..presets.spec import ModelSpec", id="estimators know presets"),
        pytest.param("estimators/a.py", "def f():\n    import numpy as np", id="numpy in a function"),
        pytest.param("estimators/a.py", "if TYPE_CHECKING:\n    import numpy as np", id="numpy for types"),
        pytest.param("kernels/a.py", "import torch\nfrom ..estimators import ledger", id="torch in kernels"),
        pytest.param("cli/a.py", "import typer\nfrom .. import __version__", id="the version"),
        pytest.param("api.py", "from .estimators.params import params", id="the root knows everyone"),
    ],
)
def test_a_right_import_is_let_through(path: str, source: str) -> None:
    assert violations(source, path) == []


# --- what is really loaded, seen from outside ---------------------------------------------------------------------

Run = Callable[..., subprocess.CompletedProcess[str]]
HEAVY = {"torch", "numpy", "transformers", "scipy"}
ARITHMETIC = [
    pytest.param(["params", "llama-7b"], id="params"),
    pytest.param(["flops", "llama-7b"], id="flops"),
    pytest.param(["kvcache", "llama-7b"], id="kvcache"),
    pytest.param(["memory", "llama-7b"], id="memory"),
    pytest.param(["latency", "llama-7b", "--hardware", "a100-80gb-sxm"], id="latency"),
]


def heavy_imports(run: Run, *arguments: str, **options: dict[str, str]) -> set[str]:
    """Which of HEAVY a Python process imported, by Python's own log of imports; the process must succeed."""
    done = run("-X", "importtime", *arguments, **options)
    lines = done.stderr.splitlines()
    log = [line for line in lines if line.startswith("import time:")]
    assert done.returncode == 0, "\n".join(line for line in lines if line not in log)
    assert len(log) > 10, "Python's log of imports is missing"
    return {line.split("|")[-1].strip().split(".")[0] for line in log} & HEAVY


@pytest.mark.parametrize("command", ARITHMETIC)
def test_arithmetic_loads_nothing_heavy(run_python: Run, command: list[str]) -> None:
    assert heavy_imports(run_python, "-m", "tfm", *command) == set()


@pytest.mark.parametrize("module", sorted(HEAVY))
def test_the_check_above_can_fail(run_python: Run, tmp_path: Path, module: str) -> None:
    """A stand-in of that name, imported the way a careless module would, is caught."""
    (tmp_path / module).mkdir()
    (tmp_path / module / "__init__.py").touch()
    assert heavy_imports(run_python, "-c", f"def f():\n    import {module}\nf()", env={"PYTHONPATH": str(tmp_path)}) == {module}
