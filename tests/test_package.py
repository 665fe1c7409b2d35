"""The package as a user gets it: what the wheel holds, the one version, the lazy public names."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from email.parser import Parser
from importlib.metadata import version
from pathlib import Path

import pytest

import tfm

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("presets", "estimators", "kernels", "cli")
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of the checkout, built by the setuptools of this environment: no download."""
    out = tmp_path_factory.mktemp("wheel")
    options = ["-v", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(out)]
    environment = {name: value for name, value in os.environ.items() if name != "PIP_QUIET"}  # the log is read below
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, str(ROOT)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (out / "log").write_text(done.stdout + done.stderr, encoding="utf-8")
    return zipfile.ZipFile(next(out.glob("*.whl")))


def metadata(wheel: zipfile.ZipFile, name: str) -> str:
    """One file of the wheel's dist-info folder."""
    return wheel.read(next(entry for entry in wheel.namelist() if entry.endswith(f".dist-info/{name}"))).decode()


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    ours = {path for folder in FOLDERS for pattern in ("*.py", "*.yaml") for path in (ROOT / folder).rglob(pattern)}
    ours |= {ROOT / "py.typed", *ROOT.glob("*.py")} - {ROOT / "setup.py"}
    expected = {f"tfm/{path.relative_to(ROOT).as_posix()}" for path in ours}
    assert {"tfm/__init__.py", "tfm/presets/models/llama-7b.yaml"} <= expected
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == expected


@pytest.mark.slow
def test_the_build_warns_of_nothing(wheel: zipfile.ZipFile) -> None:
    log = Path(wheel.filename or "").parent.joinpath("log").read_text(encoding="utf-8")
    lines = [line for line in log.splitlines() if line.startswith("  ")]  # pip indents what setuptools says
    assert "  running bdist_wheel" in lines
    assert [line for line in lines if re.search("warning|deprecat", line, re.IGNORECASE) and "byte-compiling" not in line] == []


@pytest.mark.slow
def test_the_build_leaves_the_checkout_clean(wheel: zipfile.ZipFile) -> None:
    assert wheel.filename
    assert not (ROOT / "build").exists()
    assert not list(ROOT.glob("*.egg-info"))


@pytest.mark.slow
def test_metadata(wheel: zipfile.ZipFile) -> None:
    fields = Parser().parsestr(metadata(wheel, "METADATA"))
    assert (fields["Name"], fields["Version"], fields["License-Expression"]) == ("tfm-toolkit", tfm.__version__, "MIT")
    assert fields["Requires-Python"] == ">=3.11"
    assert "tfm = tfm.__main__:main" in metadata(wheel, "entry_points.txt")
    core = {re.split(r"[<>=~;]", line)[0] for line in fields.get_all("Requires-Dist", []) if "extra ==" not in line}
    assert core == {"typer", "rich", "pyyaml", "msgspec", "platformdirs", "numpy"}


def test_the_installed_version_is_that_of_the_checkout() -> None:
    """Fails where `pip install` is older than the checkout: the tests would then judge something else."""
    assert version("tfm-toolkit") == tfm.__version__


def test_the_changelog_knows_the_version() -> None:
    assert f"\n## {tfm.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_constraints_pin_what_is_declared() -> None:
    """What is pinned is something we ask for, and torch is among it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {re.split(r"[<>=~\[]", line)[0] for group in project["optional-dependencies"].values() for line in group}
    declared |= {re.split(r"[<>=~]", line)[0] for line in project["dependencies"]}
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(pinned) <= declared
    assert pinned["torch"] == "2.13.0"


def test_ci_runs_the_readme() -> None:
    """One line after <!-- test -->, with the constraints, ending in the tests: CI runs whatever stands there."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"<!-- test -->\s*```\w*\n(.*)\n```", readme)
    assert command.startswith("pip install -c constraints.txt ")
    assert command.endswith("&& python tests/run.py")


# --- the public names -------------------------------------------------------------------------------------------


def typing_imports() -> dict[str, str]:
    """Public name -> module, as the root's `if TYPE_CHECKING:` block says it."""
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    found = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: node.module or "" for node in found for alias in node.names}


def test_type_checkers_see_what_runs() -> None:
    assert typing_imports() == tfm._HOME
    assert sorted(tfm.__all__) == sorted([*tfm._HOME, "__version__"])
    assert dir(tfm) == sorted(tfm.__all__)


@pytest.mark.parametrize("name", sorted(tfm._HOME))
def test_a_public_name_is_there(name: str) -> None:
    value = getattr(tfm, name)
    assert value.__doc__
    assert value.__module__.startswith("tfm.")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'tfm' has no attribute 'parms'"):
        getattr(tfm, "parms")  # noqa: B009 - a type checker would refuse tfm.parms, as it should


def test_import_tfm_loads_no_module_of_ours(run_python: Run) -> None:
    done = run_python("-c", "import sys, tfm; print([name for name in sys.modules if name.startswith('tfm.')])")
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_the_command_is_installed(run_python: Run) -> None:
    """`tfm --version` and `python -m tfm --version` say the same, and the right thing."""
    script = shutil.which("tfm", path=str(Path(sys.executable).parent))
    assert script, "the command `tfm` is not beside this Python: pip install -e ."
    as_command = subprocess.run([script, "--version"], capture_output=True, text=True, check=True).stdout
    assert tfm.__version__ in as_command
    assert run_python("-m", "tfm", "--version").stdout == as_command
