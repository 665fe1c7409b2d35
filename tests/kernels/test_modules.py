"""The leaves: norms, tables, convolutions, activations, feed-forwards, routed experts, and how they get their numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tfm.kernels.feed_forward import Experts, FeedForward, MoE, Router
from tfm.kernels.init import BLOCK, Drawer, fill
from tfm.kernels.modules import ACTIVATIONS, CausalConv, Conv, Linear, Make, Norm, Table, UnsupportedError, activation_named
from tfm.kernels.paths import ledger_path
from tfm.presets import spec as s

F64 = Make(device=torch.device("cpu"), dtype=torch.float64)
GATED = s.FeedForward(d_ff=11, activation="silu", gated=True)


def filled(module: nn.Module) -> Any:
    fill(module, seed=5)
    return module


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def same(found: Tensor, expected: Any) -> None:
    torch.testing.assert_close(found.detach(), torch.as_tensor(np.asarray(expected)), rtol=1e-12, atol=1e-13)


# --- norms ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["layer", "layer_unbiased", "layer_plain", "rms", "rms_plain"])
@pytest.mark.parametrize("unit_offset", [False, True])
def test_norms_as_the_papers_write_them(kind: Any, unit_offset: bool) -> None:
    norm = filled(Norm(s.Norm(type=kind, eps=0.3, unit_offset=unit_offset), 7, F64))
    x = random(2, 3, 7)
    plain = x.numpy() - (x.numpy().mean(-1, keepdims=True) if kind.startswith("layer") else 0)
    expected = plain / np.sqrt((plain**2).mean(-1, keepdims=True) + 0.3)
    if norm.weight is not None:
        expected = expected * (norm.weight.detach().numpy() + unit_offset)
    if norm.bias is not None:
        expected = expected + norm.bias.detach().numpy()
    same(norm(x), expected)
    assert sum(weight.numel() for weight in norm.parameters()) == s.NORM_VECTORS[kind] * 7


def test_a_norm_of_every_head() -> None:
    norm = filled(Norm(s.HeadNorm(type="rms", over="heads", eps=1e-6), 4, F64, heads=3))
    x = random(2, 5, 3, 4)
    same(norm(x), F.rms_norm(x, (4,), None, 1e-6).numpy() * norm.weight.detach().numpy())


def test_batch_norm_has_no_module() -> None:
    with pytest.raises(UnsupportedError, match="running statistics"):
        Norm(s.Norm(type="batch"), 4, F64)


# --- matrices, tables, convolutions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 9], ids=lambda rows: f"{rows}-rows")
@pytest.mark.parametrize("bias", [False, True])
def test_linear(rows: int, bias: bool) -> None:
    linear, x = filled(Linear(5, 16, F64, bias=bias)), random(1, rows, 5)
    same(linear(x), F.linear(x, linear.weight, linear.bias).detach())
    assert linear(x).shape == (1, rows, 16)


def test_a_tied_matrix_is_the_table_itself() -> None:
    table = Table(s.Embedding(name="token", rows=9, scale=3.0), 4, F64)
    head = Linear(4, 9, F64, weight=table.weight)
    model = filled(nn.ModuleList([table, head]))
    assert sum(weight.numel() for weight in model.parameters()) == 36
    same(table(torch.tensor([[2, 8]])), 3.0 * head.weight.detach()[[2, 8]][None])


def test_rows_before_position_0() -> None:
    table = filled(Table(s.Embedding(name="position", rows=9, role="position", offset=2), 4, F64))
    same(table(torch.tensor([0, 6])), table.weight.detach()[[2, 8]])


@pytest.mark.parametrize(
    ("spec", "size", "expected"),
    [
        (s.Conv(name="patches", d_in=3, d_out=5, kernel=(4, 2), stride=(4, 2)), (8, 6), (2, 3)),
        (s.Conv(name="same", d_in=3, d_out=5, kernel=(3,), bias=True), (10,), (10,)),
        (s.Conv(name="half", d_in=3, d_out=5, kernel=(3,), stride=(2,), activation="gelu"), (10,), (5,)),
        (s.Conv(name="grouped", d_in=6, d_out=6, kernel=(5,), groups=3), (7,), (7,)),
        (s.Conv(name="video", d_in=3, d_out=5, kernel=(2, 4, 4), stride=(2, 4, 4)), (2, 8, 12), (1, 2, 3)),
    ],
    ids=lambda value: value.name if isinstance(value, s.Conv) else "",
)
def test_lengths_of_convolutions(spec: s.Conv, size: tuple[int, ...], expected: tuple[int, ...]) -> None:
    conv, x = filled(Conv(spec, F64)), random(2, spec.d_in, *size)
    y = conv(x)
    assert y.shape == (2, spec.d_out, *expected)
    if spec.activation:
        raw = filled(Conv(s.Conv(name="raw", d_in=3, d_out=5, kernel=(3,), stride=(2,)), F64))
        same(y, F.gelu(raw(x)).detach())


def test_patches_are_matrix_products() -> None:
    """A patch is one row: no overlap, no padding."""
    conv, x = filled(Conv(s.Conv(name="patches", d_in=3, d_out=5, kernel=(2, 2), stride=(2, 2)), F64)), random(1, 3, 4, 6)
    patch = x[0, :, 2:4, 4:6].reshape(-1)
    same(conv(x)[0, :, 1, 2], (conv.weight.detach().view(5, -1) @ patch))


def test_a_causal_convolution_sees_no_later_token() -> None:
    conv, x = filled(CausalConv(4, 3, F64, bias=True)), random(2, 6, 4)
    whole = conv(x)
    weight = conv.weight.detach().numpy()[:, 0]
    same(whole[:, 4], (x[:, 2:5].numpy() * weight.T).sum(1) + conv.bias.detach().numpy())
    same(conv(x[:, 3:], x[:, 1:3].transpose(1, 2)), whole[:, 3:].detach())


# --- activations and feed-forwards ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "at_minus_1", "at_2"),
    [
        ("relu", 0.0, 2.0),
        ("relu2", 0.0, 4.0),
        ("silu", -0.26894142136999516, 1.7615941559557649),
        ("gelu", -0.15865525393145707, 1.9544997361036416),
        ("gelu_tanh", -0.15880800939172324, 1.954597694087775),
        ("quick_gelu", -0.15420423, 1.93565862),
        ("tanh", -0.7615941559557649, 0.9640275800758169),
        ("linear", -1.0, 2.0),
    ],
)
def test_activations_have_published_values(name: str, at_minus_1: float, at_2: float) -> None:
    found = activation_named(name)(torch.tensor([-1.0, 2.0], dtype=torch.float64))
    assert found.tolist() == pytest.approx([at_minus_1, at_2], abs=1e-8)


def test_an_unknown_activation_names_those_that_exist() -> None:
    with pytest.raises(UnsupportedError, match=r"'laplace'.*there are gelu, "):
        activation_named("laplace")
    assert len(ACTIVATIONS) > 15


def test_a_gated_feed_forward() -> None:
    feed, x = filled(FeedForward(s.FeedForward(d_ff=11, activation="gelu", gated=True, bias=True), 6, F64)), random(2, 3, 6)
    hidden = F.gelu(feed.gate_proj(x)) * feed.up_proj(x)
    same(feed(x), feed.down_proj(hidden).detach())


def test_clamped_swiglu() -> None:
    """gpt-oss: the gate is capped from above, the other factor on both sides and one more."""
    feed = filled(FeedForward(s.FeedForward(d_ff=11, activation="clamped_swiglu", gated=True), 6, F64))
    x = 40 * random(2, 3, 6)
    gate, up = feed.gate_proj(x).clamp(max=7), feed.up_proj(x).clamp(-7, 7)
    assert (feed.gate_proj(x) > 7).any()
    same(feed(x), feed.down_proj(gate * torch.sigmoid(1.702 * gate) * (up + 1)).detach())


def test_learned_activations() -> None:
    feed = filled(FeedForward(s.FeedForward(d_ff=11, activation="prelu", act_params=1), 6, F64))
    with torch.no_grad():
        feed.act.weight.fill_(0.25)
    x = random(2, 3, 6)
    same(feed(x), feed.down_proj(F.leaky_relu(feed.up_proj(x), 0.25)).detach())
    with pytest.raises(UnsupportedError, match="learned numbers"):
        FeedForward(s.FeedForward(d_ff=11, activation="gelu", act_params=1), 6, F64)


# --- routed experts -------------------------------------------------------------------------------------------------

ROUTING: dict[str, s.MoE] = {
    "mixtral": s.MoE(experts=6, top_k=2, expert=GATED),
    "unnormalised": s.MoE(experts=6, top_k=3, expert=GATED, normalize=False, routed_scale=1.7),
    "gpt-oss": s.MoE(experts=6, top_k=3, expert=GATED, scoring="softmax_topk", router_bias=True),
    "deepseek-v2": s.MoE(experts=12, top_k=3, expert=GATED, groups=4, top_groups=2, normalize=False),
    "deepseek-v3": s.MoE(
        experts=12, top_k=3, expert=GATED, groups=4, top_groups=2, scoring="sigmoid", correction="buffer", routed_scale=2.5
    ),
}


def routed_by_hand(router: Router, spec: s.MoE, token: Tensor) -> dict[int, float]:
    """Experts and weights of one token, by loops over plain numbers."""
    logits = router.weight(token[None])[0].tolist()
    exps = [np.exp(v) for v in logits]
    scores = [1 / (1 + np.exp(-v)) for v in logits] if spec.scoring == "sigmoid" else [v / sum(exps) for v in exps]
    if spec.scoring == "softmax_topk":
        scores = exps
    correction = [0.0] * spec.experts if router.correction is None else router.correction.tolist()
    ranked = [score + extra for score, extra in zip(scores, correction, strict=True)]
    size = spec.experts // spec.groups
    grouped = [ranked[g * size : (g + 1) * size] for g in range(spec.groups)]
    best = [sum(sorted(group)[-(1 if router.correction is None else 2) :]) for group in grouped]
    allowed = sorted(range(spec.groups), key=lambda g: -best[g])[: spec.top_groups if spec.groups > 1 else 1]
    chosen = sorted((e for e in range(spec.experts) if e // size in allowed), key=lambda e: -ranked[e])[: spec.top_k]
    total = sum(scores[e] for e in chosen) if spec.normalize else 1.0
    return {e: spec.routed_scale * scores[e] / total for e in chosen}


@pytest.mark.parametrize("name", ROUTING)
def test_routing_as_the_reports_say(name: str) -> None:
    spec = ROUTING[name]
    router, x = filled(Router(spec, 7, F64)), 3 * random(9, 7)
    chosen, gates = router(x)
    for token in range(9):
        expected = routed_by_hand(router, spec, x[token])
        found = dict(zip(chosen[token].tolist(), gates[token].tolist(), strict=True))
        assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("tokens", [1, 5], ids=["one-token", "several"])
@pytest.mark.parametrize(
    "spec",
    [
        ROUTING["mixtral"],
        s.MoE(experts=6, top_k=2, expert=s.FeedForward(d_ff=11, activation="relu2", bias=True), latent=4, latent_bias=True),
    ],
    ids=["gated", "plain-in-a-latent-width"],
)
def test_experts_looped_and_gathered_are_the_same(spec: s.MoE, tokens: int) -> None:
    experts, x = filled(Experts(spec, 7, F64)), random(tokens, 7)
    chosen = torch.stack([torch.randperm(6, generator=torch.Generator().manual_seed(t))[:2] for t in range(tokens)])
    gates = random(tokens, 2)
    if spec.latent:
        x = experts.latent_in(x)
    same(experts.looped(x, chosen, gates), experts.gathered(x, chosen, gates).detach())
    by_hand = sum(experts.one(x[-1:], int(e)) * gates[-1, place] for place, e in enumerate(chosen[-1]))
    same(experts.looped(x, chosen, gates)[-1:], by_hand.detach())


def test_shared_experts_and_their_gate() -> None:
    shared = s.FeedForward(d_ff=5, activation="silu", gated=True)
    moe, x = filled(MoE(s.MoE(experts=6, top_k=2, expert=GATED, shared=shared, shared_gate=True), 7, F64)), random(2, 3, 7)
    routed = moe.experts(x.view(-1, 7), *moe.router(x.view(-1, 7))).view_as(x)
    same(moe(x), (routed + moe.shared_expert(x) * torch.sigmoid(moe.shared_expert_gate(x))).detach())


def test_what_has_no_module_says_so() -> None:
    for wrong in (s.MoE(experts=6, top_k=2, expert=GATED, hashed=9), s.MoE(experts=6, top_k=2, expert=GATED, router=False)):
        with pytest.raises(UnsupportedError, match=r"ha(s|ve) no module"):
            MoE(wrong, 7, F64)


# --- numbers --------------------------------------------------------------------------------------------------------


def test_weights_are_random_never_zeros_and_the_same_each_time() -> None:
    first, again = (filled(MoE(ROUTING["deepseek-v3"], 7, F64)) for _ in range(2))
    for name, held in first.state_dict().items():
        assert (held != 0).all(), name
        assert torch.equal(held, again.state_dict()[name])


def test_a_large_matrix_repeats_but_its_rows_differ() -> None:
    linear = Linear(512, 3 * BLOCK // 512, Make(device=torch.device("cpu"), dtype=torch.bfloat16))
    fill(linear)
    weight = linear.weight.detach()
    assert len({tuple(row[:8].tolist()) for row in weight}) == len(weight)
    assert float(weight.float().std()) == pytest.approx(512**-0.5, rel=0.02)


def test_a_drawer_leaves_alone_what_it_has_filled() -> None:
    draw, tensor = Drawer(1, torch.device("cpu")), torch.empty(5)
    draw(tensor, 1.0, 3.0)
    before = tensor.clone()
    draw(tensor, 9.0, 0.0)
    assert torch.equal(tensor, before)


def test_paths_follow_the_ledger() -> None:
    """Names of attributes stand in the path; what a leaf holds does not."""
    moe = MoE(ROUTING["deepseek-v3"], 7, F64)
    names = [name for name, _ in (*moe.named_parameters(), *moe.named_buffers())]
    assert {ledger_path(moe, name) for name in names} == {
        "router/weight",
        "router/correction",
        "experts/gate_proj",
        "experts/up_proj",
        "experts/down_proj",
    }
