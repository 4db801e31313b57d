// Host side of kernels/compressed_indices.metal: the indices of sparse matrices in COO and in CSR.
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/_convert_indices_from_coo_to_csr_meta.h>
#include <ATen/ops/_convert_indices_from_csr_to_coo_meta.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <kernels/compressed_indices.h>
#include <metalops/checks.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/metal_type.h>
#include <metalops/stock.h>
#include <metalops/structured.h>

#include <limits>

namespace {

using at::Tensor;
using metalops::CompressedIndicesParameters;
using metalops::KernelName;

// Integers of 32 or 64 bits, without gaps.
Tensor indices(const char* name, const Tensor& given) {
  const auto type = given.scalar_type();
  metalops::check_dtype(
      at::isIntegralType(type, /*includeBool=*/false) && !at::isBarebonesUnsignedType(type), name,
      type);
  return (type == at::kInt ? given : given.to(at::kLong)).contiguous();
}

KernelName named(const char* kernel, const Tensor& from, const Tensor& to) {
  return KernelName(kernel) + metalops::metal_type(from.scalar_type()) + "_" +
         metalops::metal_type(to.scalar_type());
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
  const auto pointers = out.contiguous();
  metalops::launch_rows(metalops::library("compressed_indices"),
                        named("row_pointers_", rows, pointers), size + 1, 1, pointers, rows,
                        CompressedIndicesParameters{size, rows.numel()}, metalops::kErrorBuffer);
  if (!pointers.is_same(out)) {
    out.copy_(pointers);
  }
  return out;
}

// crow_indices: (*, rows + 1). col_indices: (*, elements). out: a row for each of the dimensions *,
// one for the rows and one for the columns; these two the other way around with `transpose`.
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
                        named("row_indices_", pointers, rows), elements, rows.numel() / elements,
                        rows, pointers,
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

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("_convert_indices_from_coo_to_csr.out", coo_to_csr_out);
  m.impl("_convert_indices_from_csr_to_coo.out", csr_to_coo_out);
}

}  // namespace
