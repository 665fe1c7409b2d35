"""What the transformers library builds from a configuration: parameters, FLOPs and cache, the truth our reader meets.

python benchmarks/oracle_facts.py [FILE ...] [--write]     needs the extras `oracle` and `bench`

A file of tests/data/oracle holds one model_type: cases of a class and a configuration, and the facts found for them.
The configuration is written by hand; the facts are written here. Without --write every case is computed anew and
compared (exit 3 where a fact differs); with --write the files are brought up to date. A key that a configuration leaves
out takes the library's default, and so the facts tell of the defaults too.

Counted on the meta device: unique parameters by identity, weights tied, buffers never. The model then runs on the CPU
if it is small: FLOPs by PyTorch's counter (eager attention, experts one by one), cache from what the cache holds. A
model type that the library does not have is built as its structural equal (REMOTE says which).
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "data" / "oracle"
FACTS = ("total_params", "embedding_params", "lm_head_params", "active_params", "flops", "cache", "not_run", "refused")
BATCH, SEQ, TARGET = 2, 40, 24  # the pass that is counted; TARGET: decoder tokens behind an encoder of SEQ
WINDOW, SHORT, LONG = 24, 8, 72  # growth of the cache is read at SHORT and LONG tokens; longer windows are cut to WINDOW
LARGEST_RUN = 20_000_000  # parameters; a larger model is counted and not run
NOT_EMBEDDINGS = ("relative_attention_bias", "rel_embeddings")  # tables of relative positions

Config = dict[str, Any]
Facts = dict[str, Any]


# --- types that ship their own code ---------------------------------------------------------------------------------


def _chatglm(given: Config) -> Config:
    """ChatGLM 2, 3 and the early GLM-4: GLM under other names (kv_channels is the head width)."""
    heads = given["num_attention_heads"]
    return {
        "vocab_size": given["padded_vocab_size"], "hidden_size": given["hidden_size"], "num_attention_heads": heads,
        "intermediate_size": given["ffn_hidden_size"], "num_hidden_layers": given["num_layers"], "head_dim": given["kv_channels"],
        "num_key_value_heads": given["multi_query_group_num"] if given.get("multi_query_attention") else heads,
        "attention_bias": given.get("add_qkv_bias", False), "tie_word_embeddings": given.get("tie_word_embeddings", False),
        "pad_token_id": 0,
    }  # fmt: skip


def _qwen(given: Config) -> Config:
    """Qwen 1: Qwen2 without grouped heads; intermediate_size counts gate and up together."""
    width = given.get("intermediate_size", 22016) // 2
    return {"num_key_value_heads": given.get("num_attention_heads", 32), **given, "intermediate_size": width}


def _internlm(given: Config) -> Config:
    """InternLM: Llama with a bias on q, k, v and o unless the file says otherwise."""
    return {"attention_bias": given.get("bias", True), **{key: value for key, value in given.items() if key != "bias"}}


REMOTE: dict[str, tuple[str, Callable[[Config], Config]]] = {
    "baichuan": ("llama", dict),  # one matrix for q, k and v, of the same size
    "chatglm": ("glm", _chatglm),
    "internlm": ("llama", _internlm),
    "internlm2": ("llama", _internlm),  # q, k and v interleaved in one matrix
    "kimi_k2": ("deepseek_v3", dict),
    "mimo": ("qwen2", dict),  # its multi-token-prediction layers are left out, as for every other family
    "minicpm": ("llama", lambda given: {"tie_word_embeddings": True, **given}),
    "orion": ("stablelm", lambda given: {"num_key_value_heads": given["num_attention_heads"], **given}),  # LayerNorms
    "qwen": ("qwen2", _qwen),
}


# --- building and counting ------------------------------------------------------------------------------------------


def _copied(tree: Any) -> Any:
    """A copy that the library may change: configuration classes write into the dictionaries they are given."""
    if isinstance(tree, dict):
        return {key: _copied(value) for key, value in tree.items()}
    return [_copied(value) for value in tree] if isinstance(tree, list) else tree


def new_model(model_type: str, class_name: str, given: Config, *, device: str) -> Any:
    """The model on `device`, weights tied; the library's defaults stand for the keys that `given` leaves out."""
    known, translate = REMOTE.get(model_type, (model_type, dict))
    config = transformers.AutoConfig.for_model(known, **translate(_copied(given)))
    config._attn_implementation = config._experts_implementation = "eager"
    torch.manual_seed(0)
    with torch.device(device):
        model = getattr(transformers, class_name)(config).eval()
    model.tie_weights()
    if known == "t5" and given.get("tie_word_embeddings") is False and hasattr(model, "lm_head"):
        # The class of 5.24 ties whatever the file says; the checkpoints hold a head of their own, and 4.57 kept it.
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    for weight in model.parameters():
        weight.requires_grad = False  # PyTorch's counter trips over gradients that are not taken
    return model


def counts(model: Any) -> Facts:
    """Parameters of the model: all, in embedding tables, in the output head, and (with experts) active for one token."""
    sizes = {id(weight): weight.numel() for weight in model.parameters()}
    tables = {
        id(module.weight)
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and not name.endswith(NOT_EMBEDDINGS)
    }
    facts = {
        "total_params": sum(sizes.values()),
        "embedding_params": sum(sizes[key] for key in tables),
        "lm_head_params": sum(sizes[key] for key in _head(model) - tables),
    }
    idle = [params * (experts - chosen) // experts for params, experts, chosen in _routed(model)]
    return facts | ({"active_params": facts["total_params"] - sum(idle)} if idle else {})


def _head(model: Any) -> set[int]:
    """Identities of the output projection's weight and biases; BERT and its kin hold the bias beside the projection."""
    output = model.get_output_embeddings()
    found = {id(weight) for weight in output.parameters()} if output is not None else set()
    beside = ("predictions.bias", "lm_head.bias")
    return found | {id(weight) for name, weight in model.named_parameters(remove_duplicate=False) if name.endswith(beside)}


def _routed(model: Any) -> Iterator[tuple[int, int, int]]:
    """(parameters, experts, chosen) of every set of routed experts."""
    text = model.config.get_text_config(decoder=True)
    chosen = getattr(text.ffn_config, "moe_top_k", None) if hasattr(text, "ffn_config") else None
    chosen = chosen or getattr(text, "num_experts_per_tok", None) or getattr(text, "top_k_experts", None)
    for name, module in model.named_modules():
        if chosen and name.endswith(".experts") and hasattr(module, "num_experts"):
            yield sum(weight.numel() for weight in module.parameters()), module.num_experts, chosen


# --- running --------------------------------------------------------------------------------------------------------


def inputs_of(model: Any, length: int) -> dict[str, torch.Tensor]:
    """Tensors for one pass: `length` tokens, an encoder of SEQ before a decoder; images of the configured size."""
    config, name = model.config, type(model).__name__
    text = config.get_text_config()
    if model.main_input_name == "input_features":
        frames = torch.randn(BATCH, config.num_mel_bins, 2 * config.max_source_positions)
        return {"input_features": frames, "decoder_input_ids": _tokens(config, length)}
    if model.main_input_name == "pixel_values" and not hasattr(config, "text_config"):
        return {"pixel_values": _images(config)}
    if config.is_encoder_decoder:
        source = {"input_ids": _tokens(config, SEQ)}
        if name.endswith(("Classification", "Answering")):  # the decoder reads what the encoder reads
            return source
        return source | {"decoder_input_ids": _tokens(config, TARGET if length == SEQ else length)}
    tensors = {"input_ids": _tokens(text, length)}
    if name.endswith("MultipleChoice"):
        tensors["input_ids"] = tensors["input_ids"][:, None]
    return tensors | ({"pixel_values": _images(config.vision_config)} if config.model_type in ("clip", "siglip") else {})


def _tokens(config: Any, length: int) -> torch.Tensor:
    tokens = torch.arange(BATCH * length).reshape(BATCH, length) % (config.vocab_size - 4) + 3  # clear of padding
    if isinstance(end := getattr(config, "eos_token_id", None), int):
        tokens[:, -1] = end  # CLIP reads its pooled output there
    return torch.remainder(tokens, config.vocab_size)


def _images(config: Any) -> torch.Tensor:
    sides = config.image_size if isinstance(config.image_size, list) else [config.image_size] * 2
    return torch.randn(BATCH, config.num_channels, *sides)


def flops(model: Any) -> Facts:
    """FLOPs of one pass over [BATCH, SEQ], by operator, and what the library's way of computing adds to the algebra."""
    given = inputs_of(model, SEQ)
    model.config.get_text_config().pad_token_id = 0  # a classifier looks for the last token that is none
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        model(**given, **({"use_cache": False} if "input_ids" in given and hasattr(model, "generate") else {}))
    by_module = {
        str(name): {str(op).removeprefix("aten."): count for op, count in ops.items()} for name, ops in counter.get_flop_counts().items()
    }
    scan, added = _beyond_algebra(model, by_module)
    found: Facts = {key: list(tensor.shape) for key, tensor in given.items()}
    found |= {"total": counter.get_total_flops(), "implementation": scan + added}
    return found | ({"chunked_scan": scan} if scan else {}) | {"by_op": by_module["Global"]}


def _beyond_algebra(model: Any, by_module: dict[str, dict[str, int]]) -> tuple[int, int]:
    """FLOPs of recurrences computed in chunks (delta rule, Mamba-2); of padded convolutions and experts not chosen."""
    scan, added = 0, 0
    for name, module in model.named_modules():
        products = by_module.get(f"{type(model).__name__}.{name}", {}).get("bmm", 0)
        if isinstance(module, nn.Conv1d) and module.groups > 1 and module.padding == (module.kernel_size[0] - 1,):
            added += 2 * BATCH * module.weight.numel() * module.padding[0]  # positions past the end, thrown away
        elif type(module).__name__.endswith(("GatedDeltaNet", "Mamba2Mixer", "BambaMixer")):
            scan += products
        elif type(module).__name__ == "Llama4TextExperts":  # runs every expert on every token
            chosen = model.config.get_text_config().num_experts_per_tok
            added += products * (module.num_experts - chosen) // module.num_experts
    return scan, added


def cache(model: Any) -> Facts | None:
    """Elements of cache for one sequence: growth a token inside and beyond every window, and what does not grow.

    `per_token` is what the mathematics needs; `stored_per_token` stands beside it where the library holds more.
    """
    text = model.config.get_text_config(decoder=True)
    if not hasattr(model, "generate") or not text.use_cache or text.model_type == "deepseek_v4":  # V4: no step a token
        return None
    for key in ("sliding_window", "attention_chunk_size"):
        if (getattr(text, key, None) or 0) > WINDOW:
            setattr(text, key, WINDOW)
    held = {length: _held(model, length) for length in (SHORT, SHORT + 1, LONG, LONG + 1)}
    stored = {
        "per_token": held[SHORT + 1]["self"] - held[SHORT]["self"],
        "per_token_long": held[LONG + 1]["self"] - held[LONG]["self"],
    }
    found = _needed(model.config, stored)
    found |= {f"stored_{key}": value for key, value in stored.items() if value != found[key]}
    if held[SHORT]["cross"]:
        found["cross_per_source_token"] = held[SHORT]["cross"] // getattr(model.config, "max_source_positions", SEQ)
    return found | {key: held[LONG][key] for key in ("conv_state", "recurrent_state") if held[LONG][key]}


def _needed(config: Any, stored: Facts) -> Facts:
    """What the mathematics needs: Falcon repeats its key-value heads, GPT-Neo keeps what its windows forget."""
    needed = dict(stored)
    if config.model_type == "falcon" and config.new_decoder_architecture:
        needed = {key: value * config.num_kv_heads // config.num_attention_heads for key, value in stored.items()}
    if config.model_type == "gpt_neo":
        needed["per_token_long"] = stored["per_token_long"] * config.attention_layers.count("global") // config.num_layers
    return needed


def _held(model: Any, length: int) -> dict[str, int]:
    """Elements held for one sequence after `length` tokens."""
    griffin = model.config.model_type == "recurrent_gemma"  # hands no cache out, and keeps its states in its modules
    store: Any = transformers.DynamicCache(config=model.config) if griffin else None
    with torch.no_grad():
        out = model(**inputs_of(model, length), use_cache=True, **({"cache": store} if griffin else {}))
    store = store or out.get("past_key_values") or out.get("cache_params")
    total = dict.fromkeys(("self", "cross", "conv_state", "recurrent_state"), 0)
    for kind in ("self", "cross"):
        part = getattr(store, f"{kind}_attention_cache", store if kind == "self" else None)
        for layer in part.layers if part is not None else ():
            states = {key: _elements(value) for key, value in vars(layer).items()}
            total["conv_state"] += states.pop("conv_states", 0)
            total["recurrent_state"] += states.pop("recurrent_states", 0)
            total[kind] += sum(states.values())
    for module in model.modules() if griffin else ():
        total["conv_state"] += _elements(getattr(module, "conv1d_state", None))
        total["recurrent_state"] += _elements(getattr(module, "recurrent_states", None))
    return total


def _elements(value: Any) -> int:
    """Floating-point elements a sequence in a tensor or in a dictionary of tensors."""
    if isinstance(value, dict):
        return sum(_elements(part) for part in value.values())
    return value.numel() // BATCH if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() > 1 else 0


# --- files ----------------------------------------------------------------------------------------------------------


def facts_of(model_type: str, case: Config) -> Facts:
    """All facts of one case; what could not be found is left out and `not_run` or `refused` says why."""
    try:
        facts = counts(new_model(model_type, case["class"], case["config"], device="meta"))
    except Exception as error:  # noqa: BLE001 - the library refuses in many ways; the reason is recorded
        return {"refused": _reason(error)}
    if facts["total_params"] > LARGEST_RUN:
        return facts | {"not_run": "large"}
    model = new_model(model_type, case["class"], case["config"], device="cpu")
    for name, find in (("flops", flops), ("cache", cache)):
        try:
            found = find(model)
        except Exception as error:  # noqa: BLE001 - as above
            facts["not_run"] = f"{name}: {_reason(error)}"
        else:
            facts |= {name: found} if found else {}
    return facts


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:120]


class _Dumper(yaml.SafeDumper):
    """Small mappings and lists on one line, no aliases."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's signature
        return True


def text_of(model_type: str, cases: list[Config]) -> str:
    """The file's text: a header and one block a case."""
    header = (
        f"# Configurations of type {model_type}, and what the library builds from them: `config` is ours, all else was found by\n"
        f"# benchmarks/oracle_facts.py with transformers {transformers.__version__}. Sizes are made up and uneven on purpose, except in\n"
        "# `defaults` (the library's own) and in cases named after a published model (`published_params`: as published).\n"
    )
    body = yaml.dump({"model_type": model_type, "cases": cases}, Dumper=_Dumper, sort_keys=False, width=140, default_flow_style=None)
    return header + body.replace("\n- id:", "\n\n- id:")


def refresh(path: Path, *, write: bool) -> int:
    """Compute the file's cases; returns how many differ from what is written."""
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    different = 0
    for index, case in enumerate(data["cases"]):
        kept = {key: value for key, value in case.items() if key not in FACTS}
        data["cases"][index] = new = kept | facts_of(data["model_type"], kept)
        if new != case:
            different += 1
            print(f"{path.stem}/{case['id']}: {sorted(key for key in new.keys() | case.keys() if new.get(key) != case.get(key))}")
    text = text_of(data["model_type"], data["cases"])
    if write and text != path.read_text(encoding="utf-8"):
        path.write_text(text, encoding="utf-8")
    return different


def main() -> int:
    """Exit 0 where every fact stands, 3 where one differs and was not written."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="files of cases (all of tests/data/oracle unless given)")
    parser.add_argument("--write", action="store_true", help="bring the files up to date")
    options = parser.parse_args()
    torch.set_num_threads(1)  # small models: threads cost more than they give
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    different = sum(refresh(path, write=options.write) for path in options.files or sorted(FOLDER.glob("*.yaml")))
    return 3 if different and not options.write else 0


if __name__ == "__main__":
    sys.exit(main())
