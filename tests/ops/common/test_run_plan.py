"""Launch plans: what csrc/plans computes from sizes and limits of a device, and how its steps run on mps
(csrc/ops/common/run_plan.mm) and on CUDA tensors (metalops.ops._cuda.plan)."""

import ctypes

import pytest
import torch
from metalops import debug, ops
from metalops.ops._cuda import plan as plans

H100 = plans.Limits(multiprocessors=132)


def decode_call(batch=2, heads=8, key_heads=2, keys=5000, features=64, **others):
    query = torch.empty(batch, heads, 1, features)
    key = torch.empty(batch, key_heads, keys, features)
    return {
        "out": torch.empty_like(query),
        "lse": torch.empty(batch, heads, 1),
        "query": query,
        "key": key,
        "value": torch.empty_like(key),
        "scale": 0.125,
        "window_left": -1,
        "window_right": -1,
        "bottom_right": True,
    } | others


def planned(name, limits=H100, **arguments):
    return plans.functions().plan(name, limits, arguments)[0]


@pytest.mark.parametrize("name", plans.functions().names)
def test_a_plan_function_tells_all_fields_of_its_call(name):
    """One that is forgotten would stay zero whatever callers say."""
    sizes = {0: plans._VIEW.size, 1: 8, 2: 8, 3: 1, 4: 16, 5: 16, 6: 4, 7: 6}
    end = 0
    for _, kind, offset in plans.functions().fields(name):
        assert end <= offset < end + 8, "a gap between fields"
        end = offset + sizes[kind]
    assert end <= plans.functions()._entries[name].call_bytes < end + 8


def test_decoding_splits_the_keys_until_a_gpu_is_full():
    def groups(limits, **sizes):
        first, *combine = planned("attention_decode", limits, **decode_call(**sizes)).steps
        return first.grid[0] // first.group[0], len(combine)

    assert groups(H100, batch=1, key_heads=1, keys=100_000) == (2 * 132, 1)
    assert groups(plans.Limits(multiprocessors=14), batch=1, key_heads=1, keys=100_000) == (28, 1)
    assert groups(plans.Limits(), batch=1, key_heads=1, keys=1_000_000) == (1024, 1)
    assert groups(H100, batch=1, key_heads=1, keys=300) == (1, 0)  # no part is short
    assert groups(H100, batch=300, key_heads=8, keys=4096) == (2400, 0)


def test_decoding_chooses_the_kernel_by_rows_and_features():
    def kernel(**sizes):
        return planned("attention_decode", **decode_call(**sizes)).steps[0].kernel

    assert kernel(heads=2) == "attention_decode_float_float_1_64"
    assert kernel(heads=8, features=65) == "attention_decode_float_float_4_128"
    assert kernel(heads=16, features=256) == "attention_decode_float_float_8_256"
    codes = torch.empty(2, 2, 64, 64, dtype=torch.int8)
    assert kernel(heads=2, key=codes, value=codes) == "attention_decode_float_char_4_64"


def test_a_plan_copies_what_its_kernels_cannot_read():
    lengths = torch.zeros(2, dtype=torch.int64)
    key = torch.empty(2, 2, 64, 5000).mT
    plan = planned("attention_decode", **decode_call(key=key, lengths=lengths))
    copies = [step for step in plan.steps if isinstance(step, plans.Copy)]
    assert [step.source.sizes for step in copies] == [(2, 2, 5000, 64), (2,)]
    assert [step.to.dtype for step in copies] == [torch.float32, torch.int32]
    assert [step.to.strides for step in copies] == [(640000, 320000, 64, 1), (1,)]


def test_the_same_plan_runs_on_mps(tmp_path):
    call = decode_call(bottom_right=False)
    on_mps = {k: v.to("mps") if isinstance(v, torch.Tensor) else v for k, v in call.items()}
    query, key, value = (on_mps[name] for name in ("query", "key", "value"))
    with debug.capture(tmp_path / "x.trace", gpu=True) as trace:
        torch.nn.functional.scaled_dot_product_attention(
            query, key, value, scale=0.125, enable_gqa=True
        )
    steps = planned("attention_decode", plans.Limits(), **call).steps
    assert len(trace.launches) == len(steps) == 2
    for launch, step in zip(trace.launches, steps, strict=True):
        assert launch.kernel == step.kernel
        assert launch.grid == (*step.grid, 1, 1)[:3]
        assert launch.group == (*step.group, 1, 1)[:3]
        values = [x.hex() for x in step.arguments if isinstance(x, bytes)]
        assert [a.value for a in launch.arguments if a.value is not None] == values


def test_a_plan_is_made_once_for_the_same_sizes():
    call = decode_call()
    assert planned("attention_decode", **call) is planned("attention_decode", **call)
    other = call | {"scale": 0.25}
    assert planned("attention_decode", **other) is not planned("attention_decode", **call)


def test_sizes_beyond_the_kernels_integers_are_refused():
    key = torch.empty(1, 1, 1, 64).expand(2, 2, 2**31, 64)
    with pytest.raises(RuntimeError, match=r"keys of size 2147483648 is too large"):
        planned("attention_decode", **decode_call(key=key, value=key))
    with pytest.raises(TypeError, match=r"no arguments \['keys'\]"):
        planned("attention_decode", keys=key, **decode_call())
    with pytest.raises(ValueError, match="at most 4 dimensions, not 5"):
        planned("attention_decode", **decode_call(key=key[None]))
    cache, scale = torch.zeros(1, 1, 1, 8, device="mps"), torch.ones(1, 1, 1, 1, 1, device="mps")
    number = torch.ones(1, device="mps", dtype=torch.int32)
    with pytest.raises(ValueError, match="at most 4 dimensions, not 5"):
        ops.paged_attention(cache, cache, cache, number[None], number, k_scale=scale)


def test_structs_have_the_layout_of_cpp():
    assert ctypes.sizeof(plans._View) == plans._VIEW.size


@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_steps_between_launches_run(device):
    torch.manual_seed(0)
    a, b, c = (torch.randn(2, 3, 4, dtype=torch.complex64) for _ in range(3))
    expected = 2 * (b - a.mH.mH @ a.mH @ b)

    def place(buffer, x, is_conj=False):
        return plans.Place(buffer, x.dtype, 0, tuple(x.shape), x.stride(), is_conj)

    def swapped(p, is_conj):
        turned = (p.sizes[0], p.sizes[2], p.sizes[1]), (p.strides[0], p.strides[2], p.strides[1])
        return plans.Place(p.buffer, p.dtype, 0, *turned, is_conj)

    of_a, of_b, of_c = place(0, a), place(1, b), place(2, c)
    square = plans.Place(3, torch.complex64, 0, (2, 3, 3), (9, 3, 1), False)
    steps = (
        plans.Fill(square, 7.0),
        plans.Product(square, of_a, swapped(of_a, True), 1.0, 0.0),
        plans.Copy(of_c, of_b),
        plans.Product(of_c, square, of_b, -2.0, 2.0),
    )
    tensors = [x.to(device) for x in (a, b, c)]
    plan = plans.Plan(3, ((torch.complex64, 18),), steps)
    plans.execute(plan, tensors, tensors[0], launch=None)
    torch.testing.assert_close(tensors[2].cpu(), expected)
