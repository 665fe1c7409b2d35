"""Which class a configuration names, and the heads of decoder classes."""

from __future__ import annotations

from ..spec import Head, Linear, ModelSpec
from .blocks import Text
from .config import Config, shown

# Endings of class names, longest first, and the head they mean.
ENDINGS = {
    "ForConditionalGeneration": "causal_lm",
    "ForCausalLM": "causal_lm",
    "LMHeadModel": "causal_lm",
    "ForSequenceClassification": "sequence_classification",
    "ForTokenClassification": "token_classification",
    "ForQuestionAnswering": "question_answering",
    "DoubleHeadsModel": "double_heads",
    "Model": "base",
}


def class_name(cfg: Config) -> str | None:
    """The first class that `architectures` names, None where it names none."""
    named = cfg.texts("architectures")
    return named[0] if named else None


def head_kind(cfg: Config, *, usual: str = "causal_lm") -> str:
    """The head of the class that `architectures` names, else the family's usual one."""
    name = class_name(cfg)
    if name is None:
        return usual
    for ending, kind in ENDINGS.items():
        if name.endswith(ending):
            return kind
    raise cfg.refuse(f"architectures names {shown(name)}; known are classes that end in {', '.join(ENDINGS)}")


def label_count(cfg: Config, default: int = 2) -> int:
    """Classes of a classifier: entries of `id2label`, else `num_labels`, else two."""
    labels = cfg.raw("id2label")
    if isinstance(labels, dict):
        return len(labels)
    return cfg.integer("num_labels", default=default, least=0)


def classifier(cfg: Config, kind: str, width: int, stack: str) -> Head:
    """The usual classifier of a decoder: `score` without bias for a sequence, with one for tokens and answers."""
    outputs = 2 if kind == "question_answering" else label_count(cfg)
    if outputs < 1:
        raise cfg.refuse("a classifier needs at least one label; id2label is empty or num_labels 0")
    part = Linear(name="weight", d_in=width, d_out=outputs, bias=kind != "sequence_classification")
    return Head(name="classifier", stack=stack, parts=(part,))


def text_spec(cfg: Config, text: Text, *, base_has_head: bool = False) -> ModelSpec:
    """The model of a text configuration in the class it names."""
    kind = head_kind(cfg)
    heads: tuple[Head, ...] = ()
    if kind == "causal_lm" or (kind == "base" and base_has_head):
        heads = (text.lm_head(),)
    elif kind == "double_heads":
        choice = Linear(name="weight", d_in=text.stack.d_model, d_out=1, bias=True, once=True)
        heads = (text.lm_head(), Head(name="multiple_choice", stack=text.stack.name, parts=(choice,)))
    elif kind != "base":
        heads = (classifier(cfg, kind, text.head_width or text.stack.d_model, text.stack.name),)
    return ModelSpec(name=cfg.name, source=(cfg.source,), stacks=(text.stack,), heads=heads, extra=text.extra)
