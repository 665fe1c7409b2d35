"""Sweeps: exact where 64 bits would overflow."""

from __future__ import annotations

import numpy as np

from tfm.estimators.flops import flops
from tfm.estimators.kvcache import kvcache
from tfm.estimators.sweep import at_point, fits_int64, sweep
from tfm.estimators.work import Pass
from tfm.presets.loader import load_model


def test_what_overflows_is_counted_in_pythons_integers() -> None:
    spec = load_model("llama-3.1-405b")
    # 6 P T alone, at 1024 sequences of 131,072 tokens, is beyond 64 bits, and numpy would not say so.
    assert 6 * 405_853_388_800 * 1024 * 131_072 > 2**63
    with np.errstate(over="ignore"):
        assert np.array([1024]) * 131_072 * 6 * 405_853_388_800 != 1024 * 131_072 * 6 * 405_853_388_800
    axes = {"batch": (1, 1024), "context": (4096, 131_072)}
    work, points = sweep(spec, Pass(phase="train"), axes)
    assert work.batch.dtype == object
    found = flops(spec, work)
    for index, point in enumerate(points):
        one = flops(spec, Pass(phase="train", **point))  # type: ignore[arg-type]
        assert at_point(found.total_flops, index) == one.total_flops
        assert at_point(found.rule_flops, index) == one.rule_flops


def test_what_fits_stays_in_int64_and_exact() -> None:
    spec = load_model("gemma-2-27b")
    axes = {"batch": (1, 3), "context": (100, 4096, 9000)}
    work, points = sweep(spec, Pass(), axes)
    assert work.batch.dtype == np.int64
    found = kvcache(spec, work)
    assert [at_point(found.kv_bytes, index) for index in range(6)] == [kvcache(spec, Pass(**point)).kv_bytes for point in points]  # type: ignore[arg-type]


def test_the_limit_is_where_it_says() -> None:
    spec = load_model("llama-7b")
    assert fits_int64(spec, Pass(context=4096))
    assert not fits_int64(spec, Pass(batch=2**32, context=2**20))


def test_axes_of_one_value_stay_plain_integers() -> None:
    work, points = sweep(load_model("llama-7b"), Pass(), {"batch": (3,), "context": (5, 6)})
    assert work.batch == 3 and isinstance(work.batch, int)
    assert points == [{"batch": 3, "context": 5}, {"batch": 3, "context": 6}]
    assert at_point(7, 1) == 7
    assert at_point(np.array([1, 2]), 1) == 2
