"""metal_kernel under torch.compile, torch.export and other tracers."""

import io
import subprocess
import sys
import textwrap

import metalops
import pytest
import torch
from metalops.kernel.metal_kernel.operator_arguments import encode
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("fresh_compiler")]

BODY = "uint i = thread_position_in_grid.x; "
BACKENDS = ["eager", "aot_eager", "inductor"]


def elementwise(kernel, *inputs, outputs=1, **options):
    x = next(value for value in inputs if isinstance(value, torch.Tensor))
    return kernel(
        inputs=list(inputs),
        output_shapes=[x.shape] * outputs,
        output_dtypes=[x.dtype] * outputs,
        grid=(x.numel(), 1, 1),
        threadgroup=(64, 1, 1),
        **options,
    )


scaled_gradient = metalops.metal_kernel(
    "scaled_gradient", ["g", "x", "s"], ["gx"], BODY + "gx[i] = 2 * x[i] * g[i] * s;"
)
scaled = metalops.metal_kernel(
    "scaled_square",
    ["x", "s"],
    ["y"],
    BODY + "y[i] = T(x[i] * x[i] * s) * (B ? N : 0);",
    backward=lambda grads, inputs, outputs: [
        *elementwise(scaled_gradient, grads[0], *inputs),
        None,
    ],
)


def model(x):
    (y,) = elementwise(scaled, torch.sin(x), 2.0, template=[("T", x.dtype), ("N", 1), ("B", True)])
    return torch.relu(y) + 1


def reference(x):
    return torch.sin(x) ** 2 * 2 + 1


def data(*shape):
    return torch.randn(*shape, device="mps")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_forward_and_backward_in_one_graph(backend, dynamic):
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=dynamic)
    for shape in [(4, 8), (3, 8), (5, 9)]:
        x = data(*shape)
        torch.testing.assert_close(compiled(x), reference(x))
    x = data(4, 8).requires_grad_()
    (ours,) = torch.autograd.grad(compiled(x).sum(), x)
    (theirs,) = torch.autograd.grad(reference(x).sum(), x)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_kernel_without_a_gradient_is_compiled_and_refuses_in_backward(backend):
    kernel = metalops.metal_kernel("no_gradient", ["x"], ["y"], BODY + "y[i] = x[i] + 1;")
    compiled = torch.compile(lambda x: elementwise(kernel, x * 2)[0], backend=backend)
    x = data(3).requires_grad_()
    y = compiled(x)
    torch.testing.assert_close(y, x * 2 + 1)
    with pytest.raises(NotImplementedError, match="metal_kernel 'no_gradient' has no backward"):
        y.sum().backward()


def test_symbolic_sizes_do_not_compile_again():
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=True)
    for size in (4, 5, 17):
        x = data(size, 8)
        torch.testing.assert_close(compiled(x), reference(x))
    assert len(graphs) == 1


def test_a_size_as_a_template_argument():
    kernel = metalops.metal_kernel("columns", ["x"], ["y"], BODY + "y[i] = x[i] * N;")

    def function(x):
        return elementwise(kernel, x, template=[("N", x.shape[1])])[0] + 1

    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    for columns in (3, 4):
        x = data(2, columns)
        torch.testing.assert_close(compiled(x), x * columns + 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_kernel_that_writes_in_place(backend):
    kernel = metalops.metal_kernel(
        "accumulate", ["x"], ["old"], BODY + "old[i] = s[i]; s[i] += x[i];", inout_names=["s"]
    )
    only = metalops.metal_kernel("twice", [], [], BODY + "s[i] *= 2;", inout_names=["s"])

    def function(x, state):
        (old,) = elementwise(kernel, x * 2, state)
        elementwise(only, state, outputs=0)
        return old * 3

    x, state = data(4, 8), torch.ones(4, 8, device="mps")
    out = torch.compile(function, backend=backend, fullgraph=True)(x, state)
    torch.testing.assert_close(state, 2 * (2 * x + 1))
    torch.testing.assert_close(out, torch.full_like(out, 3.0))


accumulate = metalops.metal_kernel(
    "add_to_state",
    ["x"],
    ["old"],
    BODY + "old[i] = s[i]; s[i] += x[i];",
    inout_names=["s"],
    backward=lambda grads, inputs, outputs: [grads[1], grads[0] + grads[1]],
)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_view_is_written_in_place(backend):
    def function(x, base):
        (old,) = elementwise(accumulate, x, base[1:3])
        return old * 2, base + 0

    base = torch.zeros(4, 5, device="mps")
    old, after = torch.compile(function, backend=backend, fullgraph=True)(data(2, 5) * 0 + 3, base)
    assert old.sum().item() == 0
    assert torch.equal(base, after)
    assert base.sum(1).tolist() == [0.0, 15.0, 15.0, 0.0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_through_a_tensor_written_in_place(backend):
    def function(x, start):
        state = start * 1
        (old,) = elementwise(accumulate, x, state)
        return (state * state).sum() + old.sum()

    x, start = data(3).requires_grad_(), data(3).requires_grad_()
    torch.compile(function, backend=backend, fullgraph=True)(x, start).backward()
    torch.testing.assert_close(x.grad, 2 * (x + start).detach())
    torch.testing.assert_close(start.grad, 2 * (x + start).detach() + 1)


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_module_with_a_buffer_written_in_place(strict):
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("state", torch.zeros(4, device="mps"))

        def forward(self, x):
            return elementwise(accumulate, x * 2, self.state)[0] + 1

    x = torch.ones(4, device="mps")
    buffer = io.BytesIO()
    torch.export.save(torch.export.export(Counter(), (x,), strict=strict), buffer)
    buffer.seek(0)
    module = torch.export.load(buffer).run_decompositions().module()
    assert [module(x)[0].item() for _ in range(3)] == [1.0, 3.0, 5.0]
    assert module.state.tolist() == [6.0] * 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_several_outputs_an_initial_value_and_no_inputs(backend):
    kernel = metalops.metal_kernel("ramp", [], ["a", "b"], BODY + "a[i] = i; if (i == 1) b[0] = 5;")

    def function(n):
        a, b = kernel(
            inputs=[],
            output_shapes=[(n,), (2,)],
            output_dtypes=[torch.int32, torch.float32],
            grid=(n, 1, 1),
            threadgroup=(n, 1, 1),
            init_value=7,
            device="mps",
        )
        return a + 1, b * 2

    a, b = torch.compile(function, backend=backend, fullgraph=True)(3)
    assert (a.tolist(), b.tolist()) == ([1, 2, 3], [10.0, 14.0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_are_those_of_eager_execution(backend):
    kernel = metalops.metal_kernel(
        "strides",
        ["x"],
        ["out"],
        "out[0] = x_strides[0]; out[1] = x_strides[1];",
        ensure_row_contiguous=False,
    )

    def function(x):
        (out,) = kernel(
            inputs=[(x + 1).t()],
            output_shapes=[(2,)],
            output_dtypes=[torch.int64],
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
        )
        return out

    assert torch.compile(function, backend=backend, fullgraph=True)(data(3, 5)).tolist() == [1, 5]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"inputs": []}, "inputs must have 1 entries"),
        ({"output_shapes": []}, "output_shapes must have 1 entries"),
        ({"grid": (1, 1)}, "grid must have 3 entries"),
        ({"threadgroup": (1,)}, "threadgroup must have 3 entries"),
    ],
)
def test_a_call_that_cannot_be_traced_says_why(changed, message):
    kernel = metalops.metal_kernel("traced", ["x"], ["y"], BODY + "y[i] = x[i];")

    def function(x):
        call = {
            "inputs": [x],
            "output_shapes": [x.shape],
            "output_dtypes": [x.dtype],
            "grid": (3, 1, 1),
            "threadgroup": (3, 1, 1),
        }
        return kernel(**{**call, **changed})

    with pytest.raises(Exception, match=f"metal_kernel 'traced': {message}"):
        torch.compile(function, backend="eager", fullgraph=True)(data(3))


def test_a_kernel_made_where_it_is_called():
    def function(x):
        kernel = metalops.metal_kernel("inner", ["x"], ["y"], BODY + "y[i] = x[i] + 1;")
        return elementwise(kernel, x)[0] * 2

    x = data(4)
    torch.testing.assert_close(function(x), (x + 1) * 2)
    torch.testing.assert_close(torch.compile(function, backend="aot_eager")(x), (x + 1) * 2)


class Model(torch.nn.Module):
    def forward(self, x):
        return model(x)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_an_exported_program_is_saved_loaded_and_run(strict, dynamic):
    x = data(4, 8)
    shapes = {"x": {0: torch.export.Dim("rows", min=2, max=100)}} if dynamic else None
    exported = torch.export.export(Model(), (x,), strict=strict, dynamic_shapes=shapes)
    buffer = io.BytesIO()
    torch.export.save(exported, buffer)
    buffer.seek(0)
    for program in (exported, torch.export.load(buffer).run_decompositions()):
        targets = [str(node.target) for node in program.graph.nodes]
        assert sum(target.startswith("metal_kernel.scaled_square_") for target in targets) == 1
        inputs = [x, data(7, 8)] if dynamic else [x]
        for value in inputs:
            torch.testing.assert_close(program.module()(value), reference(value))


@pytest.mark.nightly
def test_an_exported_program_runs_in_another_process(tmp_path):
    """There it needs the kernel's definition, as any custom operator; the math mode is part of it."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            f"""
            import sys
            import metalops
            import torch

            SOURCE = {BODY!r} + "\\n#if __FAST_MATH__ == 1\\ny[i] = x[i] * 3;\\n#endif\\n"
            fast = metalops.metal_kernel(
                "exported", ["x"], ["y"], SOURCE, compile_options={{"math_mode": "fast"}}
            )
            safe = metalops.metal_kernel("exported", ["x"], ["y"], SOURCE)

            class Model(torch.nn.Module):
                def forward(self, x):
                    return [
                        kernel(inputs=[x], output_shapes=[x.shape], output_dtypes=[x.dtype], init_value=7,
                               grid=(x.numel(), 1, 1), threadgroup=(64, 1, 1))[0]
                        for kernel in (fast, safe)
                    ]

            x = torch.arange(3.0, device="mps")
            if sys.argv[1] == "save":
                torch.export.save(torch.export.export(Model(), (x,)), sys.argv[2])
            else:
                print([y.tolist() for y in torch.export.load(sys.argv[2]).module()(x)])
            """
        )
    )
    for action in ("save", "load"):
        output = subprocess.run(
            [sys.executable, program, action, tmp_path / "model.pt2"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    assert output == "[[0.0, 3.0, 6.0], [7.0, 7.0, 7.0]]\n"


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_math_mode_reaches_recorded_calls(backend):
    source = "#ifdef __FAST_MATH__\nout[0] = __FAST_MATH__;\n#else\nout[0] = -1;\n#endif"
    kernels = [
        metalops.metal_kernel("mode", [], ["out"], source, compile_options={"math_mode": mode})
        for mode in ("safe", "relaxed", "fast")
    ]

    def function():
        call = {"output_shapes": [(1,)], "output_dtypes": [torch.int32]}
        grid = {"grid": (1, 1, 1), "threadgroup": (1, 1, 1)}
        return [kernel(inputs=[], **call, **grid)[0] for kernel in kernels]

    outputs = torch.compile(function, backend=backend, fullgraph=True)()
    assert [out.item() for out in outputs] == [-1, -1, 1]


def test_fake_tensors_have_the_shapes_and_dtypes_of_the_outputs():
    kernel = metalops.metal_kernel("fake", ["x"], ["a", "b"], "never compiled")
    with FakeTensorMode():
        a, b = kernel(
            inputs=[torch.empty(3, device="mps")],
            output_shapes=[(2, 3), ()],
            output_dtypes=[torch.bfloat16, torch.int64],
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
        )
    assert (a.shape, a.dtype, a.device.type) == ((2, 3), torch.bfloat16, "mps")
    assert (b.shape, b.dtype) == ((), torch.int64)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx_records_one_node(mode):
    x = data(4, 8)
    graph = make_fx(model, tracing_mode=mode)(x)
    assert "torch.ops.metal_kernel.scaled_square_" in graph.code
    torch.testing.assert_close(graph(x), reference(x))


@pytest.mark.parametrize("inplace", [False, True])
def test_opcheck(inplace):
    kernel = metalops.metal_kernel(
        "checked",
        ["x"],
        ["a", "b"],
        BODY + "a[i] = x[i]; b[i] = i;" + ("s[i] += x[i];" if inplace else ""),
        inout_names=["s"] if inplace else [],
    )
    x = data(3, 5)
    arguments = encode(
        [x.shape, x.shape], [x.dtype, torch.int32], (15, 1, 1), (8, 1, 1), [("N", 3)]
    )
    inputs = (x, torch.zeros_like(x)) if inplace else (x,)
    torch.library.opcheck(kernel._program.operator, (*inputs, *arguments, None))
