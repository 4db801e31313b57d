// Host side of kernels/reduction/hash_tensor.metal: hash_tensor, which stock MPS lacks.
#include <ATen/MemoryOverlap.h>
#include <ATen/native/ReduceOpsUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/hash_tensor_meta.h>
#include <csrc/ops/common/outputs.h>
#include <kernels/reduction/hash_tensor.h>
#include <metalops/checks.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/metal_type.h>
#include <metalops/stock.h>
#include <metalops/structured.h>

#include <algorithm>

namespace {

using at::Tensor;

// Contiguous elements, read as a matrix of `count` rows of `size`, whatever the tensor's sizes.
struct Rows {
  Tensor data;
  int64_t count;
  int64_t size;
};

// Returns the tensor as rows, with the dimensions to keep first and those to reduce last, flattened
// to one.
Rows as_rows(const Tensor& self, at::IntArrayRef dim) {
  const auto reduced = at::native::make_dim_mask(dim, self.dim());
  at::DimVector order;
  for (const bool last : {false, true}) {
    for (int64_t d = 0; d < self.dim(); ++d) {
      if (reduced[d] == last) {
        order.push_back(d);
      }
    }
  }
  int64_t count = 1;
  for (int64_t d = 0; d < self.dim(); ++d) {
    count *= reduced[d] ? 1 : self.size(d);
  }
  const bool in_order = std::is_sorted(order.begin(), order.end());
  return {in_order ? self.contiguous() : self.permute(order).contiguous(), count,
          count == 0 ? 0 : self.numel() / count};
}

// Returns true if pieces consist of whole vectors. Not on CPUs, which vectorise across threads of
// one element each.
bool whole_packs(const Tensor& data, const metalops::HashTensorParameters& parameters) {
  const auto whole = [&](int64_t elements) {
    return elements * static_cast<int64_t>(data.element_size()) % metalops::kPackBytes == 0;
  };
  return !metalops::a_thread_for_each_element() && whole(data.storage_offset()) &&
         whole(parameters.columns) && whole(parameters.piece);
}

// Computes a hash for each row. hashes: contiguous. Rows are hashed in pieces if they are too few
// to keep a GPU busy.
void hash_rows(const Rows& rows, const Tensor& hashes) {
  constexpr int64_t kEnoughRows = 512;
  constexpr int64_t kShort = 64;
  constexpr int64_t kPiece = 8192;
  constexpr int64_t kEnoughPieces = 8192;
  constexpr int64_t kLeastElements = 16;  // that a thread should process, at least
  constexpr int64_t kMostThreads = 128;
  constexpr int64_t kMostThreadsOfFewPieces = 512;
  metalops::HashTensorParameters parameters{rows.count, rows.size, 1, rows.size};
  if (parameters.rows < kEnoughRows && parameters.columns > kPiece) {
    parameters.piece = c10::metal::round_up<int64_t>(
        std::max(kPiece, c10::metal::ceil_div(parameters.rows * parameters.columns, kEnoughPieces)),
        metalops::kPackBytes);
    parameters.pieces = c10::metal::ceil_div(parameters.columns, parameters.piece);
  }
  const auto count = parameters.rows * parameters.pieces;
  const auto of_pieces =
      parameters.pieces == 1 ? hashes : at::empty({count}, hashes.options().dtype(at::kLong));
  auto& kernels = metalops::library("hash_tensor");
  const auto* type = metalops::metal_type(rows.data.scalar_type());
  const bool few = !metalops::a_thread_for_each_element() && count < kEnoughRows;
  const auto most = few ? kMostThreadsOfFewPieces : kMostThreads;
  int64_t threads = c10::metal::simdgroup_size;
  while (threads < most && threads * kLeastElements < parameters.piece) {
    threads *= 2;
  }
  if (parameters.piece <= kShort || count >= (int64_t{1} << 32) / threads) {
    metalops::launch_threads(kernels, metalops::KernelName("hash_tensor_short_rows_") + type, count,
                             of_pieces, rows.data, parameters);
  } else {
    const char* kind = whole_packs(rows.data, parameters) ? "packs_" : "rows_";
    metalops::launch_threadgroups(kernels, metalops::KernelName("hash_tensor_") + kind + type,
                                  count, threads, of_pieces, rows.data, parameters);
  }
  if (parameters.pieces != 1) {
    hash_rows({of_pieces, parameters.rows, parameters.pieces}, hashes);
  }
}

Tensor& hash_tensor_out(const Tensor& self, at::IntArrayRef dim, bool keepdim, int64_t mode,
                        Tensor& out) {
  metalops::check_same_device("hash_tensor", {{out, "out"}, {self, "self"}});
  metalops::StructuredOut<at::meta::structured_hash_tensor>(out).meta(self, dim, keepdim, mode);
  TORCH_CHECK(mode == 0, "Unknown hash_tensor mode: ", mode);
  const auto type = self.scalar_type();
  metalops::check_dtype(!at::isComplexType(type) && !at::isBarebonesUnsignedType(type),
                        "hash_tensor", type);
  at::assert_no_internal_overlap(out);
  const auto rows = as_rows(self, dim);
  const bool is_direct = out.is_contiguous() && !out.is_alias_of(self);
  metalops::write_through(out, is_direct, out.scalar_type(),
                          [&](const Tensor& hashes) { hash_rows(rows, hashes); });
  return out;
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("hash_tensor.out", hash_tensor_out);
}

}  // namespace
