"""Products of lines that a kernel decodes itself (include/msl/cuda/coded_lines.h), compiled as those of quantised weights are;
test_quantized_launch.py launches them."""

import re

import pytest
from metalops.cuda import nvrtc
from metalops.ops._cuda import kernel_file

needs_nvrtc = pytest.mark.skipif(
    not nvrtc.is_available(), reason="NVRTC is not installed: pip install nvidia-cuda-nvrtc"
)


@pytest.mark.full
@needs_nvrtc
@pytest.mark.parametrize(
    ("kernel", "rows", "others"), [("64_int4_half", 64, 2), ("large_mxfp8_bfloat", 256, 0)]
)
def test_weights_are_decoded_to_registers_that_tensor_cores_read(kernel, rows, others):
    """The left operands of all products are registers; `others` scopes beside the first store their sums."""
    name = f"quantized_matmul_lines_{kernel}"
    text = kernel_file._library("quantized_matmul", name, True).compile("compute_90a").decode()
    assert nvrtc.launch_facts(text.encode(), "msl_kernel_0").memory > 48 * 1024
    entry = text[text.index(".entry msl_kernel_0") :].partition(".entry msl_fast_0")[0]
    left = re.findall(rf"wgmma\.mma_async\S*m64n{rows}k16\S* \{{[^}}]*\}}, (\S)", entry)
    assert len(left) >= 16 and set(left) == {"{"}
    for instruction in ("cp.async.bulk.tensor", "cp.async.cg", "movmatrix"):
        assert instruction in entry
    assert ("cvt.rn.f16x2.e4m3x2" in entry) == ("mxfp8" in kernel)
    assert len(re.findall(r"st\.shared\.f32", entry)) == (rows // 2 if others else 0)
