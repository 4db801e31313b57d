"""Every operator of ours through torch's own generic machinery: OpInfo, opcheck, torch.compile, torch.export."""

import copy
import warnings

import metalops
import pytest
import torch
from metalops.testing import Case, check_forward, check_gradient, opinfo
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing._internal.common_device_type import (
    OpDTypes,
    instantiate_device_type_tests,
    ops,
)
from torch.testing._internal.common_utils import TestCase

from .families import gather

OPERATORS = gather("POINTWISE")
op_db = [opinfo(operator) for operator in OPERATORS]
operators = pytest.mark.parametrize("operator", OPERATORS, ids=str)


def test_every_operator_is_tested():
    tested = [op.name for op in OPERATORS] + [f"{op.name}_" for op in OPERATORS if op.inplace]
    tested += gather("OTHERS")
    assert sorted(tested) == sorted(metalops.ops.__all__)


def _case(sample) -> Case:
    """The sample on the CPU."""
    args = [x.detach().cpu() for x in (sample.input, *sample.args)]
    return Case(sample.name, tuple(args), sample.kwargs)


def _check_samples(device, dtype, op):
    for sample in op.sample_inputs(device, dtype):
        check_forward(op.op, op.ref, _case(sample), device, name=op.operator.name)


# One of each class: kernels of other dtypes are instantiations of the same templates.
SOME = (torch.float32, torch.bfloat16, torch.int32)
REST = (torch.float16, torch.bool, torch.int64, torch.int16, torch.int8, torch.uint8)


class TestOpInfo(TestCase):
    @ops(op_db, dtypes=OpDTypes.supported, allowed_dtypes=SOME)
    def test_output_match(self, device, dtype, op):
        _check_samples(device, dtype, op)

    @pytest.mark.nightly
    @ops(op_db, dtypes=OpDTypes.supported, allowed_dtypes=REST)
    def test_output_match_of_other_dtypes(self, device, dtype, op):
        _check_samples(device, dtype, op)

    @ops(op_db, allowed_dtypes=(torch.float32,))
    def test_reference_inputs(self, device, dtype, op):
        for sample in op.reference_inputs(device, dtype):
            expected = op.ref(*_case(sample).args, **sample.kwargs)
            self.assertEqual(op.op(sample.input, *sample.args, **sample.kwargs).cpu(), expected)

    @ops(op_db, dtypes=OpDTypes.supported_backward)
    def test_gradient_match(self, device, dtype, op):
        for sample in op.sample_inputs(device, dtype, requires_grad=True):
            check_gradient(op.op, op.ref, _case(sample), device, name=op.operator.name)

    @ops(op_db, dtypes=OpDTypes.none)
    def test_error_inputs(self, device, op):
        for error in op.error_inputs(device):
            sample = error.sample_input
            with self.assertRaisesRegex(error.error_type, error.error_regex):
                op.op(sample.input, *sample.args, **sample.kwargs)

    @ops(
        op_db,
        dtypes=OpDTypes.unsupported,
        allowed_dtypes=(torch.complex64, torch.bool, torch.uint16),
    )
    def test_unsupported_dtypes_are_refused(self, device, dtype, op):
        args = [torch.ones(2, 4).to(dtype).to(device) for _ in range(op.operator.operands)]
        with self.assertRaisesRegex(NotImplementedError, "not implemented for"):
            op.op(*args, **op.operator.arguments[-1])


instantiate_device_type_tests(TestOpInfo, globals(), only_for=("mps", "cpu"), allow_mps=True)


# test_autograd_registration of opcheck does not know mps.
UTILITIES = (
    "test_schema",
    "test_faketensor",
    "test_aot_dispatch_static",
    "test_aot_dispatch_dynamic",
)


def _leaves(operator, requires_grad=True):
    case = operator.simple_case(torch.float32)
    return [x.to("mps").requires_grad_(requires_grad) for x in case.args]


@operators
@pytest.mark.sampled(4)
def test_opcheck(operator):
    info = next(info for info in op_db if info.operator is operator)
    samples = list(info.sample_inputs("mps", torch.float32, requires_grad=True))
    for i, sample in enumerate(samples):
        # Tracing takes long, and does not depend on the shape.
        whole = i == 0 or sample.name == "broadcast"
        torch.library.opcheck(
            operator.overload,
            (sample.input, *sample.args),
            sample.kwargs,
            test_utils=UTILITIES if whole else ("test_schema", "test_faketensor"),
        )


@pytest.mark.full
@operators
@pytest.mark.sampled(2)
def test_opcheck_of_out_and_in_place(operator):
    packet = getattr(torch.ops.metalops, operator.name)
    args = _leaves(operator, requires_grad=False)
    out = torch.empty(4, 6, device="mps")
    torch.library.opcheck(
        packet.out, tuple(args), {**operator.arguments[-1], "out": out}, test_utils=UTILITIES
    )
    if operator.inplace:
        overload = getattr(torch.ops.metalops, f"{operator.name}_").default
        torch.library.opcheck(overload, tuple(args), operator.arguments[-1], test_utils=UTILITIES)


@pytest.mark.parametrize(
    "operator",
    [op for op in OPERATORS if hasattr(torch.ops.metalops, f"{op.name}_backward")],
    ids=str,
)
@pytest.mark.sampled(2)
def test_opcheck_of_backward(operator):
    backward = getattr(torch.ops.metalops, f"{operator.name}_backward").default
    args = _leaves(operator, requires_grad=False)
    wanted = [a.name for a in backward._schema.arguments]
    tensors = [x for x, a in zip(args, operator.overload._schema.arguments) if a.name in wanted]
    torch.library.opcheck(
        backward,
        (torch.randn(4, 6, device="mps"), *tensors),
        operator.arguments[-1],
        test_utils=UTILITIES,
    )


@operators
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8], ids=str)
@pytest.mark.sampled(4)
def test_fake_result_has_the_strides_of_the_real_one(operator, dtype):
    from torch._subclasses.fake_tensor import FakeTensorMode

    for case in operator.cases(dtype):
        if not case.precise:
            continue
        args = [x.to("mps") for x in case.args]
        real = operator.function(*args, **case.kwargs)
        with FakeTensorMode() as mode:
            fake = operator.function(*(mode.from_tensor(x) for x in args), **case.kwargs)
        assert (fake.shape, fake.dtype, fake.device) == (real.shape, real.dtype, real.device)
        assert fake.stride() == real.stride(), case


@operators
@pytest.mark.sampled(2)
def test_compile_in_one_graph_forward_and_backward(operator):
    arguments = operator.arguments[-1]

    def function(*args):
        return operator.function(*(x * 2 for x in args), **arguments) + 1

    args = _leaves(operator)
    expected = function(*args)
    cotangent = torch.randn_like(expected)
    expected_gradients = torch.autograd.grad(expected, args, cotangent)
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    actual = compiled(*args)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(torch.autograd.grad(actual, args, cotangent), expected_gradients)


@operators
@pytest.mark.sampled(2)
def test_compile_of_dynamic_shapes_compiles_once(operator):
    counter = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    arguments = operator.arguments[0]

    def function(*args):
        return operator.function(*args, **arguments)

    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=True)
    frames = []
    for rows, columns in ((4, 12), (5, 14), (9, 20)):
        case = operator.simple_case(torch.float32, rows, columns)
        args = [x.to("mps") for x in case.args]
        torch.testing.assert_close(compiled(*args), function(*args))
        frames.append(counter.frame_count)
    # A float argument is first taken for a variable one, then compiled once more as a constant.
    takes_float = bool(operator.arguments[-1])
    assert frames[0] == frames[-1] == (2 if takes_float else 1)


@operators
@pytest.mark.sampled(2)
def test_compile_of_in_place_and_out(operator):
    arguments = operator.arguments[-1]

    def function(out, *args):
        operator.function(*args, **arguments, out=out)
        if operator.inplace:
            changed = args[0].clone()
            operator.inplace(changed, *args[1:], **arguments)
            return changed
        return out * 2

    args = _leaves(operator, requires_grad=False)
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    expected_out, actual_out = (torch.zeros(4, 6, device="mps") for _ in range(2))
    expected = function(expected_out, *args)
    actual = compiled(actual_out, *args)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(actual_out, expected_out)


class _Module(torch.nn.Module):
    def __init__(self, operator):
        super().__init__()
        self.operator = operator

    def forward(self, *args):
        return self.operator.function(*args, **self.operator.arguments[-1])


@pytest.mark.sampled(6)
@pytest.mark.full
@operators
def test_export_keeps_the_operator_as_one_node(operator):
    args = tuple(_leaves(operator, requires_grad=False))
    rows = torch.export.Dim("rows", min=2, max=64)
    shapes = ({0: rows},) * len(args)
    program = torch.export.export(
        _Module(operator), args, dynamic_shapes={"args": shapes}
    ).run_decompositions()
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert targets == [operator.overload]
    more = tuple(torch.cat([x, x]) for x in args)
    torch.testing.assert_close(program.module()(*more), _Module(operator)(*more))


@operators
def test_deepcopy_and_checkpoint(operator):
    from torch.utils.checkpoint import checkpoint

    args = _leaves(operator)
    module = copy.deepcopy(_Module(operator))
    expected = torch.autograd.grad(module(*args).sum(), args)
    actual = torch.autograd.grad(checkpoint(module, *args, use_reentrant=False).sum(), args)
    torch.testing.assert_close(actual, expected)


@operators
def test_vmap_is_one_call_for_the_whole_batch(operator):
    rows = operator.operands * 3 + 1
    args = [
        operator.sample(rows, 4, 12, dtype=torch.float32, seed=i).to("mps")
        for i in range(operator.operands)
    ]
    arguments = operator.arguments[-1]

    def function(*args):
        return operator.function(*args, **arguments)

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns when it loops over the batch
        actual = torch.vmap(function)(*args)
        torch.testing.assert_close(actual, function(*args))
        # The batch in another dimension, and in the first operand only.
        others = [x[0] for x in args[1:]]
        moved = torch.vmap(function, in_dims=(2,) + (None,) * len(others), out_dims=1)
        expected = function(args[0], *others)
        torch.testing.assert_close(
            moved(args[0].permute(1, 2, 0), *others), expected.transpose(0, 1)
        )
        gradients = torch.vmap(torch.func.grad(lambda *args: function(*args).sum()))(*args)
    leaf = args[0].clone().requires_grad_()
    (expected,) = torch.autograd.grad(function(leaf, *args[1:]).sum(), leaf)
    torch.testing.assert_close(gradients, expected)


@operators
def test_offsets_beyond_32_bits(operator):
    # Few elements, but gigabytes apart: the launch has to be split.
    step = 2**29 + 3
    shape = (4, 2) if operator.halving else (4,)
    count = step * 4 + 2
    args = []
    for i in range(operator.operands):
        storage = torch.empty(count, device="mps") if i == 0 else torch.empty(8, device="mps")
        strides = ((step, 1) if operator.halving else (step,)) if i == 0 else (1,)
        args.append(storage.as_strided(shape, strides, 1))
        args[-1].copy_(operator.sample(*shape, dtype=torch.float32, seed=i))
    near = [x.clone(memory_format=torch.contiguous_format) for x in args]
    results = []
    for operands in (args, near):
        leaves = [x.detach().requires_grad_() for x in operands]
        result = operator.function(*leaves, **operator.arguments[-1])
        cotangent = torch.linspace(1, 2, result.numel(), device="mps").view(result.shape)
        results.append((result, *torch.autograd.grad(result, leaves, cotangent)))
    for far, expected in zip(*results):
        torch.testing.assert_close(far, expected, rtol=0, atol=0)


@operators
def test_saved_tensors_can_wait_on_the_cpu(operator):
    args = _leaves(operator)
    arguments = operator.arguments[-1]
    expected = torch.autograd.grad(operator.function(*args, **arguments).sum(), args)
    with torch.autograd.graph.save_on_cpu():
        result = operator.function(*args, **arguments)
    torch.testing.assert_close(torch.autograd.grad(result.sum(), args), expected)
