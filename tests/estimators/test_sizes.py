"""Bytes of block formats."""

from __future__ import annotations

import numpy as np
import pytest

from tfm.estimators.sizes import bytes_of
from tfm.presets.dtypes import DTYPES, get_dtype
from tfm.presets.errors import UnknownNameError


@pytest.mark.parametrize(
    ("name", "elements", "expected"),
    [
        pytest.param("bf16", 10, 20, id="two bytes"),
        pytest.param("q8_0", 32, 34, id="a scale beside 32"),
        pytest.param("q4_0", 64, 36, id="two blocks"),
        pytest.param("q8_0", 33, 68, id="a part of a block is a block"),
        pytest.param("int4", 128, 66, id="groups of 128 with an fp16 scale"),
        pytest.param("mxfp4", 32, 17, id="MXFP4"),
        pytest.param("nvfp4", 16, 9, id="NVFP4"),
        pytest.param("q4_k", 256, 144, id="super-block"),
    ],
)
def test_bytes(name: str, elements: int, expected: int) -> None:
    assert bytes_of(elements, DTYPES[name]) == expected


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("nvfp4", 4.5),
        ("mxfp4", 4.25),
        ("int4", 4.125),
        ("q4_0", 4.5),
        ("q8_0", 8.5),
        ("q6_k", 6.5625),
        ("q4_k", 4.5),
        ("fp8", 8),
        ("fp32", 32),
    ],
)
def test_bits_per_element(name: str, bits: float) -> None:
    assert DTYPES[name].bits_per_element == bits


def test_arrays_and_expected_counts() -> None:
    assert bytes_of(np.array([32, 33]), DTYPES["q4_0"]).tolist() == [18, 36]
    assert bytes_of(2.5, DTYPES["q4_0"]) == 2.5 * 18 / 32


def test_unknown_names_and_what_is_allowed() -> None:
    assert get_dtype("Float16").name == "fp16"
    with pytest.raises(UnknownNameError, match="Did you mean"):
        get_dtype("bf61")
    with pytest.raises(UnknownNameError, match="Allowed: bf16"):
        get_dtype("q4_k", ("bf16",))
