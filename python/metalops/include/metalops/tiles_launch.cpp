// Chooses and launches the tile and vector kernels of <metalops/tiles.h>: which operands suit them,
// and the layouts that they are passed.
#include <ATen/TensorIterator.h>
#include <c10/metal/common.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/metal_type.h>
#include <metalops/tiles.h>
#include <metalops/tiles_launch.h>
#include <metalops/views.h>

#include <algorithm>
#include <array>
#include <string>

namespace metalops {

namespace {

static_assert(kTile == kPack);

// With fewer elements, sixteen per thread would leave parts of a GPU idle.
constexpr int64_t kFewest = int64_t{1} << 16;

// Returns true if all inputs have one dtype and all operands are on the device.
bool have_suitable_operands(const at::TensorIteratorBase& iter) {
  for (int i = 0; i < iter.ntensors(); ++i) {
    if (!iter.tensor(i).is_mps() || (i > 1 && iter.dtype(i) != iter.dtype(1))) {
      return false;
    }
  }
  return true;
}

// Returns true if torch's own kernels are fast enough. For two contiguous inputs they take four
// elements per thread, which keeps enough bytes in flight, and likewise for one input unless its
// elements are small. For three inputs they take one element per thread. Speed on an H100 relative
// to torch: swiglu in half has 1.00 with these kernels and 0.90 with tiles; gelu_quick in half has
// 0.91, 0.95 with tiles and 1.00 with packs; lerp_clamped in float has 0.97, 1.00 with tiles.
bool are_for_torch(const at::TensorIteratorBase& iter) {
  return iter.is_contiguous() &&
         (iter.ninputs() == 2 || (iter.ninputs() == 1 && iter.element_size(0) > 2));
}

// Returns true if the result and its one input are contiguous 16-bit tensors that consist of whole
// aligned vectors of kWidePack elements.
bool are_wide_packs(const at::TensorIteratorBase& iter) {
  constexpr int64_t kPack16 = kWidePack;
  return iter.is_contiguous() && iter.ntensors() == 2 && iter.dtype(0) == iter.dtype(1) &&
         iter.element_size(0) == 2 && iter.numel() % kPack16 == 0 &&
         operand_at_start(iter, 0).storage_offset() % kPack16 == 0 &&
         operand_at_start(iter, 1).storage_offset() % kPack16 == 0;
}

void launch_wide_packs(at::native::mps::MetalKernelFunction& kernel,
                       const at::TensorIteratorBase& iter,
                       const std::optional<c10::Scalar>& alpha) {
  constexpr uint64_t kThreads = 128;
  encode(kernel, [&] {
    kernel.setArg(0, operand_at_start(iter, 0));
    kernel.setArg(1, operand_at_start(iter, 1));
    if (alpha) {
      kernel.setArg(2, alpha->toFloat());
    }
    kernel.dispatch(static_cast<uint64_t>(iter.numel()) / kWidePack, kThreads);
  });
}

using Dimensions = c10::SmallVector<int64_t, 8>;

// An iterator's dimensions, the fastest first, with strides in elements.
struct Walk {
  Dimensions sizes;
  c10::SmallVector<Dimensions, 4> strides;  // per operand

  explicit Walk(const at::TensorIteratorBase& iter) : sizes(iter.shape()) {
    for (int i = 0; i < iter.ntensors(); ++i) {
      strides.emplace_back(iter.strides(i));
      for (auto& stride : strides.back()) {
        stride /= static_cast<int64_t>(iter.element_size(i));
      }
    }
  }

  // Splits a single dimension into rows and columns. Returns false if it cannot be divided well.
  bool make_matrix() {
    constexpr int64_t kMostColumns = 1024;
    constexpr int64_t kFewestColumns = 64;
    if (sizes.size() > 1) {
      return true;
    }
    const auto columns = std::min(sizes[0] & -sizes[0], kMostColumns);
    if (columns < kFewestColumns) {
      return false;
    }
    sizes = {columns, sizes[0] / columns};
    for (auto& of_operand : strides) {
      of_operand.push_back(of_operand[0] * columns);
    }
    return true;
  }

  // Makes a dimension the rows' one if it is contiguous in an operand that is not contiguous along
  // the columns (a transposed operand).
  void find_rows() {
    for (size_t d = 1; d < sizes.size(); ++d) {
      for (const auto& of_operand : strides) {
        if (of_operand[0] > 1 && of_operand[d] == 1) {
          std::swap(sizes[1], sizes[d]);
          for (auto& other : strides) {
            std::swap(other[1], other[d]);
          }
          return;
        }
      }
    }
  }
};

bool begins_with_pack_everywhere(const at::Tensor& operand, const Dimensions& strides,
                                 size_t along) {
  for (size_t d = 0; d < strides.size(); ++d) {
    if (d == along ? strides[d] != 1 : strides[d] % kPack != 0) {
      return false;
    }
  }
  return begins_with_pack(operand);
}

template <unsigned N>
TileLayout<N> layout_of(const Walk& walk, const std::array<at::Tensor, N>& operands) {
  TileLayout<N> layout{};
  layout.columns = static_cast<uint32_t>(walk.sizes[0]);
  layout.rows = static_cast<uint32_t>(walk.sizes[1]);
  layout.dimensions = static_cast<uint32_t>(walk.sizes.size()) - 2;
  std::copy(walk.sizes.begin() + 2, walk.sizes.end(), layout.sizes);
  for (unsigned i = 0; i < N; ++i) {
    auto& operand = layout.operands[i];
    const auto& strides = walk.strides[i];
    operand.column_stride = static_cast<uint32_t>(strides[0]);
    operand.row_stride = static_cast<uint32_t>(strides[1]);
    std::copy(strides.begin() + 2, strides.end(), operand.strides);
    operand.has_rows = begins_with_pack_everywhere(operands[i], strides, 0);
    operand.has_columns = begins_with_pack_everywhere(operands[i], strides, 1);
  }
  layout.step = layout.operands[0].has_rows ? 1 : kApart;
  for (auto& operand : layout.operands) {
    operand.has_rows &= layout.step == 1;
  }
  return layout;
}

template <unsigned N>
void launch(at::native::mps::MetalKernelFunction& kernel, const at::TensorIteratorBase& iter,
            const Walk& walk, const std::optional<c10::Scalar>& alpha) {
  std::array<at::Tensor, N> operands;
  for (unsigned i = 0; i < N; ++i) {
    operands[i] = operand_at_start(iter, static_cast<int>(i));
  }
  const auto layout = layout_of<N>(walk, operands);
  const bool crosses = std::any_of(
      layout.operands, layout.operands + N,
      [](const TileOperand& operand) { return operand.has_columns && !operand.has_rows; });
  const auto rows = c10::metal::ceil_div(layout.rows, kTile);
  const std::array<uint64_t, 2> grid{
      layout.step == 1 ? c10::metal::ceil_div(layout.columns, kTile)
                       : c10::metal::ceil_div(layout.columns, kApart * kTile) * kApart,
      uint64_t{rows} * static_cast<uint64_t>(iter.numel() / (walk.sizes[0] * walk.sizes[1]))};
  // Roughly square threadgroups use all of the cache lines that they touch, whichever way operands
  // are laid out.
  const auto most = std::min<uint64_t>(kernel.getMaxThreadsPerThreadgroup(), 256);
  const auto width = std::min<uint64_t>(grid[0], crosses ? 8 : most);
  const std::array<uint64_t, 2> group{width, std::min(grid[1], most / width)};
  encode(kernel, [&] {
    unsigned next = 0;
    for (const auto& operand : operands) {
      kernel.setArg(next++, operand);
    }
    if (alpha) {
      kernel.setArg(next++, alpha->toFloat());
    }
    kernel.setArg(next, layout);
    kernel.dispatch(grid, c10::ArrayRef<uint64_t>(group));
  });
}

}  // namespace

bool launch_tiles(at::native::mps::MetalShaderLibrary& library, at::TensorIteratorBase& iter,
                  const std::string& name, const std::optional<c10::Scalar>& alpha,
                  std::optional<c10::ScalarType> alpha_type) {
  if (a_thread_for_each_element() || iter.numel() < kFewest ||
      iter.ndim() > static_cast<int>(c10::metal::max_ndim) || !have_suitable_operands(iter) ||
      are_for_torch(iter) || (alpha && alpha_type != at::kFloat)) {
    return false;
  }
  const auto types = std::string("_") + metal_type(iter.dtype(0)) + "_" +
                     metal_type(iter.dtype(1)) + (alpha ? "_float" : "");
  if (are_wide_packs(iter) && library.hasFunction(name + "_packs" + types)) {
    launch_wide_packs(*library.getCachedKernelFunctionPtr(name + "_packs" + types), iter, alpha);
    return true;
  }
  const auto text = name + "_tiles" + types;
  if (!library.hasFunction(text)) {
    return false;
  }
  Walk walk(iter);
  if (!walk.make_matrix()) {
    return false;
  }
  walk.find_rows();
  auto& kernel = *library.getCachedKernelFunctionPtr(text);
  switch (iter.ntensors()) {
    case 2:
      launch<2>(kernel, iter, walk, alpha);
      break;
    case 3:
      launch<3>(kernel, iter, walk, alpha);
      break;
    default:
      launch<4>(kernel, iter, walk, alpha);
  }
  return true;
}

}  // namespace metalops
