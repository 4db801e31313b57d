"""Transforms of torch.func, autograd and torch.compile, each as a function from a function of a vector to another one, with
the rules by which torch composes them; and functions of a vector that call one differentiable operator or interface each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import metalops
import torch
import torch.nn.functional as F
from metalops import flash_attn, ops
from torch import Tensor
from torch._dynamo.exc import Unsupported

from .families import gather
from .matmul.test_linear_act import ACTIVATIONS
from .quantized.test_gguf import blocks
from .test_derivatives import FORMULAS

Function = Callable[[Tensor], Tensor]


# ---- transforms ----------------------------------------------------------------------------------


def weights(x: Tensor) -> Tensor:
    """Cotangents and tangents."""
    return torch.cos(torch.arange(1, x.numel() + 1, dtype=x.dtype, device=x.device)).view_as(x)


def total(f: Function) -> Function:
    def weighted(x):
        y = f(x)
        return (y * weights(y)).sum()

    return weighted


def grad(f: Function) -> Function:
    return torch.func.grad(total(f))


def vjp(f: Function) -> Function:
    def transformed(x):
        y, pull = torch.func.vjp(f, x)
        return pull(weights(y))[0]

    return transformed


def jvp(f: Function) -> Function:
    return lambda x: torch.func.jvp(f, (x,), (weights(x),))[1]


def linearize(f: Function) -> Function:
    return lambda x: torch.func.linearize(f, x)[1](weights(x))


def jacrev(f: Function) -> Function:
    def transformed(x):
        jacobian = torch.func.jacrev(f)(x)
        rank = jacobian.dim() - x.dim()
        return torch.tensordot(weights(jacobian.new_ones(jacobian.shape[:rank])), jacobian, rank)

    return transformed


def jacfwd(f: Function) -> Function:
    return lambda x: torch.tensordot(torch.func.jacfwd(f)(x), weights(x), x.dim())


def vmap(f: Function) -> Function:
    def transformed(x):
        y = torch.func.vmap(f)(torch.stack([x, x / 2]))
        return y[0] - 2 * y[1]

    return transformed


def create_graph(f: Function) -> Function:
    def transformed(x):
        x = x if x.requires_grad else x.detach().requires_grad_()
        return torch.autograd.grad(total(f)(x), x, create_graph=True)[0]

    return transformed


def compiled(f: Function) -> Function:
    return torch.compile(f, backend="aot_eager", fullgraph=True)


TRANSFORMS = {
    "grad": grad,
    "jacrev": jacrev,
    "jacfwd": jacfwd,
    "vmap": vmap,
    "vjp": vjp,
    "jvp": jvp,
    "linearize": linearize,
    "create_graph": create_graph,
    "compile": compiled,
}

# What gives the same by other means, for the reference.
REFERENCES = {"create_graph": grad, "compile": lambda f: f, "linearize": jvp}

FORWARD = {"jacfwd", "jvp", "linearize"}


def composed(combination: tuple[str, ...], f: Function) -> Function:
    """The transforms of f, the outermost first."""
    for name in reversed(combination):
        f = TRANSFORMS[name](f)
    return f


def composed_for_reference(combination: tuple[str, ...], f: Function) -> Function:
    for name in reversed(combination):
        f = REFERENCES.get(name, TRANSFORMS[name])(f)
    return f


# ---- what torch does not compose -----------------------------------------------------------------

IN_TRANSFORM = "torch.func does not transform compiled functions, but where an outer torch.compile traces all of it"
TWICE = "compiled functions have no second derivatives under autograd"
GRAD_COMPILED = "torch.compile refuses torch.autograd.grad"
NO_LEAF = "tensors of vmap, jvp and jacfwd cannot be made to require gradients"
LINEARIZE = (
    "torch.func.linearize is for the outermost level: it refuses forward mode within and around it and vmap around it, and takes "
    "for constants what depends on the point by other levels around it or by a Jacobian within, so that it is wrong"
)


def not_composed(combination: tuple[str, ...]) -> str | None:
    """Why torch refuses a combination of transforms of its own operators, or gives wrong results; None where it is right."""
    if "linearize" in combination and not _linearizes(combination):
        return LINEARIZE
    for place, name in enumerate(combination):
        outer = combination[:place]
        if (
            name == "compile"
            and combination[0] != "compile"
            and set(outer) - {"create_graph", "compile"}
        ):
            return IN_TRANSFORM
        if name == "compile" and outer.count("create_graph") > 1:
            return TWICE
        if name == "create_graph" and "compile" in outer:
            return GRAD_COMPILED
        if name == "create_graph" and outer and outer[-1] in ("vmap", "jvp", "jacfwd"):
            return NO_LEAF
    return None


def _linearizes(combination: tuple[str, ...]) -> bool:
    first, *rest = combination
    if first != "linearize":
        return False
    if rest[-1] == "create_graph" and len(rest) > 1:
        return rest[-2] != "vmap" and {*rest[:-1]} <= {"grad", "vmap", "vjp"}
    return {*rest} <= {"grad", "vmap", "vjp"}


# What it raises for these.
REFUSALS = (RuntimeError, Unsupported)


# ---- operators and interfaces --------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """function: of a vector of `size` elements on mps in float32. reference: the same in operators of torch, for the CPU in
    float64. refuses: transforms under which it raises NotImplementedError or RuntimeError, with what the message has.
    """

    function: Function
    reference: Function
    size: int
    refuses: tuple[tuple[frozenset[str], str], ...] = ()

    def refusal(self, combination: tuple[str, ...]) -> str | None:
        """The first that the call comes to raises, which depends on their order."""
        messages = [text for transforms, text in self.refuses if transforms & {*combination}]
        return "|".join(messages) or None

    def sample(self) -> Tensor:
        generator = torch.Generator().manual_seed(self.size)
        return torch.randn(self.size, dtype=torch.float64, generator=generator).float() * 0.7


SUBJECTS: dict[str, Subject] = {}


def parts(x: Tensor, *shapes: tuple[int, ...]) -> list[Tensor]:
    result, begin = [], 0
    for shape in shapes:
        end = begin + math.prod(shape)
        result.append(x[begin:end].reshape(shape))
        begin = end
    return result


def add(name: str, shapes, function: Callable, reference: Callable, refuses=()) -> None:
    """function and reference take tensors of the shapes. What they return goes through a function that is not linear."""

    def of_vector(f):
        return lambda x: torch.sin(f(*parts(x, *shapes)))

    size = sum(map(math.prod, shapes))
    SUBJECTS[name] = Subject(of_vector(function), of_vector(reference), size, tuple(refuses))


# ---- attention


def attention(q, k, v, mask=None, sinks=None, slopes=None, softcap=0.0, causal=False):
    """Of (H, L, E), (Hkv, S, E) and (Hkv, S, Ev), diagonals ending in the last key: out and log-sum-exp."""
    k, v = (x.repeat_interleave(q.shape[0] // x.shape[0], 0) for x in (k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    places = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1] - torch.arange(k.shape[1])
    if slopes is not None:
        scores = scores - slopes[:, None, None] * places.abs()
    if mask is not None:
        scores = scores + mask
    if causal:
        scores = scores + torch.where(places < 0, -torch.inf, 0.0)
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(-1, q.shape[1], 1)], -1)
    result = torch.softmax(scores, -1)[..., : k.shape[1]] @ v
    return result, torch.logsumexp(scores, -1)


def joined(results) -> Tensor:
    return torch.cat([x.flatten() for x in results])


QKV = ((1, 2, 2), (1, 3, 2), (1, 3, 2))

add(
    "scaled_dot_product_attention",
    QKV,
    lambda q, k, v: F.scaled_dot_product_attention(q[None], k[None], v[None]),
    lambda q, k, v: attention(q, k, v)[0][None],
)
add(
    "scaled_dot_product_attention with a mask",
    (*QKV, (2, 3)),
    lambda q, k, v, m: F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=m),
    lambda q, k, v, m: attention(q, k, v, m)[0][None],
)
add(
    "attention",
    QKV,
    lambda *qkv: joined(ops.attention(*qkv, return_lse=True)),
    lambda *qkv: joined(attention(*qkv)),
)
add(
    "attention with all options",
    ((2, 2, 2), (1, 2, 2), (1, 2, 1), (2, 2, 2), (2,), (2,)),
    lambda q, k, v, m, sinks, slopes: joined(
        ops.attention(
            q, k, v, attn_mask=m, sinks=sinks, alibi_slopes=slopes, softcap=2.0, return_lse=True
        )
    ),
    lambda q, k, v, m, sinks, slopes: joined(attention(q, k, v, m, sinks, slopes, softcap=2.0)),
)


def starts(*places: int, device="mps") -> Tensor:
    return torch.tensor(places, dtype=torch.int32, device=device)


def two_sequences(q, k, v, **options):
    """Of tokens (T, H, E): the first two, and the others."""
    ours = [
        attention(*(x.transpose(0, 1) for x in one), **options)
        for one in ((q[:2], k[:2], v[:2]), (q[2:], k[2:], v[2:]))
    ]
    return torch.cat([out.transpose(0, 1) for out, _ in ours]), torch.cat([l for _, l in ours], 1)


TOKENS = ((3, 1, 2),) * 3

add(
    "varlen_attention",
    TOKENS,
    lambda *qkv: joined(
        ops.varlen_attention(*qkv, starts(0, 2, 3), starts(0, 2, 3), 2, 2, return_lse=True)
    ),
    lambda *qkv: joined(two_sequences(*qkv)),
)
add(
    "varlen_attention of pages",
    ((1, 1, 2), (2, 2, 1, 2), (2, 2, 1, 2)),
    lambda q, k, v: ops.varlen_attention(
        q,
        k,
        v,
        starts(0, 1),
        starts(0, 3),
        1,
        3,
        block_table=starts(1, 0)[None],
    ),
    lambda q, k, v: attention(
        q.transpose(0, 1), *(x.flip(0).flatten(0, 1)[:3].transpose(0, 1) for x in (k, v))
    )[0].transpose(0, 1),
)
add(
    "flash_attn_func",
    ((1, 2, 1, 2),) * 3,
    lambda *qkv: flash_attn.flash_attn_func(*qkv, causal=True, softcap=3.0),
    lambda *qkv: (
        attention(*(x[0].transpose(0, 1) for x in qkv), softcap=3.0, causal=True)[0].transpose(0, 1)
    )[None],
)
add(
    "flash_attn_qkvpacked_func",
    ((1, 2, 3, 1, 2),),
    flash_attn.flash_attn_qkvpacked_func,
    lambda qkv: attention(*(x[0].transpose(0, 1) for x in qkv.unbind(2)))[0].transpose(0, 1)[None],
)
add(
    "flash_attn_varlen_func",
    TOKENS,
    lambda *qkv: flash_attn.flash_attn_varlen_func(
        *qkv, starts(0, 2, 3), starts(0, 2, 3), 2, 2, causal=True
    ),
    lambda *qkv: two_sequences(*qkv, causal=True)[0],
)


def merged(a, lse_a, b, lse_b):
    share = torch.sigmoid(lse_a - lse_b)[..., None]
    return share * a + (1 - share) * b, torch.logaddexp(lse_a, lse_b)


add(
    "merge_attention",
    ((2, 2), (2,), (2, 2), (2,)),
    lambda *x: joined(ops.merge_attention(*x)),
    lambda *x: joined(merged(*x)),
)


# Forward mode of these is a formula in Python, which raises in AOTAutograd's trace and leaves torch.func's levels behind.
NO_COMPILED_TANGENTS = frozenset(SUBJECTS)


def traces_tangents(combination: tuple[str, ...]) -> bool:
    """Whether torch.compile has forward mode to trace."""
    if "compile" not in combination:
        return False
    return bool(FORWARD.intersection(combination[combination.index("compile") :]))


# ---- quantised weights

FORWARD_REFUSED = [(frozenset(FORWARD), "Trying to use forward AD with metalops::")]


def packed(*shape: int, **options) -> tuple[Tensor, ...]:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    return ops.quantize(weight, **options)


AFFINE = {"bits": 4, "group_size": 32}
CODES = packed(2, 32, **AFFINE)[0]
MANY_CODES = packed(2, 2, 32, **AFFINE)[0]


def on(x: Tensor, *tensors: Tensor | None) -> list[Tensor | None]:
    return [None if t is None else t.to(x.device) for t in tensors]


def scaled(codes: Tensor, scales: Tensor, biases: Tensor) -> Tensor:
    numbers = ops.dequantize(
        codes, torch.ones_like(scales).float(), torch.zeros_like(biases).float(), **AFFINE
    )
    numbers = numbers.double().unflatten(-1, (-1, 32))
    return (numbers * scales[..., None] / 8 + biases[..., None]).flatten(-2)


def call_quantized(function, x, codes, scales, biases, *others, **options):
    return function(x, codes.to(x.device), scales / 8, biases, *others, **AFFINE, **options)


add(
    "quantized_linear",
    ((1, 32), (2, 1), (2, 1), (2,)),
    lambda x, s, b, bias: call_quantized(ops.quantized_linear, x, CODES, s, b, bias),
    lambda x, s, b, bias: F.linear(x, scaled(CODES, s, b), bias),
    FORWARD_REFUSED,
)
add(
    "quantized_matmul",
    ((1, 2), (2, 1), (2, 1)),
    lambda x, s, b: call_quantized(ops.quantized_matmul, x, CODES, s, b, transpose=False),
    lambda x, s, b: x @ scaled(CODES, s, b),
    FORWARD_REFUSED,
)
add(
    "gather_quantized_matmul",
    ((2, 1, 32), (2, 2, 1), (2, 2, 1)),
    lambda x, s, b: call_quantized(
        ops.gather_quantized_matmul,
        x,
        MANY_CODES,
        s,
        b,
        rhs_indices=torch.tensor([1, 1], device=x.device),
    ),
    lambda x, s, b: x @ scaled(MANY_CODES, s, b)[[1, 1]].mT,
    FORWARD_REFUSED,
)
add(
    "dequantize",
    ((2, 1), (2, 1)),
    lambda s, b: ops.dequantize(CODES.to(s.device), s / 8, b, **AFFINE),
    lambda s, b: scaled(CODES, s, b),
    FORWARD_REFUSED,
)
add(
    "quantized_embedding",
    ((2, 1), (2, 1)),
    lambda s, b: ops.quantized_embedding(
        torch.tensor([1, 1, 0], device=s.device), CODES.to(s.device), s / 8, b, **AFFINE
    ),
    lambda s, b: scaled(CODES, s, b)[[1, 1, 0]],
    FORWARD_REFUSED,
)
for mode in ("mxfp4", "nf4"):
    WEIGHT = packed(2, 64, mode=mode)
    add(
        f"quantized_linear of {mode}",
        ((1, 64),),
        lambda x, w=WEIGHT, m=mode: ops.quantized_linear(x, *on(x, *w), mode=m),
        lambda x, w=WEIGHT, m=mode: x @ ops.dequantize(*w, mode=m).double().T,
        FORWARD_REFUSED,
    )

INT8 = torch.tensor([[3, -7, 100, 2], [50, 0, -128, 9]], dtype=torch.int8)

add(
    "int8_linear",
    ((1, 4), (2,), (2,)),
    lambda x, s, b: ops.int8_linear(x, INT8.to(x.device), s / 64, b),
    lambda x, s, b: F.linear(x, INT8.double() * s[:, None] / 64, b),
    FORWARD_REFUSED,
)


def rounded_int8(x, s, b):
    step = x.detach().abs().amax(-1, keepdim=True) / 127
    codes = (x / step).detach().round() + (x - x.detach()) / step
    return codes @ (INT8.double() * s[:, None] / 64).T * step + b


add(
    "int8_linear of rounded rows",
    ((1, 4), (2,), (2,)),
    lambda x, s, b: ops.int8_linear(x, INT8.to(x.device), s / 64, b, dynamic_activation=True),
    rounded_int8,
    FORWARD_REFUSED,
)
for qtype in ("Q8_0", "Q4_K"):
    DATA = blocks(qtype, 2, 256 if qtype == "Q4_K" else 32)
    VALUES = ops.gguf_dequantize(DATA, qtype).double()
    add(
        f"gguf_linear of {qtype}",
        ((1, VALUES.shape[1]), (2,)),
        lambda x, b, d=DATA, q=qtype: ops.gguf_linear(x, d.to(x.device), q, b),
        lambda x, b, w=VALUES: F.linear(x, w, b),
        FORWARD_REFUSED,
    )


# ---- elementwise operators, and layers with one

for operator in gather("POINTWISE"):
    arguments = operator.arguments[-1]
    add(
        operator.name,
        [(2, 4)] if operator.halving else [(2, 2), (2,), (2, 1)][: operator.operands],
        lambda *x, o=operator, a=arguments: o.function(*x, **a),
        lambda *x, o=operator, a=arguments: FORMULAS.get(o.name, o.reference)(*x, **a),
    )

for activation, function in ACTIVATIONS.items():
    add(
        f"linear_act with {activation}",
        ((1, 2), (2, 2), (2,)),
        lambda x, w, b, a=activation: ops.linear_act(x, w, b, a),
        lambda x, w, b, f=function: f(F.linear(x, w, b)),
    )

swish = metalops.functor(
    "nested::swish",
    "a * b / (1 + exp(-a))",
    inputs=("a", "b"),
    grad=(
        "grad * b * (1 + exp(-a) + a * exp(-a)) / ((1 + exp(-a)) * (1 + exp(-a)))",
        "grad * a / (1 + exp(-a))",
    ),
)
add("functor", ((2, 2), (2,)), swish, lambda a, b: F.silu(a) * b)


# ---- kernels in Metal

ONLY_BACKWARD = (frozenset(FORWARD), "forward")
INDEX = "uint i = thread_position_in_grid.x; "


def elementwise(kernel, *inputs: Tensor) -> Tensor:
    (result,) = kernel(
        inputs=list(inputs),
        output_shapes=[inputs[0].shape],
        output_dtypes=[inputs[0].dtype],
        grid=(inputs[0].numel(), 1, 1),
        threadgroup=(1, 1, 1),
    )
    return result


# A kernel whose gradient is another one, whose gradient is that one again.
product = metalops.metal_kernel(
    "nested_product",
    ["x", "y"],
    ["out"],
    INDEX + "out[i] = x[i] * y[i];",
    backward=lambda grads, inputs, outputs: [
        elementwise(product, grads[0], inputs[1]),
        elementwise(product, grads[0], inputs[0]),
    ],
)
add(
    "metal_kernel",
    ((3,), (3,)),
    lambda x, y: elementwise(product, x, y),
    lambda x, y: x * y,
    [ONLY_BACKWARD],
)

into = metalops.metal_kernel(
    "nested_in_place",
    ["x"],
    [],
    INDEX + "y[i] += x[i] * x[i];",
    inout_names=["y"],
    backward=lambda grads, inputs, outputs: [grads[0] * 2 * inputs[0], grads[0]],
)


def added(x, y):
    y = y.clone()
    into(
        inputs=[x, y],
        output_shapes=[],
        output_dtypes=[],
        grid=(x.numel(), 1, 1),
        threadgroup=(1, 1, 1),
    )
    return y


add(
    "metal_kernel that writes in place",
    ((3,), (3,)),
    added,
    lambda x, y: y + x * x,
    [ONLY_BACKWARD, (frozenset({"vmap"}), "Batching rule not implemented")],
)


def _twice(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x * y, x * x


twice = metalops.TorchMetalKernel(
    "nested_twice",
    ["x", "y"],
    ["xy", "xx"],
    "xy[id] = x[id] * y[id]; xx[id] = x[id] * x[id];",
    _twice,
    [metalops.MetalParameter("id", "uint", "thread_position_in_grid")],
    backward=lambda grads, inputs, results: [
        grads[0] * inputs[1] + 2 * grads[1] * inputs[0],
        grads[0] * inputs[0],
    ],
)
add(
    "TorchMetalKernel",
    ((3,), (3,)),
    lambda x, y: joined(
        twice(
            x,
            y,
            threads_per_grid=(x.numel(), 1, 1),
            threads_per_thread_group=(1, 1, 1),
            result_shapes=[list(x.shape)] * 2,
        )
    ),
    lambda x, y: joined(_twice(x, y)),
    [ONLY_BACKWARD],
)
