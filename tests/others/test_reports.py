"""What users of PyTorch reported about `mps`, as cases of our own: each does on the device what the report is about, and on the CPU.

The number is that of the issue or pull request of pytorch/pytorch (of huggingface/transformers where it says so). Most reports
are about Apple's libraries or about kernels of torch that the software device has no part in; they stay here because the situation
is what catches faults: views, layouts, broadcasting, gradients, special values, sizes just beyond a limit. CONTRIBUTING.md, "Trying
it on others", says how cases come here.
"""

import metalops
import pytest
import torch
from torch import nn
from torch.nn import functional as F

pytestmark = pytest.mark.skipif(
    not metalops._is_software,
    reason="most of these operators are stock PyTorch's on a Mac, and so are their faults, of which some were mended later",
)
REPORTS = {}


def report(number):
    """A function of a device: what it returns must be the same on mps and on the CPU."""

    def register(function):
        name = f"{number}: {function.__name__}"
        assert name not in REPORTS
        REPORTS[name] = function
        return function

    return register


def random(*shape, device, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=dtype).to(device)


def gradients(function, *inputs):
    """Of a function's result, weighted so that no two of its elements count alike."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    result = function(*leaves)
    weights = torch.linspace(0.5, 2, result.numel()).to(result.device).reshape(result.shape)
    return [result, *torch.autograd.grad(result, leaves, weights)]


# ---- views and layouts --------------------------------------------------------------------------


@report(175191)
def scatter_reads_a_transposed_source_and_index(device):
    source = random(2, 3, device=device).t()
    index = torch.tensor([[2, 0, 1], [1, 2, 0]]).to(device).t()
    zeros = torch.zeros(3, 2, device=device)
    return [
        zeros.scatter(0, index, source),
        zeros.scatter(0, index, source.contiguous()),
        zeros.scatter(0, index.contiguous(), source),
        zeros.scatter_add(0, index, source),
        source.gather(0, index),
    ]


@report(118115)
def in_place_operators_write_to_transposed_tensors(device):
    results = []
    for name in ("addcdiv_", "addcmul_", "lerp_"):
        x, y, z = (random(2, 3, device=device, seed=i).t() for i in range(3))
        z = z.abs() + 1
        results.append(getattr(x, name)(y, z))
    return results


@report(91065)
def chunks_of_one_storage_are_multiplied(device):
    parts = random(7, device=device).unsafe_chunk(4, 0)
    return [parts[0] * parts[2], parts[1] + parts[3][:1], parts[2] * parts[0].flip(0)]


@report(122233)
def rows_are_taken_and_put_by_masks_and_lists(device):
    x = random(5, 4, device=device)
    rows = torch.tensor([3, 0, 3]).to(device)
    columns = torch.tensor([1, 1, 2]).to(device)
    y = x.clone()
    y[rows, columns] = torch.arange(3.0).to(device)
    z = x.t().clone().t()
    z[x > 0] = -1
    return [x[rows], x[:, columns], x[rows, columns], x.t()[columns][:, rows], y, z, x[x > 0]]


@report(87014)
def the_best_classes_are_compared_with_targets_through_a_transposed_view(device):
    scores, target = random(6, 10, device=device), torch.arange(6).to(device)
    _, best = scores.topk(3, dim=-1)
    correct = best.t() == target.view(1, -1).expand_as(best.t())
    return [correct, correct[:2].reshape(-1).float().sum(0, keepdim=True)]


@report(94190)
def a_permuted_slice_is_zeroed_and_filled(device):
    x = random(3, 4, 5, device=device).permute(2, 0, 1)[1:4, :, ::2]
    y = torch.zeros_like(x)
    y[1:, 1] = x[1:, 1]
    x[:, 0].fill_(3)
    return [x, y]


@report(144545)
def triangles_of_tensors_of_more_than_three_dimensions(device):
    x = random(2, 3, 4, 5, device=device)
    return [x.triu(), x.tril(-1), x.transpose(1, 3).triu(1), x[:, 1:].tril(2)]


@report(183885)
def columns_of_many_are_sorted_with_their_places(device):
    x = random(3, 5001, device=device)
    places = x.abs().argsort(dim=0, stable=True)
    return [places, x.abs().gather(0, places), *x.t().sort(dim=1)]


# ---- gradients ----------------------------------------------------------------------------------


@report(175189)
def batch_norm_is_differentiated_in_channels_last(device):
    layer = nn.BatchNorm2d(3).to(device)
    x = random(4, 3, 8, 8, device=device).to(memory_format=torch.channels_last)
    permuted = random(4, 8, 8, 3, device=device, seed=1).permute(0, 3, 1, 2)
    results = []
    for one in (x, permuted):
        results += gradients(layer, one)
        results += gradients(
            lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
            *(one, layer.weight, layer.bias),
        )
    return results


@report(175189)
def lstm_is_differentiated_by_a_transposed_input(device):
    torch.manual_seed(0)
    layer = nn.LSTM(5, 4).to(device)
    x = random(3, 6, 5, device=device).transpose(0, 1)
    return gradients(lambda x: layer(x)[0], x)


@report(175190)
def average_pools_are_differentiated_in_channels_last(device):
    x = random(2, 3, 8, 8, device=device).to(memory_format=torch.channels_last)
    return [
        *gradients(nn.AvgPool2d(2), x),
        *gradients(nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False), x),
        *gradients(nn.AdaptiveAvgPool2d((3, 5)), x),
    ]


@report(178222)
def linear_gets_a_gradient_with_the_strides_of_channels_last(device):
    torch.manual_seed(0)
    layer = nn.Linear(4, 3).to(device)
    x = random(2, 5, 6, 4, device=device)
    y = layer(x)
    gradient = random(2, 3, 5, 6, device=device, seed=1).permute(0, 2, 3, 1)
    y.backward(gradient)
    return [y, layer.weight.grad, layer.bias.grad]


@report(107214)
def activations_are_differentiated_in_channels_last(device):
    x = 4 * random(2, 3, 4, 5, device=device).to(memory_format=torch.channels_last)
    functions = (F.hardswish, F.relu, F.sigmoid, F.tanh, F.tanhshrink, F.gelu, F.silu)
    results = [one for function in functions for one in gradients(function, x)]
    return [*results, *gradients(lambda x: F.lp_pool2d(x.abs() + 1, 2.0, 2), x)]


@report(141009)
def convolutions_are_differentiated_in_channels_last(device):
    x = random(2, 4, 7, 6, device=device).to(memory_format=torch.channels_last)
    weight = random(6, 2, 3, 3, device=device, seed=1)
    last = weight.to(memory_format=torch.channels_last)

    def convolution(x, weight):
        return F.conv2d(x, weight, stride=2, padding=1, groups=2)

    return [*gradients(convolution, x, weight), *gradients(convolution, x.contiguous(), last)]


@report(94754)
def lstms_in_two_directions_have_their_own_weights(device):
    torch.manual_seed(123)
    layer = nn.LSTM(2, 3, num_layers=2, bidirectional=True).to(device)
    x = random(4, 2, 2, device=device)
    output, (h, c) = layer(x)
    return [output, h, c, *gradients(lambda x: layer(x)[0], x)]


@report(94691)
def gru_takes_packed_sequences(device):
    torch.manual_seed(0)
    layer = nn.GRU(3, 4, batch_first=True).to(device)
    x = random(3, 5, 3, device=device).requires_grad_()
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3, 1]), batch_first=True)
    output, last = layer(packed)
    padded, _ = nn.utils.rnn.pad_packed_sequence(output, batch_first=True)
    (gradient,) = torch.autograd.grad(padded.square().sum(), x)
    return [padded, last, gradient]


# ---- linear algebra -----------------------------------------------------------------------------


@report(189134)
def solve_broadcasts_the_right_hand_side(device):
    a = random(2, 3, 3, device=device) + 3 * torch.eye(3).to(device)
    matrix, vector = random(3, 1, device=device, seed=1), random(3, device=device, seed=2)
    return [torch.linalg.solve(a, matrix), torch.linalg.solve(a, vector)]


@report(175192)
def solve_is_differentiated_by_both_arguments(device):
    a = random(3, 4, 4, device=device) + 3 * torch.eye(4).to(device)
    b = random(3, 4, 2, device=device, seed=1)
    return gradients(torch.linalg.solve, a, b)


@report(78363)
def each_matrix_of_a_batch_is_inverted_alone(device):
    batch = torch.stack(
        [torch.diag(torch.tensor([1, 0.5, 0.25])), torch.diag(torch.arange(1.0, 4))]
    )
    batch = batch.to(device) + 0.1 * random(2, 3, 3, device=device)
    return [torch.linalg.inv(batch), torch.linalg.inv(batch[1]), torch.linalg.inv(batch[1].t())]


@report(146754)
def a_matrix_of_more_than_1024_rows_is_inverted(device):
    a = random(1030, 1030, device=device) / 1030**0.5 + 4 * torch.eye(1030).to(device)
    return torch.linalg.inv(a)


@report(96773)
def pinverse_needs_no_float64(device):
    x = torch.tensor([[1.0, 2, 3], [4, 5, 6]]).to(device)
    return [x.pinverse(), torch.linalg.pinv(x.t())]


@report(196113)
def lstsq_solves_batches_of_wide_complex_systems(device):
    a = random(4, 6, 9, device=device, dtype=torch.complex64)
    b = random(4, 6, 3, device=device, seed=1, dtype=torch.complex64)
    x = torch.linalg.lstsq(a, b, driver="gelsd" if device == "cpu" else None).solution
    return [x, a @ x - b]


@report(111634)
def a_batch_of_zeros_times_more_than_32768_ones_is_zero(device):
    return torch.zeros(3, 9, 1, device=device) @ torch.ones(1, 32769, device=device)


@report(195163)
def bmm_adds_up_more_than_32767_products(device):
    a = random(2, 3, 32768, device=device) / 100
    return torch.bmm(a, a.transpose(1, 2))


@report(189495)
def linear_adds_its_bias_to_more_than_65536_rows(device):
    x = random(65537, 2, device=device)
    weight, bias = random(3, 2, device=device, seed=1), random(3, device=device, seed=2)
    return F.linear(x, weight, bias)[-5:]


# ---- special values, and integers ---------------------------------------------------------------


@report(130295)
def a_nan_is_the_largest_and_the_smallest(device):
    x = torch.tensor([[1.0, float("nan"), 3.0], [-float("inf"), 2.0, float("inf")]]).to(device)
    return [
        *(x.max(), x.min(), x.argmax(), x.amax(1), x.amin(1)),
        *(*x.max(1), *x.min(0), *x.cummax(1), *x.topk(1, 1), *x.sort(1), x.clamp(0, 1)),
        *(torch.maximum(x, -x), torch.nan_to_num(x), x.nansum(1)),
    ]


@report(125318)
def cumulative_sums_of_bools_count_beyond_127(device):
    x = torch.ones(300, dtype=torch.bool).to(device)
    return [x.cumsum(0), x.sum(), x.to(torch.uint8).cumsum(0), x.to(torch.int8).sum(), x.cumprod(0)]


@report(103963)
def rows_without_a_key_are_no_reason_for_nan(device):
    q, k, v = (random(1, 2, 6, 8, device=device, seed=i) for i in range(3))
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    mask[3] = False
    result = F.scaled_dot_product_attention(q, k, v, mask.to(device))
    assert result.isfinite().all()
    return result


@report("transformers 40858")
def a_padded_mask_is_no_reason_for_nan_with_or_without_gradients(device):
    q, k, v = (random(2, 1, 4, 8, device=device, seed=i) for i in range(3))
    mask = torch.ones(2, 1, 4, 4, dtype=torch.bool).tril()
    mask[0, :, 2:] = False
    with torch.no_grad():
        without = F.scaled_dot_product_attention(q, k, v, mask.to(device))
    results = gradients(lambda *x: F.scaled_dot_product_attention(*x, mask.to(device)), q, k, v)
    assert all(one.isfinite().all() for one in (without, *results))
    return [without, *results]


@report(188147)
def a_nan_in_a_query_stays_in_its_row(device):
    q, k, v = (random(1, 1, rows, 64, device=device, seed=rows) for rows in (4, 16, 16))
    q[0, 0, 0, 0] = float("nan")
    return F.scaled_dot_product_attention(q, k, v)


@report(174339)
def grid_sample_takes_an_image_in_channels_last_as_it_is(device):
    centres = (torch.arange(8.0) + 0.5) / 8 * 2 - 1
    grid = torch.stack(torch.meshgrid(centres, centres, indexing="ij")[::-1], dim=-1)[None]
    x = random(1, 6, 8, 8, device=device)
    last = x.to(memory_format=torch.channels_last)
    return [F.grid_sample(one, grid.to(device), align_corners=False) for one in (x, last)]


@report(81384)
def a_bias_is_broadcast_over_what_einsum_returns(device):
    x, weight = random(4, 3, device=device), random(2, 3, 5, device=device, seed=1)
    bias = random(2, 1, 5, device=device, seed=2)
    return [
        torch.einsum("ij,bjk->bik", x, weight) + bias,
        torch.einsum("bij,bjk->ibk", x.expand(2, 4, 3), weight) + bias[:, 0],
    ]


@pytest.mark.parametrize("name", REPORTS)
def test_what_was_reported_is_right_here(name):
    expected, actual = REPORTS[name]("cpu"), REPORTS[name]("mps")
    if isinstance(expected, torch.Tensor):
        expected, actual = [expected], [actual]
    assert len(expected) == len(actual)
    for one, other in zip(actual, expected):
        assert one.device.type == "mps"
        torch.testing.assert_close(
            one.cpu(), other, rtol=1e-4, atol=2e-5, equal_nan=True, check_stride=False
        )


# ---- kernels ----------------------------------------------------------------------------------


def test_strides_reach_a_kernel_of_two_dimensions():
    """141547"""
    library = torch.mps.compile_shader("""
    kernel void fill(device float* x, constant ulong2& strides, uint2 at [[thread_position_in_grid]]) {
      x[at.x * strides.x + at.y * strides.y] = at.x + 33.0 * at.y;
    }
    """)
    x = torch.zeros(16, 8, device="mps").t()
    library.fill(x, list(x.stride()), threads=[8, 16])
    expected = torch.arange(8.0)[:, None] + 33 * torch.arange(16.0)
    assert torch.equal(x.cpu(), expected)


def test_an_error_in_a_source_is_a_syntax_error_with_its_place():
    """144648"""
    with pytest.raises(SyntaxError, match=r"program_source:1:1: error: "):
        torch.mps.compile_shader("What")


def test_a_kernel_reports_errors_to_the_host():
    """170002"""
    library = torch.mps.compile_shader("""
    #include <c10/metal/error.h>
    kernel void look(device float* x, device c10::metal::ErrorMessages* errors,
                     uint i [[thread_position_in_grid]]) {
      if (x[i] < 0) TORCH_REPORT_ERROR(errors, "negative at ", int(i));
    }
    """)
    x = torch.tensor([1.0, -2.0, 3.0]).to("mps")
    library.look(x, error_buf_idx=1)
    with pytest.raises(torch.AcceleratorError, match="negative at 1"):
        torch.mps.synchronize()


# ---- compiled -----------------------------------------------------------------------------------


def _broadcast_and_sum(a, b):
    return (a[:, None] - b[None, :]).sum()


def _rms_norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight


def _long_softmax(x, weight):
    shifted = x - x.amax(-1, keepdim=True)
    return shifted.exp() / shifted.exp().sum(-1, keepdim=True) * weight


def _layer_norm(x, weight):
    return F.layer_norm(x, x.shape[-1:], weight, weight / 2)


def _padded_shift(x, weight):
    return F.pad(torch.cat([F.pad(x[:, 1:], (0, 1)), x[:, :3]], 1), (1, 2)) * weight[0]


COMPILED = {
    "170360": (_broadcast_and_sum, (32,), (64,)),
    "150454": (_rms_norm, (3, 40), (40,)),
    "152155": (_long_softmax, (2, 1500), (1500,)),
    "191976": (_layer_norm, (3, 1300), (1300,)),
    "186369": (_padded_shift, (4, 9), (1,)),
}


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("number", COMPILED)
def test_what_was_reported_of_compiled_functions_is_right_here(number, fresh_compiler):
    function, *shapes = COMPILED[number]
    inputs = [random(*shape, device="cpu", seed=i) for i, shape in enumerate(shapes)]
    actual = torch.compile(function, fullgraph=True)(*(x.to("mps") for x in inputs))
    torch.testing.assert_close(actual.cpu(), function(*inputs), rtol=1e-4, atol=1e-4)
