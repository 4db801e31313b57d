"""The tensor type of Metal code in a TorchMetalKernel: elements by index and extents, innermost dimension first."""

from __future__ import annotations

# operator() stands for a subscript of several indices: see subscripts.py.
TENSOR_VIEW = """\
#include <metal_stdlib>
using namespace metal;
namespace metalops {
template <typename T, uint Rank>
class tensor_view {
 public:
  tensor_view(device T* data, constant long* extents) : data_(data) {
    for (uint d = 0; d < Rank; ++d) {
      extents_[d] = static_cast<uint>(extents[d]);
    }
  }
  static constexpr uint get_rank() { return Rank; }
  uint get_extent(uint d) const { return extents_[d]; }
  template <typename I, typename = metal::enable_if_t<metal::is_integral<I>::value>>
  device T& operator[](I index) const {
    return data_[index];
  }
  template <typename I>
  device T& operator[](metal::array<I, Rank> index) const {
    size_t offset = 0;
    for (uint d = Rank; d > 0; --d) {
      offset = offset * extents_[d - 1] + static_cast<size_t>(index[d - 1]);
    }
    return data_[offset];
  }
  template <typename... I, typename = metal::enable_if_t<sizeof...(I) == Rank>>
  device T& operator()(I... indices) const {
    const metal::array<size_t, Rank> index = {static_cast<size_t>(indices)...};
    return (*this)[index];
  }

 private:
  device T* data_;
  uint extents_[Rank];
};
template <typename T>
class tensor_view<T, 0> {
 public:
  tensor_view(device T* data, constant long*) : data_(data) {}
  static constexpr uint get_rank() { return 0; }
  template <typename I, typename = metal::enable_if_t<metal::is_integral<I>::value>>
  device T& operator[](I index) const {
    return data_[index];
  }

 private:
  device T* data_;
};
}  // namespace metalops
"""
