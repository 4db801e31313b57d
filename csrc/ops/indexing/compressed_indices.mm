// Host side of kernels/indexing/compressed_indices.metal: conversion of the indices of sparse
// matrices between COO and CSR, and their validation.
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/_convert_indices_from_coo_to_csr_meta.h>
#include <ATen/ops/_convert_indices_from_csr_to_coo_meta.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <csrc/ops/common/typed_kernel.h>
#include <kernels/indexing/compressed_indices.h>
#include <metalops/checks.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/stock.h>
#include <metalops/structured.h>
#include <metalops/views.h>

#include <algorithm>
#include <limits>

namespace {

using at::Tensor;
using metalops::CompressedIndicesParameters;

// Returns the indices as contiguous integers of 32 or 64 bits.
Tensor indices(const char* name, const Tensor& given) {
  const auto type = given.scalar_type();
  metalops::check_dtype(
      at::isIntegralType(type, /*includeBool=*/false) && !at::isBarebonesUnsignedType(type), name,
      type);
  return (type == at::kInt ? given : given.to(at::kLong)).contiguous();
}

Tensor& coo_to_csr_out(const Tensor& self, int64_t size, bool out_int32, Tensor& out) {
  constexpr const char* kName = "_convert_indices_from_coo_to_csr";
  metalops::check_same_device(kName, {{out, "out"}, {self, "self"}});
  TORCH_CHECK(size >= 0 && size < std::numeric_limits<uint32_t>::max(), kName,
              ": size must be a number of rows, but is ", size);
  metalops::StructuredOut<at::meta::structured__convert_indices_from_coo_to_csr>(out).meta(
      self, size, out_int32);
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, self);
  const auto rows = indices(kName, self);
  metalops::write_contiguous(out, [&](const Tensor& pointers) {
    metalops::launch_rows(
        metalops::library("compressed_indices"),
        metalops::typed_kernel("compressed_indices_row_pointers_", rows, pointers), size + 1, 1,
        pointers, rows, CompressedIndicesParameters{size, rows.numel()}, metalops::kErrorBuffer);
  });
  return out;
}

// Converts CSR indices to COO. crow_indices: (*, rows + 1); col_indices: (*, elements). out: a row
// for each of the dimensions *, then one for the row and one for the column indices, in the other
// order with `transpose`.
Tensor& csr_to_coo_out(const Tensor& crow_indices, const Tensor& col_indices, bool out_int32,
                       bool transpose, Tensor& out) {
  constexpr const char* kName = "_convert_indices_from_csr_to_coo";
  metalops::check_same_device(
      kName, {{out, "out"}, {crow_indices, "crow_indices"}, {col_indices, "col_indices"}});
  TORCH_CHECK(crow_indices.dim() > 0 && crow_indices.dim() == col_indices.dim() &&
                  crow_indices.size(-1) > 0 &&
                  crow_indices.sizes().slice(0, crow_indices.dim() - 1) ==
                      col_indices.sizes().slice(0, col_indices.dim() - 1),
              kName, ": crow_indices (*, rows + 1) and col_indices (*, elements) do not fit, with ",
              "sizes ", crow_indices.sizes(), " and ", col_indices.sizes());
  metalops::StructuredOut<at::meta::structured__convert_indices_from_csr_to_coo>(out).meta(
      crow_indices, col_indices, out_int32, transpose);
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, crow_indices);
  at::assert_no_overlap(out, col_indices);
  if (out.numel() == 0) {
    return out;
  }
  const auto pointers = indices(kName, crow_indices);
  const auto elements = col_indices.size(-1);
  const auto rows = at::empty(col_indices.sizes(), out.options());
  metalops::launch_rows(metalops::library("compressed_indices"),
                        metalops::typed_kernel("compressed_indices_row_indices_", pointers, rows),
                        elements, rows.numel() / elements, rows, pointers,
                        CompressedIndicesParameters{pointers.size(-1) - 1, elements});
  const auto batch = col_indices.dim() - 1;
  for (int64_t d = 0; d < batch; ++d) {
    at::DimVector sizes(col_indices.dim(), 1);
    sizes[d] = col_indices.size(d);
    const auto places = at::arange(col_indices.size(d), out.options()).view(sizes);
    out[d].copy_(places.expand(col_indices.sizes()).reshape(-1));
  }
  out[batch + (transpose ? 1 : 0)].copy_(rows.view(-1));
  out[batch + (transpose ? 0 : 1)].copy_(col_indices.reshape(-1));
  return out;
}

// Validates compressed (rows of CSR, columns of CSC) and plain indices, with the messages of
// torch's CPU function. cdim, dim: the numbers of rows and columns for CSR, of columns and rows for
// CSC. The host waits for the answer, since the check must precede any use of the indices.
void validate_indices(bool is_crow, const Tensor& compressed, const Tensor& plain, int64_t cdim,
                      int64_t dim, int64_t nnz) {
  metalops::check_same_device("_validate_compressed_sparse_indices",
                              {{compressed, "compressed_idx"}, {plain, "plain_idx"}});
  const char* const along = is_crow ? "crow_indices" : "ccol_indices";
  const char* const across = is_crow ? "col_indices" : "row_indices";
  const char* const groups = is_crow ? "nrows" : "ncols";
  const char* const places = is_crow ? "ncols" : "nrows";
  TORCH_CHECK(compressed.size(-1) == cdim + 1, along, " have wrong shape: ", along,
              ".shape[-1] = ", compressed.size(-1), " is not equal to ", groups,
              " + 1 = ", cdim + 1);
  TORCH_CHECK(plain.size(-1) == nnz, across, " have wrong shape: ", across,
              ".shape[-1] = ", plain.size(-1), " is not equal to nnz = ", nnz);
  const auto type = compressed.scalar_type();
  metalops::check_dtype(type == at::kInt || type == at::kLong,
                        "compressed_index_invariance_checks_mps", type);
  TORCH_CHECK(plain.scalar_type() == type, "Found dtype ", plain.scalar_type(), " but expected ",
              type);
  const auto begins = compressed.narrow(-1, 0, cdim);
  const auto counts = compressed.narrow(-1, 1, cdim).sub(begins);
  // An element is the first of its row, or follows the previous one. Pointers out of range are
  // reported first.
  auto sizes = at::infer_size(compressed.sizes().slice(0, compressed.dim() - 1),
                              plain.sizes().slice(0, plain.dim() - 1));
  const auto matrices = c10::multiply_integers(sizes);
  const auto flat = [&](const Tensor& of_matrices) {
    const auto count = of_matrices.size(-1);
    sizes.push_back(count);
    const auto expanded = of_matrices.expand(sizes);
    sizes.pop_back();
    return expanded.reshape({matrices, count});
  };
  const auto firsts = at::zeros({matrices, nnz + 1}, plain.options());
  firsts.scatter_(1, flat(begins).clamp(0, nnz).to(at::kLong), 1);
  const auto rows = flat(plain);
  const auto later = std::max<int64_t>(nnz - 1, 0);
  const auto from = std::min<int64_t>(nnz, 1);
  const auto is_out_of_order = rows.narrow(1, from, later)
                                   .le(rows.narrow(1, 0, later))
                                   .logical_and_(firsts.narrow(1, from, later).eq(0));
  const auto broken =
      at::stack({compressed.select(-1, 0).ne(0).any(), compressed.select(-1, cdim).ne(nnz).any(),
                 counts.lt(0).logical_or_(counts.gt(dim)).any(),
                 plain.lt(0).logical_or_(plain.ge(dim)).any(), is_out_of_order.any()})
          .cpu();
  const auto* const is_broken = broken.const_data_ptr<bool>();
  TORCH_CHECK(!is_broken[0], "`", along, "[..., 0] == 0` is not satisfied.");
  TORCH_CHECK(!is_broken[1], "`", along, "[..., -1] == nnz` is not satisfied.");
  TORCH_CHECK(!is_broken[2], "`0 <= ", along, "[..., 1:] - ", along, "[..., :-1] <= ", places,
              "` is not satisfied.");
  TORCH_CHECK(!is_broken[3], "`0 <= ", across, " < ", places, "` is not satisfied.");
  TORCH_CHECK(!is_broken[4], "`", across, "[..., ", along, "[..., i - 1]:", along,
              "[..., i]] for all i = 1, ..., ", groups,
              " are sorted and distinct along the last dimension values` is not satisfied.");
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("_convert_indices_from_coo_to_csr.out", coo_to_csr_out);
  m.impl("_convert_indices_from_csr_to_coo.out", csr_to_coo_out);
  m.impl("_validate_compressed_sparse_indices", validate_indices);
}

}  // namespace
