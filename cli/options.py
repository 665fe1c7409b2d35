"""The options that commands share, the same words wherever they apply."""

from __future__ import annotations

from typing import Annotated

import typer


def complete_model(incomplete: str) -> list[str]:
    """Shell completion of model names."""
    from ..presets.loader import model_aliases, model_names

    return [name for name in (*model_names(), *model_aliases()) if name.startswith(incomplete)]


def complete_device(incomplete: str) -> list[str]:
    """Shell completion of device names."""
    from ..presets.device import device_names

    return [name for name in device_names() if name.startswith(incomplete)]


MODEL_HELP = "A preset (`tfm models`), a config.json, weights (GGUF, safetensors), a folder of them, a Hub id; a comma makes a table."
Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, autocompletion=complete_model)]
OptionalModel = Annotated[
    str | None,
    typer.Argument(metavar="[MODEL]", help="A preset or a config.json; llama-7b if not given.", autocompletion=complete_model),
]
Batch = Annotated[str, typer.Option("--batch", help="Sequences; a comma makes a table, as in 1,8,64.")]
Ctx = Annotated[
    str | None,
    typer.Option(
        "--ctx",
        "--tgt",
        help="Tokens attended, the new one included (32k = 32768; @file: a prompt's); 4096 or what the model was made for.",
    ),
]
Tokenizer = Annotated[str | None, typer.Option("--tokenizer", help="A tokenizer.json, for --ctx @prompt.txt.")]
Cached = Annotated[str | None, typer.Option("--cached", help="Tokens in the cache before a decode step: --ctx is one more.")]
Src = Annotated[str | None, typer.Option("--src", help="Tokens of the encoder of an encoder-decoder; else what the model fixes, else 512.")]
Images = Annotated[int | None, typer.Option("--images", min=0, help="Images a sequence; 0 for a language model, 1 for a vision model.")]
WeightDtype = Annotated[str, typer.Option("--weight-dtype", help="Format of the weights: bf16, fp8, int8, int4, q4_0, mxfp4 ...")]
StoredWeightDtype = Annotated[
    str | None,
    typer.Option(
        "--weight-dtype", help="Format of the weights: bf16, fp8, int8, int4, q4_0, mxfp4 ...; else as a file stores them, else bf16."
    ),
]
KvDtype = Annotated[str, typer.Option("--kv-dtype", help="Format of the cache: fp32, bf16, fp16, fp8, int8, q8_0, q4_0.")]
ActivationDtype = Annotated[str, typer.Option("--activation-dtype", help="Format computed in: fp32, bf16, fp16, fp8, int8.")]
Gqa = Annotated[str | None, typer.Option("--gqa", help="Key/value heads in place of the model's own; must divide the query heads.")]
Hardware = Annotated[str | None, typer.Option("--hardware", help="A device (`tfm hardware`).", autocompletion=complete_device)]
Bandwidth = Annotated[str | None, typer.Option("--bandwidth", help="Memory bandwidth by hand, as in 2.04TB/s.")]
Peak = Annotated[str | None, typer.Option("--peak", help="Peak rate by hand, as in 312TFLOP/s.")]
FullAttention = Annotated[bool, typer.Option("--full-attention", help="Count the whole square of pairs, as PyTorch's counter does.")]
LastLogits = Annotated[bool, typer.Option("--last-logits", help="Run the output head at the last position only.")]
Presets = Annotated[str | None, typer.Option("--presets", envvar="TFM_PRESETS", help="A folder with presets of your own.")]
Lenient = Annotated[bool, typer.Option("--lenient", help="Print what a configuration says that is not understood, and go on.")]
Json = Annotated[bool, typer.Option("--json", help="The answer as JSON, in base units.")]
Csv = Annotated[bool, typer.Option("--csv", help="The rows as CSV, in base units.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="The tables as Markdown.")]
Explain = Annotated[bool, typer.Option("--explain", help="Formula, numbers put in, source and assumptions of every figure.")]
