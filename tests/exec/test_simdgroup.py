"""Functions in which the threads of a simdgroup or quadgroup work together, against NumPy, with whole and partial groups.

Lanes that do not exist take no part: the last simdgroup of 28 or 33 threads has 28 lanes, or one.
"""

import itertools

import numpy as np
import pytest
import torch

from .conftest import build

TYPES = {
    "char": torch.int8,
    "uchar": torch.uint8,
    "short": torch.int16,
    "ushort": torch.uint16,
    "int": torch.int32,
    "uint": torch.uint32,
    "half": torch.float16,
    "float": torch.float32,
}
REDUCTIONS = ["sum", "product", "max", "min"]
BITWISE = ["and", "or", "xor"]
PREFIXES = [
    "prefix_inclusive_sum",
    "prefix_exclusive_sum",
    "prefix_inclusive_product",
    "prefix_exclusive_product",
]
SHUFFLES = [
    "shuffle",
    "broadcast",
    "shuffle_xor",
    "shuffle_up",
    "shuffle_down",
    "shuffle_rotate_up",
    "shuffle_rotate_down",
]
FILLS = ["shuffle_and_fill_up", "shuffle_and_fill_down"]
SIZES = [1, 28, 32, 33, 64, 100]


def operations(name):
    return REDUCTIONS + PREFIXES + (BITWISE if name not in ("half", "float") else [])


def reductions(t):
    """Kernels of one type, which are a library of their own: few types belong to the full tier."""
    return "\n".join(
        f"kernel void {group}_{op}_of_{t}(device {t}* out, device const {t}* in, uint i [[thread_position_in_grid]]) "
        f"{{ out[i] = {group}_{op}(in[i]); }}"
        for group in ("simd", "quad")
        for op in operations(t)
    )


def shuffles(types):
    """Kernels of some types, which are a library of their own: not all types belong to the full tier."""
    text = []
    parameters = "uint i [[thread_position_in_grid]]"
    for group in ("simd", "quad"):
        for t in types:
            for op in SHUFFLES:
                text.append(
                    f"kernel void {group}_{op}_of_{t}(device {t}* out, device const {t}* in, "
                    f"device const ushort* amount, {parameters}) {{ out[i] = {group}_{op}(in[i], amount[i]); }}"
                )
            for op in FILLS:
                text.append(
                    f"kernel void {group}_{op}_of_{t}(device {t}* out, device const {t}* in, device const {t}* fill, "
                    f"constant ushort& amount, {parameters}) "
                    f"{{ out[i] = {group}_{op}(in[i], fill[i], amount); }}"
                )
            text.append(
                f"kernel void {group}_broadcast_first_of_{t}(device {t}* out, device const {t}* in, {parameters}) "
                f"{{ out[i] = {group}_broadcast_first(in[i]); }}"
            )
    return "\n".join(text)


def kernels():
    text = []
    parameters = "uint i [[thread_position_in_grid]]"
    for group in ("simd", "quad"):
        text.append(
            f"kernel void {group}_votes(device uint* out, device const bool* in, {parameters}) {{\n"
            f"  out[i * 6] = uint(ulong({'simd' if group == 'simd' else 'ushort'}_bits({group}_ballot(in[i]))));\n"
            f"  out[i * 6 + 1] = {group}_any(in[i]);\n"
            f"  out[i * 6 + 2] = {group}_all(in[i]);\n"
            f"  out[i * 6 + 3] = {group}_is_first();\n"
            f"  out[i * 6 + 4] = uint({group}_mask());\n"
            f"  out[i * 6 + 5] = {group}_is_helper_thread();\n"
            "}"
        )
    for t in ("float", "int3"):
        for op in FILLS:
            text.append(
                f"kernel void {op}_modulo_{t}(device {t}* out, device const {t}* in, device const {t}* fill, "
                f"constant ushort& amount, constant ushort& modulo, {parameters}) "
                f"{{ out[i] = simd_{op}(in[i], fill[i], amount, modulo); }}"
            )
    text.append(
        "kernel void vector_sums(device float4* out, device const float4* in, uint i [[thread_position_in_grid]])"
        "{ out[i] = simd_sum(in[i]) + quad_max(in[i]) + simd_prefix_inclusive_sum(in[i]); }"
    )
    text.append(
        "kernel void bfloat_sum(device float* out, device const bfloat* in, uint i [[thread_position_in_grid]])"
        "{ out[i] = simd_sum(in[i]); }"
    )
    return "\n".join(text)


SOURCE = """
inline ulong simd_bits(simd_vote v) { return ulong(v); }
inline ulong ushort_bits(quad_vote v) { return ulong(ushort(v)); }
#define simd_mask() simd_bits(simd_active_threads_mask())
#define quad_mask() ushort_bits(quad_active_threads_mask())
""" + kernels()
WIDTH = {"simd": 32, "quad": 4}


def launch(name, buffers, threads, source=SOURCE):
    build(source, optimize=1).launch(name, buffers, threads, threads)


def values(dtype, n, components=1):
    generator = torch.Generator().manual_seed(n)
    if dtype.is_floating_point:
        # Few and small enough that sums and products in any order are exact in half.
        x = torch.randint(-2, 3, (n * components,), generator=generator).to(dtype)
    else:
        info = torch.iinfo(dtype)
        low, high = max(info.min, -(2**31)), min(info.max, 2**31 - 1)
        x = torch.randint(low, high, (n * components,), generator=generator).to(dtype)
    return x.reshape(n, components) if components > 1 else x


def parts(threads, group_size, width):
    """Index ranges of the simdgroups or quadgroups of one threadgroup of that many threads."""
    for first in range(0, threads, group_size):
        last = min(first + group_size, threads)
        for begin in range(first, last, width):
            yield range(begin, min(begin + width, last))


def reduce_reference(op, x):
    with np.errstate(over="ignore"):
        if op == "sum":
            return np.full_like(x, x.sum(dtype=x.dtype))
        if op == "product":
            return np.full_like(x, x.prod(dtype=x.dtype))
        if op in ("max", "min"):
            return np.full_like(x, getattr(np, op)(x))
        if op in BITWISE:
            return np.full_like(x, getattr(np, f"bitwise_{op}").reduce(x))
        scan = (np.cumsum if "sum" in op else np.cumprod)(x, dtype=x.dtype)
        if "inclusive" in op:
            return scan
        first = np.array([0 if "sum" in op else 1], dtype=x.dtype)
        return np.concatenate([first, scan[:-1]])


@pytest.mark.full
@pytest.mark.sampled(12)
@pytest.mark.parametrize("threads", SIZES)
@pytest.mark.parametrize("group", ["simd", "quad"])
@pytest.mark.parametrize(
    "name",
    [
        *("char", "uint", "half", "float"),
        *(pytest.param(t, marks=pytest.mark.nightly) for t in ("uchar", "short", "ushort", "int")),
    ],
)
def test_reductions_and_prefixes(name, group, threads):
    library = build(reductions(name), optimize=1)
    x = values(TYPES[name], threads)
    for op in operations(name):
        out = torch.zeros_like(x)
        library.launch(f"{group}_{op}_of_{name}", [out, x], threads, threads)
        for lanes in parts(threads, threads, WIDTH[group]):
            expected = reduce_reference(op, x.numpy()[lanes.start : lanes.stop])
            np.testing.assert_array_equal(
                out.numpy()[lanes.start : lanes.stop], expected, err_msg=op
            )


def shuffle_source(op, lane, amount, width):
    """The lane whose value `lane` gets; None: its own (shifted past the end)."""
    if op in ("shuffle", "broadcast"):
        return amount % width
    if op == "shuffle_xor":
        return (lane ^ amount) % width
    if op == "shuffle_rotate_up":
        return (lane - amount) % width
    if op == "shuffle_rotate_down":
        return (lane + amount) % width
    source = lane - amount if op == "shuffle_up" else lane + amount
    return source if 0 <= source < width else None


SHUFFLED = {
    "char": (torch.int8, 1),
    "ushort": (torch.uint16, 1),
    "int": (torch.int32, 1),
    "half": (torch.float16, 1),
    "float": (torch.float32, 1),
    "float2": (torch.float32, 2),
    "int3": (torch.int32, 4),  # three components take the room of four
    "half4": (torch.float16, 4),
}

by_types = pytest.mark.parametrize(
    "types",
    [
        ("char", "half4"),
        pytest.param(("float", "int3"), marks=pytest.mark.nightly),
        pytest.param(("ushort", "int", "half", "float2"), marks=pytest.mark.nightly),
    ],
    ids=lambda types: types[0],
)


def shuffle_amounts(uniform, group, threads):
    """An index or a distance for each thread."""
    if uniform:
        return torch.full((threads,), 3, dtype=torch.uint16)
    return torch.arange(threads).mul(7).remainder(WIDTH[group]).to(torch.uint16)


def shuffle_cases():
    for op, group, threads, uniform in itertools.product(
        SHUFFLES, ["simd", "quad"], [28, 32, 33, 64], [True, False]
    ):
        amounts = shuffle_amounts(uniform, group, threads)
        defined = (uniform or op == "shuffle") and all(
            (shuffle_source(op, lane, int(amounts[i]), WIDTH[group]) or 0) < len(lanes)
            for lanes in parts(threads, threads, WIDTH[group])
            for lane, i in enumerate(lanes)
        )
        marks = [] if defined else [pytest.mark.reported("the result is undefined in Metal")]
        name = f"{op}-{group}-{threads}-{'one' if uniform else 'several'}"
        yield pytest.param(op, group, threads, uniform, marks=marks, id=name)


@pytest.mark.sampled(3)
@by_types
@pytest.mark.parametrize(("op", "group", "threads", "uniform"), list(shuffle_cases()))
def test_shuffles(op, group, threads, uniform, types):
    width = WIDTH[group]
    amounts = shuffle_amounts(uniform, group, threads)
    for name in types:
        dtype, components = SHUFFLED[name]
        x = values(dtype, threads, components).reshape(threads, components)
        used = 3 if name == "int3" else components
        out = torch.zeros_like(x)
        launch(f"{group}_{op}_of_{name}", [out, x, amounts], threads, shuffles(types))
        for lanes in parts(threads, threads, width):
            for lane, i in enumerate(lanes):
                source = shuffle_source(op, lane, int(amounts[i]), width)
                if source is None:
                    expected = x[i]
                elif source < len(lanes):
                    expected = x[lanes[source]]
                else:
                    expected = torch.zeros_like(x[i])  # a lane that does not exist
                assert torch.equal(out[i, :used], expected[:used]), (name, i)


@by_types
@pytest.mark.parametrize("threads", [32, 64])
@pytest.mark.parametrize("group", ["simd", "quad"])
@pytest.mark.parametrize("op", FILLS)
def test_shuffle_and_fill(op, group, threads, types):
    width = WIDTH[group]
    for name in types:
        dtype, components = SHUFFLED[name]
        x = values(dtype, threads, components).reshape(threads, components)
        fill = values(dtype, threads + 1, components).reshape(threads + 1, components)[1:].clone()
        used = 3 if name == "int3" else components
        for amount in (0, 1, 3):
            out = torch.zeros_like(x)
            launch(
                f"{group}_{op}_of_{name}",
                [out, x, fill, torch.tensor([amount], dtype=torch.uint16)],
                threads,
                shuffles(types),
            )
            check_fill(op, x, fill, out, amount, width, used)


def check_fill(op, x, fill, out, amount, width, used):
    for i in range(len(x)):
        lane, first = i % width, i - i % width
        source = lane - amount if op.endswith("up") else lane + amount
        chosen = x if 0 <= source < width else fill
        assert torch.equal(out[i, :used], chosen[first + source % width, :used]), i


@pytest.mark.parametrize("modulo", [2, 4, 8, 16, 32])
@pytest.mark.parametrize("op", FILLS)
def test_shuffle_and_fill_modulo(op, modulo):
    for name, components, used in (("float", 1, 1), ("int3", 4, 3)):
        dtype = SHUFFLED[name][0]
        x = values(dtype, 64, components).reshape(64, components)
        fill = values(dtype, 65, components).reshape(65, components)[1:].clone()
        out = torch.zeros_like(x)
        arguments = [torch.tensor([v], dtype=torch.uint16) for v in (1, modulo)]
        launch(f"{op}_modulo_{name}", [out, x, fill, *arguments], 64)
        check_fill(op, x, fill, out, 1, modulo, used)


@pytest.mark.parametrize("threads", SIZES)
@pytest.mark.parametrize("group", ["simd", "quad"])
@pytest.mark.parametrize("pattern", ["none", "all", "some"])
def test_votes(group, pattern, threads):
    votes = {
        "none": torch.zeros(threads, dtype=torch.bool),
        "all": torch.ones(threads, dtype=torch.bool),
        "some": torch.arange(threads) % 3 == 1,
    }[pattern]
    out = torch.zeros(threads, 6, dtype=torch.int32)
    launch(f"{group}_votes", [out, votes], threads)
    for lanes in parts(threads, threads, WIDTH[group]):
        bits = sum(int(votes[i]) << lane for lane, i in enumerate(lanes))
        present = (1 << len(lanes)) - 1
        for lane, i in enumerate(lanes):
            expected = [bits, bits != 0, bits == present, lane == 0, present, False]
            # The bits of 32 lanes come back as a signed number.
            assert [v & 0xFFFFFFFF for v in out[i].tolist()] == [int(v) for v in expected]


@by_types
@pytest.mark.parametrize("group", ["simd", "quad"])
def test_broadcast_first(group, types):
    for name in types:
        dtype, components = SHUFFLED[name]
        x = values(dtype, 33, components).reshape(33, components)
        used = 3 if name == "int3" else components
        out = torch.zeros_like(x)
        launch(f"{group}_broadcast_first_of_{name}", [out, x], 33, shuffles(types))
        for lanes in parts(33, 33, WIDTH[group]):
            for i in lanes:
                assert torch.equal(out[i, :used], x[lanes[0], :used])


def test_vectors():
    x = torch.randint(-3, 4, (64, 4)).float()
    out = torch.zeros_like(x)
    launch("vector_sums", [out, x], 64)
    sums = x.reshape(2, 32, 4).sum(1, keepdim=True).expand(2, 32, 4).reshape(64, 4)
    largest = x.reshape(16, 4, 4).amax(1, keepdim=True).expand(16, 4, 4).reshape(64, 4)
    scan = x.reshape(2, 32, 4).cumsum(1).reshape(64, 4)
    assert torch.equal(out, sums + largest + scan)


def test_bfloat_becomes_float():
    x = torch.randint(-3, 4, (32,)).to(torch.bfloat16) + 0.5
    out = torch.zeros(32)
    launch("bfloat_sum", [out, x], 32)
    assert torch.equal(out, x.float().sum().expand(32))


def test_bfloat_meets_other_lanes_as_bfloat():
    library = build("""
    template <typename T> T total(T x) { return simd_sum(x); }
    template <typename T> T largest(T x) { return quad_max(simd_shuffle_xor(x, 1)); }
    kernel void k(device bfloat* sums, device bfloat* most, uint i [[thread_position_in_grid]]) {
      sums[i] = total(bfloat(i & 1)) + M_LN2_BF * 0.0bf;
      bfloat m = largest(bfloat(i));
      most[i] = i == 31 ? HUGE_VALBF : m;
    }
    """)
    sums, most = torch.zeros(32, dtype=torch.bfloat16), torch.zeros(32, dtype=torch.bfloat16)
    library.launch("k", [sums, most], 32, 32)
    assert sums.tolist() == [16] * 32
    assert most.tolist() == [i | 3 for i in range(31)] + [float("inf")]
