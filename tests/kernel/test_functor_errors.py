"""metalops.functor: what it refuses, when, and in which words."""

import uuid

import metalops
import pytest
import torch


def define(name="tests::wrong", text="x", **options):
    return metalops.functor(name, text, **options)


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (TypeError, "name must be a string", {"name": 3}),
        (ValueError, "name 'a b' is not an identifier", {"name": "a b"}),
        (ValueError, "'half' is a word that Metal reserves", {"name": "half"}),
        (ValueError, "the name is a word that Python reserves", {"name": "lambda"}),
        (ValueError, "name '' is not an identifier", {"name": "ns::"}),
        (ValueError, "namespace '2' is not an identifier", {"name": "2::f"}),
        (ValueError, "namespace 'aten' belongs to torch", {"name": "aten::f"}),
        (ValueError, "that of an in-place operator", {"name": "f_"}),
        (ValueError, "already is an operator metalops::gelu_new", {"name": "metalops::gelu_new"}),
        (TypeError, "text must be a string or a sequence of strings", {"text": 1}),
        (TypeError, "text must be a string or a sequence of strings", {"text": ("x", 1)}),
        (ValueError, "at least one expression", {"text": ()}),
        (ValueError, "expression is empty", {"text": " // nothing\n"}),
        (ValueError, "must be one Metal expression, but has a ';'", {"text": "x; y"}),
        (ValueError, r"has a '\)' that closes nothing", {"text": "x) + (x"}),
        (ValueError, r"has a '\(' that is not closed", {"text": "exp(x"}),
        (ValueError, "no struct wrong_functor, but struct right_functor", {"text": "struct right_functor {};"}),
        (ValueError, "at least one tensor", {"inputs": ()}),
        (ValueError, "input name 'kernel' is a word that Metal reserves", {"inputs": "kernel"}),
        (ValueError, "'in' is a word that Python reserves", {"inputs": "in"}),
        (ValueError, "'out' has a meaning of its own", {"inputs": "out"}),
        (ValueError, "'grad' occurs twice in input names and the names of the gradients", {"inputs": "grad"}),
        (ValueError, "'x' occurs twice in input names", {"inputs": ("x", "x")}),
        (ValueError, "'x' occurs twice in input names and parameter names", {"params": {"x": 1.0}}),
        (ValueError, "start with 'metalops_' are taken", {"inputs": "metalops_in0"}),
        (TypeError, "params must be a dict", {"params": ("alpha",)}),
        (TypeError, "parameter 'alpha' must have a bool, an int or a float", {"params": {"alpha": "1"}}),
        (ValueError, "default of parameter 'n' does not fit in 64 bits", {"params": {"n": 2**63}}),
        (ValueError, "default of parameter 'a' must be finite", {"params": {"a": float("inf")}}),
        (ValueError, "one expression for each of the 2 inputs, but has 1", {"inputs": ("x", "y"), "grad": "grad"}),
        (ValueError, r"grad\[0\] is empty", {"grad": ""}),
        (ValueError, "results of dtype bool have no gradients", {"grad": "grad", "result": "bool"}),
        (ValueError, "2 outputs, but 1 expressions", {"outputs": ("a", "b")}),
        (ValueError, "integers must be one of 'float', 'stay', 'refuse', but got 'no'", {"integers": "no"}),
        (ValueError, "complex must be one of False, True, 'only', but got 'yes'", {"complex": "yes"}),
        (ValueError, "result must be one of", {"result": "int"}),
        (ValueError, "autocast must be one of", {"autocast": None}),
        (TypeError, "header must be a string of Metal code", {"header": None}),
        (ValueError, "takes 34 buffers with the layout, but a Metal kernel has at most 31",
         {"inputs": [f"x{i}" for i in range(30)]}),
        (ValueError, "its gradient, 31 tensors", {"inputs": [f"x{i}" for i in range(15)], "grad": ["grad"] * 15}),
    ],
)  # fmt: skip
def test_wrong_definitions_are_refused(error, message, arguments):
    with pytest.raises(error, match=message):
        define(**arguments)


def test_the_same_definition_is_the_same_functor_and_another_one_is_refused():
    first = define("tests::twice", "x + 1", inputs=["x"])
    assert define("tests::twice", "x + 1") is first
    with pytest.raises(
        ValueError,
        match=r"already defined in this process as something else \(with other expressions\)",
    ):
        define("tests::twice", "x + 2")
    assert define("other::twice", "x + 2")(torch.ones(1, device="mps")).item() == 3
    assert first(torch.ones(1, device="mps")).item() == 2


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "place", "arguments"),
    [
        ("bad_text", r"bad_text\.expression:2:3: error: .*missing", {"text": "x +\n  missing(x)"}),
        ("bad_end", r"bad_end\.expression:2:1: error: ", {"text": "x *"}),
        ("bad_first", r"bad_first\.expression\[1\]:1:5: error: .*y", {"text": ("x", "x + y")}),
        ("bad_grad", r"bad_grad\.grad\[1\]:1:8: error: .*missing",
         {"text": "x * z", "inputs": ("x", "z"), "grad": ("grad", "grad * missing")}),
        ("bad_header", r"bad_header\.header:2:27: error: .*missing",
         {"text": "f(x)", "header": "\ninline float f(float x) { missing; }"}),
        ("bad_struct", r"bad_struct\.functor:4:1[34]: error: ",
         {"text": "struct bad_struct_functor {\n  template <typename T>\n  inline T operator()(T x) {\n"
                  "    return x.missing;\n  }\n};"}),
    ],
)  # fmt: skip
def test_metal_errors_show_the_users_own_line(name, place, arguments):
    f = define(f"tests::{name}", **arguments)
    x = [torch.ones(2, device="mps")] * len(f.definition.inputs)
    for call in (f, torch.ops.tests.__getattr__(name)):
        with pytest.raises(SyntaxError, match=place):
            call(*x)


def test_an_expression_that_ends_in_a_comment_is_whole():
    f = define("tests::commented", "x + 1 // one more")
    assert f(torch.ones(1, device="mps")).item() == 2


class TestCalls:
    def setup_method(self):
        self.f = define(
            "tests::calls", "x + scale * y", inputs=("x", "y"), params={"scale": 1.0, "power": 1}
        )
        self.x = torch.ones(3, device="mps")

    @pytest.mark.parametrize(
        ("message", "args", "kwargs"),
        [
            ("missing a required argument: 'y'", 1, {}),
            ("too many positional arguments", 3, {}),
            ("unexpected keyword argument 'alpha'", 2, {"alpha": 1}),
            ("multiple values for argument 'x'", 2, {"x": 1}),
            ("argument 'scale' must be a float, but got '2'", 2, {"scale": "2"}),
            ("argument 'power' must be a int, but got 0.5", 2, {"power": 0.5}),
            ("argument 'out' must be a tensor, but got 3", 2, {"out": 3}),
        ],
    )
    def test_wrong_arguments_are_type_errors(self, message, args, kwargs):
        with pytest.raises(TypeError, match=f"^calls: .*{message}"):
            self.f(*[self.x] * args, **kwargs)

    def test_something_else_than_tensors_and_numbers_is_refused(self):
        with pytest.raises(
            TypeError, match=r"calls: argument 'y' must be a tensor or a number, but got \[1\]"
        ):
            self.f(self.x, [1])
        with pytest.raises(TypeError, match="at least one of x, y must be a tensor"):
            self.f(1.0, 2.0)

    def test_tensors_may_be_given_by_keyword(self):
        assert self.f(y=self.x, x=2 * self.x, scale=3.0).tolist() == [5] * 3
        assert self.f.inplace(self.x.clone(), y=self.x).tolist() == [2] * 3

    def test_other_devices_are_refused(self):
        with pytest.raises(NotImplementedError, match="tests::calls.*'CPU' backend"):
            self.f(torch.ones(3), torch.ones(3))
        with pytest.raises(RuntimeError, match="same device"):
            self.f(self.x, torch.ones(3))

    def test_shapes_that_do_not_broadcast_are_refused(self):
        with pytest.raises(RuntimeError, match=r"The size of tensor a \(3\) must match"):
            self.f(self.x, torch.ones(2, device="mps"))

    def test_in_place_neither_grows_nor_loses_precision(self):
        with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
            self.f.inplace(self.x, torch.ones(2, 3, device="mps"))
        with pytest.raises(RuntimeError, match="result type Float can't be cast"):
            self.f.inplace(self.x.int(), self.x)
        leaf = torch.ones(3, device="mps", requires_grad=True)
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            self.f.inplace(leaf, self.x)


def test_a_slow_compile_names_the_functor(monkeypatch):
    from metalops import _patience

    compiling = []
    monkeypatch.setattr(_patience, "_PATIENCE", 0.0)
    monkeypatch.setattr(_patience, "_report", compiling.append)
    # A text of its own, which no cache holds.
    define("tests::slow", "x + 1", header=f"// {uuid.uuid4()}")(torch.ones(1, device="mps"))
    assert compiling == ["slow for float"]


def test_nothing_is_compiled_before_the_first_call():
    f = define("tests::lazy", "no_such_function(x)", grad="grad")
    assert "no_such_function(x)" in f.source(torch.float16)
    assert torch.ops.tests.lazy(torch.ones(2, device="meta")).shape == (2,)
    assert f(torch.empty(0, device="mps")).numel() == 0
