"""Gates on a model as pytest tests: the fixture `tfm_check` is there wherever tfm is installed (`pip install tfm-toolkit`).

pytest examples/ci/test_model_gate.py             all of them; the measured ones need `pip install "tfm-toolkit[bench,check]"`
pytest examples/ci/test_model_gate.py -k exact    arithmetic alone, in a fraction of a second
"""

from __future__ import annotations

from pathlib import Path

from tfm.pytest_plugin import TfmCheck

BASELINE = Path(__file__).with_name("tfm.json")


def test_exact_parameters(tfm_check: TfmCheck) -> None:
    tfm_check.params("llama-2-7b").equals(6_738_415_616)


def test_exact_cache_of_a_user(tfm_check: TfmCheck) -> None:
    """Sixteen users at 8k have to fit into 20 GiB of cache."""
    tfm_check.kvcache("mistral-7b", context=8192, batch=16).at_most(20 * 2**30)


def test_exact_baseline(tfm_check: TfmCheck) -> None:
    """Everything that the file lists; `tfm check --update examples/ci/tfm.json` writes it anew."""
    tfm_check.baseline(BASELINE, measured=False)


def test_measured_decode(tfm_check: TfmCheck) -> None:
    """A decode step of two layers takes at most twice as long as memory needs to deliver its bytes."""
    tfm_check.decode("llama-2-7b", layers=2, ctx=512).efficiency_at_least(0.5)
