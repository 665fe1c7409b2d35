"""Attention as a module against the numpy reference and by property; latent attention and recurrences against plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tfm.kernels import reference
from tfm.kernels.cache import Room
from tfm.kernels.init import fill
from tfm.kernels.latent import LatentAttention
from tfm.kernels.mixers import Attention, Run, rules_of
from tfm.kernels.modules import Make, UnsupportedError
from tfm.kernels.positions import alibi_bias, rotary_frequencies
from tfm.kernels.recurrent import GatedDelta, Mamba, Mamba2, RgLru, ShortConv
from tfm.kernels.rope import stretched
from tfm.presets import spec as s

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
F64 = Make(device=CPU, dtype=torch.float64)
D, B, T = 10, 2, 7


def made(module: nn.Module) -> Any:
    fill(module, seed=2)
    return module.requires_grad_(requires_grad=False)


def hidden(tokens: int = T, seed: int = 0, width: int = D) -> Tensor:
    return torch.randn(B, tokens, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def run(tokens: int = T, start: int = 0, **more: Any) -> Run:
    return Run(start=start, tokens=tokens, device=CPU, dtype=torch.float64, **more)


def grouped(**changes: Any) -> s.Attention:
    """Four query heads on two, keys and values of different widths."""
    sizes: dict[str, Any] = {"heads": 4, "kv_heads": 2, "head_dim": 6, "value_dim": 3, "mask": s.Causal()}
    return s.Attention(**(sizes | changes))


def same(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=1e-11)


# --- attention against the reference --------------------------------------------------------------------------------


def heads(x: Tensor, count: int) -> Any:
    return x.unflatten(-1, (count, -1)).transpose(1, 2).numpy()


def by_reference(module: Attention, x: Tensor, **rules: Any) -> Any:
    """The projections as they are, the attention in between by loops in numpy."""
    assert module.k_proj is not None
    assert module.v_proj is not None
    spec = module.spec
    q, k, v = heads(module.q_proj(x), spec.heads), heads(module.k_proj(x), spec.kv_heads), heads(module.v_proj(x), spec.kv_heads)
    out = torch.from_numpy(reference.attend(q, k, v, scale=spec.scale, **rules)).transpose(1, 2).flatten(2)
    return module.o_proj(out)


RULES: dict[str, tuple[s.Attention, dict[str, Any]]] = {
    "causal": (grouped(), {"causal": True}),
    "full": (grouped(mask=s.Full()), {"causal": False}),
    "sliding": (grouped(mask=s.Sliding(window=3)), {"causal": True, "window": 3}),
    "chunked": (grouped(mask=s.Chunked(chunk=3)), {"causal": True, "chunk": 3}),
    "local": (grouped(mask=s.Local(reach=2)), {"causal": False, "window": 4}),
    "softcap": (grouped(softcap=0.7), {"causal": True, "softcap": 0.7}),
    "scale": (grouped(scale=1.9, bias=("q", "k", "v", "o")), {"causal": True}),
    "multi-query": (grouped(kv_heads=1), {"causal": True}),
    "alibi": (grouped(position=s.Alibi()), {"causal": True, "bias": alibi_bias(4, T, T).numpy()}),
}


@pytest.mark.parametrize("kernel", ["eager", "tiled", "sdpa", "grouped"])
@pytest.mark.parametrize("name", RULES)
def test_attention_is_what_the_reference_says(name: str, kernel: str) -> None:
    spec, rules = RULES[name]
    module, x = made(Attention(spec, D, F64)), hidden()
    same(module(x, run(kernel=kernel), None), by_reference(module, x, **rules))


def test_sinks_take_their_share() -> None:
    module, x = made(Attention(grouped(sinks=True), D, F64)), hidden()
    same(module(x, run(), None), by_reference(module, x, causal=True, sinks=module.sinks.numpy()))


def test_cross_attention_reads_another_stack() -> None:
    spec = grouped(mask=s.Full(), source="encoder", source_width=8)
    module, x, source = made(Attention(spec, D, F64)), hidden(), hidden(5, seed=1, width=8)
    q, k, v = heads(module.q_proj(x), 4), heads(module.k_proj(source), 2), heads(module.v_proj(source), 2)
    expected = torch.from_numpy(reference.attend(q, k, v, causal=False)).transpose(1, 2).flatten(2)
    same(module(x, run(sources={"encoder": source}), None), module.o_proj(expected))
    with pytest.raises(UnsupportedError, match="output of 'encoder'"):
        module(x, run(), None)


@pytest.mark.parametrize("gate", ["full", "head"])
def test_gates_multiply_the_output(gate: Any) -> None:
    """One value a head, or one an element, which each head's rows of q_proj give after its queries."""
    spec = grouped(value_dim=None)
    gated, plain = made(Attention(grouped(value_dim=None, gate=gate), D, F64)), made(Attention(spec, D, F64))
    x = hidden()
    for name in ("k_proj", "v_proj", "o_proj"):
        getattr(plain, name).weight.copy_(getattr(gated, name).weight)
    rows = gated.q_proj.weight.view(4, -1, D)
    plain.q_proj.weight.copy_(rows[:, :6].reshape(24, D))
    opening = gated.gate_proj(x)[..., None] if gate == "head" else torch.einsum("btd,nhd->btnh", x, rows[:, 6:])
    inside = plain.scores(*qkv(plain, x), run()).transpose(1, 2)
    same(gated(x, run(), None), plain.o_proj((inside * opening.sigmoid()).flatten(2)))


def qkv(module: Attention, x: Tensor) -> list[Tensor]:
    assert module.k_proj is not None
    assert module.v_proj is not None
    parts = ((module.q_proj, module.spec.heads), (module.k_proj, module.spec.kv_heads), (module.v_proj, module.spec.kv_heads))
    return [proj(x).unflatten(-1, (count, -1)).transpose(1, 2) for proj, count in parts]


# --- properties -----------------------------------------------------------------------------------------------------


def test_without_positions_the_order_of_tokens_does_not_matter() -> None:
    module, x = made(Attention(grouped(mask=s.Full()), D, F64)), hidden()
    order = torch.randperm(T, generator=torch.Generator().manual_seed(4))
    same(module(x[:, order], run(), None), module(x, run(), None)[:, order])


@pytest.mark.parametrize("mask", [s.Causal(), s.Sliding(window=3), s.Chunked(chunk=3)], ids=lambda mask: type(mask).__name__)
def test_a_later_token_changes_nothing_before_it(mask: s.Mask) -> None:
    module, x = made(Attention(grouped(mask=mask, position=s.Rope()), D, F64)), hidden()
    other = x.clone()
    other[:, 5:] = hidden(2, seed=9)
    same(module(other, run(), None)[:, :5], module(x, run(), None)[:, :5])


def test_a_window_of_all_tokens_is_no_window() -> None:
    x = hidden()
    found = [made(Attention(grouped(mask=mask), D, F64))(x, run(), None) for mask in (s.Causal(), s.Sliding(window=T))]
    same(found[0], found[1])
    assert rules_of(s.Sliding(window=T), T, T) == rules_of(s.Causal(), T, T) == {"causal": True}


def test_as_many_key_heads_as_queries_is_multi_head() -> None:
    """Grouped heads are multi-head attention with their keys and values repeated."""
    few, many, x = made(Attention(grouped(), D, F64)), made(Attention(grouped(kv_heads=4), D, F64)), hidden()
    for name in ("q_proj", "o_proj"):
        getattr(many, name).weight.copy_(getattr(few, name).weight)
    for name, width in (("k_proj", 6), ("v_proj", 3)):
        getattr(many, name).weight.copy_(getattr(few, name).weight.view(2, width, D).repeat_interleave(2, dim=0).reshape(-1, D))
    same(many(x, run(), None), few(x, run(), None))


@pytest.mark.parametrize(
    "rope",
    [
        s.Rope(),
        s.Rope(dims=4),
        s.Rope(interleaved=True),
        s.Rope(scaling=s.RopeScaling(type="linear", factor=4.0)),
        s.Rope(scaling=s.RopeScaling(type="yarn", factor=8.0, original_positions=64)),
        s.Rope(scaling=s.RopeScaling(type="llama3", factor=8.0, original_positions=64, low_freq_factor=1.0, high_freq_factor=4.0)),
    ],
    ids=["plain", "partial", "interleaved", "linear", "yarn", "llama3"],
)
def test_rotary_scores_depend_on_distance_alone(rope: s.Rope) -> None:
    module, x = made(Attention(grouped(position=rope), D, F64)), hidden()
    same(module(x, run(start=40), None), module(x, run(), None))
    assert not torch.allclose(module(x.flip(1), run(), None).flip(1), module(x, run(), None))


def test_a_norm_over_all_heads_is_one_norm() -> None:
    spec = grouped(head_norm=s.HeadNorm(over="all", type="rms"))
    module, x = made(Attention(spec, D, F64)), hidden()
    assert (module.q_norm.weight.shape, module.k_norm.weight.shape) == ((24,), (12,))
    q, _ = module.queries(x, run())
    same(q.transpose(1, 2).flatten(2), module.q_norm(module.q_proj(x)))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (grouped(indexer=s.Indexer(heads=2, head_dim=4, top_k=3, q_in=D)), "indexer"),
        (grouped(extra=(s.Parameter(name="odd", shape=(3,)),)), "odd"),
        (grouped(position=s.Disentangled(span=4, terms=("c2p",))), "disentangled"),
        (grouped(position=s.RelativeBuckets(buckets=8)), "relative_bias"),
        (grouped(position=s.Rope(scaling=s.RopeScaling(type="proportional"))), "proportional"),
        (grouped(keys="reused"), "earlier layer"),
    ],
    ids=["indexer", "extra", "disentangled", "no-table", "proportional", "nothing-to-reuse"],
)
def test_what_has_no_module_says_so(spec: s.Attention, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        made(Attention(spec, D, F64))(hidden(), run(), None)


# --- rotary recipes -------------------------------------------------------------------------------------------------


def test_stretched_frequencies() -> None:
    """Each recipe keeps the fastest pair nearly as it was and slows the slowest one by its factor."""
    plain = rotary_frequencies(16, 500000.0)
    for kind, more in (("linear", {}), ("yarn", {}), ("llama3", {"low_freq_factor": 1.0, "high_freq_factor": 4.0}), ("ntk", {})):
        scaling = s.RopeScaling(type=kind, factor=8.0, original_positions=8192, **more)  # type: ignore[arg-type]
        found, _ = stretched(s.Rope(theta=500000.0, scaling=scaling), 16, 0)
        assert float(plain[-1] / found[-1]) == pytest.approx(8.0, rel=1e-6), kind
        assert kind == "linear" or float(found[0]) == 1.0, kind


def test_dynamic_frequencies_wait_for_long_sequences() -> None:
    rope = s.Rope(scaling=s.RopeScaling(type="dynamic", factor=2.0, original_positions=100))
    assert torch.equal(stretched(rope, 8, 100)[0], rotary_frequencies(8))
    assert not torch.equal(stretched(rope, 8, 101)[0], rotary_frequencies(8))


def test_deepseek_s_two_factors_cancel() -> None:
    scaling = s.RopeScaling(type="yarn", factor=40.0, original_positions=4096, mscale=1.0, mscale_all_dim=1.0)
    assert stretched(s.Rope(scaling=scaling), 64, 0)[1] == 1.0
    gpt_oss = s.RopeScaling(type="yarn", factor=32.0, original_positions=4096, truncate=False)
    assert stretched(s.Rope(scaling=gpt_oss), 64, 0)[1] == pytest.approx(0.1 * np.log(32) + 1)


# --- latent attention -----------------------------------------------------------------------------------------------

MLA = s.LatentAttention(heads=3, kv_rank=7, nope_dim=5, rope_dim=4, value_dim=6, mask=s.Causal(), q_rank=9, position=s.Rope())


def test_latent_attention_by_loops() -> None:
    """Every head's keys and values made of the latent, then plain attention."""
    module, x = made(LatentAttention(MLA, D, F64)), hidden()
    turn, spec = run(), MLA
    latent, shared = module.kv_a_proj(x).split([7, 4], dim=-1)
    up = module.kv_b_proj.weight.view(3, 11, 7)
    keys, values = (torch.einsum("btr,nhr->bnth", module.kv_a_norm(latent), part) for part in (up[:, :5], up[:, 5:]))
    shared = turn.turn(shared.unsqueeze(1), spec.position).expand(-1, 3, -1, -1)
    q = module.q_b_proj(module.q_a_norm(module.q_a_proj(x))).unflatten(-1, (3, 9)).transpose(1, 2)
    q = torch.cat([q[..., :5], turn.turn(q[..., 5:], spec.position)], dim=-1)
    out = reference.attend(q.numpy(), torch.cat([keys, shared], dim=-1).numpy(), values.numpy(), causal=True)
    same(module(x, turn, None), module.o_proj(torch.from_numpy(out).transpose(1, 2).flatten(2)))


def test_absorbed_is_expanded() -> None:
    module, x = made(LatentAttention(MLA, D, F64)), hidden()
    room = Room(batch=B, capacity=T, source=0, policy="minimal", device=CPU, dtype=torch.float64)
    entry = room.entry(MLA)
    module(x[:, :3], run(3), entry)
    same(module(x[:, 3:], run(4, start=3), entry), module(x, run(), None)[:, 3:])


# --- recurrences ----------------------------------------------------------------------------------------------------


def softplus(x: Any) -> Any:
    return np.log1p(np.exp(x))


def silu(x: Any) -> Any:
    return x / (1 + np.exp(-x))


def conv(module: Any, x: Any) -> Any:
    """A causal depthwise convolution of [T, channels], by loops."""
    weight, taps = module.weight.numpy()[:, 0], module.taps
    padded = np.concatenate([np.zeros((taps - 1, x.shape[1])), x])
    out = np.stack([(padded[t : t + taps] * weight.T).sum(0) for t in range(len(x))])
    return out if module.bias is None else out + module.bias.numpy()


def test_mamba_by_loops() -> None:
    spec = s.Mamba(d_inner=6, state=4, conv=3, dt_rank=2)
    m, x = made(Mamba(spec, D, F64)), hidden()
    inner, gate = (part[0].numpy() for part in m.in_proj(x).chunk(2, dim=-1))
    u = silu(conv(m.conv, inner))
    dt, b, c = (part.numpy() for part in m.x_proj(torch.from_numpy(u)).split([2, 4, 4], dim=-1))
    dt = softplus(m.dt_proj(torch.from_numpy(dt)).numpy())
    A, h, out = -np.exp(m.A.numpy()), np.zeros((6, 4)), []
    for t in range(T):
        h = np.exp(dt[t][:, None] * A) * h + dt[t][:, None] * u[t][:, None] * b[t]
        out.append((h @ c[t] + m.D.numpy() * u[t]) * silu(gate[t]))
    same(m(x, run(), None)[0], m.out_proj(torch.from_numpy(np.array(out))))


def test_mamba2_by_loops() -> None:
    spec = s.Mamba2(heads=4, head_dim=3, groups=2, state=5, conv=3)
    m, x = made(Mamba2(spec, D, F64)), hidden()
    gate, mixed, dt = (part[0].numpy() for part in m.in_proj(x).split([12, 32, 4], dim=-1))
    mixed, dt = silu(conv(m.conv, mixed)), softplus(dt + m.dt_bias.numpy())
    u, b, c = mixed[:, :12].reshape(T, 4, 3), mixed[:, 12:22].reshape(T, 2, 5), mixed[:, 22:].reshape(T, 2, 5)
    A, h, out = -np.exp(m.A.numpy()), np.zeros((4, 3, 5)), []
    for t in range(T):
        y = np.zeros((4, 3))
        for n in range(4):
            h[n] = np.exp(dt[t, n] * A[n]) * h[n] + dt[t, n] * np.outer(u[t, n], b[t, n // 2])
            y[n] = h[n] @ c[t, n // 2] + m.D.numpy()[n] * u[t, n]
        gated = (y.reshape(-1) * silu(gate[t])).reshape(2, 6)
        gated = gated / np.sqrt((gated**2).mean(-1, keepdims=True) + 1e-5) * m.gated_norm.weight.numpy()
        out.append(gated.reshape(-1))
    same(m(x, run(), None)[0], m.out_proj(torch.from_numpy(np.array(out))))


def test_gated_delta_by_loops() -> None:
    spec = s.GatedDelta(key_heads=2, value_heads=4, key_dim=3, value_dim=5, conv=3)
    m, x = made(GatedDelta(spec, D, F64)), hidden()
    mixed = silu(conv(m.conv, m.qkv_proj(x)[0].numpy()))
    q, k, v = mixed[:, :6].reshape(T, 2, 3), mixed[:, 6:12].reshape(T, 2, 3), mixed[:, 12:].reshape(T, 4, 5)
    gate, beta = m.gate_proj(x)[0].numpy().reshape(T, 4, 5), m.beta_proj(x)[0].sigmoid().numpy()
    decay = np.exp(-np.exp(m.A.numpy()) * softplus(m.decay_proj(x)[0].numpy() + m.dt_bias.numpy()))
    S, out = np.zeros((4, 3, 5)), np.zeros((T, 4, 5))
    for t in range(T):
        for n in range(4):
            key, query = (u[t, n // 2] / np.sqrt((u[t, n // 2] ** 2).sum() + 1e-6) for u in (k, q))
            S[n] = decay[t, n] * S[n]
            S[n] = S[n] + beta[t, n] * np.outer(key, v[t, n] - S[n].T @ key)
            o = S[n].T @ (query / np.sqrt(3))
            out[t, n] = o / np.sqrt((o**2).mean() + 1e-6) * m.gated_norm.weight.numpy() * silu(gate[t, n])
    same(m(x, run(), None)[0], m.out_proj(torch.from_numpy(out.reshape(T, -1))))


def test_rg_lru_by_loops() -> None:
    spec = s.RgLru(width=6, conv=3, blocks=2)
    m, x = made(RgLru(spec, D, F64)), hidden()
    u = conv(m.conv, m.x_proj(x)[0].numpy())
    gates = []
    for gate in (m.input_gate, m.recurrence_gate):
        whole = np.block([[gate.weight.numpy()[0], np.zeros((3, 3))], [np.zeros((3, 3)), gate.weight.numpy()[1]]])
        gates.append(1 / (1 + np.exp(-(u @ whole + gate.bias.numpy().reshape(-1)))))
    a, h, out = np.exp(-8 * gates[1] * softplus(m.decay.numpy())), np.zeros(6), []
    for t in range(T):
        h = a[t] * h + (np.sqrt(1 - a[t] ** 2) if t else 1.0) * gates[0][t] * u[t]
        out.append(h)
    branch = torch.nn.functional.gelu(m.y_proj(x)[0], approximate="tanh")
    same(m(x, run(), None)[0], m.out_proj(torch.from_numpy(np.array(out)) * branch))


def test_short_convolution_by_loops() -> None:
    m, x = made(ShortConv(s.ShortConv(width=6, conv=3, bias=True), D, F64)), hidden()
    b, c, u = (part[0].numpy() for part in m.in_proj(x).chunk(3, dim=-1))
    same(m(x, run(), None)[0], m.out_proj(torch.from_numpy(c * conv(m.conv, b * u))))


def test_mamba_with_heads_has_no_module() -> None:
    with pytest.raises(UnsupportedError, match="heads"):
        Mamba(s.Mamba(d_inner=6, state=4, conv=3, dt_rank=2, heads=2), D, F64)
