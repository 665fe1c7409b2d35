"""A checkpoint against a description: bytes row by row, differences by kind, and what memory and latency make of them."""

from __future__ import annotations

from typing import Any

import pytest

from tfm.estimators.latency import roofline
from tfm.estimators.memory import memory
from tfm.estimators.params import params
from tfm.estimators.stored import differences, shares, stored
from tfm.estimators.work import Pass
from tfm.presets.device import load_device
from tfm.presets.huggingface import read_config
from tfm.presets.weights.stored import StoredTensor, StoredWeights

D, F, V, L, KV = 32, 80, 96, 3, 16
LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": V, "hidden_size": D, "intermediate_size": F, "num_hidden_layers": L, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip
Tensors = dict[str, tuple[str, tuple[int, ...]]]
SIZES = {"BF16": 2, "F32": 4, "U8": 1, "I32": 4, "F8_E4M3": 1, "F8_E8M0": 1, "F16": 2}


def layer(index: int, dtype: str = "BF16") -> Tensors:
    shapes = {
        "self_attn.q_proj": (D, D), "self_attn.k_proj": (KV, D), "self_attn.v_proj": (KV, D), "self_attn.o_proj": (D, D),
        "mlp.gate_proj": (F, D),
        "mlp.up_proj": (F, D), "mlp.down_proj": (D, F), "input_layernorm": (D,), "post_attention_layernorm": (D,),
    }  # fmt: skip
    return {f"model.layers.{index}.{name}.weight": (dtype, shape) for name, shape in shapes.items()}


def llama(*, head: bool = True, layers: int = L) -> Tensors:
    beside: Tensors = {"model.embed_tokens.weight": ("BF16", (V, D)), "model.norm.weight": ("BF16", (D,))}
    beside |= {"lm_head.weight": ("BF16", (V, D))} if head else {}
    return beside | {name: value for index in range(layers) for name, value in layer(index).items()}


def weights(tensors: Tensors) -> StoredWeights:
    made = []
    for name, (dtype, shape) in tensors.items():
        size = SIZES[dtype]
        for n in shape:
            size *= n
        made.append(StoredTensor(name=name, dtype=dtype, shape=shape, bytes=size))
    return StoredWeights(tensors=tuple(made), files=("model.safetensors",), origin="model.safetensors")


def kinds(config: dict[str, Any], tensors: Tensors) -> dict[str, int]:
    return {one.kind: one.elements for one in differences(read_config(config), weights(tensors))}


def packed(tensors: Tensors) -> Tensors:
    """Projections as 8 values in an I32, one F16 scale for every 16 rows (as GPTQ stores them)."""
    made: Tensors = {}
    for name, (dtype, shape) in tensors.items():
        if "_proj" in name:
            base = name.removesuffix(".weight")
            made |= {f"{base}.qweight": ("I32", (shape[0] // 8, shape[1])), f"{base}.scales": ("F16", (shape[0] // 16, shape[1]))}
        else:
            made[name] = (dtype, shape)
    return made


TIED = {**LLAMA, "tie_word_embeddings": True}
PROJECTED = 2 * D * D + 2 * KV * D + 3 * F * D  # of one layer


@pytest.mark.parametrize(
    ("config", "tensors", "expected"),
    [
        pytest.param(LLAMA, llama(), {}, id="the same"),
        pytest.param(TIED, llama(head=False), {}, id="tied"),
        pytest.param(TIED, llama(), {"tied head stored twice": V * D}, id="tied head stored twice"),
        pytest.param(LLAMA, llama(head=False), {"not stored": -V * D}, id="a head that is not there"),
        pytest.param(
            LLAMA,
            llama() | {f"model.layers.{n}.self_attn.rotary_emb.inv_freq": ("F32", (4,)) for n in range(L)},
            {"stored buffers": 4 * L},
            id="buffers",
        ),
        pytest.param(LLAMA, llama(layers=L + 1), {"MTP layers": PROJECTED + 2 * D}, id="a layer after the last"),
        pytest.param(LLAMA, llama() | {"mtp.fc.weight": ("BF16", (D, 2 * D))}, {"MTP layers": 2 * D * D}, id="mtp by name"),
        pytest.param(LLAMA, llama() | {"visual.patch.weight": ("BF16", (7, 3))}, {"not in the description": 21}, id="something else"),
        pytest.param(LLAMA, llama() | {"model.embed_tokens.weight": ("BF16", (V + 4, D))}, {"other shapes": 4 * D}, id="padded vocabulary"),
        pytest.param(
            LLAMA,
            llama() | {f"model.layers.{n}.mlp.up_proj.weight_scale_inv": ("F32", (2, 2)) for n in range(L)},
            {"quantisation scales": 4 * L},
            id="fp8 with scales",
        ),
        pytest.param(
            LLAMA,
            packed(llama()),
            {"packed values": (PROJECTED // 8 - PROJECTED) * L, "quantisation scales": PROJECTED // 16 * L},
            id="packed with scales",
        ),
    ],
)
def test_differences_by_kind(config: dict[str, Any], tensors: Tensors, expected: dict[str, int]) -> None:
    found = kinds(config, tensors)
    assert found == expected
    assert sum(found.values()) == weights(tensors).elements - params(read_config(config)).total_params


def test_every_kind_says_why() -> None:
    for one in differences(read_config(TIED), weights(llama(layers=L + 1) | {"x": ("U8", (3,))})):
        assert one.why


# --- bytes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tensors", [llama(), packed(llama()), llama(head=False)], ids=["plain", "packed", "without a head"])
def test_rows_and_what_is_beside_them_are_the_file(tensors: Tensors) -> None:
    held = weights(tensors)
    found = stored(read_config(LLAMA), held)
    assert (
        sum(found.owned_bytes(path) for path in found.rows) + sum(group.bytes for group in found.beside) == held.bytes == found.total_bytes
    )


def test_a_plain_file_reads_as_its_format() -> None:
    spec = read_config(LLAMA)
    for phase in ("prefill", "decode"):
        work = Pass(phase=phase, context=40)
        device = load_device("rtx-4090")
        by_file = roofline(spec, Pass(phase=phase, context=40, stored=stored(spec, weights(llama()))), device)
        assert by_file.weight_read_bytes == roofline(spec, work, device).weight_read_bytes
        assert by_file.floor_s == roofline(spec, work, device).floor_s


def test_mixed_formats_are_read_row_by_row() -> None:
    """One row in F32 in one layer: twice the bytes of that one tensor, nothing else."""
    spec = read_config(LLAMA)
    mixed = llama() | {"model.layers.1.mlp.up_proj.weight": ("F32", (F, D))}
    plain, other = (
        roofline(spec, Pass(phase="decode", context=9, stored=stored(spec, weights(each))), load_device("rtx-4090"))
        for each in (llama(), mixed)
    )
    assert other.weight_read_bytes - plain.weight_read_bytes == 2 * F * D
    assert stored(spec, weights(mixed)).rows["decoder/feed_forward/up_proj"].bytes == 2 * F * D * (L + 1)


def test_a_tied_head_reads_the_table() -> None:
    spec = read_config(TIED)
    step = roofline(spec, Pass(phase="decode", context=9, stored=stored(spec, weights(llama(head=False)))), load_device("rtx-4090"))
    assert step.weight_read_bytes == 2 * (L * (PROJECTED + 2 * D) + D + V * D)


def test_memory_is_all_that_is_stored() -> None:
    spec, held = read_config(LLAMA), weights(packed(llama()))
    assert memory(spec, Pass(context=9, stored=stored(spec, held))).weight_bytes == held.bytes


def test_names_that_say_nothing_are_shared_out() -> None:
    """The total stays exact; every row gets bytes in proportion to its parameters."""
    spec = read_config(LLAMA)
    held = weights({f"tensor_{index}": value for index, value in enumerate(llama().values())})
    found = stored(spec, held)
    assert (found.named_bytes, found.total_bytes, found.beside) == (0, held.bytes, ())
    assert sum(found.owned_bytes(path) for path in found.rows) == held.bytes
    assert found.rows["lm_head/weight"].bytes == pytest.approx(2 * V * D, abs=2)


def test_distinct_experts_are_read_in_proportion() -> None:
    config = {
        "model_type": "mixtral", "vocab_size": V, "hidden_size": D, "intermediate_size": F, "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_local_experts": 8, "num_experts_per_tok": 2,
    }  # fmt: skip
    tensors: Tensors = {name: value for name, value in llama(layers=1).items() if ".mlp." not in name}
    tensors |= {"model.layers.0.block_sparse_moe.gate.weight": ("BF16", (8, D))}
    for index in range(8):
        base = f"model.layers.0.block_sparse_moe.experts.{index}"
        tensors |= {f"{base}.w{n}.weight": ("F8_E4M3", (D, F) if n == 2 else (F, D)) for n in (1, 2, 3)}
    spec = read_config(config)
    assert kinds(config, tensors) == {}
    step = roofline(spec, Pass(phase="decode", context=9, stored=stored(spec, weights(tensors))), load_device("rtx-4090"))
    rest = 2 * (2 * D * D + 2 * KV * D + 2 * D + 8 * D + D + V * D)
    assert step.weight_read_bytes == pytest.approx(rest + 2 * 3 * F * D)


@pytest.mark.parametrize(("amount", "sizes"), [(10, [1, 2, 4]), (0, [3]), (7, [0, 0]), (1, [5, 5, 5])])
def test_shares_add_up(amount: int, sizes: list[int]) -> None:
    assert sum(shares(amount, sizes)) == amount
    assert len(shares(amount, sizes)) == len(sizes)
