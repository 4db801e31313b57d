// Host side of kernels/indexing/embedding_bag.metal: embedding_bag and its gradients, while the fix
// "embedding_bag" is on. Gradients of the weight are reduced by kernels/indexing/scatter.metal.
#include <ATen/TensorUtils.h>
#include <ATen/ops/_embedding_bag_sparse_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <csrc/ops/common/fixes.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <csrc/ops/common/typed_kernel.h>
#include <csrc/ops/indexing/scatter.h>
#include <kernels/indexing/embedding_bag.h>
#include <metalops/checks.h>
#include <metalops/launch.h>

#include <algorithm>
#include <tuple>

namespace {

using at::Tensor;
using metalops::EmbeddingBagParameters;
using metalops::is_given;
using metalops::MaybeTensor;

// The output, the bag of each index, the sizes of bags, and the indices of maxima.
using Bags = std::tuple<Tensor, Tensor, Tensor, Tensor>;

at::native::mps::MetalShaderLibrary& kernels() { return metalops::library("embedding_bag"); }

// Indices and the like, as kernels read them.
Tensor longs(const Tensor& x) { return x.to(at::kLong).contiguous(); }

// The weights of samples for kernels that may have them; any tensor if there are none.
Tensor sample_weights_or(const MaybeTensor& weights, const Tensor& other) {
  return is_given(weights) ? weights->contiguous() : other;
}

void check_arguments(const Tensor& weight, const Tensor& indices, const Tensor& offsets,
                     int64_t mode, const MaybeTensor& sample_weights, bool has_last_offset) {
  constexpr const char* kName = "embedding_bag";
  metalops::check_same_device(kName,
                              {{weight, "weight"}, {indices, "indices"}, {offsets, "offsets"}});
  TORCH_CHECK(indices.dim() == 1, "input has to be a 1D Tensor, but got Tensor of dimension ",
              indices.dim());
  TORCH_CHECK(offsets.dim() == 1, "offsets has to be a 1D Tensor, but got Tensor of dimension ",
              offsets.dim());
  TORCH_CHECK(weight.dim() == 2, "weight has to be a 2D Tensor, but got Tensor of dimension ",
              weight.dim());
  at::checkScalarTypes(kName, at::TensorArg(indices, "indices", 1), {at::kLong, at::kInt});
  at::checkScalarTypes(kName, at::TensorArg(offsets, "offsets", 1), {at::kLong, at::kInt});
  metalops::check_metal_float(kName, weight.scalar_type());
  TORCH_CHECK(!has_last_offset || offsets.size(0) >= 1,
              "include_last_offset: number of offset should be at least 1");
  TORCH_CHECK(mode >= metalops::kBagSum && mode <= metalops::kBagMaximum,
              "embedding_bag: mode must be 0, 1 or 2, but is ", mode);
  if (is_given(sample_weights)) {
    metalops::check_same_device(kName,
                                {{weight, "weight"}, {*sample_weights, "per_sample_weights"}});
    TORCH_CHECK(mode == metalops::kBagSum,
                "embedding_bag: per_sample_weights only supported with mode='sum'");
    TORCH_CHECK(sample_weights->scalar_type() == weight.scalar_type(),
                "embedding_bag: expected per_sample_weights of ", weight.scalar_type(),
                ", but got ", sample_weights->scalar_type());
    TORCH_CHECK(sample_weights->dim() == 1 && sample_weights->numel() == indices.numel(),
                "embedding_bag: expected per_sample_weights to have the size of indices, ",
                indices.sizes(), ", but got ", sample_weights->sizes());
  }
}

// Returns true if threads can load packs of a row's elements.
bool has_packs(const Tensor& weight) {
  return weight.stride(1) == 1 && weight.size(1) % metalops::kPack == 0 &&
         weight.stride(0) % metalops::kPack == 0 && metalops::begins_with_pack(weight);
}

Bags embedding_bag(const Tensor& weight, const Tensor& indices, const Tensor& offsets,
                   bool /*scale_grad_by_freq*/, int64_t mode, bool /*sparse*/,
                   const MaybeTensor& sample_weights, bool has_last_offset, int64_t padding) {
  check_arguments(weight, indices, offsets, mode, sample_weights, has_last_offset);
  const auto index_type = at::promoteTypes(indices.scalar_type(), offsets.scalar_type());
  const EmbeddingBagParameters p{.indices = indices.size(0),
                                 .bags = offsets.size(0) - (has_last_offset ? 1 : 0),
                                 .rows = weight.size(0),
                                 .columns = weight.size(1),
                                 .padding = padding,
                                 .row_stride = weight.stride(0),
                                 .column_stride = weight.stride(1),
                                 .grad_row_stride = 0,
                                 .grad_column_stride = 0,
                                 .row_bytes = 0,
                                 .mode = static_cast<int32_t>(mode),
                                 .has_last_offset = has_last_offset ? 1 : 0,
                                 .has_sample_weights = is_given(sample_weights) ? 1 : 0,
                                 .unused = 0};
  const bool is_maximum = mode == metalops::kBagMaximum;
  const auto all = longs(indices);
  const auto begins = longs(offsets);
  const auto options = all.options();
  const auto output = at::empty({p.bags, p.columns}, weight.options());
  const auto bags = at::empty({p.indices}, options);
  const auto sizes = at::zeros(offsets.sizes(), options);
  const auto largest = is_maximum ? at::empty(output.sizes(), options) : at::empty({0}, options);
  metalops::launch_threads(kernels(), "embedding_bag_find",
                           static_cast<uint64_t>(std::max(p.indices, offsets.size(0))), bags, all,
                           begins, p, metalops::kErrorBuffer);
  const bool are_packs = has_packs(weight);
  metalops::launch_threads(
      kernels(),
      metalops::typed_kernel(are_packs ? "embedding_bag_forward_packs_" : "embedding_bag_forward_",
                             weight),
      static_cast<uint64_t>(p.bags * (are_packs ? p.columns / metalops::kPack : p.columns)), output,
      sizes, is_maximum ? largest : sizes, weight, all, begins,
      sample_weights_or(sample_weights, weight), p);
  return {output, bags.to(index_type), sizes.to(index_type), largest.to(index_type)};
}

// ---- gradients ----------------------------------------------------------------------------------

EmbeddingBagParameters gradient_parameters(const Tensor& grad, const Tensor& indices, int64_t rows,
                                           int64_t mode, const MaybeTensor& sample_weights,
                                           int64_t padding) {
  return {.indices = indices.size(0),
          .bags = grad.size(0),
          .rows = rows,
          .columns = grad.size(1),
          .padding = padding,
          .row_stride = 0,
          .column_stride = 0,
          .grad_row_stride = grad.stride(0),
          .grad_column_stride = grad.stride(1),
          .row_bytes = grad.size(1) * static_cast<int64_t>(grad.element_size()),
          .mode = static_cast<int32_t>(mode),
          .has_last_offset = 0,
          .has_sample_weights = is_given(sample_weights) ? 1 : 0,
          .unused = 0};
}

Tensor backward_of_maxima(const Tensor& grad, const Tensor& largest, const Tensor& result,
                          const EmbeddingBagParameters& p) {
  metalops::ScatterItems to;
  to.places = at::empty({grad.numel()}, largest.options().dtype(at::kLong));
  to.items = grad;
  to.columns = to.self_columns = result.as_strided({}, {});
  const auto width = static_cast<int64_t>(grad.element_size());
  metalops::launch_threads(kernels(), "embedding_bag_maxima", static_cast<uint64_t>(grad.numel()),
                           to.places, longs(largest), p, width);
  metalops::reduce_items("embedding_bag", to, {});
  return result;
}

Tensor dense_backward(const Tensor& grad, const Tensor& indices, const Tensor& bags,
                      const Tensor& sizes, const Tensor& largest, c10::SymInt rows,
                      bool scale_grad_by_freq, int64_t mode, const MaybeTensor& sample_weights,
                      int64_t padding) {
  metalops::check_metal_float("embedding_bag", grad.scalar_type());
  const auto count = rows.expect_int();
  const auto p = gradient_parameters(grad, indices, count, mode, sample_weights, padding);
  auto result = at::zeros({count, p.columns}, grad.options());
  if (grad.numel() == 0 || p.indices == 0 || count == 0) {
    return result;
  }
  if (mode == metalops::kBagMaximum) {
    return backward_of_maxima(grad, largest, result, p);
  }
  const auto options = indices.options().dtype(at::kLong);
  metalops::ScatterItems to;
  to.places = at::empty({p.indices}, options);
  to.rows = at::empty({p.indices}, options);
  to.scales = at::empty({p.indices}, options.dtype(at::kFloat));
  to.items = grad.select(1, 0);
  to.columns = grad.select(0, 0);
  to.self_columns = result.select(0, 0);
  metalops::launch_threads(kernels(), metalops::typed_kernel("embedding_bag_items_", grad),
                           static_cast<uint64_t>(p.indices), to.places, to.rows, to.scales,
                           longs(indices), longs(bags), longs(sizes),
                           sample_weights_or(sample_weights, grad), p);
  // The mean of the gradients of an index is their sum, divided by its frequency.
  metalops::reduce_items(
      "embedding_bag", to,
      {.operation = metalops::kScatterSum, .is_mean = scale_grad_by_freq, .has_self = false});
  return result;
}

Tensor backward(const Tensor& grad, const Tensor& indices, const Tensor& offsets,
                const Tensor& bags, const Tensor& sizes, const Tensor& largest, c10::SymInt rows,
                bool scale_grad_by_freq, int64_t mode, bool sparse,
                const MaybeTensor& sample_weights, int64_t padding) {
  if (sparse) {
    return at::_embedding_bag_sparse_backward_symint(grad, indices, offsets, bags, sizes, rows,
                                                     scale_grad_by_freq, mode, sample_weights,
                                                     padding);
  }
  return dense_backward(grad, indices, bags, sizes, largest, rows, scale_grad_by_freq, mode,
                        sample_weights, padding);
}

Tensor sample_weights_backward(const Tensor& grad, const Tensor& weight, const Tensor& indices,
                               const Tensor& /*offsets*/, const Tensor& bags, int64_t mode,
                               int64_t padding) {
  TORCH_CHECK(mode == metalops::kBagSum,
              "embedding_bag_backward: per_sample_weights only supported for mode='sum'");
  metalops::check_metal_float("embedding_bag", grad.scalar_type());
  auto p = gradient_parameters(grad, indices, weight.size(0), mode, {}, padding);
  p.row_stride = weight.stride(0);
  p.column_stride = weight.stride(1);
  auto result = at::empty({p.indices}, grad.options());
  metalops::launch_simdgroups(kernels(), metalops::typed_kernel("embedding_bag_dots_", grad),
                              static_cast<uint64_t>(p.indices), result, grad, weight,
                              longs(indices), longs(bags), p);
  return result;
}

const metalops::Fix kEmbeddingBag("embedding_bag", [](metalops::AtenKernels& m,
                                                      const char* reason) {
  m.replace("_embedding_bag", embedding_bag, reason);
  m.replace("_embedding_bag_forward_only", embedding_bag, reason);
  m.replace("_embedding_bag_backward", backward, reason);
  m.replace("_embedding_bag_dense_backward", dense_backward, reason);
  m.replace("_embedding_bag_per_sample_weights_backward", sample_weights_backward, reason);
});

}  // namespace
