"""Which of torch's operators work on mps tensors, and through whose kernels: `python -m metalops coverage`."""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from dataclasses import asdict, dataclass

from .. import _C
from .._torch import stock
from .._torch.internals import describe_kernels, has_kernel_for_key

# status -> its meaning
STATUSES = {
    "stock": "PyTorch has a Metal kernel",
    "ours": "metalops has a Metal kernel",
    "replaced": "both have one, and that of metalops is used",
    "left to torch": "both have one, and that of PyTorch is used",
    "composite": "made of other operators",
    "missing": "has a CPU kernel and none for mps",
    "cpu only": "has a CPU kernel and no use on mps",
    "no such tensors": "about tensors of a kind that PyTorch cannot make on mps",
    "elsewhere": "has kernels for other devices only",
}

# Registered as compositions, but with a loop over elements for which only CPU and CUDA have a kernel.
_COMPOSITE_WITHOUT_KERNEL = frozenset(
    f"aten::kaiser_window{overload}"
    for overload in ("", ".beta", ".beta_out", ".out", ".periodic", ".periodic_out")
)
_FOR_TESTS = "an example for torch's own tests"
_ONEDNN = "a part of oneDNN, Intel's library for CPUs"
_PACKED = "for weights that are packed for CPUs; mps has _weight_int4pack_mm"
_CONVOLUTION = "what convolutions end in on CPUs; on mps they end in _mps_convolution"
_ATTENTION = "what scaled_dot_product_attention ends in on CPUs"
# Operators that are "cpu only", with the reason.
_CPU_ONLY = {
    "aten::_foobar": _FOR_TESTS,
    "aten::_test_functorch_fallback": _FOR_TESTS,
    "aten::_test_optional_filled_intlist": _FOR_TESTS,
    "aten::_test_optional_floatlist": _FOR_TESTS,
    "aten::_test_optional_intlist": _FOR_TESTS,
    "aten::mkldnn_rnn_layer": _ONEDNN,
    "aten::mkldnn_rnn_layer_backward": _ONEDNN,
    "aten::to_mkldnn": _ONEDNN,
    "aten::_convert_weight_to_int4pack_for_cpu": _PACKED,
    "aten::_weight_int4pack_mm_for_cpu": _PACKED,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _ATTENTION,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _ATTENTION,
    "aten::slow_conv_transpose2d.out": _CONVOLUTION,
    "aten::slow_conv_transpose2d": _CONVOLUTION,
    "aten::slow_conv_transpose3d.out": _CONVOLUTION,
    "aten::slow_conv_transpose3d": _CONVOLUTION,
    "aten::_slow_conv2d_forward.output": _CONVOLUTION,
    "aten::_slow_conv2d_forward": _CONVOLUTION,
    "aten::_slow_conv2d_backward.grad_input": _CONVOLUTION,
    "aten::_slow_conv2d_backward.output_mask": _CONVOLUTION,
    "aten::slow_conv3d_forward.output": _CONVOLUTION,
    "aten::slow_conv3d_forward": _CONVOLUTION,
    "aten::slow_conv_dilated2d": _CONVOLUTION,
    "aten::slow_conv_dilated3d": _CONVOLUTION,
    "aten::from_file": "maps a file into the memory of the host",
}
_COMPRESSED = "torch makes no compressed sparse tensors on mps"
_NESTED = "torch makes no strided nested tensors on mps; those of layout torch.jagged work"
_QUANTIZED = "torch makes no quantized tensors on mps, and deprecates them; see metalops.quantize"
# Operators for "no such tensors", with the reason.
_NO_SUCH_TENSORS = {
    "aten::_to_sparse_bsc": _COMPRESSED,
    "aten::_to_sparse_bsr": _COMPRESSED,
    "aten::_to_sparse_csc": _COMPRESSED,
    "aten::_to_sparse_csr": _COMPRESSED,
    "aten::_nested_compute_contiguous_strides_offsets": _NESTED,
    "aten::_nested_from_padded": _NESTED,
    "aten::_nested_tensor_from_mask": _NESTED,
    "aten::_nested_view_from_buffer": _NESTED,
    "aten::_empty_affine_quantized": _QUANTIZED,
    "aten::_empty_per_channel_affine_quantized": _QUANTIZED,
    "aten::_make_per_channel_quantized_tensor": _QUANTIZED,
    "aten::_make_per_tensor_quantized_tensor": _QUANTIZED,
    "aten::quantize_per_channel": _QUANTIZED,
    "aten::quantize_per_tensor": _QUANTIZED,
    "aten::quantize_per_tensor.tensor_qparams": _QUANTIZED,
    "aten::quantize_per_tensor.tensors": _QUANTIZED,
    "aten::quantize_per_tensor_dynamic": _QUANTIZED,
}
_WITHOUT_KERNEL = {"cpu only": _CPU_ONLY, "no such tensors": _NO_SUCH_TENSORS}
_COMPOSITE_KEYS = (
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)
_CPU_KEYS = ("CPU", "SparseCPU")
_OUR_FILE = re.compile(r"^(?:Sparse)?MPS: registered at \S*csrc/ops/", re.MULTILINE)


@dataclass(frozen=True)
class Coverage:
    """An operator overload ("aten::sin.out") and its status, one of STATUSES.

    reason: why it is "cpu only" or for "no such tensors", or what is wrong with PyTorch's kernel that is "replaced";
    else empty.
    """

    name: str
    status: str
    reason: str = ""


def coverage() -> list[Coverage]:
    """Returns every overload of ATen with its status, in the order of torch's native_functions.yaml.

    Read from the dispatcher and from that file at each call, so operators that other packages register count as
    missing, those of metalops as ours. If torch has a Metal kernel for an operator of metalops, torch's is used ("left
    to torch"), unless there is something wrong with it ("replaced").

        >>> import metalops
        >>> statuses = {entry.name: entry.status for entry in metalops.coverage()}
        >>> statuses["aten::sin"], statuses["aten::special_airy_ai"]
        ('stock', 'ours')
    """
    text = stock.native_functions_file().read_text(encoding="utf-8")
    delegates = stock.delegates(text)
    shared = dict(_C.shared_overloads())
    entries = []
    for name in stock.overloads(text):
        status = _status(name, delegates, shared)
        reason = _WITHOUT_KERNEL.get(status, shared).get(name, "")
        entries.append(Coverage(name, status, reason))
    return entries


def _status(name: str, delegates: dict[str, str], shared: dict[str, str]) -> str:
    if name in shared:
        return "replaced" if shared[name] else "left to torch"
    if name in stock.stock_overloads() and name not in stock.FORCED_CPU_FALLBACK:
        return "stock"
    if _OUR_FILE.search(describe_kernels(name)):
        return "ours"
    if name in delegates:  # torch generates it from the other overload's kernel, for every device
        return _status(delegates[name], delegates, shared)
    if name not in _COMPOSITE_WITHOUT_KERNEL and any(
        has_kernel_for_key(name, k) for k in _COMPOSITE_KEYS
    ):
        return "composite"
    if any(name in overloads for overloads in stock.sparse_overloads()):
        return "stock"
    if name in _COMPOSITE_WITHOUT_KERNEL or any(has_kernel_for_key(name, k) for k in _CPU_KEYS):
        return next((x for x, names in _WITHOUT_KERNEL.items() if name in names), "missing")
    return "elsewhere"


def counts_table(entries: list[Coverage]) -> str:
    """Returns the numbers of overloads as a Markdown table."""
    counts = Counter(entry.status for entry in entries)
    rows = [f"| {status} | {counts[status]} | {STATUSES[status]} |" for status in STATUSES]
    return "\n".join(["| | overloads | |", "|---|---|---|", *rows])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="metalops coverage", description=__doc__)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="the numbers as a Markdown table")
    form.add_argument("--json", action="store_true", help="every overload with its status")
    parser.add_argument("--missing", action="store_true", help="only overloads that are missing")
    options = parser.parse_args(arguments)
    entries = coverage()
    shown = [x for x in entries if x.status == "missing" or not options.missing]
    if options.json:
        print(json.dumps([asdict(x) for x in shown], indent=1))
    elif options.markdown and options.missing:
        print("\n".join(f"- `{x.name}`" for x in shown))
    elif options.missing:
        print("\n".join(x.name for x in shown))
    elif options.markdown:
        print(counts_table(entries))
    else:
        counts = Counter(x.status for x in entries)
        for status, meaning in STATUSES.items():
            print(f"{status:15} {counts[status]:5}  {meaning}")
        for status in ("ours", "replaced", "left to torch", *_WITHOUT_KERNEL):
            print(f"\n{status}:")
            for x in entries:
                if x.status == status:
                    print(f"  {x.name}: {x.reason}" if x.reason else f"  {x.name}")
    return 0
