"""Attention and encoder layers as single operators, and torch.nn's way to them: csrc/ops/attention/transformer.mm."""

import copy
import subprocess
import sys
from pathlib import Path

import metalops
import pytest
import torch
from metalops import testing
from metalops.testing.samples import FLOATS, make, to_device
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..aten import CPU_FLOATS, Calls, OpInfoSamples, served_by_us

SAMPLES, TOKENS, WIDTH, HEADS = 3, 7, 16, 4
MASK_SHAPES = {0: (TOKENS, TOKENS), 1: (SAMPLES, TOKENS), 2: (SAMPLES, HEADS, TOKENS, TOKENS)}
by_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)
by_mask = pytest.mark.parametrize("mask_type", [None, *MASK_SHAPES])


def _opinfo_attention(dtype: torch.dtype) -> Calls:
    query, key, value = (make((2, 5, 8), dtype, low=-1, high=1, seed=i) for i in range(3))
    shapes = ((24, 8), (24,), (8, 8), (8,))
    weights = [make(shape, dtype, low=-1, high=1, seed=4 + i) for i, shape in enumerate(shapes)]
    padding = torch.arange(5) >= torch.tensor([[5], [3]])
    for operands in ((query, query, query), (query, key, value)):
        yield (*operands, 8, 2, *weights), {}
        yield (*operands, 8, 4, *weights, padding, True, False, 1), {}


def _opinfo_encoder_layer(dtype: torch.dtype) -> Calls:
    x = make((2, 5, 8), dtype, low=-1, high=1)
    shapes = ((24, 8), (24,), (8, 8), (8,), (8,), (8,), (8,), (8,), (12, 8), (12,), (8, 12), (8,))
    weights = [make(shape, dtype, low=-1, high=1, seed=i) for i, shape in enumerate(shapes)]
    causal = torch.ones(5, 5).triu(1).bool()
    for use_gelu, norm_first in ((False, False), (True, True)):
        arguments = (x, 8, 2, *weights[:4], use_gelu, norm_first, 1e-3, *weights[4:])
        yield arguments, {}
        yield (*arguments, causal, 0), {}


OPINFO_SAMPLES = (
    OpInfoSamples(
        "_native_multi_head_attention",
        torch._native_multi_head_attention,
        CPU_FLOATS,
        _opinfo_attention,
    ),
    OpInfoSamples(
        "_transformer_encoder_layer_fwd",
        torch._transformer_encoder_layer_fwd,
        CPU_FLOATS,
        _opinfo_encoder_layer,
    ),
)


def _mask(mask_type):
    if mask_type is None:
        return None
    mask = make(MASK_SHAPES[mask_type], torch.bool, seed=3)
    mask[..., 0] = False
    return mask


def _assert_close(actual, expected, name, dtype):
    assert actual.device.type == "mps" and actual.dtype == dtype
    assert actual.stride() == expected.stride()
    rtol, atol = testing.tolerance(name, dtype)
    torch.testing.assert_close(actual.cpu(), expected.to(dtype), rtol=rtol, atol=atol)


@pytest.fixture
def enabled():
    """Layers and attention of torch.nn may take the fast path."""
    with metalops.enable_transformer_fast_path():
        yield


@pytest.fixture(params=[True, False], ids=["fast path", "slow path"])
def fast_path(request, enabled):
    torch.backends.mha.set_fastpath_enabled(request.param)
    yield request.param
    torch.backends.mha.set_fastpath_enabled(True)


class _Record(TorchDispatchMode):
    """The names of the operators that are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function._schema.name)
        return function(*args, **(kwargs or {}))


# ---- _native_multi_head_attention ----------------------------------------------------------------


def _attention_operands(dtype=torch.float32, tokens=TOKENS, keys=False, values=False):
    """Query, key, value, sizes, weights. keys, values: whether they are tensors of their own."""
    query = make((SAMPLES, tokens, WIDTH), dtype, low=-1, high=1)
    key = make(query.shape, dtype, low=-1, high=1, seed=1) if keys else query
    value = make(query.shape, dtype, low=-1, high=1, seed=2) if values else key
    weights = [
        make(shape, dtype, low=-0.5, high=0.5, seed=10 + i)
        for i, shape in enumerate(((3 * WIDTH, WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), (WIDTH,)))
    ]
    return query, key, value, WIDTH, HEADS, *weights


def _wide(operands):
    return [x.double() if isinstance(x, torch.Tensor) else x for x in operands]


def _on_mps(operands):
    """Tensors that are the same one on the CPU are so on the device."""
    moved = {id(x): x.to("mps") for x in operands if isinstance(x, torch.Tensor)}
    return [moved.get(id(x), x) for x in operands]


def _attention(operands, mask=None, need_weights=True, average=True, mask_type=None):
    device = operands[0].device
    mask = None if mask is None else mask.to(device)
    return torch._native_multi_head_attention(*operands, mask, need_weights, average, mask_type)


def _check_attention(operands, *options):
    dtype = operands[0].dtype
    expected = _attention(_wide(operands), *options)
    actual = _attention(_on_mps(operands), *options)
    for a, e in zip(actual, expected, strict=True):
        if e is None:
            assert a is None
        else:
            _assert_close(a, e, "_native_multi_head_attention", dtype)


@by_float
@by_mask
@pytest.mark.parametrize("weights", [None, "average", "each head"])
def test_self_attention(dtype, mask_type, weights):
    options = (weights is not None, weights == "average", mask_type)
    _check_attention(_attention_operands(dtype), _mask(mask_type), *options)


@pytest.mark.parametrize(("keys", "values"), [(True, False), (True, True), (False, True)])
def test_keys_and_values_of_their_own(keys, values):
    _check_attention(_attention_operands(keys=keys, values=values))


def test_layouts_of_attention():
    query, _, _, *rest = _attention_operands()
    weights = [x.t().contiguous().t() if x.dim() == 2 else x for x in rest[2:]]
    sequence_first = query.transpose(0, 1).contiguous().transpose(0, 1)
    _check_attention([sequence_first] * 3 + rest[:2] + weights)


def test_the_output_projection_may_have_another_width():
    operands = list(_attention_operands())
    operands[-2:] = make((6, WIDTH), torch.float32), make((6,), torch.float32)
    _check_attention(operands)


@pytest.mark.parametrize("shape", [(0, TOKENS, WIDTH), (SAMPLES, 0, WIDTH)])
def test_attention_of_nothing(shape):
    operands = list(_attention_operands())
    operands[:3] = [torch.empty(shape)] * 3
    result, weights = _attention(_on_mps(operands))
    assert result.shape == shape and weights is None


def _wrong_attention_operands():
    right = _attention_operands()
    x = right[0]
    for place, wrong in (
        (0, x[0]),
        (0, x[..., :9]),
        (1, x[0]),
        (2, x[0]),
        (1, x[:, :3].clone()),
        (5, x),
        (5, right[5][1:]),
        (5, right[5][:, 1:]),
        (6, right[6][1:]),
        (6, right[6][None]),
        (4, 3),
        (7, right[7][:, 1:]),
    ):
        operands = list(right)
        operands[place] = wrong
        yield operands, None, None
    yield right, torch.zeros(SAMPLES, TOKENS, dtype=torch.bool), None
    yield right, torch.zeros(SAMPLES, TOKENS, dtype=torch.bool), 0
    yield right, torch.zeros(SAMPLES, 1, TOKENS, TOKENS, dtype=torch.bool), 2


def test_errors_of_attention_are_those_of_the_cpu():
    for operands, mask, mask_type in _wrong_attention_operands():
        with pytest.raises(RuntimeError) as expected:
            _attention(operands, mask, mask_type=mask_type)
        with pytest.raises(RuntimeError) as actual:
            _attention(_on_mps(operands), mask, mask_type=mask_type)
        assert str(actual.value) == str(expected.value)
    operands = _on_mps(_attention_operands())
    operands[4] = 0
    with pytest.raises(RuntimeError, match="must divide evenly"):
        _attention(operands)
    with pytest.raises(RuntimeError, match="same device"):
        _attention([operands[0].cpu(), *operands[1:4], HEADS, *operands[5:]])


# ---- _transformer_encoder_layer_fwd --------------------------------------------------------------


def _layer(dtype=torch.float32, **options):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=True, dtype=dtype, **options)
    for parameter in layer.parameters():  # biases are zero by default
        nn.init.uniform_(parameter, -0.4, 0.4)
    return layer.eval().requires_grad_(False)


def _run(layer, x, mask=None, mask_type=None):
    """The layer as one operator."""
    attention = layer.self_attn
    return torch._transformer_encoder_layer_fwd(
        x,
        attention.embed_dim,
        attention.num_heads,
        attention.in_proj_weight,
        attention.in_proj_bias,
        attention.out_proj.weight,
        attention.out_proj.bias,
        layer.activation_relu_or_gelu == 2,
        layer.norm_first,
        layer.norm1.eps,
        layer.norm1.weight,
        layer.norm1.bias,
        layer.norm2.weight,
        layer.norm2.bias,
        layer.linear1.weight,
        layer.linear1.bias,
        layer.linear2.weight,
        layer.linear2.bias,
        mask,
        mask_type,
    )


@by_float
@by_mask
@pytest.mark.parametrize(("norm_first", "name"), [(False, "relu"), (True, "gelu")])
def test_encoder_layer(dtype, mask_type, norm_first, name):
    layer = _layer(dtype, norm_first=norm_first, activation=name, layer_norm_eps=1e-3)
    x, mask = make((SAMPLES, TOKENS, WIDTH), dtype, low=-1, high=1), _mask(mask_type)
    expected = _run(copy.deepcopy(layer).double(), x.double(), mask, mask_type)
    actual = _run(layer.to("mps"), *to_device((x, mask), "mps"), mask_type)
    _assert_close(actual, expected, "_transformer_encoder_layer_fwd", dtype)


def test_an_encoder_layer_of_nothing():
    layer = _layer().to("mps")
    for shape in ((0, TOKENS, WIDTH), (SAMPLES, 0, WIDTH)):
        x = torch.empty(shape, device="mps")
        assert _run(layer, x).shape == shape


def test_errors_of_an_encoder_layer():
    layer, x = _layer().to("mps"), torch.zeros(SAMPLES, TOKENS, WIDTH, device="mps")
    with pytest.raises(RuntimeError, match="expected 3-D `query`, got 2-D tensor"):
        _run(layer, x[0])
    with pytest.raises(RuntimeError, match="didn't match last dim of query"):
        _run(layer, x[..., 1:])
    with pytest.raises(RuntimeError, match="same device"):
        _run(layer, x.cpu())
    layer.linear1.weight = nn.Parameter(layer.linear1.weight[0])
    with pytest.raises(RuntimeError, match="2d weights expected"):
        _run(layer, x)


@by_float
@pytest.mark.parametrize("mask_type", MASK_SHAPES)
def test_a_mask_of_numbers_is_added_as_on_the_slow_path(dtype, mask_type):
    """torch's CPU operator takes it for a mask of bool, which is wrong unless it is made of 0 and -inf."""
    layer, x = _layer(dtype), make((SAMPLES, TOKENS, WIDTH), dtype, low=-1, high=1)
    mask = make(MASK_SHAPES[mask_type], torch.float32, low=-3, high=3).to(dtype)
    mask[..., 2] = -torch.inf
    scores = mask[:, None, None] if mask_type == 1 else mask
    whole = scores.expand(SAMPLES, HEADS, TOKENS, TOKENS).flatten(0, 1).double()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        expected = copy.deepcopy(layer).double()(x.double(), src_mask=whole)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    actual = _run(layer.to("mps"), *to_device((x, mask), "mps"), mask_type)
    _assert_close(actual, expected, "_transformer_encoder_layer_fwd", dtype)


def test_masks_of_other_dtypes_are_those_of_bool():
    layer, x = _layer().to("mps"), make((SAMPLES, TOKENS, WIDTH), torch.float32).to("mps")
    mask = _mask(1).to("mps")
    assert torch.equal(_run(layer, x, mask.int() * 3, 1), _run(layer, x, mask, 1))


def test_they_are_not_differentiable_as_in_torch():
    x = torch.zeros(SAMPLES, TOKENS, WIDTH, device="mps", requires_grad=True)
    with pytest.raises(RuntimeError, match="_transformer_encoder_layer_fwd is not implemented"):
        _run(_layer().to("mps"), x).sum().backward()
    operands = _on_mps(_attention_operands())
    with pytest.raises(RuntimeError, match="_native_multi_head_attention is not implemented"):
        _attention([x, x, x, *operands[3:]])[0].sum().backward()


# ---- torch.nn ------------------------------------------------------------------------------------


def _padding():
    return torch.arange(TOKENS, device="mps") >= torch.tensor([[7], [5], [2]], device="mps")


def _masks():
    causal = torch.triu(torch.ones(TOKENS, TOKENS, device="mps"), 1).bool()
    padding = _padding()
    yield {}
    yield {"src_key_padding_mask": padding}
    yield {"src_key_padding_mask": padding.flip(1)}  # padding first: no nested tensor anywhere
    yield {"mask": causal}
    yield {"mask": causal.float().masked_fill(causal, -torch.inf)}
    yield {"mask": causal.float() * -2.0}
    yield {"mask": causal, "src_key_padding_mask": padding}


def _layers_that_took_the_fast_path():
    """Of an encoder of two."""
    encoder = nn.TransformerEncoder(_layer(), 2).to("mps").eval()
    with torch.no_grad(), _Record() as record:
        encoder(torch.zeros(SAMPLES, TOKENS, WIDTH, device="mps"))
    return record.names.count("aten::_transformer_encoder_layer_fwd")


def test_the_fast_path_is_off_until_it_is_enabled_and_after_it_is_disabled():
    assert _layers_that_took_the_fast_path() == 0
    fast_path = metalops.enable_transformer_fast_path()
    try:
        assert _layers_that_took_the_fast_path() == 2
        metalops.enable_transformer_fast_path()
        assert _layers_that_took_the_fast_path() == 2
    finally:
        fast_path.disable()
    assert _layers_that_took_the_fast_path() == 0
    fast_path.disable()


def test_a_block_enables_the_fast_path_and_leaves_it_as_it_was():
    code = nn.TransformerEncoderLayer.forward.__code__
    with metalops.enable_transformer_fast_path():
        with metalops.enable_transformer_fast_path():
            assert _layers_that_took_the_fast_path() == 2
        assert _layers_that_took_the_fast_path() == 2
    assert nn.TransformerEncoderLayer.forward.__code__ is code
    with pytest.raises(ZeroDivisionError), metalops.enable_transformer_fast_path():
        _ = 1 / 0
    assert nn.TransformerEncoderLayer.forward.__code__ is code


@pytest.mark.full
def test_import_leaves_the_code_of_torch_nn_alone():
    script = """if True:
        from torch.nn.modules import activation, transformer
        functions = transformer.TransformerEncoderLayer.forward, activation._check_arg_device
        before = [function.__code__ for function in functions]
        import metalops
        assert all(f.__code__ is code for f, code in zip(functions, before))"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("options", range(7))
def test_an_encoder_takes_the_fast_path_with_the_slow_paths_result(options, nested):
    options = list(_masks())[options]
    encoder = nn.TransformerEncoder(_layer(), 2, nn.LayerNorm(WIDTH), enable_nested_tensor=nested)
    encoder = encoder.to("mps").eval()
    x = make((SAMPLES, TOKENS, WIDTH), torch.float32).to("mps")
    results = []
    for enabled in (True, False):
        torch.backends.mha.set_fastpath_enabled(enabled)
        try:
            with torch.no_grad(), _Record() as record:
                results.append(encoder(x, **options))
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
        layers = record.names.count("aten::_transformer_encoder_layer_fwd")
        assert layers == (2 if enabled else 0)
    # Padding that looks at nothing but padding is NaN on both paths.
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_multi_head_attention_takes_the_fast_path(fast_path):
    attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).to("mps").eval()
    x = make((SAMPLES, TOKENS, WIDTH), torch.float32).to("mps")
    with torch.no_grad(), _Record() as record:
        result, weights = attention(x, x, x, key_padding_mask=_padding())
    assert ("aten::_native_multi_head_attention" in record.names) == fast_path
    expected, expected_weights = attention.cpu()(*[x.cpu()] * 3, key_padding_mask=_padding().cpu())
    torch.testing.assert_close(result.cpu(), expected.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(weights.cpu(), expected_weights.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("why", ["gradients", "training", "tokens first", "odd heads"])
def test_what_else_torch_asks_for_before_the_fast_path_still_counts(why):
    heads = 1 if why == "odd heads" else HEADS
    layer = nn.TransformerEncoderLayer(WIDTH, heads, 24, batch_first=why != "tokens first")
    layer = layer.to("mps").train(why == "training")
    with torch.set_grad_enabled(why == "gradients"), _Record() as record:
        layer(torch.zeros(SAMPLES, TOKENS, WIDTH, device="mps"))
    assert not {"aten::_transformer_encoder_layer_fwd"} & set(record.names)


@pytest.mark.nightly
@pytest.mark.usefixtures("enabled")
def test_the_fast_path_compiles():
    encoder = nn.TransformerEncoder(_layer(), 2).to("mps").eval()
    x = make((SAMPLES, TOKENS, WIDTH), torch.float32).to("mps")
    with torch.no_grad():
        expected = encoder(x, src_key_padding_mask=_padding())
        compiled = torch.compile(encoder, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x, src_key_padding_mask=_padding()), expected)


@pytest.mark.usefixtures("enabled")
def test_a_layer_can_still_be_scripted():
    layer, x = _layer(), make((SAMPLES, TOKENS, WIDTH), torch.float32)
    torch.testing.assert_close(torch.jit.script(layer)(x), layer(x))


# ---- what torch.nn asks on the way ---------------------------------------------------------------


def test_masks_that_are_left_aligned():
    x = torch.zeros(2, 4, 5)
    rows = ([1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0], [0, 1, 1, 0], [1, 0, 0, 1], [0, 0, 0, 1])
    for row in rows:
        mask = torch.tensor([rows[0], row]).bool()
        expected = torch._nested_tensor_from_mask_left_aligned(x, mask)
        actual = torch._nested_tensor_from_mask_left_aligned(*to_device((x, mask), "mps"))
        assert actual is expected
    empty, mask = torch.zeros(2, 0, 5, device="mps"), torch.zeros(2, 0).bool().to("mps")
    assert torch._nested_tensor_from_mask_left_aligned(empty, mask)  # IndexError on the CPU
    mask = torch.zeros(2, 4).bool()
    for arguments in ((x, mask.int()), (x, mask[0]), (x[0], mask), (x, mask[:1]), (x, mask[:, :3])):
        with pytest.raises(RuntimeError) as expected:
            torch._nested_tensor_from_mask_left_aligned(*arguments)
        with pytest.raises(RuntimeError) as actual:
            torch._nested_tensor_from_mask_left_aligned(*to_device(arguments, "mps"))
        assert str(actual.value) == str(expected.value)


# ---- how they run --------------------------------------------------------------------------------


@by_mask
def test_no_host_copy_and_no_stand_in(mask_type):
    layer, x = _layer().to("mps"), torch.zeros(SAMPLES, TOKENS, WIDTH, device="mps")
    mask = None if mask_type is None else _mask(mask_type).to("mps")
    operands = _on_mps(_attention_operands())

    def run():
        with testing.no_host_copies():
            _run(layer, x, mask, mask_type)
            _attention(operands, mask, mask_type=mask_type)

    assert served_by_us(run) == []


@by_mask
def test_weights_that_nobody_needs_are_not_made(mask_type):
    operands, mask = _on_mps(_attention_operands()), _mask(mask_type)
    made = []
    for need_weights in (False, True):
        with metalops.debug.standins() as served:
            _attention(operands, mask, need_weights, True, mask_type)
        made.append("aten::bmm.out" in served or "aten::bmm" in served)
    assert made == [False, True]


def test_samples_that_are_all_padding_are_finite():
    mask = torch.zeros(SAMPLES, TOKENS, dtype=torch.bool)
    mask[1] = True
    result, _ = _attention(_on_mps(_attention_operands()), mask, need_weights=False, mask_type=1)
    assert result.isfinite().all()


def test_fake_tensors_have_the_results_properties():
    operands, layer = _on_mps(_attention_operands()), _layer().to("mps")
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = [mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in operands]
        fakes = (*_attention(fake), _run(layer, fake[0]))
    for f, r in zip(fakes, (*_attention(operands), _run(layer, operands[0])), strict=True):
        assert (f.shape, f.dtype, f.device) == (r.shape, r.dtype, r.device)
        assert f.stride() == r.stride()


@pytest.mark.nightly
def test_the_script_that_compares_both_paths(load_script):
    script = load_script(Path(__file__).parents[3] / "benchmarks" / "transformer_encoder.py")
    result = script.run()
    assert (result.fast_layers, result.slow_layers) == (result.layers, 0)
    assert result.difference < 1e-5
