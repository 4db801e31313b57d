"""metal_kernel in autograd: its gradient, the lack of one, and tensors written in place."""

import gc
import re
import weakref

import metalops
import pytest
import torch
from torch.autograd import forward_ad, gradcheck

BODY = "uint i = thread_position_in_grid.x; "
square_gradient = metalops.metal_kernel(
    "square_gradient", ["g", "x"], ["out"], BODY + "out[i] = 2 * x[i] * g[i];"
)


def elementwise(kernel, x, *others, shapes=None, dtypes=None):
    return kernel(
        inputs=[x, *others],
        output_shapes=[x.shape] if shapes is None else shapes,
        output_dtypes=[x.dtype] if dtypes is None else dtypes,
        grid=(x.numel(), 1, 1),
        threadgroup=(64, 1, 1),
    )


def backward_of_square(grads, inputs, outputs):
    return elementwise(square_gradient, grads[0], inputs[0])


square = metalops.metal_kernel(
    "square", ["x"], ["y"], BODY + "y[i] = x[i] * x[i];", backward=backward_of_square
)
plain = metalops.metal_kernel("plain_copy", ["x"], ["y"], BODY + "y[i] = x[i];")


def leaf(*shape):
    return torch.randn(*shape, device="mps", requires_grad=True)


def test_the_gradient_is_another_kernel():
    x = leaf(3, 4)
    (y,) = elementwise(square, torch.sin(x))
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * torch.sin(x.detach()) * torch.cos(x.detach()))


def test_the_gradient_of_an_expanded_gradient():
    x = leaf(5)
    (y,) = elementwise(square, x)
    (grad,) = torch.autograd.grad(y, x, torch.ones((), device="mps").expand(5))
    torch.testing.assert_close(grad, 2 * x.detach())


def test_a_kernel_without_a_gradient_runs_and_says_so_in_backward():
    x = leaf(4)
    (y,) = elementwise(plain, x)
    assert y.requires_grad
    with pytest.raises(
        NotImplementedError, match="metal_kernel 'plain_copy' has no backward function"
    ):
        y.sum().backward()


def test_a_refusal_where_the_first_output_is_an_integer():
    kernel = metalops.metal_kernel(
        "round_and_copy", ["x"], ["n", "y"], BODY + "n[i] = int(x[i]); y[i] = x[i];"
    )
    x = leaf(4)
    _, y = elementwise(kernel, x, shapes=[(4,), (4,)], dtypes=[torch.int32, torch.float32])
    with pytest.raises(NotImplementedError, match="metal_kernel 'round_and_copy' has no backward"):
        y.sum().backward()


def test_the_gradient_of_a_gradient_needs_differentiable_operators():
    x = leaf(4)
    (y,) = elementwise(square, x)
    (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(
        NotImplementedError, match="metal_kernel 'square_gradient' has no backward function"
    ):
        grad.sum().backward()
    twice = metalops.metal_kernel(
        "square",
        ["x"],
        ["y"],
        BODY + "y[i] = x[i] * x[i];",
        backward=lambda g, x, y: 2 * x[0] * g[0],
    )
    (y,) = elementwise(twice, x)
    (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), x)
    assert second.tolist() == [2.0] * 4


def test_gradients_by_difference_quotients():
    x = leaf(6)

    def function(x):
        return elementwise(square, x)[0]

    assert gradcheck(function, (x,), eps=1e-2, atol=1e-2, nondet_tol=0)


def test_backward_gets_all_inputs_and_outputs_and_integers_have_no_gradient():
    seen = []

    def backward(grads, inputs, outputs):
        seen.append((grads, inputs, outputs))
        return [grads[0] * inputs[1], None, None]

    kernel = metalops.metal_kernel(
        "three",
        ["x", "factor", "index"],
        ["y", "rounded"],
        BODY + "y[i] = x[index[i]] * factor; rounded[i] = int(y[i]);",
        backward=backward,
    )
    x = leaf(3)
    index = torch.arange(3, device="mps")
    y, rounded = elementwise(
        kernel, x, 2, index, shapes=[(3,), (3,)], dtypes=[torch.float32, torch.int32]
    )
    assert y.requires_grad and not rounded.requires_grad
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]
    ((grads, inputs, outputs),) = seen
    assert len(grads) == 2
    assert torch.equal(inputs[0], x.detach())
    assert inputs[1].shape == () and inputs[1].dtype == torch.int32 and inputs[1].item() == 2
    assert torch.equal(inputs[2], index)
    assert torch.equal(outputs[0], y.detach()) and torch.equal(outputs[1], rounded)


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        ([], ValueError, "one gradient or None for each of x, but returned 0"),
        ("g", ValueError, "one gradient or None for each of x, but returned str"),
        (None, ValueError, "one gradient or None for each of x, but returned NoneType"),
        ([1.0], TypeError, "must return tensors or None, but returned 1.0 for 'x'"),
    ],
)
def test_a_wrong_result_of_backward(returned, error, message):
    kernel = metalops.metal_kernel(
        "wrong", ["x"], ["y"], BODY + "y[i] = x[i];", backward=lambda *_: returned
    )
    x = leaf(4)
    (y,) = elementwise(kernel, x)
    with pytest.raises(error, match=f"metal_kernel 'wrong': .*{re.escape(message)}"):
        y.sum().backward()


def test_two_kernels_of_one_text_keep_their_own_gradients():
    def kernel(factor):
        return metalops.metal_kernel(
            "same", ["x"], ["y"], BODY + "y[i] = x[i];", backward=lambda g, x, y: [factor * g[0]]
        )

    for one in [kernel(3), kernel(5), kernel(3)]:
        x = leaf(2)
        (y,) = elementwise(one, x)
        y.sum().backward()
        assert x.grad.tolist() in ([3.0, 3.0], [5.0, 5.0])
    factors = []
    for one in [kernel(7), kernel(9)]:
        x = leaf(2)
        elementwise(one, x)[0].sum().backward()
        factors.append(x.grad[0].item())
    assert factors == [7.0, 9.0]


def test_a_graph_that_is_dropped_frees_its_tensors():
    x = leaf(4)
    (y,) = elementwise(square, x * 1)
    held = weakref.ref(y)
    del y
    gc.collect()
    assert held() is None


def test_torch_func_grad():
    def loss(x):
        return elementwise(square, x)[0].sum()

    x = torch.randn(4, device="mps")
    torch.testing.assert_close(torch.func.grad(loss)(x), 2 * x)


def test_forward_mode_is_refused_and_drops_no_tangent():
    x = torch.randn(4, device="mps")
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(NotImplementedError, match="'square' has no forward-mode gradient"):
            elementwise(square, dual)
        assert torch.equal(elementwise(square, x)[0], x * x)


def test_checkpointing():
    x = leaf(4)
    y = torch.utils.checkpoint.checkpoint(
        lambda x: elementwise(square, x)[0], x, use_reentrant=False
    )
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())


accumulate = metalops.metal_kernel(
    "accumulate",
    ["x"],
    ["before"],
    BODY + "before[i] = state[i]; state[i] += x[i];",
    inout_names=["state"],
)


def test_a_tensor_written_in_place_is_no_output():
    x, state = torch.ones(3, device="mps"), torch.arange(3.0, device="mps")
    version, address = state._version, state.data_ptr()
    outputs = elementwise(accumulate, x, state)
    assert [output.tolist() for output in outputs] == [[0.0, 1.0, 2.0]]
    assert state.tolist() == [1.0, 2.0, 3.0]
    assert (state._version, state.data_ptr()) == (version + 1, address)


def test_an_inout_may_keep_its_place_among_the_inputs():
    kernel = metalops.metal_kernel(
        "swap",
        ["a", "b"],
        [],
        BODY + "float t = a[i]; a[i] = b[i]; b[i] = t;",
        inout_names=["b", "a"],
    )
    a, b = torch.zeros(3, device="mps"), torch.ones(3, device="mps")
    assert (
        kernel(
            inputs=[a, b], output_shapes=[], output_dtypes=[], grid=(3, 1, 1), threadgroup=(3, 1, 1)
        )
        == []
    )
    assert (a.tolist(), b.tolist()) == ([1.0] * 3, [0.0] * 3)


def test_a_view_with_strides_is_written_in_place():
    kernel = metalops.metal_kernel(
        "strided_increment",
        [],
        [],
        BODY + "state[elem_to_loc(i, state_shape, state_strides, state_ndim)] += 1;",
        inout_names=["state"],
        ensure_row_contiguous=False,
    )
    base = torch.zeros(4, 4, device="mps")
    view = base[1:3, ::2]
    with torch.no_grad():
        elementwise(kernel, view, shapes=[], dtypes=[])
    elementwise(kernel, view, shapes=[], dtypes=[])
    expected = torch.zeros(4, 4)
    expected[1:3, ::2] = 2
    assert torch.equal(base.cpu(), expected)
    assert base._version == 2


def test_a_leaf_that_requires_grad_is_not_written_in_place():
    state = leaf(3)
    before = state.detach().clone()
    with pytest.raises(RuntimeError, match="'state' is a leaf tensor that requires grad"):
        elementwise(accumulate, torch.ones(3, device="mps"), state)
    assert torch.equal(state.detach(), before)
    with torch.no_grad():
        elementwise(accumulate, torch.ones(3, device="mps"), state)
    assert torch.equal(state.detach(), before + 1)


def test_autograd_sees_that_a_saved_tensor_was_written():
    x = leaf(3)
    state = torch.ones(3, device="mps")
    y = (x * state).sum()
    elementwise(accumulate, torch.ones(3, device="mps"), state)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_a_written_tensor_in_the_graph_without_a_gradient():
    x, state = leaf(3), torch.ones(3, device="mps")
    elementwise(accumulate, x, state)
    assert state.requires_grad
    with pytest.raises(
        NotImplementedError, match="metal_kernel 'accumulate' has no backward function"
    ):
        state.sum().backward()


def test_a_written_tensor_in_the_graph_with_a_gradient():
    """state' = x * state, before = 2 * x; the written state is an output of the graph."""
    seen = []

    def backward(grads, inputs, outputs):
        seen.append(inputs[1])
        grad_before, grad_state = grads
        (x, _), (_, state) = inputs, outputs
        return [2 * grad_before + grad_state * state / x, grad_state * x]

    kernel = metalops.metal_kernel(
        "multiply_in",
        ["x"],
        ["twice"],
        BODY + "twice[i] = 2 * x[i]; state[i] *= x[i];",
        inout_names=["state"],
        backward=backward,
    )
    x, start = leaf(3), leaf(3)
    state = start * 3
    (twice,) = elementwise(kernel, x, state)
    (twice.sum() + (state * state).sum()).backward()
    x2, start2 = x.detach().requires_grad_(), start.detach().requires_grad_()
    (2 * x2.sum() + ((x2 * start2 * 3) ** 2).sum()).backward()
    torch.testing.assert_close(x.grad, x2.grad)
    torch.testing.assert_close(start.grad, start2.grad)
    assert seen == [None]


def test_an_inference_tensor_is_written_only_in_inference_mode():
    with torch.inference_mode():
        state = torch.zeros(3, device="mps")
        elementwise(accumulate, torch.ones(3, device="mps"), state)
        assert state.tolist() == [1.0] * 3
    with pytest.raises(RuntimeError, match=r"[Ii]nference"):
        elementwise(accumulate, torch.ones(3, device="mps"), state)
