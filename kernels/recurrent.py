"""Mixers whose memory does not grow: state spaces, linear attention, gated recurrences, short convolutions.

Each runs its recurrence token by token, in the form that its paper gives it; the state is fp32 at least. Epsilons of norms
inside these mixers are not part of a description: they are those of the published code.

Letters: B sequences, T tokens, D width, I inner width, N state, P width of a head.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from ..presets import spec as s
from .cache import State
from .mixers import Run
from .modules import CausalConv, Draw, Leaf, Linear, Make, Named, Norm, UnsupportedError, gelu_tanh

Step = tuple[Tensor, Tensor, Tensor]


class Recurrent(Named):
    """What these mixers share: a causal convolution with its tail, and a state that is kept."""

    conv: CausalConv

    def convolve(self, x: Tensor, run: Run, entry: State | None) -> Tensor:
        """x [B,T,channels] -> the same shape; the tail of past inputs comes before it."""
        if entry is None or entry.tail is None:
            return self.conv(x)  # type: ignore[no-any-return]
        before = entry.tail[..., entry.tail.shape[-1] - self.conv.taps + 1 :].clone() if run.start else None
        seen = torch.cat([entry.tail, x.transpose(1, 2).to(entry.tail.dtype)], dim=-1)
        entry.tail.copy_(seen[..., seen.shape[-1] - entry.tail.shape[-1] :])
        return self.conv(x, before)  # type: ignore[no-any-return]

    def state(self, run: Run, entry: State | None, *shape: int) -> Tensor:
        """The state before the first new token: zeros at the start."""
        if entry is not None and entry.state is not None and run.start:
            return entry.state
        return torch.zeros(shape, device=run.device, dtype=wide(run.dtype))

    def keep(self, entry: State | None, state: Tensor) -> None:
        """The state after the last token."""
        if entry is not None and entry.state is not None:
            entry.state.copy_(state)


def wide(dtype: torch.dtype) -> torch.dtype:
    """fp32 at least."""
    return torch.promote_types(dtype, torch.float32)


class Scan(Leaf):
    """h = decay h + drive, y = h c, token by token: the products are those of y."""

    def forward(self, steps: Iterable[Step], state: Tensor) -> tuple[Tensor, Tensor]:
        """Steps of decay and drive [..., N] and c [..., N], state [B,...,N] -> y [B,T,...], the last state."""
        out = []
        for decay, drive, read in steps:
            state = decay * state + drive
            # [..., P, N] @ [..., N, 1] -> [..., P]
            out.append((state @ read.unsqueeze(-1)).squeeze(-1))
        return torch.stack(out, dim=1), state


class Mamba(Recurrent):
    """Selective state space (Gu and Dao 2023, arXiv:2312.00752, section 3.4, algorithm 2)."""

    def __init__(self, spec: s.Mamba, width: int, make: Make) -> None:
        super().__init__()
        if spec.heads > 1:
            raise UnsupportedError("a Mamba-1 mixer with heads has no module here")
        self.spec = spec
        I, N, R = spec.d_inner, spec.state, spec.dt_rank
        self.in_proj = Linear(width, 2 * I, make, bias=spec.proj_bias)
        self.conv = CausalConv(I, spec.conv, make, bias=spec.conv_bias)
        self.x_proj = Linear(I, R + 2 * N, make)
        norm = s.Norm(type="rms", eps=1e-6)
        self.dt_norm, self.b_norm, self.c_norm = (Norm(norm, size, make) if spec.inner_norms else None for size in (R, N, N))
        self.dt_proj = Linear(R, I, make, bias=True)
        self.A, self.D = make(I, N), make(I)
        self.scan = Scan()
        self.out_proj = Linear(I, width, make, bias=spec.proj_bias)

    def reset(self, draw: Draw) -> None:
        """A holds ln(-A)."""
        draw(self.A, 0.5, 0.5)
        draw(self.D, 0.1, 1.0)

    def forward(self, x: Tensor, run: Run, entry: State | None) -> Tensor:
        """x [B,T,D] -> [B,T,D]."""
        x, gate = self.in_proj(x).chunk(2, dim=-1)
        x = F.silu(self.convolve(x, run, entry))
        sizes = [self.spec.dt_rank, self.spec.state, self.spec.state]
        norms = (self.dt_norm, self.b_norm, self.c_norm)
        dt, b, c = (part if norm is None else norm(part) for norm, part in zip(norms, self.x_proj(x).split(sizes, dim=-1), strict=True))
        dt, state = F.softplus(self.dt_proj(dt)), self.state(run, entry, x.shape[0], self.spec.d_inner, self.spec.state)
        y, state = self.scan(self.steps(x, dt, b, c, state.dtype), state)
        self.keep(entry, state)
        y = y.to(x.dtype) + x * self.D
        out: Tensor = self.out_proj(y * F.silu(gate))
        return out

    def steps(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, dtype: torch.dtype) -> Iterator[Step]:
        """exp(dt A), dt B x and C of every token: [B,I,N], [B,I,N], [B,N]."""
        A = -torch.exp(self.A.to(dtype))
        for t in range(x.shape[1]):
            step = dt[:, t, :, None].to(dtype)
            yield torch.exp(step * A), step * x[:, t, :, None] * b[:, t, None, :], c[:, t].to(dtype)


class Mamba2(Recurrent):
    """State space with one decay a head (Dao and Gu 2024, arXiv:2405.21060, section 7.1)."""

    def __init__(self, spec: s.Mamba2, width: int, make: Make) -> None:
        super().__init__()
        self.spec, self.inner, self.shared = spec, spec.heads * spec.head_dim, spec.groups * spec.state
        mixed = self.inner + 2 * self.shared
        self.in_proj = Linear(width, self.inner + mixed + spec.heads, make, bias=spec.proj_bias)
        self.conv = CausalConv(mixed, spec.conv, make, bias=spec.conv_bias)
        self.A, self.D, self.dt_bias = make(spec.heads), make(spec.heads), make(spec.heads)
        self.scan = Scan()
        self.gated_norm = (
            Norm(s.Norm(type="rms", eps=1e-5), self.inner // spec.groups, make, heads=spec.groups) if spec.gated_norm else None
        )
        self.out_proj = Linear(self.inner, width, make, bias=spec.proj_bias)

    def reset(self, draw: Draw) -> None:
        """A holds ln(-A)."""
        draw(self.A, 0.5, 0.5)
        draw(self.D, 0.1, 1.0)
        draw(self.dt_bias, 0.5, -1.0)

    def forward(self, x: Tensor, run: Run, entry: State | None) -> Tensor:
        """x [B,T,D] -> [B,T,D]."""
        spec = self.spec
        gate, mixed, dt = self.in_proj(x).split([self.inner, self.inner + 2 * self.shared, spec.heads], dim=-1)
        x, b, c = F.silu(self.convolve(mixed, run, entry)).split([self.inner, self.shared, self.shared], dim=-1)
        x = x.unflatten(-1, (spec.heads, spec.head_dim))
        b, c = (part.unflatten(-1, (spec.groups, -1)).repeat_interleave(spec.heads // spec.groups, dim=2) for part in (b, c))
        state = self.state(run, entry, x.shape[0], spec.heads, spec.head_dim, spec.state)
        y, state = self.scan(self.steps(x, F.softplus(dt + self.dt_bias), b, c, state.dtype), state)
        self.keep(entry, state)
        y = (y.to(x.dtype) + x * self.D[:, None]).flatten(2) * F.silu(gate)
        if self.gated_norm is not None:
            y = self.gated_norm(y.unflatten(-1, (spec.groups, -1))).flatten(2)
        out: Tensor = self.out_proj(y)
        return out

    def steps(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, dtype: torch.dtype) -> Iterator[Step]:
        """exp(dt A), dt B x and C of every token: [B,heads,1,1], [B,heads,P,N], [B,heads,N]."""
        A = -torch.exp(self.A.to(dtype))
        for t in range(x.shape[1]):
            step = dt[:, t].to(dtype)
            drive = (step[..., None] * x[:, t])[..., None] * b[:, t, :, None, :]
            yield torch.exp(step * A)[..., None, None], drive, c[:, t].to(dtype)


class DeltaScan(Leaf):
    """S = a S; S = S + b k (v - S'k)'; o = S'q: elementwise sums, no products, as the ledger counts it."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """q, k [B,T,N,K], v [B,T,N,V], decay and beta [B,T,N], state [B,N,K,V] -> o [B,T,N,V], the last state."""
        out = []
        for t in range(q.shape[1]):
            state = state * decay[:, t, :, None, None]
            known = (state * k[:, t, ..., None]).sum(dim=-2)
            state = state + k[:, t, ..., None] * ((v[:, t] - known) * beta[:, t, :, None])[..., None, :]
            out.append((state * q[:, t, ..., None]).sum(dim=-2))
        return torch.stack(out, dim=1), state


class GatedDelta(Recurrent):
    """Gated delta rule (Yang et al. 2024, arXiv:2412.06464, section 3; Qwen3-Next)."""

    def __init__(self, spec: s.GatedDelta, width: int, make: Make) -> None:
        super().__init__()
        self.spec, self.keys, self.values = spec, spec.key_heads * spec.key_dim, spec.value_heads * spec.value_dim
        mixed = 2 * self.keys + self.values
        self.qkv_proj = Linear(width, mixed, make)
        self.gate_proj = Linear(width, self.values, make)
        self.beta_proj = Linear(width, spec.value_heads, make)
        self.decay_proj = Linear(width, spec.value_heads, make)
        self.conv = CausalConv(mixed, spec.conv, make, bias=False)
        self.A, self.dt_bias = make(spec.value_heads), make(spec.value_heads)
        self.scan = DeltaScan()
        self.gated_norm = Norm(s.Norm(type="rms", eps=1e-6), spec.value_dim, make)
        self.out_proj = Linear(self.values, width, make)

    def reset(self, draw: Draw) -> None:
        """A holds ln(-A)."""
        draw(self.A, 0.5, 0.5)
        draw(self.dt_bias, 0.5, -1.0)

    def forward(self, x: Tensor, run: Run, entry: State | None) -> Tensor:
        """x [B,T,D] -> [B,T,D]."""
        spec, gate = self.spec, self.gate_proj(x)
        q, k, v = F.silu(self.convolve(self.qkv_proj(x), run, entry)).split([self.keys, self.keys, self.values], dim=-1)
        state = self.state(run, entry, x.shape[0], spec.value_heads, spec.key_dim, spec.value_dim)
        q, k = (self.unit(part.to(state.dtype)) for part in (q, k))
        v = v.unflatten(-1, (spec.value_heads, -1)).to(state.dtype)
        decay = torch.exp(-torch.exp(self.A.to(state.dtype)) * F.softplus(self.decay_proj(x).to(state.dtype) + self.dt_bias))
        y, state = self.scan(q * spec.key_dim**-0.5, k, v, decay, self.beta_proj(x).to(state.dtype).sigmoid(), state)
        self.keep(entry, state)
        y = self.gated_norm(y.to(x.dtype)) * F.silu(gate.unflatten(-1, (spec.value_heads, -1)))
        out: Tensor = self.out_proj(y.flatten(2))
        return out

    def unit(self, x: Tensor) -> Tensor:
        """Keys or queries [B,T,key_heads*K] as unit vectors of every value head, [B,T,value_heads,K]."""
        x = x.unflatten(-1, (self.spec.key_heads, -1))
        x = x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + 1e-6)
        return x.repeat_interleave(self.spec.value_heads // self.spec.key_heads, dim=2)


class BlockDiagonal(Leaf):
    """Square matrices side by side: weight [blocks, W, W], bias [blocks, W]."""

    def __init__(self, width: int, blocks: int, make: Make) -> None:
        super().__init__()
        self.weight, self.bias = make(blocks, width // blocks, width // blocks), make(blocks, width // blocks)

    def forward(self, x: Tensor) -> Tensor:
        """x [B,T,blocks*W] -> the same shape."""
        blocks, W, _ = self.weight.shape
        # [blocks,B*T,W] @ [blocks,W,W] + [blocks,1,W]
        y = torch.baddbmm(self.bias[:, None], x.reshape(-1, blocks, W).transpose(0, 1), self.weight)
        return y.transpose(0, 1).reshape(x.shape)

    def reset(self, draw: Draw) -> None:
        """Spread 1 / sqrt(W)."""
        draw(self.weight, self.weight.shape[1] ** -0.5, 0.0)
        draw(self.bias, 0.02, 0.0)


class RgLru(Recurrent):
    """Griffin's recurrent block (De et al. 2024, arXiv:2402.19427, section 2.4): a = exp(-8 softplus(decay) r)."""

    def __init__(self, spec: s.RgLru, width: int, make: Make) -> None:
        super().__init__()
        self.spec, W = spec, spec.width
        self.y_proj, self.x_proj = Linear(width, W, make, bias=True), Linear(width, W, make, bias=True)
        self.conv = CausalConv(W, spec.conv, make, bias=True)
        self.input_gate, self.recurrence_gate = BlockDiagonal(W, spec.blocks, make), BlockDiagonal(W, spec.blocks, make)
        self.decay = make(W)
        self.out_proj = Linear(W, width, make, bias=True)

    def reset(self, draw: Draw) -> None:
        """Decays that matter within a few tokens."""
        draw(self.decay, 0.5, -2.0)

    def forward(self, x: Tensor, run: Run, entry: State | None) -> Tensor:
        """x [B,T,D] -> [B,T,D]."""
        branch = gelu_tanh(self.y_proj(x))
        x = self.convolve(self.x_proj(x), run, entry)
        state = self.state(run, entry, x.shape[0], self.spec.width)
        log_a = -8.0 * self.recurrence_gate(x).sigmoid().to(state.dtype) * F.softplus(self.decay.to(state.dtype))
        # the first token has no past to be weighed against
        scale = torch.sqrt(1 - torch.exp(2 * log_a))
        if run.start == 0:
            scale = torch.cat([torch.ones_like(scale[:, :1]), scale[:, 1:]], dim=1)
        drive, out = x * self.input_gate(x).sigmoid() * scale, []
        for t in range(x.shape[1]):
            state = torch.exp(log_a[:, t]) * state + drive[:, t]
            out.append(state)
        self.keep(entry, state)
        y: Tensor = self.out_proj(torch.stack(out, dim=1).to(branch.dtype) * branch)
        return y


class ShortConv(Recurrent):
    """C (conv (B x)) with B, C and x from one projection (LFM2)."""

    def __init__(self, spec: s.ShortConv, width: int, make: Make) -> None:
        super().__init__()
        self.in_proj = Linear(width, 3 * spec.width, make, bias=spec.bias)
        self.conv = CausalConv(spec.width, spec.conv, make, bias=spec.bias)
        self.out_proj = Linear(spec.width, width, make, bias=spec.bias)

    def forward(self, x: Tensor, run: Run, entry: State | None) -> Tensor:
        """x [B,T,D] -> [B,T,D]."""
        b, c, x = self.in_proj(x).chunk(3, dim=-1)
        y: Tensor = self.out_proj(c * self.convolve(b * x, run, entry))
        return y
