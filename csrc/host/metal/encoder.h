// The argument table of a launch, and the launch itself: the part of Metal's
// MTLComputeCommandEncoder that torch uses.
#pragma once
#include <c10/util/ArrayRef.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <exec/exec.h>
#include <metal/scalar_types.h>

namespace at {
class Tensor;
class TensorBase;
struct TensorIteratorBase;
namespace native::mps {
class MetalKernelFunction;
}
}  // namespace at

namespace metalops {

constexpr size_t kMaxBytesArgument = 4096;  // Metal's limit for setBytes

// Bindings persist from one dispatch to the next, as in Metal, until they are replaced.
class Encoder {
 public:
  Encoder() = default;
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  // Binds a copy of `size` bytes; `size` is from 1 to kMaxBytesArgument.
  void set_bytes(unsigned index, const void* data, size_t size);
  void set_bytes(unsigned index, const ScalarBytes& scalar) {
    set_bytes(index, scalar.data, scalar.size);
  }
  template <typename T>
  void set_array(unsigned index, c10::ArrayRef<T> values) {
    set_bytes(index, values.data(), values.size() * sizeof(T));
  }
  template <typename T, size_t n>
  void set_array(unsigned index, const std::array<T, n>& values) {
    set_bytes(index, values.data(), n * sizeof(T));
  }
  template <typename T>
  void set_value(unsigned index, const T& value) {
    set_bytes(index, &value, sizeof(T));
  }

  // Binds a table of visible functions of the kernel's library, by name; "" leaves an entry out.
  // Raises RuntimeError unless the kernel has a table there, TypeError for a function of another
  // type, ValueError for a name that the library does not have.
  void set_functions(unsigned index, const std::vector<std::string>& functions,
                     const exec::Kernel& kernel);

  // Binds memory itself, of which the kernel may use `bytes`.
  void set_buffer(unsigned index, void* address, uint64_t bytes);

  // Binds memory that holds `count` elements of a type.
  void set_elements(unsigned index, void* address, int64_t count, c10::ScalarType type);

  // Binds a tensor's storage at its offset, whatever its strides. A CPU tensor must be 0-d: its
  // value is bound.
  void set_tensor(unsigned index, const at::TensorBase& tensor);

  // Binds a description of the tensor, for a kernel that takes it by a handle.
  void set_handle(unsigned index, const msl::abi::Tensor& description,
                  const at::TensorBase& tensor);

  // Binds a texture whose levels are in these tensors.
  void set_texture(unsigned index, const msl::abi::Texture& description,
                   c10::ArrayRef<at::Tensor> levels);

  // Binds a sampler (msl/texture_abi.h).
  void set_sampler(unsigned index, uint64_t sampler);

  // Binds operand `operand` of an iterator to the buffer of the same number, at the iterator's own
  // offset.
  void set_operand(at::TensorIteratorBase& iter, unsigned operand);

  // Sets the lengths of threadgroup arguments by index, 0 where there is none.
  void set_threadgroup_bytes(const std::array<uint32_t, msl::abi::kMaxBuffers>& bytes);

  // Raises unless every buffer that the kernel takes is bound and every length is given.
  void check_bound(const exec::Kernel& kernel);

  // Raises what dispatch() would, without running the kernel.
  void check_dispatch(const exec::Kernel& kernel, std::array<uint64_t, 3> threads,
                      std::array<uint64_t, 3> group);

  // Checks that other streams' work on the same memory is ordered, if that is checked.
  void check_order(const exec::Kernel& kernel) const;

  // Like dispatchThreads: `threads` in total, in groups of `group` of which the last ones may be
  // partial. Every argument of the kernel must be bound. Returns when the kernel has run, or is
  // queued on a stream that is not the default one.
  void dispatch(const exec::Kernel& kernel, std::array<uint64_t, 3> threads,
                std::array<uint64_t, 3> group);

  // Dispatches work whose order with that of other streams the caller has checked.
  void dispatch_in_order(const exec::Kernel& kernel, std::array<uint64_t, 3> threads,
                         std::array<uint64_t, 3> group);

  // Dispatches on one CPU thread, for a caller that has the turn and has called check_bound.
  void dispatch_1d_in_turn(const exec::Kernel& kernel, uint32_t threads);

 private:
  // Checks and sets the grid; returns false if it is empty.
  bool set_grid(const exec::Kernel& kernel, std::array<uint64_t, 3> threads,
                std::array<uint64_t, 3> group);
  void* copy(const void* data, size_t size);
  void describe(unsigned index, exec::BoundBuffer bound);
  void run(const exec::Kernel& kernel, int threads);
  void run_or_queue(const exec::Kernel& kernel, bool checks_order);
  void queue(const exec::Kernel& kernel);
  void bind(unsigned index, void* address, uint64_t bytes);

  // The texture and sampler argument tables. Queued launches share them.
  struct Textures {
    std::array<const msl::abi::Texture*, msl::abi::kMaxTextures> textures{};
    std::array<uint64_t, msl::abi::kMaxSamplers> samplers{};
    uint32_t bound_samplers = 0;
    std::vector<std::shared_ptr<const msl::abi::Texture>> descriptions;
  };
  Textures& own_textures();

  exec::Launch launch_{};
  uint32_t bound_ = 0;   // bit i: buffer i is bound (an empty tensor is bound to a null address)
  uint32_t tables_ = 0;  // bit i: a table of functions is bound to buffer i
  size_t inline_used_ = 0;
  // Written once; queued launches share them.
  std::vector<std::shared_ptr<unsigned char[]>> spill_;
  std::shared_ptr<Textures> textures_;  // null if there are none
  // Null unless launches are observed.
  std::unique_ptr<exec::BoundBuffers> described_;
  alignas(64) unsigned char inline_[1024];
};

// Describes a tensor as the binding of a buffer.
exec::BoundBuffer bound_tensor(const at::TensorBase& tensor);

// Return torch's group sizes for one-dimensional and two-dimensional elementwise launches.
std::array<uint64_t, 3> group_for_1d(const exec::Kernel& kernel, uint64_t length);
std::array<uint64_t, 3> group_for_2d(const exec::Kernel& kernel, uint64_t inner, uint64_t outer);

// Binds a table of visible functions to the kernel that is being encoded; see
// Encoder::set_functions.
void set_functions(const at::native::mps::MetalKernelFunction& kernel, unsigned index,
                   const std::vector<std::string>& names);

}  // namespace metalops
