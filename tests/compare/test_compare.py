"""metalops.debug.compare() finds the operators whose results on mps are wrong, and no others."""

import gc
import weakref
from unittest import mock

import metalops
import pytest
import torch
from metalops._compare import arguments
from metalops.debug import DifferenceError, compare
from metalops.testing.faults import replaced
from torch import nn

pytestmark = pytest.mark.skipif(
    not metalops._is_software, reason="faults are planted in the stand-ins of the software device"
)


def doubled(kernel, *args, **kwargs):
    return kernel(*args, **kwargs) * 2


def found(function, **options):
    """The differences of a function."""
    with compare(halt=False, **options) as comparison:
        function()
    return comparison.differences


def test_the_first_difference_is_raised():
    a = torch.randn(4, 3, device="mps")
    with replaced("mm", doubled), pytest.raises(DifferenceError) as error, compare():
        torch.mm(a.t(), a)
    difference = error.value.difference
    assert difference.operator == "aten::mm"
    assert difference.arguments[0] == "self: float32 [3, 4], strides (1, 3), offset 0, on mps"
    assert difference.mismatch.wrong == difference.mismatch.elements == 9
    place = difference.mismatch.place
    assert difference.mismatch.found == pytest.approx(2 * (a.t().cpu() @ a.cpu())[place].item(), rel=1e-5)  # fmt: skip
    assert difference.mismatch.expected == pytest.approx((a.t().cpu() @ a.cpu())[place].item(), rel=1e-5)  # fmt: skip
    assert difference.served_by == "stand-ins of the software device (aten::mm, aten::mul.Tensor)"
    assert difference.versions["torch"] == torch.__version__
    text = str(difference)
    assert text.startswith("aten::mm (forward pass, call 1): 9 of 9 elements of the result are wrong, most at (")  # fmt: skip


def test_right_operators_agree():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).to("mps")
    x = torch.randn(2, 3, 16, device="mps")
    with compare() as comparison:
        layer(x).square().mean().backward()
    assert comparison.differences == []
    assert comparison.compared > 40  # how many there are depends on the version of torch
    assert set(comparison.skipped) <= {"because they are random"}


def test_differences_are_collected():
    a = torch.randn(3, 3, device="mps")
    with replaced("mm", doubled):
        differences = found(lambda: (a @ a, a + 1, a @ a))
    assert [(d.operator, d.call) for d in differences] == [("aten::mm", 1), ("aten::mm", 3)]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        return self.norm(self.self_attn(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def only_the_third(name, right):
    """A kernel that is wrong at its third call."""
    calls = []

    def wrong(kernel, *args, **kwargs):
        calls.append(name)
        result = kernel(*args, **kwargs)
        return result + 1 if len(calls) == 3 else result

    return wrong


def test_modules_are_named_in_the_forward_pass():
    model = Model().to("mps")
    with replaced("addmm", only_the_third("addmm", doubled)):
        (difference,) = found(lambda: model(torch.randn(2, 4, device="mps")))
    assert (difference.module, difference.backward) == ("layers.2.self_attn", False)


def test_modules_are_named_in_the_backward_pass():
    model = Model().to("mps")
    x = torch.randn(2, 4, device="mps")

    def wrong(kernel, *args):
        of_x, *others = kernel(*args)
        calls.append(1)
        return (of_x + len(calls) // 3 % 2, *others)

    calls = []
    with replaced("native_layer_norm_backward", wrong):
        (difference,) = found(lambda: model(x).square().sum().backward())
    assert (difference.module, difference.backward) == ("layers.0.norm", True)
    assert difference.operator == "aten::native_layer_norm_backward"
    assert difference.result == "result 0"


def test_a_difference_in_the_backward_pass_is_raised_by_backward():
    x = torch.randn(3, 3, device="mps", requires_grad=True)
    loss = torch.tanh(x).sum()
    with replaced("tanh_backward", doubled), compare(), pytest.raises(DifferenceError):
        loss.backward()


def test_names_are_those_in_the_model_that_is_given():
    model = Model().to("mps")
    with replaced("addmm", only_the_third("addmm", doubled)):
        (difference,) = found(
            lambda: [block(torch.randn(2, 4, device="mps")) for block in model.layers], model=model
        )
    assert difference.module == "layers.2.self_attn"


@pytest.mark.full  # imports the compiler
def test_modules_in_a_checkpoint_are_named():
    model = Model().to("mps")

    def run():
        x = torch.randn(2, 4, device="mps", requires_grad=True)
        torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum().backward()

    calls = []

    def wrong(kernel, *args, **kwargs):
        calls.append(1)
        return kernel(*args, **kwargs) + len(calls) // 5 % 2

    with replaced("addmm", wrong):
        differences = found(run)
    assert (differences[0].module, differences[0].backward) == ("layers.1.self_attn", True)


# ---- kinds of operators --------------------------------------------------------------------------


def test_operators_in_place_are_compared():
    def wrong(kernel, x, *args, **kwargs):
        return kernel(x, *args, **kwargs).add_(1)

    x = torch.ones(4, 6, device="mps").t()[::2]
    with replaced("addcmul_", wrong):
        (difference,) = found(lambda: x.addcmul_(x, x))
    assert difference.result == "the result"
    assert difference.mismatch.wrong == x.numel()


def test_writing_beside_the_elements_of_a_view_is_found():
    whole = torch.ones(3, 8, device="mps")

    def wrong(kernel, x, *args):
        x.as_strided((3, 1), (8, 1), 3).zero_()  # between the elements
        return kernel(x, *args)

    with replaced("clamp_", wrong):
        (difference,) = found(lambda: whole[:, ::2].clamp_(2))
    assert "that are between those of the view" in str(difference)


def test_out_is_compared():
    def wrong(kernel, a, b, *, out):
        return kernel(a, b, out=out).mul_(2)

    a, out = torch.randn(3, 3, device="mps"), torch.empty(3, 3, device="mps")
    with replaced("mm.out", wrong):
        (difference,) = found(lambda: torch.mm(a, a, out=out))
    assert difference.operator == "aten::mm.out"


def test_views_are_read_as_they_lie():
    """A kernel that takes a transposed tensor for a contiguous one."""

    def wrong(kernel, x, *args):
        return kernel(x.as_strided(x.shape, (x.shape[1], 1)), *args)

    x = torch.randn(5, 3, device="mps")
    with replaced("cumsum", wrong):
        assert found(lambda: x.cumsum(0)) == []
        (difference,) = found(lambda: torch.randn(3, 5, device="mps").t()[:, :2].cumsum(0))
    assert "strides (1, 5)" in difference.arguments[0]


def test_operands_that_share_memory_share_it_on_the_cpu():
    x = torch.arange(6.0, device="mps")
    assert found(lambda: x[1:].copy_(x[:-1].clone())) == []
    assert found(lambda: torch.add(x[::2], x[1::2], out=x[::2])) == []


def test_lists_of_tensors_are_compared():
    def wrong(kernel, tensors, *args):
        kernel(tensors, *args)
        tensors[1].add_(1)

    xs = [torch.ones(2, device="mps") for _ in range(3)]
    with replaced("_foreach_mul_.Scalar", wrong):
        (difference,) = found(lambda: torch._foreach_mul_(xs, 2.0))
    assert difference.result == "self[1]"


def test_tensors_that_are_made_on_mps_are_compared():
    with replaced("arange.start_out", lambda kernel, *args, out: kernel(*args, out=out).add_(1)):
        (difference,) = found(lambda: torch.arange(5, device="mps"))
    assert difference.operator.startswith("aten::arange")


def test_autocast_is_compared_in_its_dtype():
    layer = nn.Linear(8, 8).to("mps")
    x = torch.randn(4, 8, device="mps")

    def run():
        with torch.autocast("mps", dtype=torch.float16):
            layer(x)

    assert found(run) == []
    with replaced("addmm", doubled):
        (difference,) = found(run)
    assert "float16" in difference.arguments[1]


def test_composite_operators_are_compared_in_their_parts_in_inference_mode():
    layer = nn.Linear(8, 8).to("mps")
    x = torch.randn(4, 8, device="mps")
    with replaced("addmm", doubled), torch.inference_mode():
        (difference,) = found(lambda: layer(x))
    assert difference.operator in ("aten::addmm", "aten::linear")


def test_shapes_and_dtypes_are_compared():
    x = torch.randn(3, device="mps")
    with replaced("cumsum", lambda kernel, *args, **_: kernel(*args).half()):
        (difference,) = found(lambda: x.cumsum(0))
    assert difference.mismatch.problem == "dtype torch.float16, on the CPU torch.float32"


def test_any_index_of_equal_values_is_right():
    x = torch.tensor([1.0, 3.0, 3.0], device="mps")

    def other(kernel, x, dim=None, keepdim=False):
        return kernel(x, dim, keepdim) + shift[0]

    shift = [1]
    with replaced("argmax", other):
        assert found(lambda: x.argmax()) == []
        shift[0] = -1
        assert len(found(lambda: x.argmax())) == 1
        shift[0] = 2
        assert len(found(lambda: x.argmax())) == 1  # beyond the end


# ---- random operators ----------------------------------------------------------------------------


def test_random_operators_are_skipped_and_named():
    with compare() as comparison:
        torch.randint(5, (3,), device="mps")
    assert comparison.skipped == {"because they are random": {"aten::randint": 1}}


def test_random_numbers_are_those_without_the_comparison():
    torch.manual_seed(3)
    expected = torch.rand(5, device="mps")
    torch.manual_seed(3)
    with compare():
        assert torch.equal(torch.rand(5, device="mps"), expected)


@pytest.mark.parametrize(
    ("name", "wrong", "call", "problem"),
    [
        (
            "multinomial",
            lambda kernel, *args, **_: torch.full_like(kernel(*args), 1),
            lambda: torch.tensor([0.5, 0.0, 0.5], device="mps").multinomial(1),
            "the category has probability 0",
        ),
        (
            "multinomial",
            lambda kernel, *args, **_: torch.full_like(kernel(*args), 2),
            lambda: torch.tensor([0.5, 0.0, 0.5], device="mps").multinomial(2),
            "drawn twice without replacement",
        ),
        (
            "exponential_",
            lambda kernel, x, *args, **_: kernel(x, *args).zero_(),
            lambda: torch.empty(3, device="mps").exponential_(),
            "not positive and finite",
        ),
        (
            "uniform_",
            lambda kernel, x, *args, **_: kernel(x, *args).add_(1),
            lambda: torch.empty(3, device="mps").uniform_(0, 0.5),
            "not between 0.0 and 0.5",
        ),
    ],
)
def test_properties_of_random_results_are_checked(name, wrong, call, problem):
    with compare() as comparison:
        call()
    assert comparison.checked[f"aten::{name}"] == 1
    with replaced(name, wrong):
        (difference,) = found(call)
    assert difference.mismatch.problem == problem


# ---- tolerances ----------------------------------------------------------------------------------


def test_another_order_of_a_sum_is_no_difference():
    def by_halves(kernel, x, *args, **kwargs):
        return kernel(x[::2], *args) + kernel(x[1::2], *args)

    x = torch.randn(100_000, device="mps") * 100
    with replaced("sum", by_halves), replaced("sum.dim_IntList", by_halves):
        assert found(lambda: x.sum()) == []


def test_products_that_lack_a_term_differ():
    def short(kernel, a, b):
        return kernel(a[:, :-1], b[:-1])

    a = torch.randn(8, 2000, device="mps")
    with replaced("mm", short):
        assert found(lambda: a @ a.t())
    half = a.half()
    with replaced("mm", short):
        assert found(lambda: half @ half.t())


# ---- how much is compared ------------------------------------------------------------------------


def test_a_share_of_the_calls_is_compared():
    x = torch.randn(3, device="mps")
    with compare(share=0.25, seed=1) as comparison:
        for _ in range(400):
            x.sin()
    assert comparison.calls == 400
    assert 60 < comparison.compared < 140


def test_large_calls_are_skipped_and_named():
    x = torch.ones(1000, device="mps")
    with compare(most_bytes=10_000) as comparison:
        x.sin()
        x[:100].sin()
    assert comparison.skipped == {"because they need more than 10000 bytes": {"aten::sin": 1}}
    assert comparison.compared == 1


def test_a_view_of_a_large_tensor_is_small():
    whole = torch.ones(2**20, device="mps")
    with compare(most_bytes=10_000) as comparison:
        whole[1000:1100].sin()
    assert comparison.compared == 1


def test_nothing_is_kept_of_calls_that_agree():
    """Memory does not grow with the number of calls."""
    x = torch.randn(1000, device="mps")
    kept = []
    with compare(), mock.patch.object(arguments, "_copied", spied(arguments._copied, kept)):
        for _ in range(20):
            x.sin()
    gc.collect()
    assert len(kept) == 20
    assert not any(reference() is not None for reference in kept)


def spied(function, kept):
    """The function, which adds weak references to its results to a list."""

    def call(*args):
        result = function(*args)
        kept.append(weakref.ref(result))
        return result

    return call


@pytest.mark.parametrize("options", [{"share": 0}, {"share": 1.5}, {"most_bytes": 0}])
def test_options_out_of_range_are_rejected(options):
    with pytest.raises(ValueError, match=f"compare: {next(iter(options))} must be"):
        compare(**options)


def test_a_path_that_cannot_be_written_is_rejected(tmp_path):
    with pytest.raises(FileNotFoundError):
        compare(path=tmp_path / "absent" / "file")


def test_a_decorated_function_is_compared():
    comparison = compare(halt=False)

    @comparison
    def product(a, depth=1):
        return product(a, depth - 1) if depth else a @ a

    a = torch.randn(3, 3, device="mps")
    with replaced("mm", doubled):
        product(a)
        product(a)
        a @ a  # outside
    assert len(comparison.differences) == 2


def test_sparse_tensors_and_tensors_of_the_cpu_are_left_alone():
    x = torch.eye(3, device="mps").to_sparse()
    with compare() as comparison:
        x.coalesce()
        torch.randn(3).sin()
    assert set(comparison.skipped) <= {"because their tensors are sparse"}
    assert comparison.differences == []
