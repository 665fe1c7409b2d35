"""A prompt as the context, by a byte-level BPE trained on the spot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tfm.cli.app import run
from tfm.presets.errors import UnreadableError
from tfm.presets.prompt import count_tokens

tokenizers = pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE of 300 tokens, trained on a sentence."""
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    model.train_from_iterator(["the cache grows by one token a step"] * 20, trainer)
    path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    model.save(str(path))
    return path


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_what_was_trained_on_takes_few_tokens(tokenizer: Path, tmp_path: Path) -> None:
    known = count_tokens(write(tmp_path / "a.txt", "the cache grows"), tokenizer)
    assert known < len("the cache grows")


@pytest.mark.parametrize("text", ["Ωμέγα", "日本語", "\U0001f980", "\x00\x01", "naïve"])
def test_nothing_is_out_of_vocabulary(text: str, tokenizer: Path, tmp_path: Path) -> None:
    """Every byte is a token, so what was never seen costs at most its bytes."""
    count = count_tokens(write(tmp_path / "a.txt", text), tokenizer)
    assert 1 <= count <= len(text.encode())


def test_wherever_a_context_is_taken(tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompt = write(tmp_path / "prompt.txt", "the cache grows by one token a step")
    count = count_tokens(prompt, tokenizer.parent)
    for command in ("flops", "kvcache", "memory", "latency --hardware l4"):
        assert run([*command.split(), "llama-7b", "--ctx", f"@{prompt}", "--tokenizer", str(tokenizer), "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["inputs"]["ctx"] == count
        assert any(f"is {count} tokens" in line for line in answer["assumptions"])


def test_trouble(tokenizer: Path, tmp_path: Path) -> None:
    prompt = write(tmp_path / "prompt.txt", "hello")
    assert run(["flops", "llama-7b", "--ctx", f"@{prompt}"]) == 2
    for bad in (tmp_path / "none.txt", tmp_path, write(tmp_path / "empty.txt", "")):
        with pytest.raises(UnreadableError):
            count_tokens(bad, tokenizer)
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(UnreadableError, match="not UTF-8"):
        count_tokens(tmp_path / "bytes.txt", tokenizer)
    with pytest.raises(UnreadableError, match=r"no tokenizer\.json"):
        count_tokens(prompt, write(tmp_path / "other.json", "{}"))
