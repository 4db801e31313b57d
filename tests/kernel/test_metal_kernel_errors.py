"""metal_kernel: what is wrong is refused with its name, before anything runs."""

import pickle
import re

import metalops
import pytest
import torch

SOURCE = "uint i = thread_position_in_grid.x; out[i] = x[i];"


def make(name="k", input_names=("x",), output_names=("out",), source=SOURCE, **options):
    return metalops.metal_kernel(name, list(input_names), list(output_names), source, **options)


def run(kernel, **changed):
    """A valid call with something changed."""
    arguments = {
        "inputs": [torch.ones(4, device="mps")],
        "output_shapes": [(4,)],
        "output_dtypes": [torch.float32],
        "grid": (4, 1, 1),
        "threadgroup": (4, 1, 1),
    }
    return kernel(**{**arguments, **changed})


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"name": "my kernel"}, ValueError, "name 'my kernel' is not an identifier"),
        ({"name": "kernel"}, ValueError, "name 'kernel' is a word that Metal reserves"),
        ({"name": 3}, TypeError, "name must be a string, but got 3"),
        ({"input_names": ["2x"]}, ValueError, "input name '2x' is not an identifier"),
        ({"input_names": ["half"]}, ValueError, "input name 'half' is a word that Metal reserves"),
        ({"input_names": [None]}, TypeError, "input name must be a string"),
        ({"input_names": ["x", "x"]}, ValueError, "'x' occurs twice in input_names"),
        ({"output_names": ["x"]}, ValueError, "'x' occurs twice in input_names and output_names"),
        ({"output_names": []}, ValueError, "output_names must not be empty"),
        ({"output_names": ["device"]}, ValueError, "output name 'device' is a word"),
        (
            {"input_names": ["grid_size"]},
            ValueError,
            "input name 'grid_size' is a thread attribute",
        ),
        ({"inout_names": ["out"]}, ValueError, "'out' occurs twice"),
        ({"inout_names": ["s", "s"]}, ValueError, "'s' occurs twice in inout_names"),
        ({"source": b"out[0] = 1;"}, TypeError, "source must be a string of Metal code"),
        ({"source": None}, TypeError, "source must be a string of Metal code"),
        ({"header": 1}, TypeError, "header must be a string of Metal code"),
        ({"compile_options": {"fast": True}}, ValueError, "the key 'math_mode' alone, got 'fast'"),
        ({"compile_options": {"math_mode": "quick"}}, ValueError, "safe, relaxed or fast, but got"),
        ({"compile_options": "fast"}, ValueError, "compile_options must be a dict, but got 'fast'"),
        (
            {"compile_options": [("math_mode", "fast")]},
            ValueError,
            "compile_options must be a dict",
        ),
        ({"compile_options": 5}, ValueError, "compile_options must be a dict, but got 5"),
        ({"backward": "x"}, TypeError, "backward must be a function, but got 'x'"),
    ],
)
def test_a_kernel_that_cannot_be(changed, error, message):
    with pytest.raises(error, match=f"metal_kernel .*{re.escape(message)}"):
        make(**changed)


@pytest.mark.parametrize("argument", ["input_names", "output_names", "inout_names"])
def test_names_are_a_list(argument):
    arguments = {"input_names": ["x"], "output_names": ["out"], argument: "xyz"}
    with pytest.raises(TypeError, match=f"{argument} must be a list of names, but got 'xyz'"):
        metalops.metal_kernel("k", source=SOURCE, **arguments)


def cpu():
    return torch.ones(4)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"inputs": []}, ValueError, "inputs must have 1 entries (x), but has 0"),
        ({"inputs": torch.ones(1)}, TypeError, "inputs must be a list, but got Tensor"),
        (
            {"inputs": [torch.ones(4)]},
            RuntimeError,
            "input 'x' must be an mps or cuda tensor, but is on cpu",
        ),
        ({"inputs": [torch.tensor(1.0)]}, RuntimeError, "input 'x' must be an mps or cuda tensor"),
        ({"inputs": [torch.ones(4, device="meta")]}, RuntimeError, "but is on meta"),
        (
            {"inputs": [[1.0, 2.0]]},
            TypeError,
            "input 'x' must be an mps or cuda tensor, a texture, a sampler or a Python scalar",
        ),
        ({"inputs": [None]}, TypeError, "but got NoneType"),
        ({"inputs": ["1"]}, TypeError, "but got str"),
        ({"inputs": [2**63]}, ValueError, "input 'x' is 9223372036854775808, which is no 64-bit"),
        ({"output_shapes": []}, ValueError, "output_shapes must have 1 entries (out), but has 0"),
        ({"output_shapes": [(4,), (4,)]}, ValueError, "output_shapes must have 1 entries"),
        ({"output_shapes": [4]}, TypeError, "the shape of output 'out' must be a list of integers"),
        ({"output_shapes": [(2.5,)]}, TypeError, "the shape of output 'out' must hold integers"),
        ({"output_shapes": [(-1,)]}, ValueError, "must hold integers of at least 0, but got -1"),
        ({"output_dtypes": []}, ValueError, "output_dtypes must have 1 entries (out), but has 0"),
        (
            {"output_dtypes": ["float32"]},
            ValueError,
            "output 'out': unknown pixel format 'float32'",
        ),
        (
            {"output_dtypes": [torch.float64]},
            TypeError,
            "is torch.float64, which Metal has no type for",
        ),
        ({"grid": (4, 1)}, ValueError, "grid must have 3 entries (x, y, z), but got (4, 1)"),
        ({"grid": 4}, TypeError, "grid must be a list of integers, but got 4"),
        ({"grid": (4, 1, -1)}, ValueError, "grid must hold integers of at least 0, but got -1"),
        ({"grid": (4.5, 1, 1)}, TypeError, "grid must hold integers, but got 4.5"),
        ({"grid": (2**32, 1, 1)}, ValueError, "grid must hold 32-bit integers"),
        ({"threadgroup": (4, 1, 1, 1)}, ValueError, "threadgroup must have 3 entries"),
        ({"threadgroup": (0, 1, 1)}, ValueError, "threadgroup must hold integers of at least 1"),
        ({"threadgroup": None}, TypeError, "threadgroup must be a list of integers"),
        (
            {"grid": (2048, 2, 1), "threadgroup": (1024, 2, 1)},
            ValueError,
            "a threadgroup of (1024, 2, 1) has 2048 threads, but the kernel takes at most 1024",
        ),
        ({"template": [("T", 1.5)]}, ValueError, "template argument 'T' must be a bool, an int or"),
        ({"template": [("T", "float")]}, ValueError, "template argument 'T' must be a bool"),
        ({"template": [("T", torch.float64)]}, TypeError, "template argument 'T' is torch.float64"),
        ({"template": [("N", 2**31)]}, ValueError, "'N' is 2147483648, which is no 32-bit int"),
        (
            {"template": [("N",)]},
            ValueError,
            "template must hold pairs (name, value), but got ('N',)",
        ),
        ({"template": {"N": 1}}, TypeError, "template must be a list of pairs"),
        (
            {"template": [("x", 1)]},
            ValueError,
            "'x' occurs twice in input names and template names",
        ),
        ({"template": [("N", 1), ("N", 2)]}, ValueError, "'N' occurs twice in template names"),
        (
            {"template": [("int", 1)]},
            ValueError,
            "template name 'int' is a word that Metal reserves",
        ),
        ({"template": [("grid_size", 1)]}, ValueError, "template name 'grid_size' is a thread"),
        ({"template": [("N", [1])]}, ValueError, "template argument 'N' must be a bool"),
        ({"init_value": "0"}, TypeError, "init_value must be a number, but got '0'"),
        ({"device": "cpu"}, ValueError, "runs on mps and on cuda, not on device='cpu'"),
    ],
)
def test_a_call_that_cannot_be(changed, error, message):
    with pytest.raises(error, match=f"^metal_kernel 'k': .*{re.escape(message)}"):
        run(make(), **changed)


def test_a_call_takes_keywords_alone():
    with pytest.raises(TypeError, match="positional"):
        make()([torch.ones(4, device="mps")])


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64, torch.complex64])
def test_atomic_outputs_of_a_dtype_without_atomics(dtype):
    kernel = make(atomic_outputs=True)
    with pytest.raises(TypeError, match=f"output 'out' is {dtype}, which Metal has no atomic type"):
        run(kernel, output_dtypes=[dtype])


def names(count):
    return [f"x{i}" for i in range(count)]


def test_31_buffers_are_the_most():
    total = " + ".join(f"{name}[0]" for name in names(30))
    inputs = [torch.ones(4, device="mps")] * 30
    (out,) = run(
        make(input_names=names(30), source=f"out[thread_position_in_grid.x] = {total};"),
        inputs=inputs,
    )
    assert out[0].item() == 30
    kernel = make(
        input_names=names(30), source=f"out[thread_position_in_grid.x] = x3_shape[0] + {total};"
    )
    message = (
        r"needs 32 buffers \(30 inputs, 1 outputs, 1 shapes, strides, ndims and tensors\), "
        "but Metal has 31"
    )
    with pytest.raises(ValueError, match=message):
        run(kernel, inputs=inputs)


@pytest.mark.parametrize("where", ["source", "header"])
def test_a_compile_error_has_the_line_of_the_text_with_the_mistake(where):
    text = "\n// first\n  float y = missing;\n"
    options = (
        {"source": text}
        if where == "source"
        else {"header": f"void f() {{{text}}}", "source": "f();"}
    )
    with pytest.raises(SyntaxError, match=rf"k\.{where}:3:\d+: error: .*missing"):
        run(make(**options))


def test_a_mistake_in_a_template_has_its_line_too():
    kernel = make(source="\n\nT y = x[0];\nout[0] = y + missing;")
    with pytest.raises(SyntaxError, match=r"k\.source:4:\d+: error: .*missing"):
        run(kernel, template=[("T", torch.float32)])


@pytest.mark.parametrize("source", ["out[0] = 1; }", "if (true) {", "out[0] = (1;"])
def test_unbalanced_text(source):
    with pytest.raises(SyntaxError):
        run(make(source=source))


def test_a_kernel_whose_text_was_wrong_says_so_again():
    kernel = make(source="missing();")
    for _ in range(2):
        with pytest.raises(SyntaxError, match="missing"):
            run(kernel)


def test_wrong_calls_after_a_right_one():
    kernel = make()
    run(kernel)
    with pytest.raises(ValueError, match="grid must have 3 entries"):
        run(kernel, grid=(4, 1))
    with pytest.raises(RuntimeError, match="must be an mps or cuda tensor"):
        run(kernel, inputs=[torch.ones(4)])
    with pytest.raises(TypeError, match="init_value must be a number"):
        run(kernel, init_value=[1])


def test_wrong_arguments_of_source():
    kernel = make()
    with pytest.raises(ValueError, match="inputs must have 1 entries"):
        kernel.source(
            inputs=[],
            output_shapes=[(4,)],
            output_dtypes=[torch.int32],
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
        )


def test_a_gradient_that_cannot_be_pickled():
    kernel = make(backward=lambda grads, inputs, outputs: [grads[0]])
    message = "metal_kernel 'k' cannot be pickled with its backward function"
    with pytest.raises(pickle.PicklingError, match=message):
        pickle.dumps(kernel)


def inout_kernel(**options):
    return make(
        input_names=[], inout_names=["state"], source="out[0] = state[0]; state[0] = 1;", **options
    )


@pytest.mark.parametrize(
    ("state", "options", "error", "message"),
    [
        (lambda: 1.0, {}, TypeError, "'state' is written in place and must be a tensor"),
        (
            lambda: torch.ones(4, 4, device="mps").t()[1:],
            {},
            ValueError,
            "'state' is written in place and must be row-contiguous, but has shape (3, 4)",
        ),
        (
            lambda: torch.ones(1, device="mps").expand(4),
            {"ensure_row_contiguous": False},
            ValueError,
            "several of its elements lie in the same place",
        ),
        (
            lambda: torch.ones(4, device="mps", dtype=torch.complex64).conj(),
            {},
            ValueError,
            "is a conjugate or negative view",
        ),
    ],
)
def test_a_tensor_that_cannot_be_written_in_place(state, options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        run(inout_kernel(**options), inputs=[state()])
