"""Number formats: how many bytes a block of elements takes, scales included.

Sizes are kept as whole blocks, never as a rounded number of bits, so that block formats stay exact:
q8_0 stores 32 elements in 34 bytes (an fp16 scale and 32 int8 values).
"""

from __future__ import annotations

import msgspec

from .errors import UnknownNameError


class Dtype(msgspec.Struct, frozen=True, kw_only=True):
    """One number format.

    Attributes:
        name: as written on the command line.
        block_elements: elements stored together.
        block_bytes: bytes of one block, scales included.
        note: what a block holds, where that is not plain from the name.
        source: who defines the format.
    """

    name: str
    block_elements: int
    block_bytes: int
    note: str = ""
    source: str = ""

    @property
    def bits_per_element(self) -> float:
        """Bits per element, scales included."""
        return 8 * self.block_bytes / self.block_elements


IEEE = "IEEE 754-2019"
GGML = "ggml block formats (ggml-common.h)"
OCP_MX = "OCP Microscaling Formats (MX) v1.0"

_FORMATS = (
    Dtype(name="fp64", block_elements=1, block_bytes=8, source=IEEE),
    Dtype(name="fp32", block_elements=1, block_bytes=4, source=IEEE),
    Dtype(name="fp16", block_elements=1, block_bytes=2, source=IEEE),
    Dtype(name="bf16", block_elements=1, block_bytes=2, source="Google brain float, the upper half of fp32"),
    Dtype(
        name="fp8",
        block_elements=1,
        block_bytes=1,
        note="E4M3 or E5M2, scales not counted",
        source="Micikevicius et al. 2022, arXiv:2209.05433",
    ),
    Dtype(
        name="int8",
        block_elements=1,
        block_bytes=1,
        note="one scale per channel, not counted",
        source="Dettmers et al. 2022, arXiv:2208.07339",
    ),
    Dtype(
        name="int4",
        block_elements=128,
        block_bytes=66,
        note="groups of 128 with one fp16 scale",
        source="Frantar et al. 2022 (GPTQ), arXiv:2210.17323",
    ),
    Dtype(name="q8_0", block_elements=32, block_bytes=34, note="32 int8 and one fp16 scale", source=GGML),
    Dtype(name="q5_1", block_elements=32, block_bytes=24, note="32 x 5 bits, fp16 scale and minimum", source=GGML),
    Dtype(name="q5_0", block_elements=32, block_bytes=22, note="32 x 5 bits and one fp16 scale", source=GGML),
    Dtype(name="q4_1", block_elements=32, block_bytes=20, note="32 x 4 bits, fp16 scale and minimum", source=GGML),
    Dtype(name="q4_0", block_elements=32, block_bytes=18, note="32 x 4 bits and one fp16 scale", source=GGML),
    Dtype(name="q6_k", block_elements=256, block_bytes=210, note="super-block of 16 x 16", source=GGML),
    Dtype(name="q5_k", block_elements=256, block_bytes=176, note="super-block of 8 x 32", source=GGML),
    Dtype(name="q4_k", block_elements=256, block_bytes=144, note="super-block of 8 x 32", source=GGML),
    Dtype(name="q3_k", block_elements=256, block_bytes=110, note="super-block of 16 x 16", source=GGML),
    Dtype(name="q2_k", block_elements=256, block_bytes=84, note="super-block of 16 x 16", source=GGML),
    Dtype(name="mxfp4", block_elements=32, block_bytes=17, note="32 x E2M1 and one E8M0 scale", source=OCP_MX),
    Dtype(name="nvfp4", block_elements=16, block_bytes=9, note="16 x E2M1 and one E4M3 scale", source="NVIDIA Blackwell NVFP4"),
)

DTYPES = {dtype.name: dtype for dtype in _FORMATS}
ALIASES = {
    "f64": "fp64",
    "float64": "fp64",
    "f32": "fp32",
    "float32": "fp32",
    "float": "fp32",
    "f16": "fp16",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float8": "fp8",
}

# What one may ask for where: a cache is written token by token, so super-blocks of 256 do not serve there.
CACHE_DTYPES = ("fp32", "bf16", "fp16", "fp8", "int8", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
ACTIVATION_DTYPES = ("fp32", "bf16", "fp16", "fp8", "int8")


def get_dtype(name: str, allowed: tuple[str, ...] | None = None) -> Dtype:
    """The number format called `name`; raises UnknownNameError naming what is allowed."""
    key = name.strip().lower()
    key = ALIASES.get(key, key)
    known = allowed or tuple(DTYPES)
    if key not in known:
        raise UnknownNameError("dtype", name, known, f"Allowed: {', '.join(known)}.")
    return DTYPES[key]
