"""Functors of well-known functions, each with the torch function that it should agree with."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import metalops
import torch
import torch.nn.functional as F
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes


def promoting(function):
    """A composition of torch functions, of which each promotes for itself, with the promotion of one operator."""

    @functools.wraps(function)
    def reference(*args, **kwargs):
        kind = ELEMENTWISE_TYPE_PROMOTION_KIND.INT_TO_FLOAT
        _, dtype = elementwise_dtypes(*args, type_promotion_kind=kind)
        return function(*(x.to(dtype) for x in args), **kwargs)

    return reference


@dataclass(frozen=True)
class Port:
    """low, high: the range of its samples, in which float32 is exact enough to be compared with float64."""

    name: str
    text: str
    reference: Callable
    grad: tuple[str, ...] | None
    inputs: tuple[str, ...] = ("x",)
    params: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)
    low: float = -5
    high: float = 5

    def __str__(self):
        return self.name

    @property
    def function(self) -> metalops.kernel.Functor:
        return metalops.functor(
            f"ports::{self.name}",
            self.text,
            inputs=self.inputs,
            params=self.params,
            grad=self.grad,
            **self.options,
        )


SIGMOID = "inline float sigmoid(float x) { return 1 / (1 + exp(-x)); }"
GELU = """
// The tanh approximation, as a Metal file has it.
struct gelu_tanh_functor {
  template <typename T>
  inline T operator()(const T x) {
    const T inner = T(0.7978845608f) * (x + T(0.044715f) * x * x * x);
    return T(0.5f) * x * (T(1) + precise::tanh(inner));
  }
};
"""

PORTS = [
    Port("tanh", "tanh(x)", torch.tanh, ("grad * (1 - out * out)",)),
    Port("sigmoid", "1 / (1 + exp(-x))", torch.sigmoid, ("grad * out * (1 - out)",)),
    Port(
        "silu",
        "x * sigmoid(x)",
        F.silu,
        ("grad * sigmoid(x) * (1 + x * (1 - sigmoid(x)))",),
        options={"header": SIGMOID},
    ),
    Port(
        "mish",
        "x * tanh(log(1 + exp(x)))",
        F.mish,
        (
            """grad * (tanh(log(1 + exp(x)))
                    + x * (1 - pow(tanh(log(1 + exp(x))), 2.0f)) * sigmoid(x))""",
        ),
        options={"header": SIGMOID},
    ),
    Port(
        "softplus",
        "max(x, 0.0f) + log(1 + exp(-abs(x)))",
        F.softplus,
        ("grad * sigmoid(x)",),
        options={"header": SIGMOID},
    ),
    Port(
        "logsigmoid",
        "min(x, 0.0f) - log(1 + exp(-abs(x)))",
        F.logsigmoid,
        ("grad * (1 - sigmoid(x))",),
        options={"header": SIGMOID},
    ),
    Port("softsign", "x / (1 + abs(x))", F.softsign, ("grad / ((1 + abs(x)) * (1 + abs(x)))",)),
    Port("tanhshrink", "x - tanh(x)", F.tanhshrink, ("grad * tanh(x) * tanh(x)",)),
    Port(
        "hardswish",
        "x * clamp(x + 3, 0.0f, 6.0f) / 6",
        F.hardswish,
        ("x <= -3 ? 0.0f : x < 3 ? grad * (x / 3 + 0.5f) : grad",),
    ),
    Port(
        "hardsigmoid",
        "clamp(x + 3, 0.0f, 6.0f) / 6",
        F.hardsigmoid,
        ("abs(x) < 3 ? grad / 6 : 0.0f",),
    ),
    Port("relu6", "clamp(x, 0.0f, 6.0f)", F.relu6, ("x > 0 && x < 6 ? grad : 0.0f",)),
    Port(
        "selu",
        "x > 0 ? 1.0507009873554805f * x : 1.7580993408473766f * (exp(x) - 1)",
        F.selu,
        ("grad * (x > 0 ? 1.0507009873554805f : 1.7580993408473766f * exp(x))",),
    ),
    Port(
        "elu",
        "x > 0 ? x : alpha * (exp(x) - 1)",
        lambda x, alpha=1.0: F.elu(x, alpha),
        ("grad * (x > 0 ? 1.0f : alpha * exp(x))",),
        params={"alpha": 1.0},
    ),
    Port(
        "leaky_relu",
        "x > 0 ? x : slope * x",
        lambda x, slope=0.01: F.leaky_relu(x, slope),
        ("x > 0 ? grad : slope * grad",),
        params={"slope": 0.01},
    ),
    Port(
        "softshrink",
        "x > lambd ? x - lambd : x < -lambd ? x + lambd : 0.0f",
        lambda x, lambd=0.5: F.softshrink(x, lambd),
        ("abs(x) > lambd ? grad : 0.0f",),
        params={"lambd": 0.5},
    ),
    Port(
        "hardtanh",
        "clamp(x, low, high)",
        lambda x, low=-1.0, high=1.0: F.hardtanh(x, low, high),
        ("x > low && x < high ? grad : 0.0f",),
        params={"low": -1.0, "high": 1.0},
    ),
    Port("gelu_tanh", GELU, lambda x: F.gelu(x, approximate="tanh"), None),
    Port(
        "erf",
        "c10::metal::erf(x)",
        torch.erf,
        ("grad * 1.1283791670955126f * exp(-x * x)",),
    ),
    Port(
        "entr",
        "x == 0 ? 0.0f : -x * log(x)",
        torch.special.entr,
        ("-grad * (log(x) + 1)",),
        low=0.1,
    ),
    Port("logit", "log(x / (1 - x))", torch.logit, ("grad / (x * (1 - x))",), low=0.1, high=0.9),
    Port("square", "x * x", torch.square, ("2 * grad * x",), options={"integers": "stay"}),
    Port(
        "logaddexp",
        "max(x, y) + log(1 + exp(-abs(x - y)))",
        torch.logaddexp,
        ("grad * sigmoid(x - y)", "grad * sigmoid(y - x)"),
        inputs=("x", "y"),
        options={"header": SIGMOID},
    ),
    Port(
        "hypot",
        "sqrt(x * x + y * y)",
        torch.hypot,
        ("grad * x / out", "grad * y / out"),
        inputs=("x", "y"),
        low=1,
    ),
    Port(
        "swiglu",
        "x * sigmoid(x) * y",
        promoting(lambda x, y: F.silu(x) * y),
        ("grad * y * sigmoid(x) * (1 + x * (1 - sigmoid(x)))", "grad * x * sigmoid(x)"),
        inputs=("x", "y"),
        options={"header": SIGMOID},
    ),
    Port(
        "huber",
        "abs(x - y) < delta ? 0.5f * (x - y) * (x - y) : delta * (abs(x - y) - 0.5f * delta)",
        promoting(
            lambda x, y, delta=1.0: F.huber_loss(
                *torch.broadcast_tensors(x, y), reduction="none", delta=delta
            )
        ),
        ("grad * clamp(x - y, -delta, delta)", "grad * clamp(y - x, -delta, delta)"),
        inputs=("x", "y"),
        params={"delta": 1.0},
    ),
    Port(
        "lerp",
        "a + w * (b - a)",
        promoting(torch.lerp),
        ("grad * (1 - w)", "grad * w", "grad * (b - a)"),
        inputs=("a", "b", "w"),
    ),
    Port(
        "addcmul",
        "a + value * b * c",
        promoting(lambda a, b, c, value=1.0: a + value * b * c),
        ("grad", "grad * value * c", "grad * value * b"),
        inputs=("a", "b", "c"),
        params={"value": 1.0},
    ),
    Port(
        "polar",
        ("r * cos(t)", "r * sin(t)"),
        promoting(lambda r, t: (r * torch.cos(t), r * torch.sin(t))),
        ("grad_x * cos(t) + grad_y * sin(t)", "grad_y * x - grad_x * y"),
        inputs=("r", "t"),
        options={"outputs": ("x", "y")},
    ),
    Port(
        "von_mises",
        "exp(k * cos(x - m)) / (2 * M_PI_F * c10::metal::i0(k))",
        lambda x, m, k=2.0: (
            torch.exp(k * torch.cos(x - m)) / (2 * math.pi * torch.special.i0(torch.tensor(k)))
        ),
        ("-grad * out * k * sin(x - m)", "grad * out * k * sin(x - m)"),
        inputs=("x", "m"),
        params={"k": 2.0},
    ),
]


def port(name: str) -> Port:
    return next(p for p in PORTS if p.name == name)
