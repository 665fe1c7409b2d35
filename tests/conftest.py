"""What every test gets: a home of its own, no network, no colour, and `tfm` as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# No deadline: on a shared machine a slow example says nothing. In CI the same examples every time, elsewhere new ones.
settings.register_profile("tfm", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tfm")

SECONDS = 300  # no command of a test may take longer


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keep the user's settings out of the tests, and the tests out of them: what is calibrated here stays here."""
    folder = tmp_path_factory.mktemp("home")
    os.environ.update(
        {name: str(folder) for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")},
        NO_COLOR="1",
        COLUMNS="80",
        TERM="dumb",
        PYTHONUTF8="1",
        HF_HUB_OFFLINE="1",
    )
    os.environ.pop("FORCE_COLOR", None)
    return folder


@pytest.fixture(scope="session")
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run this Python in a process of its own, away from the checkout: `run_python("-m", "tfm", "params", "llama-7b")`."""

    def run(*arguments: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", *arguments],
            env=os.environ | (env or {}),
            cwd=cwd or os.environ["HOME"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    return run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what asks the clock unless that is wanted, and what compares with transformers where that is not installed."""
    if "TFM_MEASURE" not in os.environ:
        idle = pytest.mark.skip(reason="asks the clock: TFM_MEASURE=1 runs it")
        for item in items:
            if item.get_closest_marker("measured"):
                item.add_marker(idle)
    if find_spec("transformers") is None:
        skip = pytest.mark.skip(reason="needs the extra `oracle`")
        for item in items:
            if item.get_closest_marker("oracle"):
                item.add_marker(skip)
