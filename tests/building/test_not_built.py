"""What works in a source tree of which nothing is compiled, and what the rest says."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import metalops
import pytest
from metalops.cuda import nvrtc

needs_nvrtc = pytest.mark.skipif(
    not nvrtc.is_available(), reason="NVRTC is not installed: pip install nvidia-cuda-nvrtc"
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The Python folder of a source tree with a copy of the package without what setup.py makes."""
    folder = tmp_path_factory.mktemp("tree")
    made = ("*.so", "_C.kernels", "_build_info.py", "_stock_overloads.py", "__pycache__", "kernels")
    package = os.path.dirname(metalops.__file__)
    ignored = shutil.ignore_patterns(*made)
    shutil.copytree(package, folder / "python" / "metalops", ignore=ignored)
    for name in ("csrc", "kernels"):
        (folder / name).symlink_to(Path(__file__).parents[2] / name)
    return folder / "python"


def run(tree, *arguments):
    environment = {
        **os.environ,
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "PYTHONPATH": os.pathsep.join(
            [str(tree), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        ),
    }
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def run_program(tree, text):
    result = run(tree, "-c", f"import metalops, torch\n{text}")
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.sampled(4)
@pytest.mark.full
@pytest.mark.parametrize(
    "use",
    [
        "metalops._C",
        "metalops.coverage",
        "metalops.debug.standins().__enter__()",
        "import metalops._torch.software_device",
    ],
)
def test_what_needs_the_compiled_parts_says_how_to_build_them(tree, use):
    result = run(tree, "-c", f"import metalops\n{use}")
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("ImportError: metalops has not been built")
    assert "`pip install .`" in last and "`python setup.py build_ext --inplace`" in last


OPERATORS = """
from metalops import ops
x = torch.linspace(-3, 3, 8, requires_grad=True)
y = torch.linspace(1, 2, 8)
ops.swiglu(x, y).sum().backward()
expected = torch.linspace(-3, 3, 8, requires_grad=True)
(torch.nn.functional.silu(expected) * y).sum().backward()
torch.testing.assert_close(x.grad, expected.grad)
plain = x.detach()
silu = torch.nn.functional.silu
torch.testing.assert_close(ops.silu_and_mul(plain.reshape(2, 4)), silu(plain.reshape(2, 4)[:, :2]) * plain.reshape(2, 4)[:, 2:])
# out=, in place, recorded in place
out = torch.empty(0)
ops.gelu_new(y, out=out)
inplace = y.clone()
ops.gelu_new_(inplace)
assert inplace._version > 0 and torch.equal(inplace, out)
recorded = x * 1
ops.softcap_(recorded, 2.0)
(gradient,) = torch.autograd.grad(recorded.sum(), x)
torch.testing.assert_close(gradient, 1 - torch.tanh(plain / 2) ** 2)
try:
    ops.gelu_new(x, out=out)
except RuntimeError as error:
    assert "don't support automatic differentiation" in str(error)
# numbers that are the default, in backward too
halved = torch.linspace(-3, 3, 8, requires_grad=True)
ops.fatrelu_and_mul(halved).sum().backward()
torch.testing.assert_close(halved.grad[4:], torch.relu(plain[:4]))
# forward mode is refused, not forgotten
try:
    torch.func.jvp(ops.gelu_new, (y,), (y,))
except NotImplementedError as error:
    assert "forward AD with metalops::gelu_new" in str(error)
else:
    raise AssertionError("a tangent was lost")
# derivatives of any order, vmap, compile
(first,) = torch.autograd.grad(ops.relu_squared(x).sum(), x, create_graph=True)
(second,) = torch.autograd.grad(first.sum(), x)
torch.testing.assert_close(second, 2.0 * (plain > 0))
assert torch.vmap(ops.gelu_new)(plain.reshape(2, 4)).shape == (2, 4)
compiled = torch.compile(ops.swiglu, backend="aot_eager", fullgraph=True)
torch.testing.assert_close(compiled(x, y), ops.swiglu(x, y))
# operators that are not pointwise
tokens = torch.randn(1, 2, 5, 8, requires_grad=True)
ops.attention(tokens, tokens, tokens, is_causal=True).sum().backward()
expected = tokens.detach().clone().requires_grad_()
torch.nn.functional.scaled_dot_product_attention(expected, expected, expected, is_causal=True).sum().backward()
torch.testing.assert_close(tokens.grad, expected.grad)
print("done")
"""


@pytest.mark.nightly
def test_operators_run_on_the_cpu(tree):
    assert run_program(tree, OPERATORS) == "done\n"


GRADIENTS = """
from metalops.ops._define.pointwise import declared
numbers = {"softcap": [2.0], "fatrelu_and_mul": [0.25], "swiglu_clamped": [0.5]}
for name, d in declared.items():
    def call(*inputs):
        return d.function(*inputs, *numbers.get(name, []))

    inputs = [torch.randn(3, 6, requires_grad=True) for _ in range(d.operands)]
    grad = torch.randn(call(*inputs).shape)
    first = torch.autograd.grad(call(*inputs), inputs, grad)
    formula = torch.autograd.grad(call(*inputs), inputs, grad, create_graph=True)
    torch.testing.assert_close(first, formula)
    assert not any(x.requires_grad for x in first) and all(x.requires_grad for x in formula[:2])
    # of the last operand alone, broadcast and of another dtype
    *others, last = inputs
    last = last.detach()[:1].half().requires_grad_()
    (alone,) = torch.autograd.grad(call(*(x.detach() for x in others), last).sum(), last)
    assert alone.dtype == torch.half and alone.shape == last.shape
    gradient = getattr(torch.ops.metalops, f"{'gelu_new' if name == 'gelu_fast' else name}_backward")
    assert gradient.default._schema.arguments[0].name == "grad_output"
print("done")
"""


@pytest.mark.nightly
def test_gradients_are_computed_by_operators_of_their_own(tree):
    assert run_program(tree, GRADIENTS) == "done\n"


@pytest.mark.full
def test_kernels_of_python_can_be_made(tree):
    text = """
kernel = metalops.metal_kernel("scale", ["x"], ["y"], "y[thread_position_in_grid.x] = 2 * x[thread_position_in_grid.x];")
print(kernel)
import metalops.cuda, metalops.msl
print(callable(metalops.TorchMetalKernel), "build" in dir(metalops))
"""
    assert run_program(tree, text) == "<MetalKernel 'scale'; x -> y>\nTrue True\n"


@pytest.mark.full
def test_info_says_what_is_there(tree):
    result = run(tree, "-m", "metalops", "info")
    assert result.returncode == 0, result.stderr
    assert "no mps device" in result.stdout
    assert "none: metalops has not been built" in result.stdout
    assert "NVRTC" in result.stdout


@pytest.mark.nightly
def test_the_front_end_works(tree):
    (tree / "good.metal").write_text("kernel void k(device float* x) { x[0] = 1; }\n")
    (tree / "bad.metal").write_text("kernel void k(device float* x) { x[0] = missing; }\n")
    good, bad = (
        run(tree, "-m", "metalops", "compile", "good.metal"),
        run(tree, "-m", "metalops", "compile", "bad.metal"),
    )
    assert good.returncode == 0 and (tree / "good.so").exists(), good.stderr
    assert bad.returncode == 1 and "missing" in bad.stderr
    assert run(tree, "-m", "metalops", "check", "good.metal").returncode == 0


@pytest.mark.full
@needs_nvrtc
def test_metal_compiles_for_gpus(tree):
    text = """
from metalops.cuda.library import Library
print(Library("kernel void k(device float* x) { x[0] = 1; }").compile("sm_90")[:4])
"""
    assert run_program(tree, text) == "b'\\x7fELF'\n"


FUNCTOR = """
from metalops.kernel.functor import cuda_launch

# What the kernels compute on a GPU, on the CPU, for which they are registered here too.
def compute(self, outputs, inputs, scalars):
    if self._name.endswith("_backward"):
        grad, x, y = inputs
        outputs[0].copy_(grad * y)
        outputs[1].copy_(grad * x)
    else:
        outputs[0].copy_(inputs[0] * inputs[1] + scalars[0])

cuda_launch.Launcher.__call__ = compute
product = metalops.functor(
    "product", "x * y + a", inputs=("x", "y"), params={"a": 1.0}, grad=("grad * y", "grad * x"), autocast="float32"
)
from metalops.kernel.functor.functor import _implement
_implement(product.definition, product.definition.backward_schema({"x", "y"}), {"x", "y"}, "CPU")
x, y = torch.randn(3, 4, requires_grad=True), torch.randn(4)
torch.testing.assert_close(product(x, y), x * y + 1)
torch.testing.assert_close(product(x, y, a=-2), x * y - 2)
(gradient,) = torch.autograd.grad(product(x, y, a=5.0).square().sum(), x, create_graph=True)
torch.testing.assert_close(gradient, 2 * (x * y + 5) * y)
(second,) = torch.autograd.grad(gradient.sum(), x)
torch.testing.assert_close(second, (2 * y * y).expand(3, 4))
out = torch.empty(0)
assert product(y, 2.0, out=out) is out
torch.testing.assert_close(out, 2 * y + 1)
z = y.clone()
product.inplace(z, y)
torch.testing.assert_close(z, y * y + 1)
compiled = torch.compile(lambda x, y: product(x, y), backend="aot_eager", fullgraph=True)
torch.testing.assert_close(compiled(x, y), x * y + 1)
predicate = metalops.functor("positive", "x > 0", result="bool")
print(predicate, product.source(torch.float16).count("kernel void") > 0)
"""


@pytest.mark.nightly
def test_functors_are_defined(tree):
    expected = "<metalops.functor metalops_functors::positive(Tensor x) -> Tensor> True\n"
    assert run_program(tree, FUNCTOR) == expected
