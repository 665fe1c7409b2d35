"""The leaves of a model: matrices, norms, tables, convolutions, and the functions between them.

Every leaf is one row of the ledger.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..presets import spec as s
from ..presets.errors import TfmError
from . import between
from .linear import fast_linear


class UnsupportedError(TfmError):
    """A part of a description that has no module here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Make:
    """Where weights are made and in which format. They are empty: `init.fill` gives them numbers, in place."""

    device: torch.device
    dtype: torch.dtype

    def __call__(self, *shape: int) -> nn.Parameter:
        """An uninitialised parameter."""
        return nn.Parameter(torch.empty(shape, device=self.device, dtype=self.dtype))

    def buffer(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """An uninitialised tensor that is no parameter."""
        return torch.empty(shape, device=self.device, dtype=dtype or self.dtype)


Draw = Callable[[Tensor, float, float], None]  # fills a tensor in place: spread, centre


class Named(nn.Module):
    """A module with a name in the ledger's paths: `label`, or its attribute's name where that is None.

    `tuned`: `tuning` has made it ready for passes of few rows. What lies between its products may be compiled loops then (`between`), and
    hooks are not asked for: looking for them is a dozen dictionaries at every call, which the weights drive out of the caches.
    """

    label: str | None = None
    tuned: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """`forward`, and the hooks of a module that is not tuned."""
        return self.forward(*args, **kwargs) if self.tuned else super().__call__(*args, **kwargs)


class Leaf(Named):
    """One row of the ledger: whatever it holds is counted there, and its products too."""

    weight: Any

    def reset(self, draw: Draw) -> None:
        """Random numbers of a size that keeps activations near 1."""
        for weight in self.parameters(recurse=False):
            draw(weight, 0.02, 0.0)


class Linear(Leaf):
    """x [..., d_in] -> [..., d_out]; `weight` [d_out, d_in] is its own unless given."""

    def __init__(self, d_in: int, d_out: int, make: Make, *, bias: bool = False, weight: nn.Parameter | None = None) -> None:
        super().__init__()
        self.weight = make(d_out, d_in) if weight is None else weight
        self.bias = make(d_out) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """x W^T + b."""
        return fast_linear(x, self.weight, self.bias)

    def reset(self, draw: Draw) -> None:
        """Spread 1 / sqrt(d_in)."""
        draw(self.weight, self.weight.shape[1] ** -0.5, 0.0)
        if self.bias is not None:
            draw(self.bias, 0.02, 0.0)


def become(linear: Linear, kind: type[Linear]) -> None:
    """Another kind of linear layer, without the parameter; whoever holds the module goes on holding it."""
    linear.register_parameter("weight", None)
    linear.__class__ = kind


class Norm(Leaf):
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019) over the last dimension.

    `heads`: the weight is one a head, [heads, width], and x is [..., heads, width].
    """

    def __init__(self, spec: s.Norm | s.HeadNorm, width: int, make: Make, *, heads: int | None = None) -> None:
        super().__init__()
        if spec.type == "batch":
            raise UnsupportedError("batch norm has no module here: it needs running statistics that a description does not hold")
        self.spec, self.width, self.heads = spec, width, heads
        shape = (width,) if heads is None else (heads, width)
        self.weight = make(*shape) if s.NORM_VECTORS[spec.type] else None
        self.bias = make(*shape) if s.NORM_VECTORS[spec.type] == 2 else None

    def forward(self, x: Tensor) -> Tensor:
        """x [..., width] -> the same shape."""
        weight, bias = self.weight, self.bias
        if self.tuned and self.heads is None and self.spec.type == "rms" and weight is not None and between.takes(x, weight):
            return between.rms_norm(x, weight, eps=self.spec.eps, offset=float(self.spec.unit_offset))
        if weight is not None and self.spec.unit_offset:
            weight = weight + 1
        if self.heads is None:
            return normalise(x, self.spec, self.width, weight, bias)
        x = normalise(x, self.spec, self.width, None, None)
        x = x if weight is None else x * weight
        return x if bias is None else x + bias

    def reset(self, draw: Draw) -> None:
        """Near the identity, but not it: a test has to notice a weight that is not used."""
        if self.weight is not None:
            draw(self.weight, 0.1, 0.0 if self.spec.unit_offset else 1.0)
        if self.bias is not None:
            draw(self.bias, 0.1, 0.0)


def normalise(x: Tensor, spec: s.Norm | s.HeadNorm, width: int, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """x / rms(x) or (x - mean(x)) / std(x), times a weight, plus a bias."""
    if spec.type.startswith("rms"):
        if x.is_meta:  # keeps its input, as the fused kernel of accelerators does; composed, as on a CPU, it keeps fp32 copies
            return F.layer_norm(x, (width,), weight, None, spec.eps)
        return F.rms_norm(x, (width,), weight, spec.eps)
    return F.layer_norm(x, (width,), weight, bias, spec.eps)


class Table(Leaf):
    """Rows [rows, width] that are gathered; `weight` is its own unless given."""

    def __init__(self, spec: s.Embedding, width: int, make: Make, weight: nn.Parameter | None = None) -> None:
        super().__init__()
        self.spec = spec
        self.weight = make(spec.rows, width) if weight is None else weight

    def forward(self, index: Tensor) -> Tensor:
        """index [...] -> [..., width]."""
        rows = F.embedding(index + self.spec.offset if self.spec.offset else index, self.weight)
        return rows if self.spec.scale is None else rows * self.spec.scale

    def reset(self, draw: Draw) -> None:
        """Spread 1 / sqrt(width): a tied output matrix gives logits near 1."""
        draw(self.weight, self.weight.shape[1] ** -0.5, 0.0)


class Conv(Leaf):
    """A convolution over positions or pixels: weight [d_out, d_in / groups, *kernel].

    Patches do not overlap and are not padded; other kernels are padded to keep (or, with a stride, to divide) the length.
    """

    def __init__(self, spec: s.Conv, make: Make) -> None:
        super().__init__()
        if len(spec.kernel) > 3:
            raise UnsupportedError(f"a convolution over {len(spec.kernel)} dimensions; PyTorch has 1 to 3")
        self.spec = spec
        self.stride = spec.stride or (1,) * len(spec.kernel)
        patches = self.stride == spec.kernel
        self.padding = (0,) * len(spec.kernel) if patches else tuple((size - 1) // 2 for size in spec.kernel)
        self.weight = make(spec.d_out, spec.d_in // spec.groups, *spec.kernel)
        self.bias = make(spec.d_out) if spec.bias else None

    def forward(self, x: Tensor) -> Tensor:
        """x [B, d_in, *size] -> [B, d_out, *size / stride]."""
        run = (F.conv1d, F.conv2d, F.conv3d)[len(self.spec.kernel) - 1]
        x = run(x, self.weight, self.bias, self.stride, self.padding, 1, self.spec.groups)
        return activate(self.spec.activation, x)

    def reset(self, draw: Draw) -> None:
        """Spread 1 / sqrt(taps)."""
        draw(self.weight, math.prod(self.weight.shape[1:]) ** -0.5, 0.0)
        if self.bias is not None:
            draw(self.bias, 0.02, 0.0)


class CausalConv(Leaf):
    """A depthwise convolution over a position and the `taps` - 1 before it: weight [channels, 1, taps]."""

    def __init__(self, channels: int, taps: int, make: Make, *, bias: bool) -> None:
        super().__init__()
        self.channels, self.taps = channels, taps
        self.weight = make(channels, 1, taps)
        self.bias = make(channels) if bias else None

    def forward(self, x: Tensor, past: Tensor | None = None) -> Tensor:
        """x [B, T, channels], past [B, channels, taps - 1] (zeros before the first token) -> [B, T, channels]."""
        x = x.transpose(1, 2)
        x = F.pad(x, (self.taps - 1, 0)) if past is None else torch.cat([past.to(x.dtype), x], dim=-1)
        return F.conv1d(x, self.weight, self.bias, groups=self.channels).transpose(1, 2)

    def reset(self, draw: Draw) -> None:
        """Spread 1 / sqrt(taps)."""
        draw(self.weight, self.taps**-0.5, 0.0)
        if self.bias is not None:
            draw(self.bias, 0.02, 0.0)


class Bare(Leaf):
    """A tensor without a product: class token, position table, layer scale."""

    def __init__(self, spec: s.Parameter, make: Make) -> None:
        super().__init__()
        if spec.buffer:
            self.register_buffer("weight", make.buffer(*spec.shape))
        else:
            self.weight = make(*spec.shape)

    def reset(self, draw: Draw) -> None:
        """Spread 0.02."""
        draw(self.weight, 0.02, 0.0)


# --- functions of one element ---------------------------------------------------------------------------------------


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU by its tanh approximation (Hendrycks and Gimpel 2016, arXiv:1606.08415, section 2)."""
    return F.gelu(x, approximate="tanh")


def quick_gelu(x: Tensor) -> Tensor:
    """x sigmoid(1.702 x), the other approximation of the same section."""
    return x * torch.sigmoid(1.702 * x)


def squared_relu(x: Tensor) -> Tensor:
    """relu(x)^2 (So et al. 2021, arXiv:2109.08668)."""
    return F.relu(x).square()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **dict.fromkeys(("gelu", "gelu_python"), F.gelu),
    **dict.fromkeys(("gelu_tanh", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_accurate"), gelu_tanh),
    **dict.fromkeys(("silu", "swish"), F.silu),
    "quick_gelu": quick_gelu,
    "hardswish": F.hardswish,
    "leaky_relu": F.leaky_relu,
    "linear": lambda x: x,
    "mish": F.mish,
    "relu": F.relu,
    "relu2": squared_relu,
    "relu6": F.relu6,
    "sigmoid": torch.sigmoid,
    "sqrtsoftplus": lambda x: F.softplus(x).sqrt(),
    "tanh": torch.tanh,
}


def activation_named(name: str) -> Callable[[Tensor], Tensor]:
    """The function called `name`; raises UnsupportedError naming those that exist."""
    if name not in ACTIVATIONS:
        raise UnsupportedError(f"the activation {name!r} has no module here; there are {', '.join(sorted(ACTIVATIONS))}")
    return ACTIVATIONS[name]


def activate(name: str | None, x: Tensor) -> Tensor:
    """`name` of x, or x where there is none."""
    return x if name is None else activation_named(name)(x)


def clamped_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """g sigmoid(1.702 g) (u + 1) with g at most 7 and u within 7 of 0 (gpt-oss)."""
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


def gated_product(name: str, gate: Tensor, up: Tensor) -> Tensor:
    """act(gate) up (Shazeer 2020, arXiv:2002.05202, eq. 6), or the clamped form."""
    return clamped_swiglu(gate, up) if name == "clamped_swiglu" else activation_named(name)(gate) * up
