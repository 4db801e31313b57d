"""quantize, dequantize and quantized_embedding: kernels/quantized/quantized.metal."""

import functools

import pytest
import torch
from metalops import ops
from metalops.ops._formats import quantized as formats
from metalops.testing import no_standins
from metalops.testing.samples import FLOATS, make

from ..benchmark import Benchmark

OTHERS = ("quantize", "dequantize", "quantized_embedding")

# Those of opcheck that know mps.
CHECKS = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")

devices = pytest.mark.parametrize("device", ["mps", "cpu"])
dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=str)

# Every mode with its bits and one or two sizes of groups.
KINDS = (
    *(("affine", bits, 64) for bits in range(1, 9)),
    ("affine", 4, 32),
    ("affine", 3, 256),
    ("mxfp4", 4, 32),
    ("mxfp8", 8, 32),
    ("nvfp4", 4, 16),
    ("nf4", 4, 64),
    ("fp4", 4, 1024),
)
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind)))


def keywords(kind):
    mode, bits, group_size = kind
    return {"mode": mode, "bits": bits, "group_size": group_size}


def quantized(shape, kind, dtype=torch.float32, seed=0):
    """Packed weights, scales and biases of weights that are about as large as those of a layer."""
    weight = (make(shape, torch.float32, seed=seed) / shape[-1] ** 0.5).to(dtype)
    return ops.quantize(weight, **keywords(kind))


def moved(tensors, device="mps"):
    return tuple(None if t is None else t.to(device) for t in tensors)


def _of_benchmark(call):
    kind = ("affine", 4, 64)

    @functools.lru_cache(maxsize=2)
    def weights(device):
        return moved(quantized((256, 64), kind), device)

    return lambda x, out: call(weights(x.device), x)


BENCHMARKS = (
    Benchmark(
        "dequantize, 4 bits",
        _of_benchmark(lambda w, x: ops.dequantize(*w)),
        _of_benchmark(lambda w, x: ops.dequantize(*w)),
        composed=True,
    ),
    Benchmark(
        "quantize, 4 bits",
        lambda x, out: ops.quantize(x)[1],
        lambda x, out: ops.quantize(x)[1],
        composed=True,
    ),
)


# ---- packing -------------------------------------------------------------------------------------


def test_codes_are_a_stream_of_bits_from_the_lowest_on():
    """As MLX and torchao have them: written out by hand, bit by bit."""
    generator = torch.Generator().manual_seed(0)
    for bits in range(1, 9):
        codes = torch.randint(0, 1 << bits, (3, 24), generator=generator)
        packed = formats.pack(codes, bits)
        for line, row in zip(packed.tolist(), codes.tolist()):
            stream = sum(code << (i * bits) for i, code in enumerate(row))
            assert bytes(line) == stream.to_bytes(3 * bits, "little")
        assert torch.equal(formats.unpack(packed, bits), codes)


@devices
def test_golden_bytes(device):
    """Weights that are codes themselves: from 0 on in steps of one."""
    for bits, expected in {
        1: [0b10101010],
        2: [0b11100100] * 2,
        3: [0x88, 0xC6, 0xFA],
        4: [0x10, 0x32, 0x54, 0x76],
        5: [0x20, 0x88, 0x41, 0x8A, 0x39],
        6: [0x40, 0x20, 0x0C, 0x44, 0x61, 0x1C],
        7: [0x80, 0x80, 0x60, 0x40, 0x28, 0x18, 0x0E],
        8: [0, 1, 2, 3, 4, 5, 6, 7],
    }.items():
        most = (1 << bits) - 1
        row = torch.tensor([k % (most + 1) for k in range(8)] * 3 + [0] * 7 + [most]).float()
        # The largest in size is the bias, so that codes count down from it.
        packed, scales, biases = ops.quantize((-row).to(device)[None], bits=bits, group_size=32)
        assert (scales.item(), biases.item()) == (1.0, -float(most))
        codes = most - formats.unpack(packed.cpu(), bits)[0]
        assert codes.tolist() == row.long().tolist()
        packed, scales, biases = ops.quantize(
            (row - most).to(device)[None], bits=bits, group_size=32
        )
        assert (scales.item(), biases.item()) == (1.0, -float(most))
        assert packed[0, :bits].tolist() == expected


@devices
def test_golden_bytes_of_floats(device):
    values = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -1, -1.5, -2, -3, -4, -6, 0.24])
    expected = [0x10, 0x32, 0x54, 0x76, 0xA9, 0xCB, 0xED, 0x0F]
    packed, scales, biases = ops.quantize(values.to(device)[None], mode="nvfp4")
    assert biases is None and packed[0].tolist() == expected and scales.tolist() == [[0x38]]
    packed, scales, _ = ops.quantize(4 * values.repeat(2).to(device)[None], mode="mxfp4")
    assert packed[0].tolist() == expected * 2 and scales.tolist() == [[129]]
    table = torch.tensor(formats._NF4)
    packed, scales, _ = ops.quantize(
        3 * table.repeat(2).to(device)[None], mode="nf4", group_size=32
    )
    assert scales.tolist() == [[3.0]]
    assert packed[0].tolist() == [0x01, 0x23, 0x45, 0x67, 0x89, 0xAB, 0xCD, 0xEF] * 2
    table = torch.tensor(formats._FP4).repeat(4)
    packed, _, _ = ops.quantize(table.to(device)[None], mode="fp4", group_size=32)
    assert packed[0].tolist() == [0x01, 0x23, 0x45, 0x67] * 4


# What MLX 0.32.4 makes of the weights of golden_weight(): mode, bits, group_size and global_scale, then packed, scales and
# biases in hexadecimal.
MLX = {
    ("affine", 1, 32, None): ("b4b5ad6d6d6d6b5b", "0000bc4000c04c41", "008047c00070d7c0"),
    ("affine", 2, 32, None): (
        "349e379ee79ae7bae379e378ae799e6b",
        "0080c73f00705740",
        "008047c00070d7c0",
    ),
    ("affine", 3, 32, None): (
        "98c3ab5751871dbd8a1dbd7a0e9f5e451d5ef42a76f4ea55",
        "0080473f0070d73f",
        "008047c00070d7c0",
    ),
    ("affine", 4, 32, None): (
        "602cd8935f0bca826bc9a7945ab8967c1ce9935f0bca823ec9a7945ab8967c5a",
        "0080c73e0070573f",
        "008047c00070d7c0",
    ),
    ("affine", 5, 32, None): (
        "80e111b7915ed53033819649dc668a7545cb247658c46da44f15d03c203f12b7996255f032891d4d",
        "0080473e0070d73e",
        "008047c00070d7c0",
    ),
    ("affine", 6, 32, None): (
        "00161f23de983ec50ae89c842d46c61b2a8dab25ba5929737141e24cf94f2c80ce87a83b64bca112b956a28b9532974e",
        "5d74c13dbae8503e",
        "008047c00070d7c0",
    ),
    ("affine", 8, 32, None): (
        "0064c81b8fe3369afe51b508a2d02387b96395c770a24c90b0598bbd6799cb74c71491e33097ff4cb300a4cf1c88eb3893c76da14791af5589bd6397cb71a54b",
        "d227bd3c82ca4d3d",
        "008047c00070d7c0",
    ),
    ("mxfp4", 4, 32, None): (
        "adc3401ca5d2310ca231190ba2301993d3411cb5d2420dc531191ba2301a93b2",
        "7f80",
        "",
    ),
    ("mxfp8", 8, 32, None): (
        "fced74fa5c79f7667bf271fc6a76f93871ed6274e86af35e6ff05472ec6575e675fb6179f9667cf471fd6c77fb507af86275ea6bf56170f25273ee6676e86cf4",
        "7879",
        "",
    ),
    ("nvfp4", 4, 16, None): (
        "bfe5612ec7f4520ed6735c2fe6713db7f5612ed7f4530ed6724c2fe6613dc7f5",
        "30283931",
        "",
    ),
    ("nvfp4", 4, 16, 3.125): (
        "bfe5612ec7f4520ed6724c2fe6613db7f7723ff7f6750ff7725c2fe6713dc7f5",
        "7e767e7e",
        "",
    ),
}


def golden_weight():
    """Nothing is between two codes, and no code is a zero with a sign: there MLX differs on GPUs and CPUs."""
    weight = (torch.arange(64) * 37 % 101 - 50) / 16 + 1 / 128
    weight = torch.where((weight < 0) & (weight > -0.75), -weight, weight).reshape(2, 32)
    weight[1] *= 2.25
    weight[:, 16:] *= 0.5
    return weight


@devices
@pytest.mark.parametrize("kind", MLX, ids=str)
def test_bytes_are_those_of_mlx(device, kind):
    mode, bits, group_size, factor = kind
    options = {"mode": mode, "bits": bits, "group_size": group_size}
    if factor is not None:
        options["global_scale"] = torch.tensor(factor, device=device)
    results = ops.quantize(golden_weight().to(device), **options)
    for result, expected in zip(results, MLX[kind], strict=True):
        assert expected == ("" if result is None else result.cpu().numpy().tobytes().hex())


@devices
def test_halves_between_codes_go_to_even_ones(device):
    between = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])
    row = torch.cat([between, -between])[None].to(device)
    values = ops.dequantize(*ops.quantize(row, mode="nvfp4"), mode="nvfp4").cpu()[0]
    assert values[:8].tolist() == [0, 1, 1, 2, 2, 4, 4, 6]
    assert torch.equal(values[8:], -values[:8])


@devices
def test_the_power_of_two_is_one_that_cuts_nothing_off(device):
    """MLX's rounding: up always."""
    largest = torch.tensor([1.0, 1.0001, 1.5, 2.0, 1.5 * 2**-20, 0.0, 3e38, torch.inf])
    rows = torch.zeros(8, 32)
    rows[:, 3] = largest * torch.tensor([6, 6, 6, 6, 6, 6, 1.0, 1.0])
    _, scales, _ = ops.quantize(rows.to(device), mode="mxfp4")
    assert scales.flatten().tolist() == [127, 128, 128, 128, 108, 127, 253, 254]


@kinds
@dtypes
def test_kernels_and_operators_of_torch_pack_the_same_bytes(kind, dtype):
    for shape in ((5, 1024), (2, 3, 4096)):
        weight = make(shape, dtype, seed=3)
        weight[..., :64] = 0
        with no_standins():
            ours = ops.quantize(weight.to("mps"), **keywords(kind))
        for a, e in zip(ours, ops.quantize(weight, **keywords(kind)), strict=True):
            assert (a is None) == (e is None)
            assert a is None or torch.equal(a.cpu(), e)


@devices
def test_halfway_between_codes_of_nf4_is_as_bitsandbytes_has_it(device):
    """Its thresholds are float literals, of which one is no double rounded to a float."""
    weight = torch.zeros(1, 64)
    weight[0, :3] = torch.tensor([1, 0.1202552542090416, 0.12025526165962219])
    packed, _, _ = ops.quantize(weight.to(device), mode="nf4")
    assert packed[0, :2].tolist() == [0xF8, 0x97]


@devices
def test_weights_of_zeros_have_any_global_scale(device):
    weight, zero = torch.zeros(2, 32, device=device), torch.zeros((), device=device)
    packed, scales, _ = ops.quantize(weight, mode="nvfp4", global_scale=zero)
    assert not packed.any() and not scales.any()
    assert not ops.dequantize(packed, scales, mode="nvfp4", global_scale=zero).any()


def test_a_short_last_group_is_one_of_its_own():
    weight = make((4, 72), torch.float32)
    for device in ("mps", "cpu"):
        packed, scales, biases = ops.quantize(weight.to(device), bits=3, group_size=64)
        assert packed.shape == (4, 27) and scales.shape == biases.shape == (4, 2)
        alone = ops.quantize(weight[:, 64:].repeat(1, 4).to(device), bits=3, group_size=32)
        assert torch.equal(scales[:, 1:], alone[1]) and torch.equal(packed[:, 24:], alone[0][:, :3])


def test_formulas_are_those_of_mlx():
    """python/mlx's description of affine quantisation, for one group at a time in Python's floats."""
    weight = make((6, 32), torch.float32, seed=5) + torch.tensor([[0.0], [3], [-3], [0], [0], [0]])
    weight[3] = 0
    weight[4] = 1
    packed, scales, biases = ops.quantize(weight.to("mps"), bits=2, group_size=32)
    codes = formats.unpack(packed.cpu(), 2)
    for row in range(6):
        low, high = weight[row].min(), weight[row].max()
        side = low.abs() > high.abs()
        scale = torch.clamp((high - low) / 3, min=1e-7) * (1 if side else -1)
        edge = low if side else high
        q0 = (edge / scale).round()
        scale, bias = (edge / q0, edge) if q0 != 0 else (scale, torch.zeros(()))
        assert scales[row].item() == scale and biases[row].item() == bias
        expected = ((weight[row] - bias) / scale).round().clamp(0, 3)
        assert torch.equal(codes[row].float(), expected)


@kinds
def test_errors_are_at_most_half_a_step(kind):
    weight = make((8, 1024), torch.float32, seed=1)
    packed, scales, biases = ops.quantize(weight.to("mps"), **keywords(kind))
    error = (ops.dequantize(packed, scales, biases, **keywords(kind)).cpu() - weight).abs()
    steps = formats.scale_values(scales.cpu(), kind[0]).abs()
    steps = formats.of_each_element(steps, kind[2], 1024)
    if kind[0] == "affine":
        assert (error <= steps * 1.0001 + 1e-6).all()  # what MLX grants
        if kind[1] > 2:  # codes beyond the last one are few
            assert (error <= steps / 2 * 1.0001 + 1e-6).float().mean() > 0.9
    else:
        # Half of the largest step, or in nvfp4 what is beyond the largest code.
        size = {"mxfp4": 1.0, "mxfp8": 16.0, "nvfp4": 1.2, "nf4": 0.16, "fp4": 0.17}[kind[0]]
        assert (error <= steps * size).all()


# ---- unpacking -----------------------------------------------------------------------------------


@kinds
@dtypes
def test_dequantize_rounds_once(kind, dtype):
    packed, scales, biases = quantized((2, 7, 2048), kind, dtype)
    expected = ops.dequantize(packed, scales, biases, **keywords(kind), dtype=torch.float32)
    codes = formats.unpack(packed, kind[1], kind[0] in ("nf4", "fp4"))
    values = formats.values_of(codes, kind[0]).double()
    exact = values * formats.of_each_element(formats.scale_values(scales, kind[0]), kind[2], 2048)
    if biases is not None:
        exact = exact + formats.of_each_element(biases.double(), kind[2], 2048)
    assert torch.equal(expected, exact.float())
    for result in (dtype, torch.float32, torch.float16):
        with no_standins():
            actual = ops.dequantize(
                *moved((packed, scales, biases)), **keywords(kind), dtype=result
            )
        assert actual.dtype == result
        assert torch.equal(actual.cpu(), exact.float().to(result))


@devices
def test_views_and_gaps_of_the_same_bytes_are_taken(device):
    kind = ("affine", 4, 64)
    packed, scales, biases = moved(quantized((6, 256), kind), device)
    expected = ops.dequantize(packed, scales, biases)
    wide = torch.zeros(12, 256, dtype=torch.uint8, device=device)
    wide[::2, :128] = packed
    for view in (
        packed.view(torch.int32),
        packed.view(torch.uint32),
        wide[::2, :128],
        packed.t().contiguous().t(),
    ):
        factors = (t.t().contiguous().t() for t in (scales, biases))
        assert torch.equal(ops.dequantize(view, *factors), expected)
    narrow = ops.quantize(expected, mode="mxfp4")
    assert torch.equal(
        ops.dequantize(narrow[0], narrow[1].view(torch.float8_e8m0fnu), mode="mxfp4"),
        ops.dequantize(*narrow, mode="mxfp4"),
    )


@devices
def test_global_scale_is_the_size_of_the_largest_weight(device):
    weight = make((4, 64), torch.float32).to(device) * 1e-3
    factor = weight.abs().amax().reshape(1)
    packed, scales, _ = ops.quantize(weight, mode="nvfp4", global_scale=factor)
    assert scales.max().item() == 0x7E  # the largest e4m3
    alone = ops.dequantize(packed, scales, mode="nvfp4")
    whole = ops.dequantize(packed, scales, mode="nvfp4", global_scale=factor)
    torch.testing.assert_close(whole, alone * factor / (448 * 6))
    torch.testing.assert_close(whole, weight, rtol=0.3, atol=3e-4)


@kinds
def test_embedding_takes_rows(kind):
    weights = quantized((10, 1024), kind)
    rows = ops.dequantize(*weights, **keywords(kind))
    for indices in (torch.tensor([[3, 9], [0, 3]]), torch.tensor(7), torch.zeros(0, 2).long()):
        for device in ("mps", "cpu"):
            actual = ops.quantized_embedding(
                indices.int().to(device), *moved(weights, device), **keywords(kind)
            )
            assert torch.equal(actual.cpu(), rows[indices])


@devices
def test_indices_that_are_not_of_rows_are_reported(device):
    weights = moved(quantized((10, 64), ("affine", 4, 64)), device)
    for wrong in (10, -1):
        with pytest.raises(RuntimeError, match=f"quantized_embedding: index {wrong} is not one"):
            ops.quantized_embedding(torch.tensor([wrong], device=device), *weights).cpu()


@devices
def test_empty_weights(device):
    for shape in ((0, 64), (3, 0), (2, 0, 64)):
        packed, scales, biases = ops.quantize(torch.empty(shape, device=device))
        assert scales.shape == (*shape[:-1], shape[-1] // 64)
        assert ops.dequantize(packed, scales, biases).shape == shape


# ---- errors --------------------------------------------------------------------------------------


@devices
def test_wrong_arguments_are_named(device):
    weight = torch.zeros(4, 64, device=device)
    packed, scales, biases = ops.quantize(weight)

    for call, message in (
        (lambda: ops.quantize(weight, mode="int4"), "mode must be one of 'affine', .*, but is 'int4'"),
        (lambda: ops.quantize(weight, bits=9), "mode 'affine' has bits .*, but bits is 9"),
        (lambda: ops.quantize(weight, bits=3, mode="mxfp4"), r"mode 'mxfp4' has bits \[4\], but bits is 3"),
        (lambda: ops.quantize(weight, group_size=16), "groups of .*, but group_size is 16"),
        (lambda: ops.quantize(weight[:, :60]), "a multiple of 8 elements, but have 60"),
        (lambda: ops.quantize(weight[:, :24], mode="nvfp4"), "a multiple of 16 elements, but have 24"),
        (lambda: ops.quantize(weight[0, 0]), "at least one dimension"),
        (lambda: ops.quantize(weight, global_scale=scales), "only mode 'nvfp4' has a global_scale"),
        (lambda: ops.dequantize(packed, scales), "mode 'affine' needs biases"),
        (lambda: ops.dequantize(packed[:, :-1], scales, biases, bits=5), "rows of a multiple of 5 bytes"),
        (lambda: ops.dequantize(packed, scales[:3], biases), r"scales must have sizes \[4, 1\], but have \[3, 1\]"),
        (lambda: ops.dequantize(packed, scales, biases[:, :0]), r"biases must have sizes \[4, 1\], but have \[4, 0\]"),
        (lambda: ops.dequantize(packed, scales, biases.half()), "biases must have dtype .*, but have torch.float16"),
        (lambda: ops.dequantize(packed.long(), scales, biases), "packed must be one of .*, but is torch.int64"),
        (lambda: ops.dequantize(packed, scales, biases, dtype=torch.int32), "dtype must be one of"),
        (lambda: ops.dequantize(packed, torch.zeros(4, 2, device=device), mode="mxfp4"), "scales must have dtype torch.uint8"),
        (lambda: ops.dequantize(packed, torch.zeros(4, 2, device=device).byte(), scales, mode="mxfp4"), "mode 'mxfp4' has no biases"),
        (lambda: ops.quantized_embedding(scales, packed, scales, biases), "indices must be integers"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(NotImplementedError, match="\"quantize\" not implemented for 'Int'"):
        ops.quantize(weight.int())


def test_operators_refuse_what_functions_refuse():
    packed, scales, biases = moved(quantized((4, 64), ("affine", 4, 64)))
    call = functools.partial(torch.ops.metalops.dequantize, dtype=torch.float32)
    numbers = {"bits": 4, "group_size": 64, "mode": "affine"}
    for arguments in (
        (packed, scales[:3], biases, None, None),
        (packed, scales, None, None, None),
        (packed, scales, biases.half(), None, None),
        (packed.int(), scales, biases, None, None),
        (packed[:, :16], scales[:, :0], biases, None, None),
    ):
        with pytest.raises(ValueError):
            call(*arguments, **numbers)
    with pytest.raises(ValueError, match="group_size must be a power of two"):
        call(packed, scales, biases, None, None, bits=4, group_size=48, mode="affine")


# ---- derivatives and compilation -----------------------------------------------------------------


@pytest.mark.parametrize("kind", [("affine", 3, 32), ("nf4", 4, 64)], ids=str)
@devices
def test_gradients_of_scales_and_biases(kind, device):
    packed, scales, biases = quantized((5, 320), kind)
    codes = formats.unpack(packed, kind[1], kind[0] == "nf4")
    values = formats.values_of(codes, kind[0])
    indices = torch.tensor([4, 0, 4])
    leaves = [t.double().requires_grad_() for t in (scales, biases) if t is not None]

    def expected(*factors):
        spread = [formats.of_each_element(t, kind[2], 320) for t in factors]
        return values * spread[0] + (spread[1] if len(spread) > 1 else 0)

    cotangent = make((5, 320), torch.float32, seed=2)
    for rows in (None, indices):
        given = cotangent if rows is None else cotangent[:3]
        weights = expected(*leaves) if rows is None else expected(*leaves)[rows]
        theirs = torch.autograd.grad(weights, leaves, given.double())
        mine = [t.detach().float().to(device).requires_grad_() for t in leaves]
        if rows is None:
            result = ops.dequantize(packed.to(device), *mine, **keywords(kind))
        else:
            result = ops.quantized_embedding(
                rows.to(device), packed.to(device), *mine, **keywords(kind)
            )
        ours = torch.autograd.grad(result, mine, given.to(device))
        for a, e in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a.cpu().double(), e, rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("kind", [("affine", 5, 32), ("nf4", 4, 64), ("mxfp4", 4, 32)], ids=str)
@devices
def test_opcheck(kind, device):
    mode, bits, group_size = kind
    packed, scales, biases = moved(quantized((6, 128), kind), device)
    torch.library.opcheck(
        torch.ops.metalops.quantize.default,
        (make((6, 128), torch.float32).to(device), None, bits, group_size, mode),
        test_utils=("test_schema", "test_faketensor"),
    )
    if scales.is_floating_point():
        scales.requires_grad_()
    numbers = (bits, group_size, mode)
    indices = torch.tensor([1, 5], device=device)
    for rows in (None, indices):
        torch.library.opcheck(
            torch.ops.metalops.dequantize.default,
            (packed, scales, biases, None, rows, *numbers, torch.float32),
            test_utils=CHECKS,
        )
    if scales.is_floating_point():
        grad = make((6, 128), torch.float32).to(device).requires_grad_()
        torch.library.opcheck(
            torch.ops.metalops.quantized_scales_gradient.default,
            (grad, packed, scales.detach(), *numbers),
            test_utils=CHECKS,
        )
