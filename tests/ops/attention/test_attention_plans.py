"""csrc/plans/attention: what a call launches, on a GPU and on mps, by its sizes and options."""

import struct

import pytest
import torch
from metalops import debug
from metalops.ops._cuda import plan as plans
from metalops.ops._cuda.attention_call import Call

from .helpers import products_of

H100 = plans.Limits(multiprocessors=132, has_tensors=True)
H200 = H100._replace(has_warpgroups=True)
M1 = plans.Limits()  # simdgroup matrices
M5 = plans.Limits(has_tensors=True)
FORWARD = (
    "out lse query key value attn_mask sinks alibi_slopes cu_seqlens_q cu_seqlens_k seqused_k rng "
    "k_scale"
).split()
GRADIENTS = "grad_query grad_key grad_value grad_mask grad_sinks grad_slopes".split()


def call_of(query, key, value, **options):
    lengths = query.shape[-2], key.shape[-2]
    plain = Call(query, key, value, *[None] * 7, *lengths, 0.5, -1, -1, False, 0.0, 0.0)
    return plain._replace(**options)


def operands(batch=2, heads=4, key_heads=2, queries=70, keys=150, features=64, values=None, **call):
    dtype = call.pop("dtype", torch.half)
    query = torch.empty(batch, heads, queries, features, dtype=dtype)
    key = torch.empty(batch, key_heads, keys, features, dtype=dtype)
    value = torch.empty(batch, key_heads, keys, features if values is None else values, dtype=dtype)
    return call_of(query, key, value, **call)


def packed(lengths=(30, 0, 45), heads=4, features=64, dtype=torch.half):
    tokens = torch.empty(sum(lengths), heads, features, dtype=dtype)
    begins = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    about = {"cu_seqlens_q": begins, "cu_seqlens_k": begins, "max_seqlen_q": max(lengths)}
    return call_of(tokens, tokens, tokens, **about, max_seqlen_k=1000)


def results_of(call):
    query = call.query
    rows = query.shape[:3] if query.dim() == 4 else query.shape[1::-1]
    out = query.new_empty(*query.shape[:-1], call.value.shape[-1], device="meta")
    return {"out": out, "lse": torch.empty(rows, device="meta")}


def forward(call, limits=H100, **others):
    arguments = results_of(call) | others | call._asdict()
    return plans.functions().plan("attention_forward", limits, arguments)[0]


def backward(call, wanted=GRADIENTS, limits=H100, **others):
    like = dict(zip(GRADIENTS, call[:6], strict=True))
    gradients = {name: torch.empty_like(like[name]) for name in wanted if like[name] is not None}
    results = results_of(call)
    grad = {"grad_out": torch.empty_like(results["out"])}
    arguments = gradients | results | grad | others | call._asdict()
    return plans.functions().plan("attention_backward", limits, arguments)[0]


def launches(plan):
    return [step for step in plan.steps if isinstance(step, plans.Launch)]


def groups(launch):
    return launch.grid[0] // launch.group[0]


# ---- forward ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "sizes", "kernel", "rows"),
    [
        (M1, {}, "attention_forward_64_half", 32),
        (M5, {}, "attention_forward_by_simdgroups_64_half", 64),
        (H100, {}, "attention_forward_by_simdgroups_64_half", 64),
        (H100, {"dtype": torch.float32}, "attention_forward_64_float", 64),
        (H200, {"batch": 17}, "attention_forward_by_simdgroups_64_half", 128),
        (H200, {"batch": 17, "features": 96}, "attention_forward_by_simdgroups_96_half", 128),
        (H200, {"batch": 16}, "attention_forward_by_warpgroup_64_half", 64),
        (H200, {"features": 96}, "attention_forward_by_warpgroup_96_half", 64),
        (H200, {"dtype": torch.float32}, "attention_forward_64_float", 64),
        (H200, {"features": 33, "values": 129}, "attention_forward_256_half", 32),
        (H100, {"features": 96, "values": 33}, "attention_forward_by_simdgroups_96_half", 64),
        (H100, {"features": 256, "values": 33}, "attention_forward_64_half", 64),
        (H100, {"features": 33, "values": 129}, "attention_forward_256_half", 32),
        (M1, {"features": 1, "values": 1}, "attention_forward_32_half", 32),
        (
            plans.Limits(a_thread_for_each_element=True, has_tensors=True),
            {"dtype": torch.bfloat16},
            "attention_forward_64_bfloat",
            64,
        ),
    ],
)
def test_one_kernel_for_the_features_and_the_device(limits, sizes, kernel, rows):
    (launch,) = forward(operands(**sizes), limits).steps
    assert (launch.family, launch.kernel, launch.has_products) == ("attention", kernel, True)
    assert launch.group == (256 if rows == 128 else 128,)
    assert groups(launch) == sizes.get("batch", 2) * 4 * -(-70 // rows)


def test_buffers_are_those_of_the_kernel():
    call = operands(
        attn_mask=torch.empty(1, 1, 70, 150, dtype=torch.bool),
        sinks=torch.empty(4),
        seqused_k=torch.empty(2, dtype=torch.int32),
    )
    given = results_of(call) | call._asdict()
    plan, tensors = plans.functions().plan("attention_forward", H100, given)
    (launch,) = plan.steps
    assert len(launch.arguments) == len(FORWARD) + 1
    for name, argument in zip(FORWARD, launch.arguments, strict=False):
        x = given.get(name)
        assert (argument is None) == (x is None), name
        if x is not None:
            assert tensors[argument.buffer] is x
            assert (argument.offset, argument.sizes, argument.strides) == (0, x.shape, x.stride())


def test_few_queries_are_decoded_in_splits_of_the_keys():
    for queries, heads, is_decoded in ((8, 4, True), (9, 4, False), (8, 8, True), (8, 10, False)):
        call = operands(queries=queries, heads=heads, keys=2000)
        names = [x.kernel.rpartition("_half")[0] for x in launches(forward(call))]
        decode = ["attention_decode_half", "attention_decode_combine_simdgroup"]
        assert names == (decode if is_decoded else ["attention_forward_by_simdgroups_64"])
    options = {"dropout_p": 0.5, "rng": torch.zeros(2, dtype=torch.int64)}
    (launch,) = forward(operands(queries=1, **options)).steps
    assert launch.kernel.startswith("attention_forward")


def test_tokens_of_no_sequence_are_filled():
    out, lse, launch = forward(packed()).steps
    assert (out.value, out.place.sizes) == (0, (75, 4, 64))
    assert (lse.value, lse.place.sizes) == (-torch.inf, (4, 75))
    # No sequence has more tokens than all together.
    assert groups(launch) == 3 * 4
    # Batch, heads, heads of a key, queries, keys, all queries, all keys, features.
    assert struct.unpack("<8i", launch.arguments[-1][280:312]) == (3, 4, 1, 45, 75, 75, 75, 64)


def test_what_kernels_cannot_read_is_copied():
    call = operands()
    call = call._replace(
        query=call.query.mT.contiguous().mT,
        value=call.value[:, :, :, :1].expand(-1, -1, -1, 64),
        sinks=torch.empty(4, dtype=torch.half),
    )
    *copies, _ = forward(call).steps
    assert [(x.to.sizes, x.to.dtype) for x in copies] == [
        ((2, 4, 70, 64), torch.half),
        ((2, 2, 150, 64), torch.half),
        ((4,), torch.float32),
    ]
    # Heads and tokens may be in any order.
    swapped = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in operands()[:3])
    (launch,) = forward(call_of(*swapped)).steps
    assert launch.arguments[2].strides == (17920, 64, 256, 1)


def test_without_features_no_key_is_seen():
    zeros, launch = forward(operands(features=0, values=5)).steps
    assert (zeros.value, zeros.place.dtype, zeros.place.sizes) == (0, torch.int32, (2,))
    assert launch.arguments[FORWARD.index("seqused_k")] == zeros.place


@pytest.mark.parametrize("sizes", [{"batch": 0}, {"heads": 0}, {"queries": 0}], ids=str)
def test_nothing_is_launched_for_nothing(sizes):
    assert forward(operands(**sizes)).steps == ()


def test_sizes_beyond_the_kernels_integers_are_refused():
    long = torch.empty(1, 1, 1, 1).expand(1, 1, 2**30 + 1, 1)
    with pytest.raises(plans.TooLarge, match="attention: queries of size 1073741825 is too large"):
        forward(call_of(long, long, long))
    many = long[:, :, :1].expand(2**25, 2, 9, 1)
    with pytest.raises(plans.TooLarge, match="attention_forward_.*: a grid of 8589934592 times 1 "):
        forward(call_of(many, many, many), M1)
    most = long[:, :, :1].expand(2**25, 64, 33, 1)
    with pytest.raises(plans.TooLarge, match="33554432 times 64 heads of 33 queries are too many"):
        forward(call_of(most, most, most), M1)


# ---- backward --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limits", "columns"), [(M1, 32), (M5, 64), (H100, 64)])
def test_a_launch_for_each_gradient(limits, columns):
    call = operands(
        queries=100,
        attn_mask=torch.empty(2, 1, 100, 150),
        sinks=torch.empty(4),
        alibi_slopes=torch.empty(2, 4),
    )
    plan = backward(call, limits=limits)
    assert [(x.kernel, x.grid[0] // x.group[0]) for x in launches(plan)] == [
        ("attention_statistics_half", 800),
        ("attention_grad_query_64_half", 2 * 4 * 4),
        ("attention_grad_slopes", 8),
        ("attention_grad_key_value_64_half", 2 * 2 * -(-150 // columns)),
        ("attention_grad_mask_half", 2 * 4 * 5),
        ("attention_grad_sinks", 4),
    ]
    assert plan.memories == ((torch.float32, 2 * 800), (torch.float32, 32))
    assert len(plan.steps) == 6


def test_only_wanted_gradients_are_computed():
    call = operands(sinks=torch.empty(4, dtype=torch.half))
    (statistics,) = launches(backward(call, []))
    assert statistics.kernel == "attention_statistics_half"
    plan = backward(call, ["grad_value"])
    assert [x.kernel for x in launches(plan)][1:] == ["attention_grad_key_value_64_half"]
    assert (torch.half, call.key.numel()) in plan.memories  # its other result
    # Sums in float32 are rounded once.
    *_, launch, copy = backward(call, ["grad_sinks"]).steps
    assert launch.kernel == "attention_grad_sinks"
    assert (copy.source.dtype, copy.to.dtype) == (torch.float32, torch.half)


def test_gradients_of_tokens_that_no_kernel_visits_are_zero():
    def zeros(call):
        return [x.place.sizes for x in backward(call).steps if isinstance(x, plans.Fill)]

    assert zeros(operands()) == []
    assert zeros(packed()) == [(75, 4, 64)] * 3
    call = operands(seqused_k=torch.empty(2, dtype=torch.int32))
    assert zeros(call) == [call.query.shape, call.key.shape, call.value.shape]


@pytest.mark.parametrize(
    ("features", "values", "query", "key_value"),
    [(1, 1, 32, 32), (96, 32, 128, 128), (129, 32, 256, 256), (20, 100, 32, 128)],
)
def test_kernels_of_gradients_by_features(features, values, query, key_value):
    _, *kernels = launches(backward(operands(features=features, values=values)))
    assert [x.kernel for x in kernels] == [
        f"attention_grad_query_{query}_half",
        f"attention_grad_key_value_{key_value}_half",
    ]


@pytest.mark.parametrize(
    ("sizes", "query", "key_value"),
    [
        ({}, ("by_warpgroup_64", 2 * 4 * 2), ("by_warpgroup_64", 2 * 2 * 3)),
        (
            {"batch": 99, "features": 8},
            ("by_warpgroup_64", 99 * 4 * 2),
            ("by_warpgroup_64", 99 * 2 * 3),
        ),
        ({"values": 65}, ("by_warpgroup_128", 2 * 4 * 2), ("by_warpgroup_128", 2 * 2 * 3)),
        (
            {"batch": 17, "features": 96},
            ("by_simdgroups_128", 17 * 4),
            ("by_warpgroup_128", 17 * 2 * 3),
        ),
        (
            {"batch": 23, "features": 96},
            ("by_simdgroups_128", 23 * 4),
            ("by_simdgroups_128", 23 * 2 * 2),
        ),
    ],
)
def test_gradients_of_half_precision_by_warpgroups(sizes, query, key_value):
    _, *kernels = launches(backward(operands(window_right=0, **sizes), limits=H200))
    for launch, (kernel, count), of in zip(
        kernels, (query, key_value), ("query", "key_value"), strict=True
    ):
        assert launch.kernel == f"attention_grad_{of}_{kernel}_half"
        assert (groups(launch), launch.group[0]) == (count, 256 if "simdgroups" in kernel else 128)


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": torch.float32},
        {"values": 129},
        {"scale": -0.5},
        {"softcap": 2.0},
        {"dropout_p": 0.5, "rng": torch.zeros(2, dtype=torch.int64)},
        {"attn_mask": torch.empty(1, 1, 70, 150, dtype=torch.bool)},
        {"alibi_slopes": torch.empty(4)},
    ],
    ids=lambda x: next(iter(x)),
)
def test_gradients_of_other_weights_are_not_by_warpgroups(options):
    for launch in launches(backward(operands(**options), limits=H200)):
        assert "by_" not in launch.kernel


# ---- caches ----------------------------------------------------------------------------------------


def cache_plan(name, **arguments):
    return plans.functions().plan(f"attention_cache_{name}", H100, arguments)[0]


def test_tokens_go_to_caches():
    cache = torch.empty(5, 16, 2, 64, dtype=torch.int8)
    slots = torch.empty(7, dtype=torch.int64)
    tokens = torch.empty(7, 2, 64, dtype=torch.half)
    (launch,) = cache_plan("store_at_slots", cache=cache, tokens=tokens, slots=slots).steps
    assert launch.kernel == "attention_cache_store_half_char"
    assert (launch.grid, launch.group) == ((64, 2, 7), (64, 2, 2))
    assert launch.arguments[-1] == plans.ERRORS
    assert [x is None for x in launch.arguments[:8]] == [False] * 3 + [True] * 5
    assert cache_plan("store_at_slots", cache=cache, tokens=tokens[:0], slots=slots[:0]).steps == ()

    tokens = torch.empty(3, 4, 2, 64, dtype=torch.half)
    *copies, launch = cache_plan(
        "store_behind",
        cache=cache.half(),
        tokens=tokens,
        lengths=torch.empty(3, dtype=torch.int64),
        table=torch.empty(2, 3, dtype=torch.int32).mT,
        cosines=torch.empty(9, 16, dtype=torch.half),
        sines=torch.empty(9, 16, dtype=torch.half),
    ).steps
    assert [x.to.sizes for x in copies] == [(3,), (3, 2)]
    assert (launch.kernel, launch.grid) == ("attention_cache_store_half_half", (64, 2, 12))
    # Slots of a sequence, tokens, heads, features, page size, pages, places, features that are rotated, and positions.
    assert struct.unpack("<q9i", launch.arguments[8][72:116]) == (32, 3, 4, 2, 64, 16, 5, 1, 32, 9)


def test_tokens_come_from_caches():
    (launch,) = cache_plan(
        "gather",
        tokens=torch.empty(3, 32, 2, 64),
        cache=torch.empty(5, 16, 2, 64, dtype=torch.float8_e4m3fn),
        lengths=torch.empty(3, dtype=torch.int32),
        table=torch.empty(3, 2, dtype=torch.int32),
        scale=torch.empty(1),
    ).steps
    assert (launch.kernel, launch.grid) == ("attention_cache_gather_float_e4m3", (64, 2, 96))
    many = torch.empty(1, 1, 1, 1).expand(2**31 - 1, 3, 1, 1)
    with pytest.raises(plans.TooLarge, match="tokens of size 6442450941 is too large"):
        cache_plan("rotate", result=many, tokens=many, lengths=torch.empty(1))


# ---- what mps launches -----------------------------------------------------------------------------


def assert_launched(trace, plan):
    steps = launches(plan)
    assert [x.kernel for x in trace.launches] == [x.kernel for x in steps]
    for launch, step in zip(trace.launches, steps, strict=True):
        assert launch.grid == (*step.grid, 1, 1)[:3]
        assert launch.group == (*step.group, 1, 1)[:3]
        values = [x.hex() for x in step.arguments if isinstance(x, bytes)]
        assert [a.value for a in launch.arguments if a.value is not None] == values


def on_mps(call):
    return [x.to("mps") if isinstance(x, torch.Tensor) else x for x in call]


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize(
    ("body", "limits", "features", "dtype"),
    [
        # Kernels that other tests need, too.
        ("simdgroup", M1, 32, torch.float32),
        ("tensor", M5, 64, torch.bfloat16),
        pytest.param("simdgroup", M1, 64, torch.float16, marks=pytest.mark.nightly),
        pytest.param("tensor", M5, 64, torch.float16, marks=pytest.mark.nightly),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["plain", "options", "packed"])
def test_mps_launches_what_is_planned(kind, body, limits, features, dtype, monkeypatch, tmp_path):
    if kind == "packed":
        call = packed(features=features - 24, dtype=dtype)
    elif kind == "plain":
        call = operands(queries=20, keys=40, features=features, dtype=dtype)
    else:
        call = operands(
            queries=20,
            keys=40,
            features=features,
            dtype=dtype,
            attn_mask=torch.empty(1, 4, 20, 1),
            sinks=torch.zeros(4),
            alibi_slopes=torch.zeros(4),
            window_right=0,
            softcap=3.0,
        )
    tensors = on_mps(call)
    wanted = [x is not None for x in call[:6]]
    with products_of(body, monkeypatch):
        with debug.capture(tmp_path / "forward.trace", gpu=True) as trace:
            results = torch.ops.metalops.attention_forward(*tensors)
        assert_launched(trace, forward(call, limits))
        with debug.capture(tmp_path / "backward.trace", gpu=True) as trace:
            torch.ops.metalops.attention_backward(
                results[0], None, *tensors[:3], *results, *tensors[3:], wanted
            )
        assert_launched(trace, backward(call, limits=limits))


def test_mps_rotates_as_planned(tmp_path):
    tokens = torch.zeros(2, 3, 2, 16)
    lengths, angles = torch.zeros(2, dtype=torch.int32), torch.zeros(9, 8)
    given = {"tokens": tokens, "lengths": lengths, "cosines": angles, "sines": angles}
    with debug.capture(tmp_path / "x.trace", gpu=True) as trace:
        torch.ops.metalops.rotate_tokens(*on_mps(given.values()), True, True)
    assert_launched(trace, cache_plan("rotate", result=tokens, interleaved=True, **given))
