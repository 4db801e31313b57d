// Host side of kernels/indexing/indexing.metal: take, put_ and embedding_renorm_, which stock MPS
// lacks; and channel_shuffle and narrow_copy.out, which it lacks too, although its own copies are
// all that they need.
#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <csrc/ops/common/outputs.h>
#include <csrc/ops/common/typed_kernel.h>
#include <kernels/indexing/indexing.h>
#include <metalops/checks.h>
#include <metalops/library.h>
#include <metalops/stock.h>
#include <metalops/strided_launch.h>

#include <algorithm>
#include <limits>

namespace {

using at::Tensor;

at::native::mps::MetalShaderLibrary& kernels() { return metalops::library("indexing"); }

void check_not_barebones(const char* name, at::ScalarType type) {
  metalops::check_dtype(!at::isBarebonesUnsignedType(type) && type != at::kComplexHalf, name, type);
}

// ---- take ---------------------------------------------------------------------------------------

Tensor& take_out(const Tensor& self, const Tensor& index, Tensor& out) {
  metalops::check_same_device("take", {{out, "out"}, {self, "self"}, {index, "index"}});
  TORCH_CHECK(index.scalar_type() == at::kLong,
              "take(): Expected a long tensor for index, but got ", index.scalar_type());
  TORCH_CHECK(self.scalar_type() == out.scalar_type(),
              "take(): self and out expected to have the same dtype, but got self.dtype = ",
              self.scalar_type(), " and out.dtype = ", out.scalar_type());
  TORCH_CHECK_INDEX(self.numel() != 0 || index.numel() == 0,
                    "take(): tried to take from an empty tensor");
  check_not_barebones("take", self.scalar_type());
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, index);
  at::assert_no_overlap(out, self);
  at::native::resize_output(out, index.sizes());
  const auto layout = metalops::row_major_layout<2>({out, index});
  const auto self_layout = metalops::row_major_layout<1>({self});
  metalops::launch_threads(
      kernels(),
      metalops::KernelName("indexing_take_") + metalops::metal_type_of_width(self.scalar_type()),
      layout.count, out, self, index, layout, self_layout, metalops::kErrorBuffer);
  return out;
}

Tensor take(const Tensor& self, const Tensor& index) {
  auto out = at::empty(index.sizes(), self.options());
  take_out(self, index, out);
  return out;
}

// ---- put_ ---------------------------------------------------------------------------------------

Tensor& put_(Tensor& self, const Tensor& index, const Tensor& source, bool accumulate) {
  // Threads that write to the same element do so in no particular order, so that sums may be
  // rounded differently.
  at::globalContext().alertNotDeterministic("put_");
  metalops::check_same_device("put_", {{self, "self"}, {index, "index"}, {source, "source"}});
  TORCH_CHECK(index.scalar_type() == at::kLong,
              "put_(): Expected a long tensor for index, but got ", index.scalar_type());
  TORCH_CHECK(self.scalar_type() == source.scalar_type(),
              "put_(): self and source expected to have the same dtype, but got self.dtype = ",
              self.scalar_type(), " and source.dtype = ", source.scalar_type());
  TORCH_CHECK_INDEX(
      source.numel() == index.numel(),
      "put_(): Expected source and index to have the same number of elements, but got "
      "source.numel() = ",
      source.numel(), ", index.numel() = ", index.numel());
  TORCH_CHECK_INDEX(self.numel() != 0 || index.numel() == 0,
                    "put_(): Tried to put elements into an empty tensor");
  check_not_barebones("put_", self.scalar_type());
  at::assert_no_internal_overlap(self);
  at::assert_no_overlap(self, index);
  at::assert_no_overlap(self, source);
  const auto indices = index.reshape(source.sizes());
  const auto layout = metalops::row_major_layout<2>({source, indices});
  const auto self_layout = metalops::row_major_layout<1>({self});
  const auto type = self.scalar_type();
  metalops::launch_threads(
      kernels(),
      accumulate ? metalops::typed_kernel("indexing_put_accumulate_", type)
                 : metalops::KernelName("indexing_put_") + metalops::metal_type_of_width(type),
      layout.count, self, source, indices, layout, self_layout, metalops::kErrorBuffer);
  return self;
}

// ---- embedding_renorm_ --------------------------------------------------------------------------

Tensor& embedding_renorm_(Tensor& self, const Tensor& indices, double max_norm, double norm_type) {
  constexpr const char* kName = "embedding_renorm_";
  metalops::check_same_device(kName, {{self, "self"}, {indices, "indices"}});
  at::checkDim(kName, at::TensorArg(self, "self", 1), 2);
  at::checkScalarTypes(kName, at::TensorArg(indices, "indices", 2), {at::kLong, at::kInt});
  const auto type = self.scalar_type();
  TORCH_CHECK(at::isFloatingType(type) || at::isComplexType(type),
              "norm(): input dtype should be either floating point or complex. Got ", type,
              " instead.");
  at::assert_no_internal_overlap(self);
  const auto layout = metalops::row_major_layout<1>({indices});
  const metalops::EmbeddingRenormParameters parameters{self.size(0),
                                                       self.size(1),
                                                       self.stride(0),
                                                       self.stride(1),
                                                       static_cast<float>(max_norm),
                                                       static_cast<float>(norm_type)};
  const auto visited = at::zeros({self.size(0)}, self.options().dtype(at::kInt));
  constexpr int64_t kMostGroups = 1 << 20;
  metalops::launch_threadgroups(kernels(),
                                metalops::typed_kernel("indexing_embedding_renorm_", type) + "_" +
                                    metalops::metal_type(indices.scalar_type()),
                                std::min(layout.count, kMostGroups), c10::metal::simdgroup_size,
                                self, indices, visited, parameters, layout, metalops::kErrorBuffer);
  return self;
}

// ---- copies -------------------------------------------------------------------------------------

// Channel g * (channels / groups) + i becomes channel i * groups + g.
Tensor channel_shuffle(const Tensor& self, int64_t groups) {
  TORCH_CHECK(self.dim() > 2,
              "channel_shuffle expects input with > 2 dims, but got input with sizes ",
              self.sizes());
  TORCH_CHECK(groups > 0, "Number of groups to divide channels in must be positive.",
              " Value of groups:", groups);
  const auto channels = self.size(1);
  TORCH_CHECK(channels % groups == 0, "Number of channels must be divisible by groups. Got ",
              channels, " channels and ", groups, " groups.");
  check_not_barebones("channel_shuffle", self.scalar_type());
  const auto format = self.suggest_memory_format();
  const auto out = at::empty(self.sizes(), self.options().memory_format(format));
  if (self.numel() != 0) {
    const auto input = self.unflatten(1, {groups, channels / groups});
    out.unflatten(1, {channels / groups, groups}).copy_(input.transpose(1, 2));
  }
  return out;
}

Tensor& narrow_copy_out(const Tensor& self, int64_t dim, int64_t start, int64_t length,
                        Tensor& out) {
  metalops::check_same_device("narrow_copy", {{out, "out"}, {self, "self"}});
  TORCH_CHECK(self.dim() > 0, "narrow() cannot be applied to a 0-dim tensor.");
  TORCH_CHECK(self.scalar_type() == out.scalar_type(),
              "narrow_copy(): self and out expected to have the same dtype, but got self.dtype = ",
              self.scalar_type(), " and out.dtype = ", out.scalar_type());
  metalops::resize_and_copy(self.narrow(dim, start, length), out);
  return out;
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("take", take);
  m.impl("take.out", take_out);
  m.impl("put_", put_);
  m.impl("channel_shuffle", channel_shuffle);
  m.impl("narrow_copy.out", narrow_copy_out);
  m.replace("embedding_renorm_", embedding_renorm_, "runs on the CPU");
}

}  // namespace
