"""TorchMetalKernel: what it refuses, and how."""

from __future__ import annotations

import re

import pytest
import torch
from metalops import MetalParameter, TorchMetalKernel
from torch import Tensor

ID = MetalParameter("id", "uint", "thread_position_in_grid")


def add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def build(name="refused", **changes):
    arguments = {
        "input_names": ["x", "y"],
        "result_names": ["out"],
        "src": "out[id] = x[id] + y[id];",
        "torch_defn": add,
        "metal_params": [ID],
    }
    return TorchMetalKernel(name, **{**arguments, **changes})


def no_annotation(x, y: Tensor) -> Tensor: ...
def wrong_annotation(x: Tensor, y: str) -> Tensor: ...
def missing_name(x: Tensor, y: Nowhere) -> Tensor: ...  # noqa: F821
def variadic(x: Tensor, *rest: Tensor) -> Tensor: ...
def keyword_only(x: Tensor, *, y: Tensor) -> Tensor: ...
def one(x: Tensor) -> Tensor: ...
def no_return(x: Tensor, y: Tensor): ...
def returns_int(x: Tensor, y: Tensor) -> int: ...
def returns_any_number(x: Tensor, y: Tensor) -> tuple[Tensor, ...]: ...
def returns_list_of_int(x: Tensor, y: Tensor) -> list[int]: ...
def returns_two(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]: ...


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"name": ""}, ValueError, "name must not be empty"),
        ({"name": "  "}, ValueError, "name must not be empty"),
        ({"name": 3}, TypeError, "name must be a string, but got 3"),
        ({"name": "my kernel"}, ValueError, "name 'my kernel' is not an identifier"),
        ({"name": "kernel"}, ValueError, "'kernel' is a word that Metal reserves"),
        ({"result_names": []}, ValueError, "at least one result"),
        ({"input_names": "xy"}, TypeError, "input_names must be a list of strings, but got 'xy'"),
        ({"input_names": ["x", 3]}, TypeError, "input name must be a string, but got 3"),
        ({"input_names": ["x", "half"]}, ValueError, "'half' is a word that Metal reserves"),
        ({"input_names": ["x", "x"]}, ValueError, "'x' occurs twice in input_names"),
        ({"result_names": ["o", "o"]}, ValueError, "'o' occurs twice in result_names"),
        ({"result_names": ["y"]}, ValueError, "'y' occurs twice in input_names and result_names"),
        ({"input_names": ["x", "id"]}, ValueError, "'id' occurs twice in .*metal_params"),
        ({"src": None}, TypeError, "src must be a string"),
        ({"helper_src": b""}, TypeError, "helper_src must be a string"),
        ({"torch_defn": None}, TypeError, "torch_defn must be a function, but got None"),
        ({"torch_defn": no_annotation}, TypeError, "'x' of torch_defn .* no annotation"),
        ({"torch_defn": wrong_annotation}, TypeError, "'y' of torch_defn .* annotation is str"),
        ({"torch_defn": missing_name}, TypeError, "cannot be evaluated .*Nowhere"),
        ({"torch_defn": variadic}, TypeError, "rest.* of torch_defn is variadic"),
        ({"torch_defn": keyword_only}, TypeError, "y.* of torch_defn is keyword-only"),
        ({"torch_defn": one}, ValueError, "has 1 parameters, but there are 2 input names"),
        ({"torch_defn": no_return}, TypeError, "annotated to return .* no annotation"),
        ({"torch_defn": returns_int}, TypeError, "annotated to return .* is int"),
        ({"torch_defn": returns_any_number}, TypeError, r"annotated to return .*\.\.\."),
        ({"torch_defn": returns_list_of_int}, TypeError, r"annotated to return .* list\[int\]"),
        ({"torch_defn": returns_two}, ValueError, "tuple of 2 tensors, but there are 1 result"),
        (
            {"result_names": ["a", "b"]},
            ValueError,
            "returns one torch.Tensor, but there are 2 result names",
        ),
        ({"metal_params": [("id", "uint")]}, TypeError, "MetalParameter, but it has"),
        ({"metal_params": 3}, TypeError, "must be a list of MetalParameter, but got 3"),
        ({"template_dtypes": {"z": "T"}}, ValueError, "'z', but the inputs are x, y"),
        ({"template_dtypes": {"x": "2T"}}, ValueError, "'2T' is not an identifier"),
        ({"template_dtypes": {"x": "y"}}, ValueError, "'y' occurs twice"),
        ({"template_dtypes": ["x"]}, TypeError, "must be a dict"),
        ({"backward": 3}, TypeError, "backward must be a function, but got 3"),
    ],
)
def test_wrong_definitions(changes, error, message):
    with pytest.raises(error, match=message):
        build(**changes)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("2x", "uint", "thread_position_in_grid"), ValueError, "'2x' is not an identifier"),
        ((3, "uint", "thread_position_in_grid"), TypeError, "name must be a string"),
        (("i", 3, "thread_position_in_grid"), TypeError, "msl_type must be a string, but got 3"),
        (("i", "float", "thread_position_in_grid"), ValueError, "uint or ushort.*'float'"),
        (("i", "uint4", "thread_position_in_grid"), ValueError, "vector of 2 or 3.*'uint4'"),
        (("i", "uint2", "thread_index_in_simdgroup"), ValueError, "uint or ushort, but.*'uint2'"),
        (("i", "uint", "thread_position"), ValueError, "'thread_position' is not .*those are "),
    ],
)
def test_wrong_thread_attributes(arguments, error, message):
    with pytest.raises(error, match=message):
        MetalParameter(*arguments)


def test_at_most_31_buffers():
    def sized(count):
        parameters = ", ".join(f"x{i}: Tensor" for i in range(count))
        scope = {"Tensor": Tensor}
        exec(f"def f({parameters}) -> Tensor: return x0 + x{count - 1}", scope)
        return [f"x{i}" for i in range(count)], scope["f"]

    names, function = sized(29)
    kernel = build(
        "thirty_one",
        input_names=names,
        src="out[id, 0] = x0[id, 0] + x28[id, 0];",
        torch_defn=function,
    )
    inputs = [torch.full((1, 4), float(i), device="mps") for i in range(29)]
    out = kernel(
        *inputs,
        threads_per_grid=(4, 1, 1),
        threads_per_thread_group=(4, 1, 1),
        result_shapes=[[1, 4]],
    )
    assert out.tolist() == [[28.0] * 4]
    with pytest.raises(ValueError, match="30 inputs, 1 results and 1 metal_params are 32 .* 31"):
        names, function = sized(30)
        build(input_names=names, src="", torch_defn=function)


def test_31_tensors_leave_no_buffer_for_their_sizes():
    names = [f"x{i}" for i in range(30)]
    scope = {"Tensor": Tensor}
    parameters = ", ".join(f"{name}: Tensor" for name in names)
    exec(f"def f({parameters}) -> Tensor: return (x0 + x29).t()", scope)
    kernel = build(
        "thirty_one_tensors",
        input_names=names,
        src="""
        for (uint i = 0; i < out.get_extent(0); ++i) {
            for (uint j = 0; j < out.get_extent(1); ++j) out[i, j] = x0[j, i] + x29[j, i];
        }
        """,
        torch_defn=scope["f"],
        metal_params=None,
    )
    for shape in [(2, 3), (3, 5)]:
        inputs = [torch.randn(shape, device="mps") for _ in names]
        out = kernel(
            *inputs,
            threads_per_grid=(1, 1, 1),
            threads_per_thread_group=(1, 1, 1),
            result_shapes=[shape[::-1]],
        )
        torch.testing.assert_close(out, (inputs[0] + inputs[-1]).t())


def scale(x: Tensor, n: int, c: float, flag: bool) -> Tensor:
    return x * n * c


SCALE = TorchMetalKernel(
    "scale_errors",
    ["x", "n", "c", "flag"],
    ["out"],
    "out[id] = x[id] * n * c;",
    scale,
    [ID],
)
LAUNCH = {
    "threads_per_grid": (4, 1, 1),
    "threads_per_thread_group": (1, 1, 1),
    "result_shapes": [[4]],
}


@pytest.mark.parametrize("device", ["cpu", "mps"])
@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"threads_per_grid": (4, 1)}, ValueError, r"threads_per_grid must be a 3-tuple.*\(4, 1\)"),
        ({"threads_per_grid": 4}, ValueError, "threads_per_grid must be a 3-tuple.*got 4"),
        ({"threads_per_thread_group": (4, 1, 1, 1)}, ValueError, "group must be a 3-tuple"),
        ({"threads_per_grid": (4.5, 1, 1)}, TypeError, "threads_per_grid must be three integers"),
        ({"threads_per_grid": (4, -1, 1)}, ValueError, "three integers from 0 to"),
        ({"threads_per_grid": (4, 0, 1)}, ValueError, "has no threads"),
        ({"threads_per_thread_group": (4, 0, 1)}, ValueError, "three integers from 1 to"),
        ({"result_shapes": []}, ValueError, "one shape for each of the results out"),
        ({"result_shapes": [[4], [4]]}, ValueError, "one shape for each of the results out"),
        ({"result_shapes": [4]}, TypeError, "must be a list of sizes, but got 4"),
        ({"result_shapes": [[5]]}, ValueError, r"'out' the shape \[4\].*result_shapes says \[5\]"),
        ({"result_shapes": [[4, 1]]}, ValueError, r"'out' the shape \[4\].*says \[4, 1\]"),
        ({"n": 2**31}, ValueError, "'n' is 2147483648, which an int of Metal cannot hold"),
        ({"n": -(2**31) - 1}, ValueError, "'n' is -2147483649"),
        ({"n": 2.5}, TypeError, "'n' must be of type int, but got 2.5"),
        ({"c": "x"}, TypeError, "'c' must be of type float, but got 'x'"),
        ({"flag": 1}, TypeError, "'flag' must be of type bool, but got 1"),
        ({"x": 2.0}, TypeError, "'x' must be a tensor, but got 2.0"),
    ],
)
def test_wrong_calls(device, changes, error, message):
    inputs = {"x": torch.ones(4, device=device), "n": 2, "c": 1.5, "flag": False}
    launch = dict(LAUNCH)
    for key, value in changes.items():
        (inputs if key in inputs else launch)[key] = value
    with pytest.raises(error, match=message):
        SCALE(*inputs.values(), **launch)


def test_wrong_number_of_inputs():
    x = torch.ones(4, device="mps")
    with pytest.raises(TypeError, match=r"takes 4 inputs \(x, n, c, flag\), but got 1"):
        SCALE(x, **LAUNCH)
    with pytest.raises(TypeError, match="takes 4 inputs"):
        SCALE.source(x, **LAUNCH)
    with pytest.raises(TypeError, match="threads_per_grid"):
        SCALE(x, 1, 1.0, True)


def test_a_threadgroup_that_is_too_large():
    x = torch.ones(4, device="mps")
    with pytest.raises(ValueError, match=r"scale_errors.*\(2048, 1, 1\) is 2048 threads.*at most"):
        SCALE(x, 1, 1.0, True, **{**LAUNCH, "threads_per_thread_group": (2048, 1, 1)})


def test_tensors_of_two_devices():
    kernel = build("two_devices")
    with pytest.raises(RuntimeError, match="two_devices.*one device, but got x on mps:0, y on cpu"):
        kernel(torch.ones(4, device="mps"), torch.ones(4), **LAUNCH)


def test_an_empty_result_needs_no_threads():
    kernel = build("empty_result")
    for device in ("cpu", "mps"):
        x = torch.ones(0, 3, device=device)
        launch = {**LAUNCH, "threads_per_grid": (0, 1, 1), "result_shapes": [[0, 3]]}
        out = kernel(x, x, **launch)
        assert (out.shape, out.device.type) == ((0, 3), device)


def test_a_result_of_a_dtype_that_metal_lacks():
    def double(x: Tensor) -> Tensor:
        return x.double()

    kernel = build("doubles", input_names=["x"], src="out[id] = x[id];", torch_defn=double)
    with pytest.raises(TypeError, match="result 'out' is torch.float64"):
        kernel(torch.ones(4, device="mps"), **LAUNCH)


def test_a_reference_that_returns_something_else():
    def wrong_count(x: Tensor) -> list[Tensor]:
        return [x, x]

    kernel = build("wrong_count", input_names=["x"], src="", torch_defn=wrong_count)
    for device in ("cpu", "mps"):
        with pytest.raises(ValueError, match="returned 2 tensors, but there are 1 result names"):
            kernel(torch.ones(4, device=device), **LAUNCH)

    def no_tensor(x: Tensor) -> Tensor:
        return 3

    kernel = build("no_tensor", input_names=["x"], src="", torch_defn=no_tensor)
    for device in ("cpu", "mps"):
        with pytest.raises(TypeError, match="must return tensors, but returned 3"):
            kernel(torch.ones(4, device=device), **LAUNCH)


@pytest.mark.parametrize("device", ["mps", "cpu", "meta"])
@pytest.mark.parametrize("size", [4, 0])
def test_one_name_for_the_types_of_two_inputs(device, size):
    kernel = build("one_type", template_dtypes={"x": "T", "y": "T"})
    x = torch.ones(size, device=device)
    launch = {**LAUNCH, "result_shapes": [[size]]}
    assert kernel(x, x, **launch).shape == (size,)
    message = (
        r"TorchMetalKernel 'one_type': template_dtypes makes 'T' the type of several inputs, but 'y' is half "
        r"\(torch.float16\) and 'x' is float \(torch.float32\)"
    )
    with pytest.raises(ValueError, match=message):
        kernel(x, x.half(), **launch)


def test_one_name_for_the_types_of_two_inputs_is_refused_when_a_graph_is_recorded():
    kernel = build("one_type_recorded", template_dtypes={"x": "T", "y": "T"})

    class Module(torch.nn.Module):
        def forward(self, x, y):
            return kernel(x, y, **LAUNCH)

    x = torch.ones(4, device="mps")
    torch.export.export(Module(), (x, x))
    with pytest.raises(Exception, match="'y' is half .* and 'x' is float"):
        torch.export.export(Module(), (x, x.half()))


def test_one_name_for_the_type_of_a_tensor_and_of_a_number():
    def scaled(x: Tensor, n: int) -> Tensor:
        return x * n

    kernel = build(
        "tensor_and_number",
        input_names=["x", "n"],
        src="out[id] = T(x[id]) * T(n);",
        torch_defn=scaled,
        template_dtypes={"x": "T", "n": "T"},
    )
    x = torch.ones(4, device="mps")
    assert kernel(x.int(), 3, **LAUNCH).tolist() == [3] * 4
    with pytest.raises(ValueError, match=r"'n' is int \(int\) and 'x' is float \(torch.float32\)"):
        kernel(x, 3, **LAUNCH)


def test_metal_that_does_not_compile_shows_the_users_line_and_column():
    x = torch.ones(4, device="mps")
    kernel = build("bad_source", src="\nconst float a = x[id, 0, 1][id, 0];\nout[id] = missing;\n")
    with pytest.raises(SyntaxError) as raised:
        kernel(x, x, **LAUNCH)
    lines = str(raised.value)
    assert re.search(r"bad_source\.src:2:1[78]: error", lines)
    assert re.search(r"bad_source\.src:3:11: error: .*missing", lines)
    kernel = build("bad_helper", helper_src="int f() {\n  return nothing;\n}")
    with pytest.raises(SyntaxError, match=r"bad_helper\.helper_src:2:10: error: .*nothing"):
        kernel(x, x, **LAUNCH)


def test_the_wrong_number_of_indices_is_an_error_of_the_compiler():
    kernel = build("three_indices", src="out[id] = x[id, 0] + y[id, 0, 0];")
    x = torch.ones(2, 2, device="mps")
    with pytest.raises(SyntaxError, match=r"three_indices\.src:1:2[23]: error: no match"):
        kernel(x, x, **{**LAUNCH, "result_shapes": [[2, 2]]})


def test_the_same_name_means_the_same_source():
    x = torch.ones(4, device="mps")
    first = build("named_twice")
    first(x, x, **LAUNCH)
    second = build("named_twice")
    assert second.torch_custom_op is first.torch_custom_op
    for changes, what in [
        ({"src": "out[id] = 0;"}, "src"),
        ({"helper_src": "// "}, "helper_src"),
        ({"metal_params": [MetalParameter("id", "ushort", ID.attribute)]}, "metal_params"),
        ({"template_dtypes": {"x": "T"}}, "template_dtypes"),
        ({"torch_defn": lambda_like}, "signature of torch_defn"),
    ]:
        with pytest.raises(ValueError, match=f"'named_twice' exists already with another {what}"):
            build("named_twice", **changes)
    assert first(x, x, **LAUNCH).tolist() == [2.0] * 4


def lambda_like(x: Tensor, y: float) -> Tensor: ...


def test_source_that_did_not_compile_can_be_replaced():
    x = torch.ones(4, device="mps")
    with pytest.raises(SyntaxError):
        build("corrected", src="out[id] = x[id] + ;")(x, x, **LAUNCH)
    kernel = build("corrected", input_names=["x", "b"], src="out[id] = x[id] + b[id];")
    assert kernel(x, x, **LAUNCH).tolist() == [2.0] * 4
    assert kernel.torch_custom_op(x, x, [4, 1, 1], [1, 1, 1], [4]).tolist() == [2.0] * 4
