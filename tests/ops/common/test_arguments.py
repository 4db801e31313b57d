"""The checks of arguments that csrc/plans makes: one wrong argument raises the same on every device, and a call that is
checked and found right runs on all."""

import pytest
import torch
from metalops import ops
from metalops.ops._cuda import plan
from metalops.ops._define import arguments
from metalops.testing import to_device

operators = torch.ops.metalops
DTYPES = (torch.float16, torch.float32, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn)  # fmt: skip
NUMBERS = {float: (torch.inf, torch.nan, -1.0, 0.5, 1e39), int: (-1, 0, 3, 16, 40), bool: (False, True)}  # fmt: skip
INSTEAD_OF_NONE = (torch.ones(2), torch.ones(3, dtype=torch.int32), torch.ones(2, 3, dtype=torch.int32), torch.ones(()))  # fmt: skip


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


TABLE = ints(0, 2, 1, 3).view(2, 2)


def attention(is_packed=False, dropout_p=0.0):
    shape, key_shape = ((5, 4, 8), (6, 2, 8)) if is_packed else ((3, 4, 5, 8), (3, 2, 6, 8))
    query, key = torch.randn(shape), torch.randn(key_shape)
    begins = [ints(0, 2, 3, 5), ints(0, 2, 4, 6)] if is_packed else [None, None]
    mask = None if is_packed else torch.ones(3, 1, 5, 6)
    rng = torch.tensor([3, 4]) if dropout_p else None
    options = [mask, torch.ones(4), torch.ones(3, 4), *begins, ints(2, 1, 1), rng, 5, 6]
    return query, key, key, *options, 0.5, -1, -1, False, 0.0, dropout_p


def attention_backward(**options):
    call = attention(**options)
    out, lse = operators.attention_forward.default(*call)
    return out, lse, *call[:3], out, lse, *call[3:], [True] * 6


def paged_attention(table=TABLE):
    cache = torch.randn(4 if table is not None else 2, 3, 2, 8)
    heads = torch.ones(4)
    options = ints(4, 2), ints(1, 0), heads, heads, torch.ones(()), torch.ones(())
    return torch.randn(2, 1, 4, 8), cache, cache, table, *options, 0.5, 1.0, -1, 0, 0.0


def reshape_and_cache():
    tokens, scale = torch.randn(3, 2, 8), torch.ones(())
    caches = torch.zeros(2, 4, 3, 2, 8).unbind()
    return tokens, tokens, *caches, torch.tensor([0, 7, -1]), scale, scale, 1.0, 1.0


def append_to_cache(table=TABLE):
    cache = torch.zeros(4 if table is not None else 2, 3, 2, 8)
    return cache, torch.randn(2, 1, 2, 8), ints(0, 1), table, *torch.ones(2, 7, 3).unbind(), False


def weights(mode="affine"):
    codes, scales, biases = ops.quantize(torch.randn(1, 6, 64), mode=mode)
    bits, group_size = {"affine": (4, 64), "nvfp4": (4, 16), "nf4": (4, 64)}[mode]
    return (codes, scales, biases), (bits, group_size, mode)


def dequantize(mode="affine", indices=None):
    tensors, numbers = weights(mode)
    scale = torch.ones(()) if mode == "nvfp4" else None
    tensors = (None if x is None else x[0] for x in tensors)
    return *tensors, scale, indices, *numbers, torch.float32


def quantized_matmul(transpose=True, indices=(None, None)):
    tensors, numbers = weights()
    x = torch.randn(1, 2, 64 if transpose else 6)
    return x, *tensors, torch.ones(6 if transpose else 64), None, *indices, transpose, *numbers


def scales_gradient(mode="affine"):
    (codes, scales, _), numbers = weights(mode)
    return torch.randn(1, 6, 64), codes, scales, *numbers


BLOCKS = torch.zeros(4, 36, dtype=torch.uint8)  # two of Q4_0 a row
PARTS = torch.randn(2, 3, 8), torch.randn(2, 3), torch.randn(2, 3, 8), torch.randn(2, 3)
INDEX = torch.zeros(2, dtype=torch.int64)

# Arguments whose other values break a promise of the caller, or overflow. The results that attention_backward takes must
# be those of its other arguments, too.
LIMITS = ("max_seqlen_q", "max_seqlen_k", "value_scale")

# Right calls of each operator.
RIGHT = {
    "append_to_cache": (append_to_cache(), append_to_cache(None)),
    "attention_backward": (attention_backward(), attention_backward(is_packed=True)),
    "attention_forward": (attention(dropout_p=0.5), attention(is_packed=True)),
    "dequantize": (dequantize(), dequantize("nvfp4"), dequantize("nf4", INDEX)),
    "gguf_dequantize": ((BLOCKS, None, 2, torch.float32), (BLOCKS, INDEX, 2, torch.float16)),
    "gguf_linear": ((torch.randn(3, 64), BLOCKS, torch.ones(4), 2),),
    "merge_attention": (PARTS,),
    "merge_attention_backward": ((*PARTS[:2], *PARTS),),
    "paged_attention": (paged_attention(), paged_attention(None)),
    "quantize": ((torch.randn(4, 64), None, 4, 64, "affine"), (torch.randn(4, 64), torch.ones(()), 4, 16, "nvfp4")),
    "quantized_matmul": (quantized_matmul(), quantized_matmul(False), quantized_matmul(indices=(INDEX, INDEX))),
    "quantized_scales_gradient": (scales_gradient(), scales_gradient("nf4")),
    "reshape_and_cache": (reshape_and_cache(),),
    "rotate_tokens": ((torch.randn(2, 1, 2, 8), ints(0, 1), *torch.ones(2, 7, 3).unbind(), True, True),),
}  # fmt: skip


def other_tensors(x):
    for dim, size in enumerate(x.shape):
        yield x.narrow(dim, 0, max(size - 1, 0))
        yield x.new_zeros([n + (i == dim) for i, n in enumerate(x.shape)])
    yield x[None]
    if x.dim() > 0:
        yield x[0]
    yield from (x.to(dtype) for dtype in DTYPES if dtype != x.dtype)


def others(x, is_optional):
    """Yields other values of an argument."""
    if x is None:
        yield from INSTEAD_OF_NONE
    elif isinstance(x, torch.Tensor):
        yield from other_tensors(x)
        if is_optional:
            yield None
    elif isinstance(x, str):
        yield from ("none", "nf4", "int8")
    elif isinstance(x, torch.dtype):
        yield from (torch.int32, torch.float16)
    elif not isinstance(x, list):
        yield from NUMBERS[type(x)]


def calls(name):
    """Yields the right calls, and these with another value of one argument, and its name or None."""
    schema = getattr(operators, name).default._schema
    for call in RIGHT[name]:
        yield call, None
        for place, (x, argument) in enumerate(zip(call, schema.arguments, strict=True)):
            for other in others(x, argument.type.kind() == "OptionalType"):
                yield (*call[:place], other, *call[place + 1 :]), argument.name


def found(run, *args):
    """Returns the type and text of the error, or None."""
    try:
        run(*args)
    except Exception as error:
        return type(error), str(error)
    return None


def copied(args):
    return [x.clone() if isinstance(x, torch.Tensor) else x for x in args]


def checked_calls(name):
    """Yields calls, the name of the argument that was changed, and the error as CUDA tensors would get it, or None."""
    names = [argument.name for argument in getattr(operators, name).default._schema.arguments]
    for call, changed in calls(name):
        yield call, changed, found(arguments.check, name, dict(zip(names, call, strict=True)))


def runs(name):
    """Returns functions that call the operator on each device."""
    overload = getattr(operators, name).default
    return [lambda *args, d=d: overload(*to_device(copied(args), d)) for d in ("cpu", "mps", "meta")]  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_one_wrong_argument_raises_the_same_on_every_device(name):
    wrong = [(call, error) for call, _, error in checked_calls(name) if error is not None]
    for call, error in wrong:
        assert [found(run, *call) for run in runs(name)] == [error] * 3
    assert len(wrong) > 10


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("name", RIGHT)
def test_calls_without_wrong_arguments_have_the_same_results_on_every_device(name):
    right = [(call, changed) for call, changed, error in checked_calls(name) if error is None]
    assert len(right) >= len(RIGHT[name])
    for call, changed in right:
        results, on_mps, fake = (flat(run(*call)) for run in runs(name))
        assert [x.shape for x in fake] == [x.shape for x in results]
        assert [x.shape for x in on_mps] == [x.shape for x in results]
        if changed not in LIMITS and not (changed and name == "attention_backward"):
            on_mps = [x.cpu() for x in on_mps]
            torch.testing.assert_close(on_mps, results, rtol=1e-2, atol=1e-2, equal_nan=True)


def flat(results):
    """Returns an operator's results that are there."""
    results = results if isinstance(results, tuple) else (results,)
    return [x for x in results if x is not None]


def test_every_check_is_tested():
    checks = {x.removeprefix("check_") for x in plan.functions().names if x.startswith("check_")}
    assert checks == RIGHT.keys()


def test_dtypes_are_called_as_in_torch():
    x = plan.Operand(torch.float32, (1, 64))
    for dtype in plan._DTYPES:
        if dtype in (torch.uint8, torch.float32) or str(dtype).startswith("torch.q"):
            continue
        _, message = found(torch.dot, torch.empty(2), torch.empty(2, dtype=dtype))
        call = {"x": x, "data": plan.Operand(dtype, (2,)), "bias": None, "qtype": 2}
        _, text = found(plan.functions().check, "check_gguf_linear", call)
        assert text.endswith(f"but is {message.rpartition(' and ')[2]} of sizes [2]")


@pytest.mark.full
def test_calls_of_symbolic_sizes_are_checked_when_they_run():
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    def linear(x):
        return operators.gguf_linear.default(x, BLOCKS, None, 2)

    compiled = torch.compile(linear, backend=backend, dynamic=True, fullgraph=True)
    for rows in (3, 5, 9):
        assert compiled(torch.ones(rows, 64)).shape == (rows, 4)
    with pytest.raises(ValueError, match="gguf_linear: x must have rows of 64 elements"):
        compiled(torch.ones(3, 63))
    assert len(graphs) == 1
