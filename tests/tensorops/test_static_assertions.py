"""What products of tiles refuse when they are compiled, in Apple's words."""

import pytest

from .products import build, fill

KERNEL = """
constant constexpr auto d = matmul2d_descriptor(DESCRIPTOR);
kernel void product(device LEFT* A, device RIGHT* B, device RESULT* C) {
  tensor<device LEFT, SHAPE, tensor_inline> a(A, SHAPE());
  tensor<device RIGHT, SHAPE, tensor_inline> b(B, SHAPE());
  tensor<device RESULT, SHAPE, tensor_inline> c(C, SHAPE());
  matmul2d<d, SCOPE> op;
  BODY;
}
"""
FIELDS = {
    "descriptor": "16, 32, 16",
    "left": "half",
    "right": "half",
    "result": "float",
    "shape": "extents<int, 32, 32>",
    "scope": "execution_simdgroup",
    "body": "op.run(a, b, c);",
}
DESTINATION = "auto s = op.get_destination_cooperative_tensor<decltype(a), decltype(b), float>();"
LEFT = "auto l = op.get_left_input_cooperative_tensor<half, half, float>();"
RIGHT = "auto r = op.get_right_input_cooperative_tensor<half, half, float>();"
CASES = {
    "M must be a multiple of 8 or 16": {"descriptor": "12, 32, 16"},
    "N must be a multiple of 8 or 16": {"descriptor": "16, 20, 16"},
    "At least one of M or N must be a multiple of 16": {"descriptor": "8, 8, 16"},
    "K must be dynamic or a multiple of 16": {"descriptor": "16, 32, 24"},
    "K must be dynamic or a multiple of 32 with sub-byte element types": {
        "body": "tensor<device int4b_format, extents<int, 32, 32>, tensor_inline> q((device uchar*)A, "
        "extents<int, 32, 32>()); op.run(a, q, c);",
    },
    "Only execution_thread<1> is supported": {"scope": "execution_threads<2>"},
    "execution_simgroups<0> is not supported": {"scope": "execution_simdgroups<0>"},
    "Scope template argument should be of op_scope type": {"scope": "int"},
    "Unsupported type": {"right": "int"},
    "Operand must have rank 2": {"shape": "extents<int, 32, 32, 2>"},
    "Index type must be int": {"shape": "extents<short, 32, 32>"},
    "Left operand must be a tensor or matmul2d left input cooperative tensor": {
        "body": f"{RIGHT} op.run(r, b, c);"
    },
    "Right operand must be a tensor or matmul2d right input cooperative tensor": {
        "body": f"{LEFT} op.run(a, l, c);"
    },
    "Destination operand must be a tensor or matmul2d destination cooperative tensor": {
        "body": f"{LEFT} op.run(a, b, l);"
    },
    "Input cooperative tensors require a single SIMD group": {
        "scope": "execution_simdgroups<4>",
        "body": LEFT,
    },
    "Inner dimension cannot be dynamic with input cooperative tensors": {
        "descriptor": "16, 32",
        "body": LEFT,
    },
    "Input types must match cooperative tensor types": {
        "body": "auto l = op.get_left_input_cooperative_tensor<half, float, float>(); op.run(l, b, c);"
    },
    "Input cooperative tensor element type cannot be a format type": {
        "body": "auto r = op.get_right_input_cooperative_tensor<half, int4b_format, float>();"
    },
    "coord_type must be int": {
        "body": "auto l = op.get_left_input_cooperative_tensor<half, half, float, short>();"
    },
    "At least one of M, N, or K must be 32 if both inputs are cooperative tensors": {
        "descriptor": "16, 16, 16",
        "body": f"{LEFT} {RIGHT} op.run(l, r, c);",
    },
    "M must be 16 or 32 if both inputs are cooperative tensors": {
        "descriptor": "64, 32, 16",
        "body": f"{LEFT} {RIGHT} op.run(l, r, c);",
    },
    "Source tensor datatype does not match cooperative tensor": {
        "body": f"{DESTINATION} s.load(a);"
    },
    "Tensor datatype does not match cooperative tensor": {"body": f"{DESTINATION} s.store(a);"},
    "Source cooperative tensor element type must match matmul2d left input element type": {
        "body": f"{DESTINATION} auto l = op.get_left_input_cooperative_tensor<half, half, float>(s);"
    },
    "Source width must match matmul2d op inner dimension": {
        "body": f"{DESTINATION} auto l = op.get_left_input_cooperative_tensor<float, half, float>(s);"
    },
    "reduce_rows requires a single SIMD group": {
        "descriptor": "64, 32, 16",
        "scope": "execution_simdgroups<4>",
        "body": f"{DESTINATION} auto r = op.get_row_reduction_destination_cooperative_tensor"
        "<decltype(a), decltype(b), float>(); reduce_rows(s, r);",
    },
    "Source and destination operand types must match": {
        "body": f"{DESTINATION} auto r = op.get_row_reduction_destination_cooperative_tensor"
        "<decltype(a), decltype(c), float>(); reduce_rows(s, r);",
    },
    "tensor: Descriptor template parameter must be one of tensor_handle or tensor_inline": {
        "body": "tensor<device half, extents<int, 2>, int> t;"
    },
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("message", CASES)
def test_is_refused(message):
    with pytest.raises(SyntaxError) as error:
        build(fill(KERNEL, **{**FIELDS, **CASES[message]}), optimize=0)
    assert message in str(error.value)
    assert "program_source:" in str(error.value)  # at a line of the user's


def test_the_kernel_without_a_mistake_is_compiled():
    assert build(fill(KERNEL, **FIELDS), optimize=0)
