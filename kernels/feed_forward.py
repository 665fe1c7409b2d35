"""Feed-forward networks, dense and routed."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ..presets import spec as s
from .linear import fast_linear
from .modules import Draw, Leaf, Linear, Make, Named, Norm, UnsupportedError, activation_named, gated_product


class FeedForward(Named):
    """x [..., d_in] -> [..., d_ff] -> [..., d_out]; gated: two up projections and a product."""

    def __init__(self, spec: s.FeedForward, width: int, make: Make) -> None:
        super().__init__()
        d_in, d_out = spec.d_in or width, spec.d_out or width
        if spec.act_params and spec.activation not in LEARNED:
            raise UnsupportedError(f"the activation {spec.activation!r} with learned numbers has no module here; there are prelu and xielu")
        self.spec = spec
        self.gate_proj = Linear(d_in, spec.d_ff, make, bias=spec.bias) if spec.gated else None
        self.up_proj = Linear(d_in, spec.d_ff, make, bias=spec.bias)
        self.act = Learned(spec, make) if spec.act_params else None
        self.inner_norm = Norm(spec.inner_norm, spec.d_ff, make) if spec.inner_norm else None
        if spec.inner_norm and self.inner_norm is not None:
            self.inner_norm.label = spec.inner_norm.name
        self.down_proj = Linear(spec.d_ff, d_out, make, bias=spec.bias)
        self.function = None if spec.act_params or spec.gated else activation_named(spec.activation)

    def forward(self, x: Tensor) -> Tensor:
        """Up, activation, down."""
        if self.gate_proj is not None:
            gate = self.gate_proj(x)
            h = gated_product(self.spec.activation, gate, self.up_proj(x))
        else:
            function = self.act if self.function is None else self.function
            assert function is not None
            h = function(self.up_proj(x))
        if self.inner_norm is not None:
            h = self.inner_norm(h)
        y: Tensor = self.down_proj(h)
        return y


def prelu(x: Tensor, slope: Tensor) -> Tensor:
    """max(x, 0) + a min(x, 0) (He et al. 2015, arXiv:1502.01852)."""
    return torch.where(x >= 0, x, slope * x)


def xielu(x: Tensor, numbers: Tensor) -> Tensor:
    """xIELU (Huang and Schlag 2024, arXiv:2411.13010, eq. 14): a parabola above 0, an integrated exponential below."""
    above, below = F.softplus(numbers[0]), 0.5 + F.softplus(numbers[1])
    return torch.where(x > 0, above * x * x + 0.5 * x, (torch.expm1(x.clamp(max=-1e-6)) - x) * below + 0.5 * x)


LEARNED = {"prelu": prelu, "xielu": xielu}


class Learned(Leaf):
    """An activation with numbers of its own."""

    def __init__(self, spec: s.FeedForward, make: Make) -> None:
        super().__init__()
        self.label, self.function = spec.activation, LEARNED[spec.activation]
        self.weight = make(spec.act_params)

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return self.function(x, self.weight)


class Router(Named):
    """Which experts a token uses and with which weights: x [m, D] -> chosen [m, k], gates [m, k]."""

    correction: Tensor | None

    def __init__(self, spec: s.MoE, width: int, make: Make) -> None:
        super().__init__()
        if not spec.router or spec.hashed is not None:
            raise UnsupportedError("experts that a table chooses, or that need no router, have no module here")
        self.spec = spec
        self.weight = Linear(width, spec.experts, make, bias=spec.router_bias)
        if spec.correction == "parameter":
            self.correction = make(spec.experts)
        else:
            self.register_buffer("correction", make.buffer(spec.experts) if spec.correction == "buffer" else None)

    def reset(self, draw: Draw) -> None:
        """A correction that changes some choices."""
        if self.correction is not None:
            draw(self.correction, 0.05, 0.0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Score, choose, weigh; in fp32 at least."""
        logits = self.weight(x)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.spec.scoring == "softmax_topk":
            best, chosen = logits.topk(self.spec.top_k, dim=-1)
            return chosen, best.softmax(dim=-1).to(x.dtype)
        scores = score(self.spec.scoring, logits)
        ranked = scores if self.correction is None else scores + self.correction
        chosen = self.within_groups(ranked).topk(self.spec.top_k, dim=-1).indices
        gates = scores.gather(-1, chosen)
        if self.spec.normalize:
            gates = gates / (gates.sum(dim=-1, keepdim=True) + 1e-20)
        return chosen, (gates * self.spec.routed_scale).to(x.dtype)

    def within_groups(self, ranked: Tensor) -> Tensor:
        """Only the best groups' experts can be chosen (DeepSeek-V2 and DeepSeek-V3 reports, section 2.1.2).

        A group is as good as its best expert, or as its best two where scores are corrected.
        """
        groups = self.spec.groups
        if groups in (1, self.spec.top_groups):
            return ranked
        grouped = ranked.unflatten(-1, (groups, -1))
        best = grouped.topk(1 if self.correction is None else 2, dim=-1).values.sum(dim=-1)
        kept = best.topk(self.spec.top_groups, dim=-1).indices
        mask = torch.ones_like(best, dtype=torch.bool).scatter(-1, kept, value=False)
        within: Tensor = grouped.masked_fill(mask.unsqueeze(-1), -torch.inf).flatten(-2)
        return within


def score(kind: str, logits: Tensor) -> Tensor:
    """Logits to affinities."""
    match kind:
        case "sigmoid":
            return logits.sigmoid()
        case "sqrtsoftplus":
            return F.softplus(logits).sqrt()
        case _:
            return logits.softmax(dim=-1)


class ExpertLinear(Leaf):
    """One matrix of every expert: weight [E, d_out, d_in], bias [E, d_out]."""

    def __init__(self, experts: int, d_in: int, d_out: int, make: Make, *, bias: bool) -> None:
        super().__init__()
        self.weight = make(experts, d_out, d_in)
        self.bias = make(experts, d_out) if bias else None

    def forward(self, x: Tensor, which: Tensor | int) -> Tensor:
        """x [r, d_in] through one expert, or each row through the expert that `which` [r] names -> [r, d_out]."""
        bias = None if self.bias is None else self.bias[which]
        if isinstance(which, int):
            return fast_linear(x, self.weight[which], bias)
        # [r, d_out, d_in] @ [r, d_in, 1] -> [r, d_out, 1]
        y: Tensor = (self.weight[which] @ x.unsqueeze(-1)).squeeze(-1)
        return y if bias is None else y + bias

    def reset(self, draw: Draw) -> None:
        """Spread 1 / sqrt(d_in)."""
        draw(self.weight, self.weight.shape[2] ** -0.5, 0.0)
        if self.bias is not None:
            draw(self.bias, 0.02, 0.0)


class Experts(Named):
    """The routed experts: x [m, D], chosen [m, k], gates [m, k] -> [m, D]."""

    def __init__(self, spec: s.MoE, width: int, make: Make) -> None:
        super().__init__()
        one, inside = spec.expert, spec.latent or width
        if one.act_params or one.inner_norm:
            raise UnsupportedError("routed experts with learned activations or inner norms have no module here")
        self.spec = spec
        self.latent_in = Linear(width, inside, make, bias=spec.latent_bias) if spec.latent else None
        self.gate_proj = ExpertLinear(spec.experts, inside, one.d_ff, make, bias=one.bias) if one.gated else None
        self.up_proj = ExpertLinear(spec.experts, inside, one.d_ff, make, bias=one.bias)
        self.down_proj = ExpertLinear(spec.experts, one.d_ff, inside, make, bias=one.bias)
        self.latent_out = Linear(inside, width, make, bias=spec.latent_bias) if spec.latent else None

    def forward(self, x: Tensor, chosen: Tensor, gates: Tensor) -> Tensor:
        """The weighted sum of what each token's experts say."""
        if self.latent_in is not None:
            x = self.latent_in(x)
        y = self.gathered(x, chosen, gates) if gathers(x) else self.looped(x, chosen, gates)
        if self.latent_out is not None:
            y = self.latent_out(y)
        return y

    def one(self, x: Tensor, which: Tensor | int) -> Tensor:
        """x [r, D] through the experts `which` -> [r, D]."""
        if self.gate_proj is not None:
            gate = self.gate_proj(x, which)
            h = gated_product(self.spec.expert.activation, gate, self.up_proj(x, which))
        else:
            h = activation_named(self.spec.expert.activation)(self.up_proj(x, which))
        y: Tensor = self.down_proj(h, which)
        return y

    def gathered(self, x: Tensor, chosen: Tensor, gates: Tensor) -> Tensor:
        """Each (token, expert) pair a row with a matrix of its own: copies weights, but its shapes do not depend on the choice."""
        (m, D), k = x.shape, chosen.shape[1]
        # without numbers there is no choice: one expert for all has the products, and keeps what all of them together do
        y = self.one(x.repeat_interleave(k, dim=0), 0 if x.is_meta else chosen.reshape(-1))
        return (y.view(m, k, D) * gates.unsqueeze(-1)).sum(dim=1)

    def looped(self, x: Tensor, chosen: Tensor, gates: Tensor) -> Tensor:
        """One expert after another over the tokens that chose it: each weight is read once."""
        out = torch.zeros_like(x)
        if len(x) == 1:
            for place, expert in enumerate(chosen[0].tolist()):
                out = out + self.one(x, expert) * gates[:, place : place + 1]
            return out
        for expert in chosen.unique().tolist():
            token, place = (chosen == expert).nonzero(as_tuple=True)
            out = out.index_add(0, token, self.one(x[token], expert) * gates[token, place].unsqueeze(-1))
        return out


def gathers(x: Tensor) -> bool:
    """Whether the choice of experts must not be read back: there are no numbers, or a CUDA graph is being captured."""
    return x.is_meta or (x.is_cuda and torch.cuda.is_current_stream_capturing())


class MoE(Named):
    """Router, routed experts, shared experts: x [B,T,D] -> [B,T,D]."""

    def __init__(self, spec: s.MoE, width: int, make: Make) -> None:
        super().__init__()
        if spec.extra:
            raise UnsupportedError(f"further weights of experts ({', '.join(leaf.name for leaf in spec.extra)}) have no module here")
        self.router = Router(spec, width, make)
        self.experts = Experts(spec, width, make)
        self.shared_expert = FeedForward(spec.shared, width, make) if spec.shared else None
        self.shared_expert_gate = Linear(width, 1, make) if spec.shared_gate else None

    def forward(self, x: Tensor) -> Tensor:
        """Routed and shared, added."""
        rows = x.reshape(-1, x.shape[-1])
        y: Tensor = self.experts(rows, *self.router(rows)).view_as(x)
        if self.shared_expert is not None:
            shared = self.shared_expert(x)
            if self.shared_expert_gate is not None:
                shared = shared * self.shared_expert_gate(x).sigmoid()
            y = y + shared
        return y
