"""torch's list of what fails on MPS, common_mps.py of its own tests, against the software device.

For each operator and dtype of the list the device has to refuse a sample as a Mac does, unless the
entry stands there for another reason: the CPU, with which the list's tests compare, refuses the
sample; no CPU kernel is involved, but views and memory alone or a kernel of ours where stock MPS has
none; or a Mac computes something else than the CPU does, which NOT_REFUSED says for each.
"""

import copy
import itertools
import unittest

import metalops
import pytest
import torch
from torch.testing._internal import common_mps
from torch.testing._internal.common_methods_invocations import op_db

from .test_op_db import (
    KNOWN_FAILURES,
    STEP,
    arguments,
    call,
    call_on_mps,
    name_of,
    ours_takes_part,
    outcome,
    refused_by_a_mac,
)

# Those that have more samples repeat themselves.
SAMPLES = 60

DTYPES = (
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.complex64,
)

COMPLEX = (torch.complex64,)
ORDER = "the order of equal elements is left open"
RANDOM = "the random numbers are others than the CPU's"
VARIANCE = "the results are complex where the CPU's are real"

# name -> (dtypes, reason): entries that are about results, which a stand-in takes from the CPU.
NOT_REFUSED = {
    "__rpow__": ((torch.int8, torch.int16, torch.int32, torch.int64, *COMPLEX), "zero to a power"),
    "arange": ((torch.uint8,), "negative numbers become unsigned ones in another way"),
    "argsort": ((torch.uint8, torch.int8, torch.bool, torch.float16, torch.bfloat16), ORDER),
    "fft.hfft2": (COMPLEX, "before macOS 14.4 only"),
    "logcumsumexp": (COMPLEX, "the branch of the logarithm is another"),
    "lu_unpack": (COMPLEX, "the list's tests make the samples on the Mac, by linalg.lu_factor"),
    "masked.median": (
        (torch.float16, torch.bfloat16, torch.float32),
        "torch composes it of nanmedian, which is ours",
    ),
    "nn.functional.conv3d": (COMPLEX, "never run there, because some Macs lack float16"),
    "nn.functional.conv_transpose2d": ((torch.bfloat16,), "rounded more often on the CPU"),
    "nn.functional.multi_head_attention_forward": (
        (torch.float16, torch.bfloat16, torch.float32),
        RANDOM,
    ),
    "nn.functional.pad.replicate_negative": (COMPLEX, "never run there, because it can crash"),
    "pow": (COMPLEX, "NaN where the CPU has numbers"),
    "sort": ((torch.uint8, torch.int8, torch.bool, torch.float16, torch.bfloat16), ORDER),
    "std": (COMPLEX, VARIANCE),
    "std.unbiased": (COMPLEX, VARIANCE),
    "std_mean": (COMPLEX, VARIANCE),
    "std_mean.unbiased": (COMPLEX, VARIANCE),
    "to_sparse": (COMPLEX, "made of operators that are listed as taking complex numbers"),
    "var": (COMPLEX, VARIANCE),
    "var.unbiased": (COMPLEX, VARIANCE),
    "var_mean": (COMPLEX, VARIANCE),
    "var_mean.unbiased": (COMPLEX, VARIANCE),
}


# name -> the version of torch whose list no longer has the entry.
MENDED = {
    "__rpow__": (2, 15),
    "arange": (2, 14),
    "fft.hfft2": (2, 15),
    "lu_unpack": (2, 15),
    "masked.median": (2, 14),
    "nn.functional.pad.replicate_negative": (2, 15),
    "pow": (2, 15),
    "std": (2, 15),
    "std.unbiased": (2, 15),
    "std_mean": (2, 15),
    "std_mean.unbiased": (2, 15),
    "to_sparse": (2, 15),
    "var": (2, 15),
    "var.unbiased": (2, 15),
    "var_mean": (2, 15),
    "var_mean.unbiased": (2, 15),
}


def listed_dtypes(op) -> list[torch.dtype]:
    """In which dtypes torch's list expects the operator to fail."""
    marked = copy.copy(op)
    marked.decorators = ()
    common_mps.mps_ops_modifier([marked])
    failures = [d for d in marked.decorators if d.decorators[0] is unittest.expectedFailure]
    supported = op.supported_dtypes("mps")
    return [
        dtype
        for dtype in DTYPES
        if dtype in supported and any(d.dtypes is None or dtype in d.dtypes for d in failures)
    ]


LISTED = {name_of(op): (op, dtypes) for op in op_db if (dtypes := listed_dtypes(op))}


def explanation(op, dtype) -> str:
    """Why the entry is in the list, or "" if the device lets all samples pass."""
    try:
        every = op.sample_inputs("cpu", dtype, set_seed=True)
        samples = list(itertools.islice(every, SAMPLES))
    except NotImplementedError:
        return "the CPU refuses what the samples are made by"
    with metalops.debug.standins() as served:
        for sample in samples:
            expected = outcome(lambda sample=sample: call(op, arguments(sample, "cpu")))
            if isinstance(expected, Exception):
                return "the CPU refuses"
            actual = outcome(lambda sample=sample: call_on_mps(op, sample))
            if refused_by_a_mac(actual, expected, sample):
                return "the device refuses"
            if isinstance(actual, Exception):
                if name_of(op) in KNOWN_FAILURES:
                    return KNOWN_FAILURES[name_of(op)]
                raise actual
    if not served or any(ours_takes_part(lambda s=s: call_on_mps(op, s)) for s in samples):
        return "no CPU kernel, or one of ours"
    return ""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if i % STEP == 0 else pytest.mark.nightly)
        for i, name in enumerate(LISTED)
    ],
)
def test_what_torch_expects_to_fail_on_a_mac_is_refused(name):
    op, dtypes = LISTED[name]
    passed = [dtype for dtype in dtypes if not explanation(op, dtype)]
    known, reason = NOT_REFUSED.get(name, ((), ""))
    assert set(passed) == set(known) & set(dtypes), reason


def test_exceptions_are_in_torchs_list():
    version = tuple(map(int, torch.__version__.split(".")[:2]))
    for name, (dtypes, _) in NOT_REFUSED.items():
        assert (name in LISTED) == (version < MENDED.get(name, (3,))), name
        unknown = set(dtypes) - set(LISTED[name][1]) if name in LISTED else ()
        assert not unknown, (name, unknown)
