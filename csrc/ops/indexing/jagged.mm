// Host side of kernels/indexing/jagged.metal: _jagged_to_padded_dense_forward and
// _padded_dense_to_jagged_forward, which stock MPS lacks.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <kernels/indexing/jagged.h>
#include <metalops/checks.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/metal_type.h>
#include <metalops/stock.h>
#include <metalops/sym_ints.h>

#include <algorithm>

namespace {

using at::Tensor;

constexpr const char* kToPadded = "_jagged_to_padded_dense_forward";
constexpr const char* kToJagged = "_padded_dense_to_jagged_forward";

// Returns the offsets of the single jagged dimension as the kernels take them.
Tensor offsets_of(const char* name, at::TensorList offsets, const Tensor& tensor,
                  const char* argument) {
  TORCH_CHECK(offsets.size() == 1, name, "(): only a single jagged dim is supported for now");
  metalops::check_same_device(name, {{tensor, argument}, {offsets[0], "offsets"}});
  TORCH_CHECK(offsets[0].dim() == 1, name,
              "(): expected 1D offsets, but got offsets.dim() == ", offsets[0].dim());
  return offsets[0].to(at::kLong).contiguous();
}

// Returns `first`, followed by the sizes from dimension `from` on.
at::DimVector followed_by(std::initializer_list<int64_t> first, c10::IntArrayRef sizes,
                          size_t from) {
  at::DimVector result(first);
  result.append(sizes.begin() + from, sizes.end());
  return result;
}

at::native::mps::MetalShaderLibrary& kernels() { return metalops::library("jagged"); }

// Writes rows of `to`: the row of `from` that `sources` names, or the filling. All are contiguous.
// A thread moves as many bytes at once as divide a row.
void move_rows(const Tensor& to, const Tensor& from, const Tensor& sources, double filling) {
  constexpr int64_t kWidest = 16;
  if (to.numel() == 0) {
    return;
  }
  const auto rows = sources.numel();
  const auto bytes = to.numel() / rows * to.element_size();
  const auto begin = from.storage_offset() * from.element_size();
  auto width = kWidest;
  while (bytes % width != 0 || begin % width != 0) {
    width /= 2;
  }
  const char* type = width == 16  ? "uint4"
                     : width == 8 ? "long"
                     : width == 4 ? "int"
                     : width == 2 ? "short"
                                  : "uchar";
  metalops::launch_rows(kernels(), metalops::KernelName("jagged_move_rows_") + type, bytes / width,
                        rows, to, from, sources,
                        at::full({kWidest / to.element_size()}, filling, to.options()));
}

Tensor jagged_to_padded(const Tensor& values, at::TensorList offsets_list,
                        c10::IntArrayRef max_lengths, double padding_value) {
  const auto offsets = offsets_of(kToPadded, offsets_list, values, "values");
  TORCH_CHECK(max_lengths.size() == 1, kToPadded,
              "(): only a single jagged dim is supported for now");
  TORCH_CHECK(values.dim() > 0, kToPadded, "(): expected values to have at least one dimension");
  const auto type = values.scalar_type();
  metalops::check_dtype(!at::isComplexType(type) && !at::isBarebonesUnsignedType(type), kToPadded,
                        type);
  const auto sequences = offsets.size(0) - 1;
  const auto padded =
      at::empty(followed_by({sequences, max_lengths[0]}, values.sizes(), 1), values.options());
  const metalops::JaggedParameters parameters{sequences, max_lengths[0], values.size(0)};
  const auto sources = at::empty({sequences * max_lengths[0]}, offsets.options());
  metalops::launch_threads(kernels(), "jagged_rows_of_padded", sources.numel(), sources, offsets,
                           parameters, metalops::kErrorBuffer);
  move_rows(padded, values.contiguous(), sources, padding_value);
  return padded;
}

// Without total_L the host reads the size of the result from the offsets, as torch does on every
// device.
Tensor padded_to_jagged(const Tensor& padded, at::TensorList offsets_list,
                        std::optional<int64_t> total_L) {
  const auto offsets = offsets_of(kToJagged, offsets_list, padded, "dense");
  TORCH_CHECK_INDEX(offsets.size(0) > 0,
                    "select(): index -1 out of range for tensor of size [0] at dimension 0");
  const auto rows = total_L.has_value() ? *total_L : offsets[-1].item<int64_t>();
  TORCH_CHECK(padded.dim() >= 2, kToJagged,
              "(): expected padded dim >= 2, but padded.dim() == ", padded.dim());
  const auto sequences = offsets.size(0) - 1;
  TORCH_CHECK_INDEX(sequences <= padded.size(0), "select(): index ", padded.size(0),
                    " out of range for tensor of size ", padded.sizes(), " at dimension 0");
  const auto values = at::empty(followed_by({rows}, padded.sizes(), 2), padded.options());
  const metalops::JaggedParameters parameters{sequences, padded.size(1), rows};
  const auto sources = at::empty({rows}, offsets.options());
  metalops::launch_threads(kernels(), "jagged_rows_of_jagged", std::max(rows, sequences + 1),
                           sources, offsets, parameters, metalops::kErrorBuffer);
  move_rows(values, padded.contiguous(), sources, /*filling=*/0);
  return values;
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("_jagged_to_padded_dense_forward", metalops::with_sym_ints<jagged_to_padded>);
  m.impl("_padded_dense_to_jagged_forward", padded_to_jagged);
}

}  // namespace
