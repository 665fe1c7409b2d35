"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): expanded in prefill, absorbed in decode.

Letters: B sequences, T new tokens, S attended, N heads, rank the latent's width, nope and rope the two parts of a key.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..presets import spec as s
from .cache import Latent
from .linear import fast_linear
from .mixers import Run, Scores, heads_of, refuse
from .modules import Draw, Leaf, Linear, Make, Named, Norm


class LatentUp(Leaf):
    """kv_b: from the latent to keys and values of every head, weight [N (nope + v), rank]; or, absorbed, on the other side."""

    def __init__(self, spec: s.LatentAttention, make: Make) -> None:
        super().__init__()
        self.spec = spec
        self.weight = make(spec.heads * (spec.nope_dim + spec.value_dim), spec.kv_rank)

    def forward(self, x: Tensor, side: str) -> Tensor:
        """`expand` latent [B,S,rank] -> [B,N,S,nope + v]; `query` q [B,N,T,nope] -> [B,N,T,rank]; `value` [B,N,T,rank] -> [B,N,T,v]."""
        if side == "expand":
            return heads_of(fast_linear(x, self.weight), self.spec.heads)
        keys, values = self.weight.unflatten(0, (self.spec.heads, -1)).split([self.spec.nope_dim, self.spec.value_dim], dim=1)
        # q W_k: [B,N,T,nope] @ [N,nope,rank]; o W_v^T: [B,N,T,rank] @ [N,rank,v]
        y: Tensor = x @ keys if side == "query" else x @ values.transpose(1, 2)
        return y

    def reset(self, draw: Draw) -> None:
        """Spread 1 / sqrt(rank)."""
        draw(self.weight, self.spec.kv_rank**-0.5, 0.0)


class LatentAttention(Named):
    """MLA: the cache holds one latent a token for all heads (DeepSeek-V2, arXiv:2405.04434, section 2.1)."""

    def __init__(self, spec: s.LatentAttention, width: int, make: Make) -> None:
        super().__init__()
        refuse(spec)
        self.spec = spec
        wide = spec.heads * (spec.nope_dim + spec.rope_dim)
        norm = s.Norm(type="rms", eps=spec.norm_eps)
        if spec.q_rank is None:
            self.q_proj = Linear(width, wide, make)
        else:
            self.q_a_proj = Linear(width, spec.q_rank, make, bias=spec.bias)
            self.q_a_norm = Norm(norm, spec.q_rank, make)
            self.q_b_proj = Linear(spec.q_rank, wide, make)
        self.kv_a_proj = Linear(width, spec.kv_rank + spec.rope_dim, make, bias=spec.bias)
        self.kv_a_norm = Norm(norm, spec.kv_rank, make)
        self.kv_b_proj = LatentUp(spec, make)
        scale = (spec.nope_dim + spec.rope_dim) ** -0.5 if spec.scale is None else spec.scale
        self.scores = Scores(spec.mask, softcap=None, scale=scale)
        self.o_proj = Linear(spec.heads * spec.value_dim, width, make, bias=spec.bias)

    def forward(self, x: Tensor, run: Run, entry: Latent | None) -> Tensor:
        """x [B,T,D] -> [B,T,D]: expanded over what is new, absorbed where earlier latents are kept."""
        q_nope, q_rope = self.queries(x, run)
        latent, k_rope = self.kv_a_proj(x).split([self.spec.kv_rank, self.spec.rope_dim], dim=-1)
        # one head of latent and rotated key: [B,1,T,rank], [B,1,T,rope]
        latent, k_rope = self.kv_a_norm(latent).unsqueeze(1), run.turn(k_rope.unsqueeze(1), self.spec.position)
        kept = torch.cat([latent, k_rope], dim=-1)
        if entry is not None:
            kept = entry.latent.append(kept, run.start)
        if entry is not None and (run.start or run.tokens == 1):
            out = self.absorbed(q_nope, q_rope, kept, run)
        else:
            out = self.expanded(q_nope, q_rope, latent, k_rope, run)
        y: Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
        return y

    def queries(self, x: Tensor, run: Run) -> tuple[Tensor, Tensor]:
        """[B,N,T,nope] and, turned, [B,N,T,rope]."""
        q = self.q_proj(x) if self.spec.q_rank is None else self.q_b_proj(self.q_a_norm(self.q_a_proj(x)))
        nope, rope = heads_of(q, self.spec.heads).split([self.spec.nope_dim, self.spec.rope_dim], dim=-1)
        return nope, run.turn(rope, self.spec.position)

    def expanded(self, q_nope: Tensor, q_rope: Tensor, latent: Tensor, k_rope: Tensor, run: Run) -> Tensor:
        """Full heads: keys [B,N,S,nope + rope], values [B,N,S,v]."""
        k_nope, v = self.kv_b_proj(latent.squeeze(1), "expand").split([self.spec.nope_dim, self.spec.value_dim], dim=-1)
        k = torch.cat([k_nope, k_rope.expand(-1, self.spec.heads, -1, -1)], dim=-1)
        out: Tensor = self.scores(torch.cat([q_nope, q_rope], dim=-1), k, v, run)
        return out

    def absorbed(self, q_nope: Tensor, q_rope: Tensor, kept: Tensor, run: Run) -> Tensor:
        """Every head attends the latent itself, one key and value head of rank + rope and rank (section 2.1.2)."""
        q = torch.cat([self.kv_b_proj(q_nope, "query"), q_rope], dim=-1)
        out: Tensor = self.kv_b_proj(self.scores(q, kept, kept[..., : self.spec.kv_rank], run), "value")
        return out
