"""Functions of integers against Python's unbounded ones, for every integer type."""

import random

import pytest
import torch

from .conftest import build

TYPES = {
    "char": (8, True, torch.int8),
    "uchar": (8, False, torch.uint8),
    "short": (16, True, torch.int16),
    "ushort": (16, False, torch.uint16),
    "int": (32, True, torch.int32),
    "uint": (32, False, torch.uint32),
    "long": (64, True, torch.int64),
    "ulong": (64, False, torch.uint64),
}


def wrap(value, bits, signed):
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def limits(bits, signed):
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)


def saturate(value, bits, signed):
    low, high = limits(bits, signed)
    return max(low, min(high, value))


def unsigned(value, bits):
    return value & ((1 << bits) - 1)


# function -> reference(arguments..., bits, signed), before it wraps to the type
UNARY = {
    "abs": lambda x, b, s: abs(x),
    "clz": lambda x, b, s: b - unsigned(x, b).bit_length(),
    "ctz": lambda x, b, s: b if x == 0 else (x & -x).bit_length() - 1,
    "popcount": lambda x, b, s: unsigned(x, b).bit_count(),
    "reverse_bits": lambda x, b, s: int(f"{unsigned(x, b):0{b}b}"[::-1], 2),
}
BINARY = {
    "max": lambda x, y, b, s: max(x, y),
    "min": lambda x, y, b, s: min(x, y),
    "absdiff": lambda x, y, b, s: abs(x - y),
    "addsat": lambda x, y, b, s: saturate(x + y, b, s),
    "subsat": lambda x, y, b, s: saturate(x - y, b, s),
    "hadd": lambda x, y, b, s: (x + y) >> 1,
    "rhadd": lambda x, y, b, s: (x + y + 1) >> 1,
    "mulhi": lambda x, y, b, s: (x * y) >> b,
    "rotate": lambda x, y, b, s: unsigned(x, b) << (y % b) | unsigned(x, b) >> (b - y % b),
}
TERNARY = {
    "clamp": lambda x, y, z, b, s: min(max(x, y), z),
    "max3": lambda x, y, z, b, s: max(x, y, z),
    "min3": lambda x, y, z, b, s: min(x, y, z),
    "median3": lambda x, y, z, b, s: sorted((x, y, z))[1],
    "madhi": lambda x, y, z, b, s: ((x * y) >> b) + z,
    "madsat": lambda x, y, z, b, s: saturate(x * y + z, b, s),
}


def kernels():
    text = []
    parameters = "uint i [[thread_position_in_grid]]"
    for t in TYPES:
        for f in UNARY:
            text.append(
                f"kernel void {f}_{t}(device {t}* out, device const {t}* x, {parameters}) {{ out[i] = {f}(x[i]); }}"
            )
        for f in BINARY:
            text.append(
                f"kernel void {f}_{t}(device {t}* out, device const {t}* x, device const {t}* y, {parameters}) "
                f"{{ out[i] = {f}(x[i], y[i]); }}"
            )
        for f in TERNARY:
            text.append(
                f"kernel void {f}_{t}(device {t}* out, device const {t}* x, device const {t}* y, device const {t}* z, "
                f"{parameters}) {{ out[i] = {f}(x[i], y[i], z[i]); }}"
            )
        text.append(
            f"kernel void bits_{t}(device {t}* out, device const {t}* x, device const {t}* y, device const uint2* place, "
            f"{parameters}) {{ out[i * 2] = extract_bits(x[i], place[i].x, place[i].y); "
            "out[i * 2 + 1] = insert_bits(x[i], y[i], place[i].x, place[i].y); }"
        )
    for t in ("int", "uint"):
        text.append(
            f"kernel void products24_{t}(device {t}* out, device const {t}* x, device const {t}* y, device const {t}* z, "
            f"{parameters}) {{ out[i * 2] = mul24(x[i], y[i]); out[i * 2 + 1] = mad24(x[i], y[i], z[i]); }}"
        )
    text.append(
        "kernel void vectors(device int4* out, device const int4* x, device const int4* y, "
        f"{parameters}) {{ out[i] = int4(uint4(max(x[i], 3)) + uint4(abs(y[i])) + popcount(uint4(x[i])) + uint4(mulhi(x[i], y[i])) + "
        "uint4(clamp(x[i], -5, y[i])) + uint4(select(x[i], y[i], y[i] > 0)) + uint4(addsat(x[i], y[i])) + "
        "uint4(extract_bits(x[i], 3, 7))); }"
    )
    text.append(
        "kernel void divided(device int4* out, device const int4* x, device const int4* y, "
        f"{parameters}) {{ out[i * 4] = x[i] / y[i]; out[i * 4 + 1] = x[i] % y[i]; out[i * 4 + 2] = x[i] << y[i]; "
        "out[i * 4 + 3] = x[i] >> y[i]; }"
    )
    return "\n".join(text)


SOURCE = kernels()


def samples(name, n=500, seed=0):
    bits, signed, _ = TYPES[name]
    low, high = limits(bits, signed)
    generator = random.Random(seed)
    edges = [low, low + 1, high, high - 1, 0, 1, high // 2, low // 2] + ([-1] if signed else [])
    spread = [
        wrap(generator.getrandbits(bits) >> generator.randrange(bits), bits, signed)
        for _ in range(n)
    ]
    values = edges * len(edges) + spread
    if seed:
        generator.shuffle(values)
    return values


def tensor(name, values):
    bits, _, dtype = TYPES[name]
    signed_type = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}[bits]
    return torch.tensor([wrap(v, bits, True) for v in values], dtype=signed_type).view(dtype)


def launch(name, type_name, columns, per_thread=1):
    n = len(columns[0])
    out = torch.zeros(n * per_thread, dtype=TYPES[type_name][2])
    tensors = [c if isinstance(c, torch.Tensor) else tensor(type_name, c) for c in columns]
    build(SOURCE).launch(name, [out, *tensors], n, 64)
    return out.tolist()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", list(TYPES))
@pytest.mark.parametrize("function", [*UNARY, *BINARY, *TERNARY])
def test_function(function, name):
    bits, signed, _ = TYPES[name]
    arity, reference = next(
        (n, t[function]) for n, t in enumerate((UNARY, BINARY, TERNARY), 1) if function in t
    )
    columns = [samples(name, seed=k) for k in range(arity)]
    if function == "clamp":
        columns = [columns[0], *map(list, zip(*(sorted(pair) for pair in zip(*columns[1:]))))]
    expected = [wrap(reference(*row, bits, signed), bits, signed) for row in zip(*columns)]
    if function == "absdiff":  # the result is unsigned; stored in a signed element it wraps
        expected = [wrap(v, bits, signed) for v in expected]
    assert launch(f"{function}_{name}", name, columns) == expected


@pytest.mark.parametrize("name", list(TYPES))
def test_extract_and_insert_bits(name):
    bits, signed, _ = TYPES[name]
    x, y = samples(name, seed=0), samples(name, seed=1)
    generator = random.Random(2)
    places = [(0, bits), (bits - 1, 1), (0, 0), (bits // 2, bits // 2)]
    while len(places) < len(x):
        offset = generator.randrange(bits)
        places.append((offset, generator.randrange(bits - offset + 1)))
    expected = []
    for v, w, (offset, count) in zip(x, y, places):
        field = (v >> offset) & ((1 << count) - 1)
        expected.append(wrap(field, count, signed) if count else 0)
        mask = ((1 << count) - 1) << offset
        expected.append(wrap((v & ~mask) | (w << offset & mask), bits, signed))
    place = torch.tensor(places, dtype=torch.int32)
    assert launch(f"bits_{name}", name, [x, y, place], 2) == expected


@pytest.mark.parametrize("name", ["int", "uint"])
def test_24_bit_products(name):
    bits, signed, _ = TYPES[name]
    x, y, z = ([wrap(v, 24, signed) for v in samples(name, seed=k)] for k in range(3))
    expected = [wrap(v, bits, signed) for a, b, c in zip(x, y, z) for v in (a * b, a * b + c)]
    assert launch(f"products24_{name}", name, [x, y, z], 2) == expected


def rows(values):
    return [values[k : k + 4] for k in range(0, len(values) - 3, 4)]


def test_vectors():
    x, y = samples("int", seed=0)[:400], samples("int", seed=1)[:400]
    result = torch.zeros(100, 4, dtype=torch.int32)
    build(SOURCE).launch("vectors", [result, tensor("int", x), tensor("int", y)], 100, 64)
    expected = []
    for a, b in zip(x, y):
        total = (
            max(a, 3)
            + wrap(abs(b), 32, True)
            + unsigned(a, 32).bit_count()
            + (a * b >> 32)
            + min(max(a, -5), b)
        )
        total += (b if b > 0 else a) + saturate(a + b, 32, True) + wrap(a >> 3 & 127, 7, True)
        expected.append(wrap(total, 32, True))
    assert result.reshape(-1).tolist() == expected


def test_vector_division_never_traps_and_shifts_count_modulo_32():
    lowest = -(2**31)
    x = [7, -7, lowest, 5, lowest, 0, 100, -100]
    y = [2, 2, -1, 0, 0, 0, 33, -1]
    out = torch.zeros(8, 4, dtype=torch.int32)
    build(SOURCE).launch("divided", [out, tensor("int", x), tensor("int", y)], 2, 64)
    out = out.reshape(2, 4, 4).transpose(0, 1).reshape(4, 8).tolist()
    assert out[0] == [3, -3, lowest, -1, -1, -1, 3, 100]
    assert out[1] == [1, -1, 0, 5, lowest, 0, 1, 0]
    assert out[2] == [28, -28, 0, 5, lowest, 0, 200, 0]
    assert out[3] == [1, -2, -1, 5, lowest, 0, 50, -1]
