"""Every claim can fail: each is handed a kernel, a formula or a model that is wrong, and turns red."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace as changed
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn import functional as F

from tfm.kernels import positions as p
from tfm.kernels.attention import IMPLEMENTATIONS, Kernel, eager, sdpa
from tfm.kernels.claims import CLAIMS, look
from tfm.kernels.claims.caching import attention_flops, cached_logits
from tfm.kernels.claims.gradients import key_rule, projection_rule, query_rule, value_rule, weight_rule
from tfm.kernels.claims.measured import decode_step
from tfm.kernels.claims.recurrence import attending, attention_layer, recurrent
from tfm.kernels.claims.sharing import apart, cache_bytes, continued, with_kv_heads
from tfm.kernels.claims.softmax import no_scale, scale
from tfm.kernels.claims.specs import build, one_stack, stack_of
from tfm.kernels.claims.worked import block_weights, ledger_weights, step_seconds
from tfm.kernels.claims.worked import cache_bytes as ledger_bytes
from tfm.kernels.masks import Rules
from tfm.kernels.model import Model
from tfm.kernels.modules import Linear, normalise
from tfm.kernels.tiled import tiled
from tfm.presets import spec as s

# --- wrong attention ------------------------------------------------------------------------------------------------


def among(wrong: Kernel) -> dict[str, Kernel]:
    """One wrong kernel among the right ones."""
    return {**IMPLEMENTATIONS, "wrong": wrong}


def too_flat(q: Tensor, k: Tensor, v: Tensor, rules: Rules) -> Tensor:
    return eager(0.9 * q, k, v, rules)


def one_percent_more(q: Tensor, k: Tensor, v: Tensor, rules: Rules) -> Tensor:
    return 1.01 * eager(q, k, v, rules)


def leaky(q: Tensor, k: Tensor, v: Tensor, rules: Rules) -> Tensor:
    return eager(q, k, v, rules) + 1e-15


def rows_of_keys(q: Tensor, k: Tensor, v: Tensor, rules: Rules) -> Tensor:
    return eager(k, q, q, rules)


def by_place(q: Tensor, k: Tensor, v: Tensor, rules: Rules) -> Tensor:
    return eager(q.flip(2), k, v, rules)


def heads_in_turn(q: Tensor, k: Tensor, v: Tensor, rules: Rules) -> Tensor:
    """Query head n reads key/value head n mod K."""
    times = q.shape[1] // k.shape[1]
    return eager(q, k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1), rules)


def forgetful(q: Tensor, k: Tensor, v: Tensor, rules: Rules) -> Tensor:
    return tiled(q, k, v, changed(rules, window=600))


# --- wrong models -----------------------------------------------------------------------------------------------------


def edited(spec: s.ModelSpec, stack: str, edit: Callable[[s.Sublayer], s.Sublayer]) -> s.ModelSpec:
    """A description with every sublayer of a stack changed."""

    def layer(old: s.Layer) -> s.Layer:
        return replace(old, sublayers=tuple(map(edit, old.sublayers)))

    def whole(old: s.Stack) -> s.Stack:
        return replace(old, blocks=tuple(replace(block, pattern=tuple(map(layer, block.pattern))) for block in old.blocks))

    return replace(spec, stacks=tuple(whole(old) if old.name == stack else old for old in spec.stacks))


def masked_by(mask: s.Mask, *, only: type[s.Data] | None = None) -> Callable[[s.ModelSpec], Model]:
    """A model whose decoder has another mask, whatever was asked for (or where one of a kind was)."""

    def edit(sub: s.Sublayer) -> s.Sublayer:
        mixer = sub.mixer
        right = isinstance(mixer, s.Attention) and mixer.source is None and (only is None or isinstance(mixer.mask, only))
        return replace(sub, mixer=replace(mixer, mask=mask)) if right else sub

    return lambda spec: build(edited(spec, "decoder", edit))


def looking_at_itself(spec: s.ModelSpec) -> Model:
    """Cross-attention that attends its own stack."""

    def edit(sub: s.Sublayer) -> s.Sublayer:
        return replace(sub, mixer=replace(sub.mixer, source=None)) if sub.name == "cross_attention" else sub

    return build(edited(spec, "decoder", edit))


def normed(where: str) -> Callable[[s.ModelSpec], Model]:
    """The norm at another place, whatever was asked for."""
    return lambda spec: build(one_stack(position=s.Rope(), layers=spec.stacks[0].depth, norm=where))  # type: ignore[arg-type]


def deaf(spec: s.ModelSpec) -> Model:
    """Every token is the same."""
    model = build(spec)
    with torch.no_grad():
        stack_of(model, 0).embedding.token.weight.fill_(0.1)
    return model


def smeared(spec: s.ModelSpec) -> Model:
    """The embedding of a token depends on the others."""
    model = build(spec)
    stack_of(model, 0).embedding.register_forward_hook(lambda module, given, got: got + got.mean(dim=1, keepdim=True))
    return model


def cross_projections(model: Model) -> list[Any]:
    return [layer.subs[1].mixer.k_proj for layer in stack_of(model, 1).layers]


def twice_projected(spec: s.ModelSpec) -> Model:
    model = build(spec)
    for module in cross_projections(model):
        module.register_forward_hook(lambda module, given, got: 2 * got)
    return model


def projected_once_for_all(spec: s.ModelSpec) -> Model:
    model = build(spec)
    first, *others = cross_projections(model)
    for other in others:
        other.weight = first.weight
    return model


def cut_off_encoder(spec: s.ModelSpec) -> Model:
    model = build(spec)
    model.stacks[0].register_forward_hook(lambda module, given, got: got.detach())
    return model


def frozen_decoder(spec: s.ModelSpec) -> Model:
    model = build(spec)
    for weight in stack_of(model, 1).layers.parameters():
        weight.requires_grad = False
    return model


def token_table(spec: s.ModelSpec, **fields: Any) -> Model:
    """Embeddings with other fields."""

    def whole(stack: s.Stack) -> s.Stack:
        return replace(stack, embeddings=tuple(replace(x, **fields) if isinstance(x, s.Embedding) else x for x in stack.embeddings))

    return build(replace(spec, stacks=tuple(map(whole, spec.stacks))))


def gated(spec: s.ModelSpec) -> dict[str, int]:
    """Three matrices in the feed-forward."""

    def edit(sub: s.Sublayer) -> s.Sublayer:
        return replace(sub, mixer=replace(sub.mixer, gated=True)) if isinstance(sub.mixer, s.FeedForward) else sub

    return block_weights(edited(spec, "decoder", edit))


# --- wrong passes -------------------------------------------------------------------------------------------------------


def without_a_past(model: Model, ids: Tensor, source: Tensor | None, *, first: int) -> Tensor:
    return torch.cat([model(part)["lm_head"] for part in ids.split(1, dim=1)], dim=1)


def other_tokens(model: Model, ids: Tensor, source: Tensor | None, *, first: int) -> Tensor:
    return cached_logits(model, ids.roll(1, dims=1), source, first=first)


def behind_another(model: Model, prefix: Tensor, own: Tensor) -> Tensor:
    return continued(model, prefix.flip(1), own)


def one_after_another(model: Model, ids: Tensor) -> None:
    for row in ids:
        decode_step(model, row[None])


def token_by_token(model: Model, ids: Tensor) -> None:
    for token in ids[0]:
        decode_step(model, token[None, None])


def slowed(model: Model) -> None:
    """Every product twice."""
    for module in model.modules():
        if isinstance(module, Linear):
            module.register_forward_hook(lambda module, given, got: module.forward(given[0]))


# --- wrong formulas -----------------------------------------------------------------------------------------------------


def over_n_minus_1(x: Tensor, spec: s.Norm, width: int, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    return (x - x.mean(dim=-1, keepdim=True)) / x.std(dim=-1, keepdim=True)


def always(kind: str) -> Callable[..., Tensor]:
    return lambda x, spec, width, weight, bias: normalise(x, replace(spec, type=kind), width, weight, bias)


def over_the_batch(x: Tensor, spec: s.Norm, width: int, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    return (x - x.mean()) / x.std()


def cosines_only(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
    return p.rotate(x, cos, 0 * sin, interleaved=interleaved)


def not_turned(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
    return x


def bits(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels) / math.log(2)


def uphill(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=0.1, maximize=True)


def times(factor: float) -> Callable[..., tuple[float, float]]:
    def slower(spec: s.ModelSpec, device: Any) -> tuple[float, float]:
        memory, compute = step_seconds(spec, device)
        return factor * memory, factor * compute

    return slower


def half(rule: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda a, b: rule(a, b) / 2


def all_heads(spec: s.ModelSpec) -> int:
    """A cache for every query head."""
    attention = next(sub.mixer for _, sub in spec.sublayers() if isinstance(sub.mixer, s.Attention))
    return cache_bytes(with_kv_heads(spec, attention.heads))


WRONG: dict[str, dict[str, Any]] = {
    # worked
    "softmax-of-3-1-02": {"kernels": among(too_flat)},
    "softmax-of-1-2-0": {"kernels": among(too_flat)},
    "weighted-values": {"kernels": among(too_flat)},
    "loss-of-0665": {"loss": bits},
    "sgd-step": {"optimizer": uphill},
    "query-times-keys": {"scores": lambda q, k: q @ k.T / q.shape[-1] ** 0.5},
    "layer-norm-of-1-2-3-4": {"normalise": over_n_minus_1},
    "cache-per-token-7b": {"cache_bytes": lambda spec, tokens: ledger_bytes(spec, tokens) // 2},
    "cache-at-32k-7b": {"cache_bytes": lambda spec, tokens: ledger_bytes(spec, 32_000)},
    "reading-7b-takes-7ms": {"step_seconds": times(2)},
    "arithmetic-of-that-step": {"step_seconds": times(4)},
    "block-has-12-d2": {"block_weights": gated},
    "feed-forward-has-two-thirds": {"block_weights": gated},
    "ledger-counts-what-torch-holds": {"count": lambda spec: ledger_weights(spec) + 800},
    # softmax
    "variance-is-d-k": {"product": lambda q, k: (q * k).mean(dim=-1)},
    "scale-restores-variance": {"scale": lambda width: 1 / width},
    "softmax-saturates-without-scale": {"scale": scale},
    "scaled-softmax-is-soft": {"scale": no_scale},
    "gradient-vanishes-without-scale": {"scale": no_scale},
    "rows-sum-to-one": {"kernels": among(one_percent_more)},
    "masked-weights-are-zero": {"kernels": among(leaky)},
    # positions
    "without-positions-order-is-lost": {"build": lambda spec: build(one_stack(s.Full(), s.Sinusoidal()))},
    "with-positions-order-counts": {"build": lambda spec: build(one_stack(s.Full()))},
    "rope-scores-depend-on-distance": {"rotate": cosines_only},
    "rope-scores-change-with-distance": {"rotate": not_turned},
    "sinusoidal-as-published": {"sinusoidal": lambda places, width: p.sinusoidal(places, width, halves=True)},
    "learned-is-a-row": {"learned": lambda places, table: p.learned(places, table, offset=2)},
    "learned-ends-at-1024": {"learned": lambda places, table: p.learned(places.clamp(max=1023), table)},
    "alibi-as-published": {"slopes": lambda heads: p.alibi_slopes(2 * heads)[:heads]},
    "alibi-grows-with-distance": {"bias": lambda heads, tokens, keys: p.alibi_bias(heads, keys, keys)[:, :tokens]},
    "ntk-as-published": {"ntk_base": lambda base, width, factor: base * factor},
    "yarn-as-published": {"yarn": lambda d, base, factor, trained: p.yarn_scaled(d, base, factor=factor, trained=trained, truncate=False)},
    "yarn-factor-as-published": {"factor": lambda stretch: 0.1 * math.log2(stretch) + 1},
    # causality
    "future-changes-nothing": {"build": masked_by(s.Full())},
    "a-token-changes-its-own-state": {"build": deaf},
    "first-layer-keys-need-no-mask": {"build": smeared},
    "without-mask-second-layer-changes": {"build": masked_by(s.Causal())},
    "causal-keys-can-be-kept": {"build": masked_by(s.Full())},
    "one-layer-needs-no-mask-at-the-end": {"build": masked_by(s.Sliding(window=2), only=s.Causal)},
    "two-layers-need-the-mask": {"build": masked_by(s.Full())},
    "every-position-predicts-its-next": {"build": masked_by(s.Full())},
    # caching
    "cached-equals-recomputed": {"cached": without_a_past},
    "cached-equals-recomputed-with-encoder": {"cached": other_tokens},
    "recomputing-is-cubic": {"flops": lambda tokens, cached: attention_flops(tokens, cached=True)},
    "cached-is-quadratic": {"flops": lambda tokens, cached: attention_flops(tokens, cached=False)},
    "self-cache-grows-by-one": {"build": masked_by(s.Sliding(window=2))},
    "cross-cache-is-constant": {"build": looking_at_itself},
    "cross-keys-are-projected-by-the-decoder": {"build": twice_projected},
    "cross-keys-are-nobody-elses": {"build": projected_once_for_all},
    "as-many-outputs-as-queries": {"kernels": among(rows_of_keys)},
    "outputs-follow-the-queries": {"kernels": among(by_place)},
    # sharing
    "eight-groups-shrink-64-heads-8x": {"cache_bytes": all_heads},
    "eight-groups-shrink-32-heads-4x": {"cache_bytes": all_heads},
    "grouped-equals-repeated": {"kernels": among(heads_in_turn)},
    "shared-prefix-is-exact": {"continued": behind_another},
    "shared-prefix-saves-its-repeats": {"continued": apart},
    # gradients
    "softmax-with-cross-entropy": {"rule": lambda probabilities, truth: truth - probabilities},
    "gradient-of-values": {"rule": half(value_rule)},
    "gradient-of-weights": {"rule": half(weight_rule)},
    "softmax-row-rule": {"rule": lambda weights, d_weights: weights * d_weights},
    "gradient-of-queries": {"rule": half(query_rule)},
    "gradient-of-keys": {"rule": half(key_rule)},
    "gradient-of-projection": {"rule": half(projection_rule)},
    "gradient-reaches-the-encoder": {"build": cut_off_encoder},
    "frozen-encoder-stays": {"freeze": lambda weights: None},
    "the-decoder-behind-it-learns": {"build": frozen_decoder},
    # norms
    "layer-norm-centres-every-token": {"normalise": always("rms_plain")},
    "rms-norm-scales-every-token": {"normalise": always("layer_plain")},
    "norms-are-per-token": {"normalise": over_the_batch},
    "pre-norm-keeps-gradients-even": {"build": normed("post")},
    "post-norm-does-not": {"build": normed("pre")},
    "pre-norm-tames-the-last-layer": {"build": normed("post")},
    "embedding-is-scaled": {"build": lambda spec: token_table(spec, scale=None)},
    "head-is-tied": {"build": lambda spec: token_table(spec, shares=None)},
    "no-dropout-in-evaluation": {"drop": lambda x, p, training: F.dropout(x, p, training=True)},
    "dropout-in-training": {"drop": lambda x, p, training: x * (torch.rand_like(x) > p)},
    "two-passes-agree-only-in-evaluation": {"layer": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)},
    # memory
    "tiled-attention-is-exact": {"tiled": forgetful},
    "tiled-memory-is-linear": {"kernel": eager},
    "eager-memory-is-quadratic": {"kernel": tiled},
    "tiles-save-memory": {"kernel": eager},
    # recurrence
    "rnn-needs-n-steps": {"layer": attending},
    "attention-needs-one-step": {"layer": recurrent},
    "rnn-path-is-n": {"layer": attending},
    "attention-path-is-one": {"layer": recurrent},
    "attention-is-faster-where-n-is-d": {"rnn": attention_layer, "seconds": 0.1},
    # measured, on models small enough for a test
    "a-batch-of-4-decodes-as-fast": {"step": one_after_another, "layers": 1, "width": 512, "seconds": 0.1},
    "prefill-grows-with-its-tokens": {"run": decode_step, "layers": 1, "width": 512, "seconds": 0.1},
    "prefill-uses-the-arithmetic": {"run": token_by_token, "layers": 1, "width": 256, "tokens": 32, "seconds": 0.1},
    "int8-weights-speed-decode": {"narrow": slowed, "layers": 1, "width": 512, "seconds": 0.1, "gap": lambda: None},
}


def test_every_claim_has_something_wrong() -> None:
    assert list(WRONG) == list(CLAIMS)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_is_red(name: str) -> None:
    found = look(CLAIMS[name], **WRONG[name]).finding
    assert found.ok is False
    assert not found.note.startswith(("RuntimeError", "TypeError", "ValueError", "AttributeError")), "red for a fault of the test"


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.measured) if CLAIMS[name].measured else name for name in CLAIMS])
def test_holds(name: str) -> None:
    found = look(CLAIMS[name]).finding
    assert found.ok is not False, found
    assert found.ok is True or found.note.startswith("not applicable")


def test_the_kernels_are_all_looked_at() -> None:
    """What `among` adds to is what the claims take by default: a kernel that the tool has is not left out."""
    assert set(IMPLEMENTATIONS) == {"eager", "tiled", "sdpa", "grouped"}
    assert IMPLEMENTATIONS["sdpa"] is sdpa
