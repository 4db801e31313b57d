// Host side of kernels/attention/masked_softmax.metal: _masked_softmax and its backward function,
// which stock MPS lacks. A mask is true where an element is left out.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/empty.h>
#include <csrc/ops/attention/masked_softmax.h>
#include <kernels/attention/masked_softmax.h>
#include <metalops/checks.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/metal_type.h>
#include <metalops/stock.h>
#include <metalops/views.h>

namespace {

using at::Tensor;
using metalops::MaskedSoftmaxParameters;

// How a mask is broadcast to the scores; the numbers are torch's.
enum MaskType : int64_t {
  kQueriesByKeys = 0,  // of sizes (L, L), for scores of sizes (B, heads, L, L)
  kPadding = 1,        // of sizes (B, L), for the same scores
  kSameSizes = 2,
};

void check_is_floating(const char* name, at::ScalarType type) {
  metalops::check_metal_float(name, type);
}

// Launches a softmax kernel. arguments: tensors of the result's sizes and the mask, with the
// softmax's dimension last, all contiguous. types: the suffix of the kernel's name.
template <class... Arguments>
void launch(const metalops::KernelName& name, const metalops::KernelName& types,
            const Tensor& result, const MaskedSoftmaxParameters& parameters,
            const Arguments&... arguments) {
  constexpr int64_t kShortest = 16;  // elements of a thread
  constexpr int64_t kShort = 32;
  constexpr int64_t kSimdgroup = c10::metal::simdgroup_size;
  constexpr int64_t kMostPacks = 8;  // of a thread, in registers
  constexpr int64_t kMostThreads = 1024;
  constexpr uint64_t kTogether = 2;  // on an H100 eight take up to a tenth longer
  if (result.numel() == 0) {
    return;
  }
  auto& library = metalops::library("masked_softmax");
  const auto rows = parameters.rows;
  const auto size = parameters.size;
  if (size <= kShort) {
    metalops::launch_threads(library,
                             name + "_short_rows_" + types + (size <= kShortest ? "_16" : "_32"),
                             rows, result, arguments..., parameters);
    return;
  }
  const bool aligned =
      size % metalops::kPack == 0 && (metalops::begins_with_pack(arguments) && ...);
  const auto kind = name + (aligned ? "_" : "_ragged_");
  const auto packs = size / metalops::kPack;
  if (packs <= kSimdgroup * kMostPacks) {
    const char* each = packs <= kSimdgroup       ? "simd_rows_1_"
                       : packs <= 2 * kSimdgroup ? "simd_rows_2_"
                       : packs <= 4 * kSimdgroup ? "simd_rows_4_"
                                                 : "simd_rows_8_";
    metalops::launch_simdgroups<kTogether>(library, kind + each + types, rows, result, arguments...,
                                           parameters);
  } else if (packs <= kMostThreads * kMostPacks) {
    auto threads = kSimdgroup;
    while (threads * kMostPacks < packs) {
      threads *= 2;
    }
    metalops::launch_threadgroups(library, kind + "group_rows_8_" + types, rows, threads, result,
                                  arguments..., parameters);
  } else {
    metalops::launch_threadgroups(library, kind + "long_rows_" + types, rows, kMostThreads, result,
                                  arguments..., parameters);
  }
}

// Returns a tensor, contiguous, whose last dimension is `dim`.
Tensor as_rows(const Tensor& tensor, int64_t dim) {
  return (dim + 1 >= tensor.dim() ? tensor : tensor.movedim(dim, -1)).contiguous();
}

Tensor with_rows_at(const Tensor& rows, int64_t dim) {
  return dim + 1 >= rows.dim() ? rows : rows.movedim(-1, dim);
}

MaskedSoftmaxParameters parameters_of(const Tensor& rows) {
  const auto size = rows.dim() == 0 ? 1 : rows.size(-1);
  const auto count = size == 0 ? 0 : rows.numel() / size;
  return {count, size, /*repeats=*/1, /*mask_rows=*/count};
}

}  // namespace

Tensor metalops::masked_softmax(const Tensor& scores, const Tensor& mask, int64_t given_dim,
                                std::optional<int64_t> given_type) {
  const bool is_attention = mask.dim() == 2 && scores.dim() == 4;
  const auto type = is_attention ? given_type : kSameSizes;
  if (type == kSameSizes) {
    TORCH_CHECK(scores.sizes() == mask.sizes(),
                "For mask_type == 2 mask shape should match input shape");
  } else if (type == kPadding) {
    TORCH_CHECK(scores.size(0) == mask.size(0) && scores.size(2) == mask.size(1),
                "For mask_type == 1 mask shape should be (B, L)");
  } else if (type == kQueriesByKeys) {
    TORCH_CHECK(scores.size(2) == mask.size(0) && scores.size(2) == mask.size(1),
                "For mask_type == 0 mask shape should be (L, L)");
  }
  const auto dim = at::maybe_wrap_dim(given_dim, scores.dim());
  check_is_floating("masked_softmax", scores.scalar_type());
  TORCH_CHECK(type.has_value(), "Mask Type should be defined");
  TORCH_CHECK(*type == kQueriesByKeys || *type == kPadding || *type == kSameSizes,
              "Mask Type should be 0 (src_mask) or 1 (src_key_padding_mask), or 2 (default_mask)");

  const auto input = as_rows(scores, dim);
  auto parameters = parameters_of(input);
  Tensor rows_of_mask;
  if (*type == kSameSizes) {
    rows_of_mask = as_rows(mask, dim);
  } else {
    const auto heads = *type == kPadding ? mask.unsqueeze(1).unsqueeze(2) : mask;
    const auto expanded = heads.expand_as(scores);  // raises if queries and keys differ in number
    if (dim == 3 && scores.numel() > 0) {
      parameters.repeats = *type == kPadding ? scores.size(1) * scores.size(2) : 1;
      parameters.mask_rows = mask.size(0);
      rows_of_mask = mask.contiguous();
    } else {
      rows_of_mask = as_rows(expanded, dim);
    }
  }
  const auto result = at::empty(input.sizes(), input.options());
  launch(
      "masked_softmax",
      metalops::KernelName(metal_type(input.scalar_type())) + "_" + metal_type(mask.scalar_type()),
      result, parameters, input, rows_of_mask);
  return laid_out_like(scores, with_rows_at(result, dim));
}

namespace {

Tensor masked_softmax(const Tensor& self, const Tensor& mask, std::optional<int64_t> dim,
                      std::optional<int64_t> mask_type) {
  metalops::check_same_device("_masked_softmax", {{self, "self"}, {mask, "mask"}});
  TORCH_CHECK(mask.scalar_type() == at::kBool, "Mask should be a boolean tensor");
  return metalops::masked_softmax(self, mask, dim.value_or(-1), mask_type);
}

Tensor masked_softmax_backward(const Tensor& grad_output, const Tensor& output, const Tensor& mask,
                               std::optional<int64_t> dim) {
  metalops::check_same_device("_masked_softmax_backward",
                              {{grad_output, "grad_output"}, {output, "output"}, {mask, "mask"}});
  TORCH_CHECK(grad_output.sizes() == mask.sizes(), "Mask shape should match grad shape");
  TORCH_CHECK(mask.scalar_type() == at::kBool, "Mask should be a boolean tensor");
  check_is_floating("masked_softmax_backward", grad_output.scalar_type());
  TORCH_CHECK(output.scalar_type() == grad_output.scalar_type(), "expected scalar type ",
              grad_output.scalar_type(), " but found ", output.scalar_type());
  TORCH_CHECK(output.sizes() == grad_output.sizes(), "expected output to have sizes ",
              grad_output.sizes(), ", but it has ", output.sizes());
  const auto wrapped = at::maybe_wrap_dim(dim.value_or(-1), grad_output.dim());
  const auto grad = as_rows(grad_output, wrapped);
  const auto grad_input = at::empty(grad.sizes(), grad.options());
  launch("masked_softmax_backward", metalops::metal_type(grad.scalar_type()), grad_input,
         parameters_of(grad), grad, as_rows(output, wrapped), as_rows(mask, wrapped));
  return with_rows_at(grad_input, wrapped).contiguous();
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("_masked_softmax", masked_softmax);
  m.impl("_masked_softmax_backward", masked_softmax_backward);
}

}  // namespace
