"""Linear layers that are stored in another order, alone and several as one: what they give stays, and how they lay comes back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tfm.kernels import panels
from tfm.kernels.model import build_model
from tfm.kernels.modules import Linear, Make
from tfm.kernels.orders import ORDERS, Order
from tfm.kernels.packed import held_bytes
from tfm.kernels.plan import llama_like
from tfm.kernels.stored import StoredLinear, lay_back, reorder, taking_the_same

MAKE = Make(device=torch.device("cpu"), dtype=torch.float32)
SMALL = llama_like("small", layers=2, width=64, heads=4, kv_heads=2, head_dim=16, d_ff=96, vocabulary=80)
# An order that needs neither compiler nor kind of processor: rows backwards, so that a mistake shows.
BACKWARDS = Order(
    takes=lambda _rows, _weight: True,
    loops=False,
    store=lambda weight, _rows: weight.flip(1),
    back=lambda stored: stored.flip(1),
    product=lambda x, stored, bias: nn.functional.linear(x.flip(-1), stored, bias),
)


def layers(*outputs: int, biased: tuple[int, ...] = ()) -> nn.ModuleList:
    """Layers of 24 inputs; those in `biased` with a bias."""
    made = nn.ModuleList(Linear(24, count, MAKE, bias=place in biased) for place, count in enumerate(outputs))
    for parameter in made.parameters():
        nn.init.normal_(parameter)
    return made


@pytest.mark.parametrize("biased", [(), (1,), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("batch", [1, 3])
@torch.no_grad()
def test_layers_as_one_give_what_each_gave(batch: int, biased: tuple[int, ...]) -> None:
    some, x = layers(8, 16, 4, biased=biased), torch.randn(batch, 2, 24)
    want = [layer(x) for layer in some]
    reorder(list(some), BACKWARDS, 2 * batch)  # type: ignore[arg-type]
    for _ in range(2):  # the same x again
        for order in ((0, 1, 2), (2, 0, 1)):
            for place in order:
                torch.testing.assert_close(some[place](x), want[place])
    other = torch.randn(batch, 2, 24)  # another one before all have asked
    some[0](x)
    assert not torch.allclose(some[1](other), want[1])
    torch.testing.assert_close(some[1](x), want[1])


@torch.no_grad()
def test_they_are_multiplied_once() -> None:
    counted: list[Tensor] = []

    def product(x: Tensor, stored: Tensor, bias: Tensor | None) -> Tensor:
        counted.append(x)
        return BACKWARDS.product(x, stored, bias)

    order = Order(takes=BACKWARDS.takes, loops=False, store=BACKWARDS.store, back=BACKWARDS.back, product=product)
    some, x = layers(8, 16), torch.randn(1, 24)
    reorder(list(some), order, 1)  # type: ignore[arg-type]
    some[0](x), some[1](x)
    assert len(counted) == 1
    some[0](x), some[0](x)
    assert len(counted) == 3  # who asks twice gets it anew


@pytest.mark.parametrize("biased", [(), (0,)], ids=str)
@torch.no_grad()
def test_laid_back(biased: tuple[int, ...]) -> None:
    some = layers(8, 16, 4, biased=biased)
    before = {name: value.clone() for name, value in some.state_dict().items()}
    reorder([some[0], some[2]], BACKWARDS, 1)  # type: ignore[list-item]
    reorder([some[1]], BACKWARDS, 1)  # type: ignore[list-item]
    lay_back(some, 1)  # stored for one row: nothing to do
    assert all(type(layer) is StoredLinear for layer in some)
    lay_back(some, 2)
    assert all(type(layer) is Linear for layer in some)
    after = some.state_dict()
    assert set(after) == set(before) and all(torch.equal(after[name], value) for name, value in before.items())


def test_layers_that_take_the_same() -> None:
    model = build_model(SMALL)
    with taking_the_same(model) as groups:
        model(torch.arange(3).view(1, 3))
    assert [len(group) for group in groups] == 2 * [3, 1, 2, 1] + [1]  # q k v, o, gate up, down; the head
    assert groups[0] == [getattr(model.stacks[0].layers[0].subs[0].mixer, f"{name}_proj") for name in "qkv"]  # type: ignore[index,union-attr]
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("name", ORDERS)
@torch.inference_mode()
def test_a_model_in_every_order(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panels, "WORTH", 1)
    model, ids = build_model(SMALL, dtype=torch.bfloat16), torch.arange(2).view(1, 2)
    if not ORDERS[name].takes(2, torch.empty(64, 64, dtype=torch.bfloat16)):
        pytest.skip("no such order here")
    want, held = model(ids)["lm_head"].float(), held_bytes(model)
    with taking_the_same(model) as groups:
        model(ids)
    for group in groups:
        reorder(group, ORDERS[name], 2)
    assert held_bytes(model) == held
    assert (model(ids)["lm_head"].float() - want).norm() < 0.02 * want.norm()
    lay_back(model, 5)
    assert torch.equal(model(ids)["lm_head"].float(), want)
