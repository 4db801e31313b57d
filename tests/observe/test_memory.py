"""metalops.debug.memory(): who holds memory of mps, by operator and module."""

import gc

import pytest
import torch
from metalops.debug import memory
from torch import nn

MIB = 2**20


def _held(found, operator):
    return sum(size for holder, (size, _) in found.snapshot().holders.items() if holder.operator == operator)  # fmt: skip


def test_results_are_followed_until_they_are_freed():
    x = torch.ones(512, 512, device="mps")
    with memory() as found:
        y = x.sin()
        z = y.view(-1)[3:]
        (x + 1).cos()  # freed at once
        assert _held(found, "aten::sin") == MIB and _held(found, "aten::add.Tensor") == 0
        del y
        assert _held(found, "aten::sin") == MIB  # a view is left
    del z
    assert found.snapshot().holders == {}


def test_memory_in_place_and_of_arguments_is_nobody_elses():
    x, out = torch.ones(512, 512, device="mps"), torch.empty(512, 512, device="mps")
    with memory() as found:
        x.mul_(2)
        torch.sin(x, out=out)
    assert found.snapshot().holders == {}


def test_modules_parameters_and_gradients():
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)).to("mps")
    x = torch.randn(16, 64, device="mps")
    with memory(model=model) as found:
        loss = model(x).sum()
        after = {(h.module, h.operator): size for h, (size, _) in found.snapshot().holders.items()}
        assert after["0", "parameters"] == 4 * (64 * 256 + 256)
        assert ("0", "aten::addmm") not in after  # the result that autograd keeps is that of relu
        assert after["1", "aten::relu"] == 4 * 16 * 256
        loss.backward()
        held = {h: size for h, (size, _) in found.snapshot().holders.items()}
        backward = sum(size for h, size in held.items() if h.is_backward)
        assert backward >= 4 * sum(p.numel() for p in model.parameters())
        assert any(h.is_backward and h.module == "0" for h in held)
    assert "0: parameters" in found.table() and "backward" in found.table()


def test_growth_between_two_snapshots():
    gc.collect()  # memory of other tests would be freed in between
    kept = []
    with memory() as found:
        before = found.snapshot()
        for _ in range(3):
            kept.append(torch.zeros(512, 512, device="mps"))
            torch.ones(512, 512, device="mps")
        growth = found.snapshot() - before
    assert growth.live == 3 * MIB
    ((holder, (size, count)),) = growth.holders.items()
    assert (holder.operator, size, count) == ("aten::zeros", 3 * MIB, 3) or (size, count) == (3 * MIB, 3)  # fmt: skip
    assert growth.others == 0 and "3.0 MiB in    3" in growth.table()


def test_values_of_jagged_tensors_have_holders():
    jagged = torch.nested.nested_tensor_from_jagged(
        torch.randn(10, 4, device="mps"), torch.tensor([0, 3, 10], device="mps")
    )
    with memory() as found:
        kept = jagged.sin()
        held = {h.operator: size for h, (size, _) in found.snapshot().holders.items()}
    assert held == {"aten::sin": 4 * 40}
    del kept


def test_live_cached_and_driver():
    before = torch.ones(512, 512, device="mps")
    with memory() as found:
        now = found.snapshot()
        assert now.live == torch.mps.current_allocated_memory() >= MIB
        assert now.driver == torch.mps.driver_allocated_memory()
        assert now.cached == now.driver - now.live
        assert now.others == now.live  # of before the block
        x = before + 1
        assert found.snapshot().others == now.others
        del x


def test_the_peak():
    x = torch.ones(512, 512, device="mps")
    with memory() as found:
        a = x + 1
        b = a.sin()
        del a
        c = b.cos()
        del b
    operators = {holder.operator: size for holder, (size, _) in found.peak.holders.items()}
    assert sum(operators.values()) == 2 * MIB and "aten::sin" in operators
    assert found.snapshot().live < found.peak.live
    now, peak = found.table().split("\n\n")
    assert now.startswith("now: live ") and peak.startswith("at the peak: live ")
    del c


@pytest.mark.full  # a collection takes a second
def test_memory_in_cycles_is_freed_by_the_collector():
    class Cycle:
        pass

    with memory() as found:
        cycle = Cycle()
        cycle.me, cycle.x = cycle, torch.ones(512, 512, device="mps")
        del cycle
        assert found.snapshot().holders
        gc.collect()
        assert not found.snapshot().holders


@pytest.mark.parametrize("most", [1, 20])
def test_tables_list_the_largest(most):
    with memory() as found:
        kept = [torch.ones(100, device="mps").sin(), torch.ones(1000, device="mps").cos()]
        lines = found.snapshot().table(most).splitlines()
    assert "aten::cos" in lines[1] and lines[-1].endswith("of others")
    assert ("more holders" in lines[-2]) == (most == 1)
    del kept
