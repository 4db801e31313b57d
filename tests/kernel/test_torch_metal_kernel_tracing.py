"""TorchMetalKernel as an operator: torch.export, torch.compile, autograd, vmap, pickle, threads."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import textwrap
import threading
import types

import metalops
import pytest
import torch
from metalops import MetalParameter, TorchMetalKernel
from torch import Tensor

pytestmark = pytest.mark.full

ID = [MetalParameter("id", "uint", "thread_position_in_grid")]


def scaled_pair(x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    return x * factor, (x > 0).to(torch.int32)


def make_pair() -> TorchMetalKernel:
    return TorchMetalKernel(
        "scaled_pair",
        ["x", "factor"],
        ["scaled", "positive"],
        "scaled[id] = x[id] * factor; positive[id] = x[id] > 0;",
        scaled_pair,
        ID,
    )


PAIR = make_pair()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = PAIR

    def forward(self, x):
        scaled, positive = self.kernel(
            x + 1,
            2.5,
            threads_per_grid=(x.numel(), 1, 1),
            threads_per_thread_group=(32, 1, 1),
            result_shapes=[list(x.shape), list(x.shape)],
        )
        return scaled.sin() + positive


@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_export_keeps_one_node_and_the_program_runs(device, tmp_path):
    x = torch.randn(3, 5, device=device)
    program = torch.export.export(Model(), (x,)).run_decompositions()
    nodes = [n for n in program.graph.nodes if n.target is PAIR.torch_custom_op]
    assert len(nodes) == 1
    torch.testing.assert_close(program.module()(x), Model()(x))
    path = tmp_path / "model.pt2"
    torch.export.save(program, path)
    torch.testing.assert_close(torch.export.load(path).module()(x), Model()(x))


@pytest.mark.nightly
def test_an_exported_program_runs_in_a_fresh_process(tmp_path):
    x = torch.randn(4, device="mps")
    torch.export.save(torch.export.export(Model(), (x,)), tmp_path / "model.pt2")
    torch.save((x.cpu(), Model()(x).cpu()), tmp_path / "expected.pt")
    script = f"""
        import torch, metalops
        from torch import Tensor
        def scaled_pair(x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
            return x * factor, (x > 0).to(torch.int32)
        metalops.TorchMetalKernel(
            "scaled_pair", ["x", "factor"], ["scaled", "positive"], {PAIR.src!r}, scaled_pair,
            [metalops.MetalParameter("id", "uint", "thread_position_in_grid")],
        )
        x, expected = torch.load({str(tmp_path / "expected.pt")!r})
        program = torch.export.load({str(tmp_path / "model.pt2")!r})
        torch.testing.assert_close(program.module()(x.to("mps")).cpu(), expected)
        """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)


def test_export_with_dynamic_shapes():
    x = torch.randn(4, 5, device="mps")
    rows = torch.export.Dim("rows", min=2, max=100)
    program = torch.export.export(Model(), (x,), dynamic_shapes=({0: rows},))
    for count in (4, 9):
        x = torch.randn(count, 5, device="mps")
        torch.testing.assert_close(program.module()(x), Model()(x))


def ramp(count: int) -> Tensor:
    return torch.arange(count, dtype=torch.float32)


@pytest.mark.parametrize("strict", [False, True])
def test_a_kernel_without_tensors_among_its_inputs(strict):
    kernel = TorchMetalKernel("ramp_without_inputs", ["count"], ["out"], "out[id] = id;", ramp, ID)

    class Ramp(torch.nn.Module):
        def forward(self, x):
            return x + kernel(
                3,
                threads_per_grid=(3, 1, 1),
                threads_per_thread_group=(1, 1, 1),
                result_shapes=[[3]],
            ).to(x.device)

    x = torch.ones(3, device="mps")
    program = torch.export.export(Ramp(), (x,), strict=strict)
    assert program.module()(x).tolist() == Ramp()(x).tolist() == [1, 2, 3]
    assert torch.compile(Ramp(), fullgraph=True, backend="eager")(x).tolist() == [1, 2, 3]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compile(backend):
    compiled = torch.compile(Model(), fullgraph=True, backend=backend)
    for size in (4, 7, 9):
        x = torch.randn(size, device="mps")
        torch.testing.assert_close(compiled(x), Model()(x))


def test_fake_tensors_and_meta_tensors():
    for device in ("mps", "cpu"):
        with torch._subclasses.FakeTensorMode():
            out = Model()(torch.empty(2, 3, device=device))
        assert (out.shape, out.dtype, out.device.type) == ((2, 3), torch.float32, device)
    out = Model()(torch.empty(2, 3, device="meta"))
    assert (out.shape, out.device.type) == ((2, 3), "meta")


def test_result_shapes_are_checked_while_tracing():
    def call(x):
        return PAIR(
            x,
            1.0,
            threads_per_grid=(4, 1, 1),
            threads_per_thread_group=(1, 1, 1),
            result_shapes=[[4], [5]],
        )

    with torch._subclasses.FakeTensorMode(), pytest.raises(ValueError, match="scaled_pair"):
        call(torch.empty(4, device="mps"))


def test_opcheck():
    x = torch.randn(6, device="mps")
    arguments = (x, 2.0, [6, 1, 1], [1, 1, 1], [6], [6])
    torch.library.opcheck(PAIR.torch_custom_op, arguments)


def _mixed(x: Tensor, y: Tensor, n: int) -> tuple[Tensor, Tensor]:
    return x * y * n, x + y


def _mixed_backward(grad_outputs, inputs, outputs):
    (product, total), (x, y, n) = grad_outputs, inputs
    return [product * y * n + total, product * x * n + total]


def test_the_operator_of_a_kernel_with_a_gradient():
    kernel = TorchMetalKernel(
        "mixed",
        ["x", "y", "n"],
        ["product", "total"],
        "product[id] = x[id] * y[id] * n; total[id] = x[id] + y[id];",
        _mixed,
        ID,
        backward=_mixed_backward,
    )
    launch = ([6, 1, 1], [1, 1, 1], [2, 3], [2, 3])
    for device in ("mps", "cpu"):
        x = torch.randn(2, 3, device=device, requires_grad=True)
        y = torch.randn(3, 2, device=device).t().requires_grad_()
        # torch's check of the autograd registration does not know mps.
        checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
        torch.library.opcheck(kernel.torch_custom_op, (x, y, 3, *launch), test_utils=checks)

    def run(x, y):
        return kernel.torch_custom_op(x, y, 3, *launch)

    inputs = [torch.randn(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)


@pytest.mark.parametrize(
    ("device", "backend"),
    [
        ("cpu", "aot_eager"),
        # Starts a compiler of C++, which takes seconds.
        pytest.param("cpu", "inductor", marks=pytest.mark.nightly),
        ("mps", "inductor"),
    ],
)
def test_backward_without_a_function_is_an_error_that_names_the_kernel(device, backend):
    x = torch.randn(4, device=device, requires_grad=True)
    for model in (Model(), torch.compile(Model(), backend=backend)):
        out = model(x)
        with pytest.raises(NotImplementedError, match="'scaled_pair' has no backward function"):
            out.sum().backward()
    with torch.no_grad():
        assert not Model()(x).requires_grad


def _product(x: Tensor, y: Tensor, power: int) -> Tensor:
    return x * y**power


def _product_backward(grad_outputs, inputs, outputs):
    (grad,), (x, y, power) = grad_outputs, inputs
    assert len(outputs) == 1
    return grad * y**power, grad * x * power * y ** (power - 1)


def test_backward_with_a_function():
    kernel = TorchMetalKernel(
        "product",
        ["x", "y", "power"],
        ["out"],
        "float p = 1; for (int i = 0; i < power; ++i) p *= y[id]; out[id] = x[id] * p;",
        _product,
        ID,
        backward=_product_backward,
    )

    def run(x, y):
        return kernel(
            x,
            y,
            3,
            threads_per_grid=(5, 1, 1),
            threads_per_thread_group=(5, 1, 1),
            result_shapes=[[5]],
        )

    for function in (run, torch.compile(run, fullgraph=True, backend="aot_eager")):
        x = torch.randn(5, device="mps", requires_grad=True)
        y = torch.randn(5, device="mps", requires_grad=True)
        weight = torch.randn(5, device="mps")
        expected = torch.autograd.grad((_product(x, y, 3) * weight).sum(), (x, y))
        actual = torch.autograd.grad((function(x, y) * weight).sum(), (x, y))
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(
            torch.autograd.grad((function(x, y.detach()) * weight).sum(), x), expected[:1]
        )


def test_transforms_of_torch_func():
    kernel = TorchMetalKernel(
        "squares",
        ["x"],
        ["out"],
        "out[id] = x[id] * x[id];",
        squares,
        ID,
        backward=lambda grads, inputs, outputs: grads[0] * 2 * inputs[0],
    )

    def total(x):
        return kernel(
            x,
            threads_per_grid=(4, 1, 1),
            threads_per_thread_group=(4, 1, 1),
            result_shapes=[[4]],
        ).sum()

    x = torch.randn(3, 4, device="mps")
    torch.testing.assert_close(torch.func.grad(total)(x[0]), 2 * x[0])
    torch.testing.assert_close(torch.vmap(torch.func.grad(total))(x), 2 * x)
    torch.testing.assert_close(
        torch.autograd.functional.hessian(total, x[0]), 2 * torch.eye(4, device="mps")
    )
    with pytest.raises(NotImplementedError, match="'squares' has no forward-mode gradient"):
        torch.func.jvp(total, (x[0],), (x[0],))


def squares(x: Tensor) -> Tensor:
    return x * x


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([None, None, None], "each of the 2 inputs, but returned 3"),
        ([torch.ones(2)], r"shape \[2\] for an input of shape \[4\]"),
        ([None, torch.ones(())], "input of shape none, a scalar"),
    ],
)
def test_backward_that_returns_the_wrong_gradients(returned, message):
    kernel = TorchMetalKernel(
        "scaled_pair",
        PAIR.input_names,
        PAIR.result_names,
        PAIR.src,
        scaled_pair,
        ID,
        backward=lambda *_: returned,
    )
    x = torch.randn(4, requires_grad=True)
    scaled, _ = kernel(
        x,
        1.0,
        threads_per_grid=(4, 1, 1),
        threads_per_thread_group=(1, 1, 1),
        result_shapes=[[4], [4]],
    )
    try:
        with pytest.raises(ValueError, match=message):
            scaled.sum().backward()
    finally:
        make_pair()


def test_vmap_runs_the_kernel_for_each_slice():
    x = torch.randn(3, 4, device="mps")
    torch.testing.assert_close(torch.vmap(Model())(x), Model()(x))


def test_kernels_are_pickled_and_copied_with_their_functions():
    for kernel in (pickle.loads(pickle.dumps(PAIR)), copy.deepcopy(PAIR)):
        assert kernel.torch_custom_op is PAIR.torch_custom_op
        assert kernel.torch_defn is scaled_pair
        assert repr(kernel) == repr(PAIR)
    model = copy.deepcopy(Model())
    x = torch.randn(4, device="mps")
    torch.testing.assert_close(model(x), Model()(x))


def test_repr_tells_inputs_and_results():
    assert repr(PAIR) == (
        "TorchMetalKernel('scaled_pair', (x: Tensor, factor: float) -> (scaled, positive))"
    )


def test_source_is_what_a_call_compiles():
    x = torch.randn(2, 3, device="mps").half()
    text = PAIR.source(x, 1.0, result_shapes=[[2, 3], [2, 3]])
    assert "device half* metalops_x [[buffer(0)]]" in text
    assert "uint id [[thread_position_in_grid]]" in text
    assert PAIR.src in text
    torch.mps.compile_shader(text)
    launch = {"threads_per_grid": (6, 1, 1), "threads_per_thread_group": (6, 1, 1)}
    assert PAIR.source(x, 1.0, **launch, result_shapes=[[2, 3], [2, 3]]) == text


def test_threads_share_a_kernel():
    def double(x: Tensor) -> Tensor:
        return x * 2

    kernel = TorchMetalKernel(
        "doubled_in_threads", ["x"], ["out"], "out[id] = 2 * x[id];", double, ID
    )
    failures = []

    def work(size):
        for _ in range(20):
            x = torch.randn(size, device="mps")
            out = kernel(
                x,
                threads_per_grid=(size, 1, 1),
                threads_per_thread_group=(1, 1, 1),
                result_shapes=[[size]],
            )
            if not torch.equal(out, x * 2):
                failures.append(size)

    threads = [threading.Thread(target=work, args=(size,)) for size in (3, 4, 5, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_one_kernel_for_each_combination_of_ranks_and_dtypes(monkeypatch):
    def double(x: Tensor) -> Tensor:
        return x * 2

    compiled = []
    compile_shader = torch.mps.compile_shader
    monkeypatch.setattr(
        torch.mps,
        "compile_shader",
        lambda text: (compiled.append(text), compile_shader(text))[1],
    )
    kernel = TorchMetalKernel("doubled", ["x"], ["out"], "out[id] = 2 * x[id];", double, ID)
    assert not compiled

    def run(*shape, dtype=torch.float32):
        x = torch.ones(shape, device="mps", dtype=dtype)
        kernel(
            x,
            threads_per_grid=(x.numel(), 1, 1),
            threads_per_thread_group=(1, 1, 1),
            result_shapes=[list(shape)],
        )
        return len(compiled)

    assert [run(3), run(4), run(1), run(2, 2), run(3, 2)] == [1, 1, 1, 2, 2]
    assert run(3, dtype=torch.int32) == 3
    double_again = TorchMetalKernel("doubled", ["x"], ["out"], "out[id] = 2 * x[id];", double, ID)
    assert double_again.name == "doubled"
    assert run(3) == 3


def test_to_coreai_names_the_package_that_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "coreai_torch", None)
    with pytest.raises(ImportError, match="'scaled_pair': to_coreai needs .* coreai_torch"):
        PAIR.to_coreai()


def test_to_coreai_builds_the_same_kernel_and_export_records_it(monkeypatch):
    calls = []

    class TheirParameter:
        def __init__(self, name, msl_type, attribute):
            self.values = (name, msl_type, attribute)

    class TheirKernel:
        def __init__(self, name, input_names, result_names, src, torch_defn, **options):
            self.arguments = (name, input_names, result_names, src, torch_defn)
            self.options = options

        def __call__(self, x, factor, **launch):
            calls.append(launch)
            return scaled_pair(x, factor)

    module = types.ModuleType("coreai_torch")
    module.TorchMetalKernel, module.MetalParameter = TheirKernel, TheirParameter
    monkeypatch.setitem(sys.modules, "coreai_torch", module)
    kernel = make_pair()
    theirs = kernel.to_coreai()
    assert theirs is kernel.to_coreai()
    assert theirs.arguments == (
        "scaled_pair",
        ["x", "factor"],
        ["scaled", "positive"],
        PAIR.src,
        scaled_pair,
    )
    assert [p.values for p in theirs.options.pop("metal_params")] == [
        ("id", "uint", "thread_position_in_grid")
    ]
    assert theirs.options == {"helper_src": None, "template_dtypes": {}}

    model = Model()
    model.kernel = kernel
    x = torch.randn(4)
    model(x)
    assert not calls
    torch.export.export(model, (x,))
    assert calls == [
        {
            "threads_per_grid": (4, 1, 1),
            "threads_per_thread_group": (32, 1, 1),
            "result_shapes": [[4], [4]],
        }
    ]


def test_it_is_exported_from_the_package():
    assert metalops.TorchMetalKernel is metalops.kernel.TorchMetalKernel
    assert metalops.MetalParameter is metalops.kernel.MetalParameter
