"""The elementwise calls of MetalShaderLibrary compute the right thing in every flavour, dtype and layout.

Operands are small whole numbers, which every dtype holds exactly, so results are compared for equality.
"""

import itertools
import timeit

import metalops
import pytest
import torch
from metalops.msl.targets.host import sanitizers

FLOATS = [torch.float32, torch.float16, torch.bfloat16]
DTYPES = [*FLOATS, torch.int64, torch.int32, torch.uint8]


def whole(*shape, dtype=torch.float32):
    low = 0 if dtype in (torch.uint8, torch.bool) else -8
    return torch.randint(low, 9, shape).to(dtype)


# Views of freshly made CPU tensors; each is copied to the device with its storage, so that layouts stay.
LAYOUTS = {
    "contiguous": lambda dtype: whole(6, 7, dtype=dtype),
    "transposed": lambda dtype: whole(7, 6, dtype=dtype).t(),
    "offset": lambda dtype: whole(9, 9, dtype=dtype)[2:8, 1:8],
    "step 2": lambda dtype: whole(12, 14, dtype=dtype)[::2, ::2],
    "expanded": lambda dtype: whole(6, 1, dtype=dtype).expand(6, 7),
}
BROADCASTS = {
    "row": lambda dtype: whole(7, dtype=dtype),
    "row with a one": lambda dtype: whole(1, 7, dtype=dtype),
    "column": lambda dtype: whole(6, 1, dtype=dtype),
    "0-d": lambda dtype: whole(dtype=dtype),
    "one element": lambda dtype: whole(1, dtype=dtype),
    "one element, two dimensions": lambda dtype: whole(1, 1, dtype=dtype),
}
EVERY = {**LAYOUTS, **BROADCASTS}


def to_mps(x):
    """A copy on the device with the same strides, offset and storage."""
    storage = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
    return storage.to("mps").as_strided(x.size(), x.stride(), x.storage_offset())


def outputs(shape, dtype):
    """Contiguous, column-major and strided outputs, filled with something that must vanish."""
    yield torch.full(shape, 77).to(dtype).to("mps")
    if len(shape) == 2:
        yield torch.full(shape[::-1], 77).to(dtype).to("mps").t()
    if len(shape) < 16:  # the most that the device has
        yield torch.full((*shape, 2), 77).to(dtype).to("mps")[..., 1]


def check(run, inputs, expected):
    for out in outputs(expected.shape, expected.dtype):
        run(out, *map(to_mps, inputs))
        torch.testing.assert_close(out.cpu(), expected, rtol=0, atol=0)


@pytest.mark.nightly
@pytest.mark.parametrize("pinned", ["", "ilp"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.int16, torch.int8, torch.complex64])
def test_unary(metal_tests, flavours, pinned, layout, dtype):
    flavours(pinned, pinned)
    x = LAYOUTS[layout](dtype)
    check(lambda out, x: metal_tests.unary(out, x, "metal_tests", "triple"), [x], x + x + x)


@pytest.mark.full
def test_unary_complex_half(metal_tests):
    x = torch.complex(whole(33), whole(33)).to(torch.complex32).to("mps")
    out = torch.empty_like(x)
    metal_tests.unary(out, x, "metal_tests", "triple")
    assert torch.equal(torch.view_as_real(out.cpu()), 3 * torch.view_as_real(x.cpu()))


@pytest.mark.parametrize("shape", [(), (1,), (3,), (4,), (5,), (33,), (1023,), (1025,), (70000,)])
@pytest.mark.parametrize("pinned", ["", "ilp"])
def test_sizes_that_do_not_fill_the_last_thread_or_group(metal_tests, flavours, pinned, shape):
    flavours(pinned, pinned)
    a, b = whole(*shape), whole(*shape)
    check(lambda out, a: metal_tests.unary(out, a, "metal_tests", "triple"), [a], 3 * a)
    check(
        lambda out, a: metal_tests.unary(out, a, "metal_tests", "triple"),
        [a],
        (3 * a).to(torch.int32),
    )
    check(
        lambda out, a, b: metal_tests.binary(out, a, b, "metal_tests", "minus_twice"),
        [a, b],
        a - 2 * b,
    )


@pytest.mark.parametrize("shape", [(0,), (0, 3), (4, 0, 2)])
def test_empty_tensors_do_nothing(metal_tests, shape):
    x = torch.empty(shape, device="mps")
    metal_tests.unary(x, x, "metal_tests", "no such kernel")
    metal_tests.binary(x, x, x, "metal_tests", "no such kernel")
    metal_tests.ternary(x, x, x, x, "metal_tests", "no such kernel")
    assert x.shape == shape


@pytest.mark.parametrize("pinned", ["", "ilp"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "dtype_in, dtype_out",
    [
        (i, o)
        for i, o in itertools.product([torch.float32, torch.int32, torch.uint8], DTYPES)
        if i != o
    ],
)
def test_unary_converts_to_another_output_dtype(
    metal_tests, flavours, pinned, layout, dtype_in, dtype_out
):
    flavours(pinned, pinned)
    x = LAYOUTS[layout](dtype_in).abs()
    check(
        lambda out, x: metal_tests.unary(out, x, "metal_tests", "triple"),
        [x],
        (x + x + x).to(dtype_out),
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_unary_to_bool_and_from_there_to_other_dtypes(metal_tests, layout):
    x = LAYOUTS[layout](torch.float32)
    for dtype in (torch.bool, torch.float32, torch.int64):
        check(
            lambda out, x: metal_tests.unary(out, x, "metal_tests", "positive"),
            [x],
            (x > 0).to(dtype),
        )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_unary_alpha(metal_tests, layout, dtype):
    x = LAYOUTS[layout](dtype)
    check(
        lambda out, x: metal_tests.unary(out, x, "metal_tests", "scale", alpha=3),
        [x],
        x * 3,
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_unary_alpha_of_another_dtype(metal_tests, layout):
    x = LAYOUTS[layout](torch.float16)
    check(
        lambda out, x: metal_tests.unary(
            out, x, "metal_tests", "scale", alpha=0.5, alpha_type=torch.float32
        ),
        [x],
        x * 0.5,
    )


def test_alpha_must_fit_its_dtype(metal_tests):
    x = torch.zeros(3, dtype=torch.uint8, device="mps")
    with pytest.raises(RuntimeError, match="cannot be converted to type uint8_t without overflow"):
        metal_tests.unary(x, x, "metal_tests", "scale", alpha=1000)


@pytest.mark.parametrize("pinned", ["", "ilp"])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64])
def test_binary_in_every_pair_of_layouts(metal_tests, flavours, pinned, dtype):
    flavours(pinned, pinned)
    for a_layout, b_layout in itertools.product(EVERY, EVERY):
        a, b = EVERY[a_layout](dtype), EVERY[b_layout](dtype)
        check(
            lambda out, a, b: metal_tests.binary(out, a, b, "metal_tests", "minus_twice"),
            [a, b],
            a - b - b,
        )


MIXED = [
    (torch.float32, torch.float16),
    (torch.float32, torch.int64),
    (torch.float32, torch.uint8),
    (torch.float32, torch.bool),
    (torch.float16, torch.int32),
    (torch.bfloat16, torch.int32),
    (torch.float16, torch.bfloat16),
    (torch.int64, torch.int32),
    (torch.int64, torch.bool),
    (torch.complex64, torch.float32),
    (torch.complex64, torch.int32),
]


@pytest.mark.parametrize("first, second", [*MIXED, *[pair[::-1] for pair in MIXED]])
@pytest.mark.parametrize("a_layout", EVERY)
@pytest.mark.sampled(8)
def test_binary_with_mixed_dtypes(metal_tests, first, second, a_layout):
    for b_layout in EVERY:
        a, b = EVERY[a_layout](first), EVERY[b_layout](second)
        dtype = torch.promote_types(first, second)
        check(
            lambda out, a, b: metal_tests.binary(out, a, b, "metal_tests", "minus_twice"),
            [a, b],
            a.to(dtype) - b.to(dtype) - b.to(dtype),
        )


@pytest.mark.parametrize("value", [2.5, 3, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_binary_with_a_number_from_the_cpu(metal_tests, value, dtype, layout):
    x, number = LAYOUTS[layout](dtype), torch.tensor(value)
    if isinstance(value, float):
        number = number.double()
    for out in outputs(x.shape, dtype):
        metal_tests.binary(out, to_mps(x), number, "metal_tests", "minus_twice")
        assert torch.equal(out.cpu(), (x - 2 * value).to(dtype))
        metal_tests.binary(out, number, to_mps(x), "metal_tests", "minus_twice")
        assert torch.equal(out.cpu(), (int(value) if value is True else value) - 2 * x)


def test_an_integer_beyond_float_precision_rounds_once(metal_tests):
    number = torch.tensor((1 << 62) + 1)
    zero, out = torch.zeros(4, device="mps"), torch.empty(4, device="mps")
    metal_tests.binary(out, number, zero, "metal_tests", "minus_twice")
    assert torch.equal(out.cpu(), torch.full((4,), float(1 << 62)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32])
def test_comparison_in_every_pair_of_layouts(metal_tests, dtype):
    for a_layout, b_layout in itertools.product(EVERY, EVERY):
        a, b = EVERY[a_layout](dtype), EVERY[b_layout](dtype)
        check(
            lambda out, a, b: metal_tests.binary(out, a, b, "metal_tests", "less"),
            [a, b],
            a < b,
        )


def test_comparison_of_mixed_dtypes_with_other_outputs(metal_tests):
    for a_layout, b_layout in itertools.product(EVERY, EVERY):
        a, b = EVERY[a_layout](torch.float32), EVERY[b_layout](torch.int32)
        for dtype in (torch.bool, torch.float32, torch.int64, torch.float16):
            check(
                lambda out, a, b: metal_tests.binary(
                    out, a, b, "metal_tests", "less", natural=torch.bool
                ),
                [a, b],
                (a < b).to(dtype),
            )


@pytest.mark.parametrize(
    "first, second",
    [
        (torch.float32, torch.float32),
        (torch.float16, torch.float16),
        (torch.int64, torch.int64),
        (torch.float32, torch.float16),
        (torch.int32, torch.float32),
        (torch.int32, torch.int64),
    ],
)
def test_binary_alpha(metal_tests, first, second):
    for a_layout, b_layout in itertools.product(EVERY, EVERY):
        a, b = EVERY[a_layout](first), EVERY[b_layout](second)
        dtype = torch.promote_types(first, second)
        check(
            lambda out, a, b: metal_tests.binary(out, a, b, "metal_tests", "minus_scaled", alpha=3),
            [a, b],
            a.to(dtype) - 3 * b.to(dtype),
        )


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.uint8]
)
def test_ternary(metal_tests, dtype):
    for layouts in itertools.product(EVERY, EVERY, ["contiguous", "step 2", "row", "0-d"]):
        a, b, c = (EVERY[layout](dtype) for layout in layouts)
        check(
            lambda out, *args: metal_tests.ternary(out, *args, "metal_tests", "select_sum"),
            [a, b, c],
            a + b + b - c,
        )


@pytest.mark.parametrize(
    "dtypes",
    [
        (torch.float32, torch.float16, torch.int32),
        (torch.int32, torch.float32, torch.bool),
        (torch.float16, torch.int64, torch.float16),
        (torch.uint8, torch.int32, torch.int32),
    ],
)
def test_ternary_with_mixed_dtypes(metal_tests, dtypes):
    for layouts in itertools.product(
        EVERY, ["contiguous", "transposed", "column"], ["step 2", "0-d", "contiguous"]
    ):
        tensors = [EVERY[layout](dtype) for layout, dtype in zip(layouts, dtypes)]
        common = torch.result_type(
            torch.empty(1, dtype=torch.promote_types(*dtypes[:2])), torch.empty(1, dtype=dtypes[2])
        )
        a, b, c = (tensor.to(common) for tensor in tensors)
        check(
            lambda out, *args: metal_tests.ternary(out, *args, "metal_tests", "select_sum"),
            tensors,
            a + b + b - c,
        )


def test_ternary_with_a_number_from_the_cpu(metal_tests):
    a, b = whole(6, 7), whole(6, 7)
    out = torch.empty(6, 7, device="mps")
    number = torch.tensor(2.5, dtype=torch.float64)
    metal_tests.ternary(out, to_mps(a), to_mps(b), number, "metal_tests", "select_sum")
    assert torch.equal(out.cpu(), a + b + b - 2.5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_parameters(metal_tests, layout, dtype):
    a, b = LAYOUTS[layout](dtype), LAYOUTS["contiguous"](dtype)
    check(lambda out, a: metal_tests.unary_affine(out, a, 2, -3), [a], a * 2 - 3)
    check(lambda out, a, b: metal_tests.binary_affine(out, a, b, 2, -3), [a, b], a * 2 + b - 3)
    other = b.to(torch.int32)
    check(lambda out, a, b: metal_tests.binary_affine(out, a, b, 2, -3), [a, other], a * 2 + b - 3)


@pytest.mark.parametrize("threshold", [None, 1, 10**6])
@pytest.mark.parametrize("pinned", ["", "ilp"])
def test_raw_buffers(metal_tests, flavours, pinned, threshold):
    flavours(pinned, pinned)
    x, out = whole(50).to("mps"), torch.zeros(50, dtype=torch.int64, device="mps")
    metal_tests.unary_raw(out[3:40], x[10:47], "triple", threshold)
    assert torch.equal(out[3:40].cpu(), 3 * x[10:47].cpu().long())
    assert not out[:3].any() and not out[40:].any()


def test_16_dimensions(metal_tests):
    shape = (1, 2, 1, 2, 3, 1, 1, 2, 1, 2, 1, 1, 2, 1, 1, 2)
    a = whole(*shape)
    b = whole(*shape[::-1]).permute(*range(15, -1, -1))
    check(
        lambda out, a, b: metal_tests.binary(out, a, b, "metal_tests", "minus_twice"),
        [a, b],
        a - b - b,
    )
    check(lambda out, b: metal_tests.unary(out, b, "metal_tests", "triple"), [b], 3 * b)


def test_float64_outputs_are_refused(metal_tests):
    x, out = torch.zeros(3), torch.zeros(3, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="float64 is not supported on MPS"):
        metal_tests.binary(out, x, x, "metal_tests", "minus_twice")
    with pytest.raises(RuntimeError, match="float64 is not supported on MPS"):
        metal_tests.ternary(out, x, x, x, "metal_tests", "select_sum")


def test_launches_from_several_threads_do_not_mix(metal_tests):
    from concurrent.futures import ThreadPoolExecutor

    def work(seed):
        x = torch.full((1000,), float(seed), device="mps")
        out = torch.empty_like(x)
        for _ in range(200):
            metal_tests.unary(out, x, "metal_tests", "triple")
            metal_tests.fill(x, float(seed), [0])
            if not (out == 3 * seed).all() or not (x == seed).all():
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


@pytest.mark.skipif(
    metalops._is_software and bool(sanitizers.loaded()), reason="sanitized launches take longer"
)
def test_a_call_on_few_elements_costs_microseconds_as_torchs_on_the_cpu(metal_tests):
    """Which take one on this machine, or ten on another."""
    x = torch.ones(8, device="mps")
    on_cpu, out = torch.ones(8), torch.empty(8)
    ours, torchs = [], []
    for _ in range(20):
        ours.append(metal_tests.time_unary(x, x.clone(), "triple", 2000))
        torchs.append(timeit.timeit(lambda: torch.add(on_cpu, on_cpu, out=out), number=2000) * 500)
    assert min(ours) < 3 * min(torchs)
