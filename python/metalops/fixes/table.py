"""Faults of stock MPS operators that users reported, as data: what is wrong, when, and which fix cures it.

Numbers are those of issues of pytorch/pytorch. A range of versions is what the reports say; where they end, nothing is
known about later ones.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault. operators: the overloads of aten that have it. fault: what happens. issue: the report's number. condition:
    when it happens. torch: the versions that have it, as far as known; systems: the same of macOS and chips. fix: the name
    of the fix that cures it, or "" if none does. ends: whether it ends the process."""

    name: str
    operators: tuple[str, ...]
    fault: str
    issue: int
    condition: str
    torch: str
    systems: str = "all"
    fix: str = ""
    ends: bool = False


@dataclasses.dataclass(frozen=True)
class Fix:
    """Kernels of metalops in the place of stock ones. kernels: the families, which are files of kernels/; none if a fix is
    made of torch's own. automatic: the minor versions of torch with which it is on by default on a Mac, because stock is always
    wrong there."""

    name: str
    kernels: tuple[str, ...]
    automatic: tuple[str, ...] = ()


FIXES = {
    fix.name: fix
    for fix in (
        Fix("adaptive_max_pool", ("adaptive_max_pool",), ("2.13",)),
        Fix("convolution", ("convolution",)),
        Fix("copy", ()),
        Fix("cumulative", ("cumulative",)),
        Fix("embedding_bag", ("embedding_bag", "scatter", "sort")),
        Fix("exponential", ("exponential",), ("2.13",)),
        Fix("grid_sample", ("grid_sampler", "scatter", "sort")),
        Fix("histogram", ("histogram", "scatter", "sort")),
        Fix("indexing", ("scatter", "sort")),
        Fix("matmul", ("gemm",)),
        Fix("median", ("sort",), ("2.13",)),
        Fix("multinomial", ("multinomial",), ("2.13",)),
        Fix("reduction", ("reduction",)),
        Fix("sort", ("sort",)),
        Fix("unique", ("unique", "sort")),
    )
}

FAULTS = {
    fault.name: fault
    for fault in (
        Fault(
            "linear-bias-rows",
            ("linear", "addmm"),
            "rows from the 65,537th on, of a product with a bias, overwrite the first ones",
            189495,
            "a bias, float32, and more than 65,536 matrices or rows",
            "2.12, 2.13",
            fix="matmul",
        ),
        Fault(
            "bmm-depth",
            ("bmm", "addbmm"),
            "terms that lie past the end of the operands are added to batched products",
            195163,
            "an inner dimension of 32,767 and more, and results of at least 16 x 16",
            "2.13 to 2.15",
            "M1, M2",
            fix="matmul",
        ),
        Fault(
            "baddbmm-depth",
            ("baddbmm",),
            "terms that lie past the end of the operands are added to batched products with an addend",
            195163,
            "an inner dimension of 32,767 and more, and results of at least 16 x 16",
            "2.13 to 2.15",
            "M1, M2",
            fix="matmul",
        ),
        Fault(
            "baddbmm-beta",
            ("baddbmm",),
            "with beta=0, NaN in the tensor that is to be ignored is in the result",
            194442,
            "beta=0, and NaN or an infinity in the addend, which may be memory that nobody has written",
            "2.13",
            fix="matmul",
        ),
        Fault(
            "mm-allocation",
            ("mm",),
            "products of long rows are off by a tenth to a third",
            193487,
            "tall operands, one of them transposed, depending on what was allocated and freed before",
            "2.7 to 2.13",
            "M1 Pro with macOS 26.6, others",
            fix="matmul",
        ),
        Fault(
            "mm-out",
            ("mm.out",),
            "a product is not written to a strided out=",
            104832,
            "out= that is not contiguous",
            "2.0",
            fix="matmul",
        ),
        Fault(
            "mm-empty",
            ("mm", "addmm"),
            "products without terms are memory that nobody has written, and not zero",
            175902,
            "an inner dimension of 0",
            "up to 2.11",
            fix="matmul",
        ),
        Fault(
            "bmm-large",
            ("bmm",),
            "matrices beyond element 2^32 are those of the beginning",
            197636,
            "results or gradients of more than 2^32 elements",
            "2.13 to 2.15",
            fix="matmul",
        ),
        Fault(
            "multinomial-zero",
            ("multinomial",),
            "a category of probability 0 is drawn",
            192577,
            "one draw, or draws without replacement, by chance: once in about 220 draws of 150,000 categories",
            "2.13",
            fix="multinomial",
        ),
        Fault(
            "exponential-zero",
            ("exponential_",),
            "an exponential random number is -0.0",
            192577,
            "by chance: one number in 30 million",
            "2.13",
            fix="exponential",
        ),
        Fault(
            "adaptive-max-pool",
            ("adaptive_max_pool2d",),
            "values, indices and sizes of adaptive_max_pool2d are wrong, and its gradient is refused",
            190064,
            "sizes of the input that are no multiples of the output's",
            "2.13",
            fix="adaptive_max_pool",
        ),
        Fault(
            "nanmedian-rank",
            ("nanmedian.dim_values", "median.dim_values"),
            "the process ends",
            191694,
            "a dimension before the last four",
            "2.13",
            fix="median",
            ends=True,
        ),
        Fault(
            "sort-rank",
            ("sort.stable", "argsort"),
            "the process ends",
            187105,
            "a dimension before the last four",
            "2.7 to 2.13",
            fix="sort",
            ends=True,
        ),
        Fault(
            "topk-rank",
            ("topk",),
            "the process ends",
            154890,
            "a dimension before the last four",
            "2.7 to 2.13",
            fix="sort",
            ends=True,
        ),
        Fault(
            "cumulative-rank",
            ("cumsum", "cumprod"),
            "the process ends",
            187105,
            "a dimension before the last four",
            "2.7 to 2.13",
            fix="cumulative",
            ends=True,
        ),
        Fault(
            "addcmul-strided",
            ("addcmul_", "addcdiv_"),
            "a tensor that is not contiguous is left as it was",
            118115,
            "a tensor in place that is not contiguous",
            "up to 2.4",
            "before macOS 15",
        ),
        Fault(
            "index-fill-bounds",
            ("index_fill_.int_Scalar",),
            "indices out of range write outside of the tensor instead of raising IndexError",
            189969,
            "an index that is out of range",
            "2.13",
            fix="indexing",
        ),
        Fault(
            "index-copy-bounds",
            ("index_copy_", "index_copy"),
            "indices out of range write outside of the tensor instead of raising IndexError",
            189968,
            "an index that is out of range, or negative",
            "2.13",
            fix="indexing",
        ),
        Fault(
            "bool-accumulate",
            ("scatter_add_", "index_add_", "_index_put_impl_"),
            "elements in front of a tensor are written, and those of the tensor are not",
            195074,
            "torch.bool, and a view that begins in the middle of four bytes",
            "2.13 to 2.15",
            fix="indexing",
        ),
        Fault(
            "index-add-complex",
            ("index_add_", "index_add"),
            "imaginary parts are not added",
            160845,
            "complex numbers",
            "2.9",
            fix="indexing",
        ),
        Fault(
            "scatter-narrow",
            ("scatter_.value", "scatter_.src"),
            "the process ends",
            121557,
            "a last dimension of size 1, and several indices along another one",
            "2.3",
            "macOS 14",
            fix="indexing",
            ends=True,
        ),
        Fault(
            "embedding-bag-last-offset",
            ("_embedding_bag", "_embedding_bag_forward_only"),
            "the last bag has indices that lie behind its end",
            190060,
            "include_last_offset=True, and a last offset that is less than the number of indices",
            "2.13",
            fix="embedding_bag",
        ),
        Fault(
            "embedding-bag-frequency",
            ("_embedding_bag_backward", "_embedding_bag_dense_backward"),
            "gradients are not divided by the frequency of their index",
            190061,
            "scale_grad_by_freq=True",
            "2.13",
            fix="embedding_bag",
        ),
        Fault(
            "embedding-bag-bounds",
            ("_embedding_bag", "_embedding_bag_forward_only"),
            "the row behind the weight is read instead of raising an error",
            189971,
            "an index that is out of range",
            "up to 2.13",
            fix="embedding_bag",
        ),
        Fault(
            "convolution-strided-weight",
            ("_mps_convolution",),
            "elements of the weight are read from elsewhere in its memory",
            192212,
            "two dimensions, and a weight that is a slice of another tensor",
            "2.12, 2.13",
            fix="convolution",
        ),
        Fault(
            "convolution-wide-filter",
            ("_mps_convolution",),
            "images after the first one are wrong",
            188335,
            "float32, groups, and a filter with a side of 256 and more",
            "2.12, 2.13",
            fix="convolution",
        ),
        Fault(
            "convolution-channels",
            ("_mps_convolution",),
            "channels from the 65,537th on are wrong, or such a convolution is refused",
            129207,
            "more than 65,536 channels of the result",
            "2.3 to 2.6",
            "macOS 14 to 15.0",
            fix="convolution",
        ),
        Fault(
            "convolution-3d",
            ("_mps_convolution",),
            "results are wrong",
            197114,
            "three dimensions, and an input that is contiguous",
            "2.14, 2.15",
            "macOS 26.2",
            fix="convolution",
        ),
        Fault(
            "histogram-range",
            ("histc", "histogram.bin_ct", "histogram.bins_tensor"),
            "numbers outside of the range are counted",
            195076,
            "numbers less than a bin's width, or some 4e-6, beyond the first or the last edge",
            "up to 2.15",
            fix="histogram",
        ),
        Fault(
            "histogram-bins",
            ("histc", "histogram.bin_ct", "histogram.bins_tensor"),
            "the process ends",
            195446,
            "more than some 8,180 bins",
            "2.14",
            fix="histogram",
            ends=True,
        ),
        Fault(
            "histc-integers",
            ("histc",),
            "integers are refused",
            176879,
            "tensors of integers",
            "2.10",
            fix="histogram",
        ),
        Fault(
            "argsort-large",
            ("argsort",),
            "indices of a sort are wrong",
            183885,
            "dim=0 of more than 2^22 columns",
            "2.12",
            fix="sort",
        ),
        Fault(
            "unique-large",
            ("_unique2",),
            "the inverse indices of unique are wrong",
            195595,
            "int64 values beyond 2^24",
            "2.13",
            fix="unique",
        ),
        Fault(
            "unique-counts",
            ("_unique2", "unique_consecutive"),
            "the counts of unique are wrong, or the command buffer fails",
            111173,
            "a million elements, most of which are equal, and return_counts",
            "2.1 to 2.13",
            fix="unique",
        ),
        Fault(
            "grid-sample-empty",
            ("grid_sampler_2d",),
            "a grid without elements is an internal error",
            175683,
            "a grid of which a side is 0",
            "2.10",
            fix="grid_sample",
        ),
        Fault(
            "grid-sample-channels-last",
            ("grid_sampler_2d",),
            "samples are those of other pixels and channels",
            174339,
            "an image in channels_last",
            "2.10",
            fix="grid_sample",
        ),
        Fault(
            "grid-sample-strided-grid",
            ("grid_sampler_3d",),
            "samples are those of other points",
            171602,
            "three dimensions, and a grid that is not contiguous",
            "2.9, 2.10",
            fix="grid_sample",
        ),
        Fault(
            "grid-sample-border",
            ("grid_sampler_2d",),
            "the border as padding is refused",
            125098,
            'padding_mode="border"',
            "up to 2.12",
            fix="grid_sample",
        ),
        Fault(
            "sum-rapid",
            ("sum.dim_IntList", "mean.dim", "count_nonzero", "nansum", "trace"),
            "sums are wrong now and then",
            178497,
            "many reductions in rapid succession, once in some 100,000 calls",
            "2.13",
            fix="reduction",
        ),
        Fault(
            "var-rapid",
            ("var.correction", "std.correction", "var_mean.correction", "std_mean.correction"),
            "variances of large tensors are wrong now and then",
            197235,
            "millions of elements, while other processes use the GPU",
            "2.13",
            "macOS 27",
            fix="reduction",
        ),
        Fault(
            "sum-axis",
            ("sum.dim_IntList",),
            "sums are added to others along another dimension",
            132732,
            "five dimensions, one of which is larger than 1",
            "2.4",
            fix="reduction",
        ),
        Fault(
            "sum-saturates",
            ("sum.dim_IntList",),
            "sums of small integers do not wrap around, but are the largest one",
            179415,
            "dtype=torch.uint8, or another one of 8 or 16 bits",
            "2.11",
            fix="reduction",
        ),
        Fault(
            "reduction-large",
            ("sum.dim_IntList", "max", "min"),
            "an error, or the end of the process",
            194082,
            "more than 2^32 elements",
            "2.13",
            fix="reduction",
        ),
        Fault(
            "copy-pageable",
            ("copy_",),
            "copies from the CPU with non_blocking=True read memory that has been freed",
            189690,
            "a source that is freed or written before the device is synchronised",
            "2.13",
            fix="copy",
        ),
    )
}
