"""Lint, types, tests and docs in one command, the same on a laptop and in CI.

python tests/run.py                  everything; stops at the first step that fails
python tests/run.py -k kvcache       what follows is handed to pytest: a part of the tests, without the coverage report
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# -P keeps the checkout off sys.path: the tests meet the installed `tfm`, and `kernels` or `cli` never name anything by accident.
PYTHON = [sys.executable, "-P", "-m"]


def step(name: str, *command: str, cwd: Path = ROOT) -> None:
    """Run one tool; end here with its exit status if it fails."""
    print(f"== {name}", flush=True)
    status = subprocess.run([*PYTHON, *command], cwd=cwd, check=False).returncode
    if status:
        sys.exit(status)


def types() -> None:
    """Check the types of the whole checkout, tests included, under the name `tfm`.

    Mypy takes a package's name from its folder, refuses one that is no identifier, and does not see through setuptools'
    editable installs: so it is shown the checkout through a link that has the right name.
    """
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "tfm").symlink_to(ROOT, target_is_directory=True)
        options = ("--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache"))
        step("types", "mypy", *options, "-p", "tfm", cwd=Path(scratch))


def main(arguments: list[str]) -> None:
    """Run every step; `arguments` go to pytest."""
    step("lint", "ruff", "check", "--quiet", ".")
    step("format", "ruff", "format", "--check", "--quiet", ".")
    types()
    step("tests and docs", "pytest", *(arguments or ["--cov", "--cov-report=term"]))


if __name__ == "__main__":
    main(sys.argv[1:])
