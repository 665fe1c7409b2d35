"""Compiled loops give what the libraries give, are taken only where they were found faster, and are done without where nothing compiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tfm.kernels import compiled, compiling, grouped, tuning
from tfm.kernels.attention import attend, backend_that_ran
from tfm.kernels.benchmarks.backends import backend_of
from tfm.kernels.linear import CHOSEN, as_usual, fast_linear, key_of, linear_call, possible_calls, usual_call
from tfm.kernels.masks import Rules
from tfm.kernels.reference import attend as reference

pytestmark = pytest.mark.skipif(compiling.compiler() is None, reason="no C++ compiler")
FORMATS = [torch.float32, torch.bfloat16, torch.float16]
EXACT = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


@pytest.fixture(autouse=True)
def small_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sizes of a test; nothing chosen or broken before, or left behind."""
    monkeypatch.setattr(compiled, "WORTH", 1)
    monkeypatch.setattr(compiled, "CACHE_WORTH", 1)
    monkeypatch.setattr(compiling, "_broken", [])
    monkeypatch.setattr(grouped, "CHOSEN", {})
    before = dict(CHOSEN)
    yield
    CHOSEN.clear()
    CHOSEN.update(before)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the loops that are compiled meanwhile."""
    made: list[str] = []
    plain = compiling.traced_and_compiled

    def counted(loop: compiling.Loop, examples: Sequence[compiling.Example]) -> compiling.Compiled:
        made.append(loop.__name__)
        return plain(loop, examples)

    monkeypatch.setattr(compiling, "traced_and_compiled", counted)
    return made


# --- products ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "dtype"), [*((1, dtype) for dtype in FORMATS), (3, torch.float32), (2, torch.bfloat16)], ids=str)
@torch.inference_mode()
def test_a_product(rows: int, dtype: torch.dtype) -> None:
    """Four rows of the weight at a time, of which some are left over; rows of x that lie apart."""
    torch.manual_seed(0)
    for outputs, inputs in ((96, 72), (50, 8), (11, 1), (8, 5000), (9, 333)):
        x, weight = torch.randn(rows, 2 * inputs).to(dtype)[:, :inputs], (torch.randn(outputs, inputs) / inputs**0.5).to(dtype)
        assert "compiled" in possible_calls(rows, weight)
        got = compiled.product(x, weight)
        assert got.dtype == dtype and got.shape == (rows, outputs)
        torch.testing.assert_close(got.double(), F.linear(x.double(), weight.double()), rtol=EXACT[dtype], atol=EXACT[dtype])
        bias = torch.randn(outputs).to(dtype)
        got, want = compiled.product(x, weight, bias), F.linear(x.double(), weight.double(), bias.double())
        torch.testing.assert_close(got.double(), want, rtol=EXACT[dtype], atol=EXACT[dtype])


@torch.inference_mode()
def test_one_compilation_serves_all_sizes(compilations: list[str]) -> None:
    compiled.product(torch.randn(1, 88), torch.randn(64, 88))
    first = len(compilations)
    for outputs, inputs in ((40, 88), (100, 70), (103, 4097)):
        compiled.product(torch.randn(1, inputs), torch.randn(outputs, inputs))
    assert len(compilations) == first <= 1


@pytest.mark.parametrize(
    ("rows", "weight"),
    [
        pytest.param(9, torch.empty(64, 64), id="many rows"),
        pytest.param(5, torch.empty(64, 64, dtype=torch.bfloat16), id="more sums than registers"),
        pytest.param(1, torch.empty(64, 128)[:, ::2], id="in pieces"),
        pytest.param(1, torch.empty(7, 64), id="too few outputs"),
        pytest.param(1, torch.empty(64, 64, dtype=torch.float64), id="double"),
        pytest.param(1, torch.empty(64, 64, device="meta"), id="meta"),
    ],
)
def test_weights_that_have_no_loop(rows: int, weight: Tensor) -> None:
    assert not compiled.takes_weight(rows, weight)


def test_small_weights_are_not_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "WORTH", 64 * 64 * 4)
    assert compiled.takes_weight(1, torch.empty(64, 64)) and not compiled.takes_weight(1, torch.empty(63, 64))


@torch.inference_mode()
def test_a_linear_layer_takes_the_loop_that_was_chosen() -> None:
    x, weight, bias = torch.randn(2, 1, 40)[:1], torch.randn(24, 40), torch.randn(24)
    want = F.linear(x, weight, bias)
    CHOSEN[key_of(1, weight)] = "compiled"
    assert backend_of(lambda: fast_linear(x, weight, bias)) == "compiled loops"
    torch.testing.assert_close(fast_linear(x, weight, bias), want)
    with torch.inference_mode(mode=False):
        assert linear_call(1, weight) == usual_call(1, weight)
    with as_usual():
        assert backend_of(lambda: fast_linear(x, weight, bias)) != "compiled loops"


# --- attention --------------------------------------------------------------------------------------------------------------


def cache(heads: int, tokens: int, width: int, value_width: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Keys and values that lie in a larger buffer, as a cache's do."""
    keys, values = torch.randn(2, heads, tokens + 9, width).to(dtype), torch.randn(2, heads, tokens + 9, value_width).to(dtype)
    return keys[:, :, 3 : tokens + 3], values[:, :, 3 : tokens + 3]


@pytest.mark.parametrize(
    ("heads", "rows", "width", "value_width", "dtype"),
    [*((3, 1, 24, 32, dtype) for dtype in FORMATS), (2, 2, 32, 64, torch.bfloat16)],
    ids=str,
)
@torch.inference_mode()
def test_attention(heads: int, rows: int, width: int, value_width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for tokens in (258, 259, 300, 384, 385, 511):  # blocks of 128: what is left over is done apart
        k, v = cache(heads, tokens, width, value_width, dtype)
        q = torch.randn(2, heads, rows, width).to(dtype)
        assert compiled.takes_cache(q, k, v)
        out, logits = compiled.attention(q, k, v, scale=0.2)
        want = (logits_of := 0.2 * q.double() @ k.double().transpose(2, 3)).softmax(dim=-1) @ v.double()
        assert out.dtype == dtype and logits.dtype == torch.float32
        torch.testing.assert_close(logits.double(), logits_of, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(out.double(), want, rtol=EXACT[dtype], atol=EXACT[dtype] / 4)


@torch.inference_mode()
def test_more_rows_than_registers_read_the_cache_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(compiled, "REGISTERS", 4)
    q, (k, v) = torch.randn(2, 3, 3, 24), cache(3, 300, 24, 32)
    assert compiled.readings(q, v) == 2 and compiled.takes_cache(q, k, v)
    out, logits = compiled.attention(q, k, v, scale=0.2)
    logits_of = 0.2 * q @ k.transpose(2, 3)
    torch.testing.assert_close(logits, logits_of, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out, logits_of.softmax(dim=-1) @ v, rtol=1e-5, atol=1e-5)
    assert not compiled.takes_cache(torch.randn(2, 3, 5, 24), k, v)


@pytest.mark.parametrize("heads", [1, 2, 40])
@torch.inference_mode()
def test_any_number_of_heads(heads: int) -> None:
    torch.manual_seed(0)
    q, (k, v) = torch.randn(1, heads, 1, 32), cache(heads, 300, 32, 32)
    out, _ = compiled.attention(q, k[:1], v[:1], scale=0.2)
    torch.testing.assert_close(out, (0.2 * q @ k[:1].transpose(2, 3)).softmax(dim=-1) @ v[:1], rtol=1e-5, atol=1e-5)


def test_tensors_from_anywhere(compilations: list[str]) -> None:
    """Parameters, tensors made in inference mode or out of it, whole ones and parts of larger ones, after each other."""
    torch.manual_seed(0)
    x, weight, pool = torch.randn(1, 104), torch.nn.Parameter(torch.randn(64, 104)), torch.randn(3, 64, 104)
    q, k = torch.randn(1, 2, 1, 32), torch.randn(5, 2, 300, 32)
    with torch.inference_mode():
        for other in (weight, pool[0], pool[2], pool[1].clone()):
            for row in (x, x.clone(), torch.randn(4, 104)[2:3]):
                torch.testing.assert_close(compiled.product(row, other), F.linear(row, other), rtol=1e-5, atol=1e-4)
        for keys in (k, k[1:2], k[3:4].clone(), torch.nn.Parameter(k[:1]), k[:1, :, :290], k[:, :, 5:290]):
            queries = q.expand(len(keys), -1, -1, -1)
            out, _ = compiled.attention(queries, keys, keys, scale=1.0)
            want = (queries @ keys.transpose(2, 3)).softmax(dim=-1) @ keys
            torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)
    assert len(compilations) <= 3  # a product, attention of few heads and of many


def test_caches_that_have_no_loops() -> None:
    q, (k, v) = torch.randn(2, 2, 1, 32), cache(2, 300, 32, 32)
    with torch.no_grad():
        assert not compiled.takes_cache(q, k, v)  # what comes out could not be changed in place
    with torch.inference_mode():
        assert compiled.takes_cache(q, k, v)
        assert not compiled.takes_cache(q, k[:, :, :60], v[:, :, :60])  # short
        assert not compiled.takes_cache(q, k, v[..., :20])  # no whole lines
        assert not compiled.takes_cache(q.expand(2, 2, 40, 32), k, v)  # more sums than registers
        assert not compiled.takes_cache(q.bfloat16(), k, v)
        assert not compiled.takes_cache(q, k.transpose(2, 3).contiguous().transpose(2, 3), v)


def chosen(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Loops, for this attention."""
    B, N, _, D = q.shape
    grouped.CHOSEN[grouped.key_of(q.reshape(B, k.shape[1], N // k.shape[1], D), k, v)] = True


@pytest.mark.parametrize("window", [None, 290])
@pytest.mark.parametrize("sinks", [None, torch.tensor([0.5, -1.0, 2.0, 0.0, 1.0, 3.0])], ids=["", "sinks"])
@pytest.mark.parametrize("softcap", [None, 4.0], ids=["", "softcap"])
@torch.inference_mode()
def test_grouped_attention_takes_the_loops_that_were_chosen(window: int | None, sinks: Tensor | None, softcap: float | None) -> None:
    torch.manual_seed(0)
    q, (k, v) = torch.randn(2, 6, 1, 32), cache(2, 300, 32, 32)
    rules = Rules(causal=True, window=window, sinks=sinks, softcap=softcap)
    call = partial(attend, q, k, v, impl="grouped", causal=True, window=window, sinks=sinks, softcap=softcap)
    usual, before = call(), backend_that_ran(q, k, v, impl="grouped", rules=rules)
    assert before == ("grouped: tiled (SDPA has no soft cap)" if softcap else "grouped: flash (cpu)")
    chosen(q, k[:, :, -(window or 300) :], v[:, :, -(window or 300) :])
    assert backend_that_ran(q, k, v, impl="grouped", rules=rules) == "grouped: compiled loops (cpu)"
    assert backend_of(call) == "attention: compiled loops"
    torch.testing.assert_close(call(), usual, rtol=1e-5, atol=1e-5)
    plain = reference(
        q.numpy(), k.numpy(), v.numpy(), causal=True, window=window, sinks=None if sinks is None else sinks.numpy(), softcap=softcap
    )
    torch.testing.assert_close(call().double(), torch.from_numpy(plain), rtol=1e-5, atol=1e-5)
    with as_usual():
        assert backend_that_ran(q, k, v, impl="grouped", rules=rules) == before


@torch.inference_mode()
def test_what_is_masked_takes_no_loops() -> None:
    q, (k, v) = torch.randn(2, 6, 1, 32), cache(2, 300, 32, 32)
    chosen(q, k, v)
    padding = torch.ones(2, 300, dtype=torch.bool)
    padding[0, :5] = False
    with compiled.LOOPS.listening() as loops:
        attend(q, k, v, impl="grouped", causal=True, padding=padding)
    assert not loops


# --- where nothing compiles ---------------------------------------------------------------------------------------------------


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "compiler", lambda: None)
    assert compiling.gap() == "no C++ compiler"
    assert "compiled" not in possible_calls(1, torch.empty(64, 64))


@torch.inference_mode()
def test_what_does_not_compile_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def broken(*_: object) -> Tensor:
        tried.append(1)
        raise RuntimeError("g++: internal error\nand more")

    monkeypatch.setattr(compiled, "compiled_attention", lambda *_: broken)
    q, (k, v) = torch.randn(2, 2, 1, 32), cache(2, 300, 32, 32)
    assert not tuning.loops_are_faster([(q, k, v, Rules(causal=True))])
    assert compiling.gap() == "compiling failed: g++: internal error" and tried == [1]
    assert not compiled.takes_cache(q, k, v) and "compiled" not in possible_calls(1, torch.empty(64, 64))


@torch.inference_mode()
def test_what_stops_compiling_leaves_the_usual_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the product compiles and the one that adds a bias, at its first turn, does not."""
    x, weight = torch.randn(1, 40), torch.randn(24, 40)
    CHOSEN[key_of(1, weight)] = "compiled"
    assert linear_call(1, weight) == "compiled"
    monkeypatch.setattr(compiling, "_broken", ["no room"])
    assert linear_call(1, weight) == usual_call(1, weight)
    torch.testing.assert_close(fast_linear(x, weight), F.linear(x, weight))


def test_a_loop_that_gives_something_else_is_not_taken() -> None:
    def product(x: Tensor) -> tuple[Tensor]:
        sizes: tuple[object, ...] = tuple(x.shape)
        return (x * (2 if isinstance(sizes[0], int) else 3),)  # as a compiler might take a size of an example for granted

    example, trial = (torch.empty(100), (0,)), (torch.randn(7),)
    assert not compiling.works(lambda: compiling.compile_loop(product, [example], [trial]))
    assert compiling.gap() == "compiling failed: product compiled differs from itself at (7,)"
