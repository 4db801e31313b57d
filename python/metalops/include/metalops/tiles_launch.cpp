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

// Fewer elements leave parts of a GPU idle when a thread takes sixteen of them.
constexpr int64_t kFewest = int64_t{1} << 16;

// The dtypes are those of one kernel, and everything is on the device.
bool have_suitable_operands(const at::TensorIteratorBase& iter) {
  for (int i = 0; i < iter.ntensors(); ++i) {
    if (!iter.tensor(i).is_mps() || (i > 1 && iter.dtype(i) != iter.dtype(1))) {
      return false;
    }
  }
  return true;
}

// torch's own flavours for two operands without gaps take four elements a thread, which are enough
// bytes on their way, as are those of one operand unless they are small (on an H100, of torch's
// time for swiglu in half: 1.00 so and 0.90 by tiles; for gelu_quick 0.91, 0.95 by tiles and 1.00
// by packs). Those for three operands take one (for lerp_clamped in float 0.97, 1.00 by tiles).
bool are_for_torch(const at::TensorIteratorBase& iter) {
  return iter.is_contiguous() &&
         (iter.ninputs() == 2 || (iter.ninputs() == 1 && iter.element_size(0) > 2));
}

// Whether a single operand and its result are packs of 16-bit elements, one after the other.
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

// The dimensions of an iterator, the fastest first, with strides in elements.
struct Walk {
  Dimensions sizes;
  c10::SmallVector<Dimensions, 4> strides;  // of each operand

  explicit Walk(const at::TensorIteratorBase& iter) : sizes(iter.shape()) {
    for (int i = 0; i < iter.ntensors(); ++i) {
      strides.emplace_back(iter.strides(i));
      for (auto& stride : strides.back()) {
        stride /= static_cast<int64_t>(iter.element_size(i));
      }
    }
  }

  // One dimension is walked as two, if it can be divided.
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

  // Moves a dimension along which an operand lies that does not lie along the columns to the rows'
  // place.
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
  // Groups that are about as wide as they are high read all of the memory's lines that they touch,
  // in whichever direction these lie.
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
