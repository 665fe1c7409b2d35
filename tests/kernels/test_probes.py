"""Probes of bandwidth, matmul rate and launch cost at tiny sizes, and the refusal of what does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tfm.kernels import compiled, compiling, probes
from tfm.kernels.linear import as_usual
from tfm.kernels.probes import (
    GIB,
    Bandwidth,
    Probe,
    _free_of_cgroup,
    _free_of_machine,
    bandwidth_calls,
    dtype_name,
    free_memory_bytes,
    measured_bandwidth,
    op_launch_cost,
    pick_device,
    random_tensor,
    require_memory,
)
from tfm.kernels.timing import Sample, Stopping
from tfm.presets.errors import UnreadableError

CPU = torch.device("cpu")
BRIEF = Stopping(min_samples=3, min_seconds=0.0, max_seconds=0.5, target_spread=10.0)
MIB = 1 << 20
NAMES = ("sum", "mv", "copy", *(["loop"] if compiling.compiler() else []))


def test_bandwidth_runs_every_probe_in_both_dtypes() -> None:
    found = measured_bandwidth(torch.bfloat16, CPU, size_bytes=2 * MIB, stopping=BRIEF)
    names = {(probe.name, probe.dtype): probe.moved_bytes for probe in found.probes}
    assert names == {(n, d): (2 if n == "copy" else 1) * 2 * MIB for n in NAMES for d in ("fp32", "bf16")}
    assert found.bytes_per_s == max(probe.bytes_per_s for probe in found.probes) > 0


def test_bandwidth_in_fp32_probes_once() -> None:
    assert len(measured_bandwidth(torch.float32, CPU, size_bytes=MIB, stopping=BRIEF).probes) == len(NAMES)


def test_the_fastest_probe_wins() -> None:
    def probe(name: str, seconds: float, moved: int) -> Probe:
        return Probe(name=name, dtype="fp32", moved_bytes=moved, sample=Sample(times=(seconds,), calls=1, stop="spread"))

    found = Bandwidth(probes=(probe("sum", 2.0, 100), probe("copy", 2.5, 200), probe("mv", 1.5, 100)))
    assert (found.winner.name, found.bytes_per_s, found.spread) == ("copy", 80.0, 0.0)


def test_probes_compute_what_they_say() -> None:
    calls = bandwidth_calls(torch.float32, CPU, MIB)
    total, product, copied = (calls[name][0]() for name in ("sum", "mv", "copy"))
    assert isinstance(total, torch.Tensor)
    assert isinstance(product, torch.Tensor)
    assert isinstance(copied, torch.Tensor)
    assert total.item() == pytest.approx(copied.sum().item())
    torch.testing.assert_close(product, copied @ copied[0])
    if compiling.gap() is None:
        with compiled.LOOPS.listening() as loops:
            calls["loop"][0]()
        assert calls["loop"][1] == MIB == 4 * sum(rows * width for rows, width in loops["product"])
    with as_usual():
        assert "loop" not in bandwidth_calls(torch.float32, CPU, MIB)


def test_bandwidth_is_refused_before_anything_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "free_memory_bytes", lambda device: 3 * GIB)
    monkeypatch.setattr(probes, "random_tensor", lambda *_: pytest.fail("allocated"))
    with pytest.raises(UnreadableError, match=r"bandwidth probes needs 4\.00 GiB .* 3\.00 GiB .* free"):
        measured_bandwidth(torch.bfloat16, CPU)


def test_launch_cost_is_microseconds() -> None:
    assert 1e-8 < op_launch_cost(CPU, stopping=BRIEF).median_s < 1e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=dtype_name)
def test_random_tensors_are_random_and_repeat_only_when_large(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr(probes, "TILE_BYTES", 64 * dtype.itemsize)
    made = random_tensor((10, 15), dtype, CPU)
    assert (made.shape, made.dtype) == ((10, 15), dtype)
    assert made.count_nonzero() > 130
    assert made.float().abs().max() <= 1
    flat = made.flatten()
    assert torch.equal(flat[:64], flat[64:128])
    assert torch.equal(flat[:22], flat[128:])
    assert len(set(flat[:64].tolist())) > 40


def test_device_is_one_that_works() -> None:
    assert torch.ones(2, device=pick_device()).sum().item() == 2


@pytest.mark.parametrize(
    ("working", "expected"),
    [(("cuda", "mps", "xpu"), "cuda"), (("mps", "xpu"), "mps"), (("xpu",), "xpu"), ((), "cpu")],
    ids=["all", "no CUDA", "XPU only", "none"],
)
def test_device_order(monkeypatch: pytest.MonkeyPatch, working: tuple[str, ...], expected: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in working)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in working)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: "xpu" in working)
    assert pick_device().type == expected


def test_free_memory_of_this_machine_is_plausible() -> None:
    free = free_memory_bytes(CPU)
    assert free is None or 1 << 24 < free < 1 << 50


def test_free_memory_is_read_from_meminfo(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 24000000 kB\nMemFree: 1 kB\nMemAvailable: 2048 kB\n")
    assert _free_of_machine(tmp_path / "meminfo") == 2 * MIB


@pytest.mark.parametrize(
    ("limit", "used", "expected"),
    [("max\n", "5", None), ("1000\n", "400\n", 600), ("1000", "1200", 0), (None, None, None)],
    ids=["no limit", "some left", "over", "no cgroup"],
)
def test_containers_have_a_limit_of_their_own(tmp_path: Path, limit: str | None, used: str | None, expected: int | None) -> None:
    for name, text in (("memory.max", limit), ("memory.current", used)):
        if text is not None:
            (tmp_path / name).write_text(text)
    assert _free_of_cgroup(tmp_path) == expected


def test_what_fits_passes() -> None:
    require_memory(5, CPU, what="a model", free_bytes=5)


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(UnreadableError) as caught:
        require_memory(3 * GIB, CPU, what="llama-7b", free_bytes=GIB, fits=lambda free: f"{free // (GIB // 4)} of 32 layers")
    text = str(caught.value)
    assert caught.value.exit_code == 1
    assert text == f"llama-7b needs 3.00 GiB ({3 * GIB} bytes) on cpu; 1.00 GiB ({GIB} bytes) are free. What would fit: 4 of 32 layers."


def test_without_advice_the_share_that_fits_is_said() -> None:
    with pytest.raises(UnreadableError, match="something of 25% of this size"):
        require_memory(4 * GIB, CPU, what="a cache", free_bytes=GIB)


def test_unknown_free_memory_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "free_memory_bytes", lambda device: None)
    require_memory(1 << 60, CPU, what="anything")
