// Binding of arguments and dispatch of kernels.
#include <metal/encoder.h>

#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <sstream>

#include <exec/sanitize/findings.h>
#include <exec/sanitize/stream_order.h>
#include <metal/streams.h>

namespace metalops {
namespace {

// Returns the number of bytes from `address`, in the tensor's storage, to the end of that storage.
uint64_t bytes_behind(const at::TensorBase& tensor, const void* address) {
  const c10::Storage& storage = tensor.storage();
  const auto* begin = static_cast<const char*>(storage.data());
  return begin ? storage.nbytes() - (static_cast<const char*>(address) - begin) : 0;
}

// Returns the padded size of an argument: a kernel may read a three-component vector, which Metal
// pads to four, from three values.
size_t room_for(size_t size) {
  const bool exact = exec::sanitize_mode() == exec::SanitizeMode::kAddress;
  if (!exact) return (size + 15) / 16 * 16;
  const size_t component = size / 3;
  const bool three = size % 3 == 0 && (component == 2 || component == 4 || component == 8);
  return three ? 4 * component : size;
}

}  // namespace

exec::BoundBuffer bound_tensor(const at::TensorBase& tensor) {
  exec::BoundBuffer bound{exec::BoundBuffer::Kind::kTensor, tensor.storage().data(),
                          tensor.storage().nbytes()};
  bound.dtype = c10::getDtypeNames(tensor.scalar_type()).first;
  bound.element_bytes = c10::elementSize(tensor.scalar_type());
  bound.sizes = tensor.sizes().vec();
  bound.strides = tensor.strides().vec();
  bound.offset = tensor.storage_offset();
  bound.is_contiguous = tensor.is_contiguous();
  return bound;
}

void Encoder::bind(unsigned index, void* address, uint64_t bytes) {
  TORCH_CHECK(index < msl::abi::kMaxBuffers, "Metal kernels have buffers 0 to ",
              msl::abi::kMaxBuffers - 1, ", but buffer ", index, " was set");
  launch_.buffers[index] = address;
  launch_.buffer_bytes[index] = bytes;
  bound_ |= 1u << index;
  tables_ &= ~(1u << index);
}

void* Encoder::copy(const void* data, size_t size) {
  const size_t room = room_for(size);
  unsigned char* place;
  // With AddressSanitizer every argument gets a block of its own, with red zones around it.
  const bool apart = exec::sanitize_mode() == exec::SanitizeMode::kAddress;
  if (inline_used_ + room <= sizeof(inline_) && !apart) {
    place = inline_ + inline_used_;
    inline_used_ += room;
  } else {
    place = spill_.emplace_back(new unsigned char[room]).get();
  }
  std::memcpy(place, data, size);
  return place;
}

void Encoder::set_bytes(unsigned index, const void* data, size_t size) {
  TORCH_CHECK(size > 0);
  TORCH_CHECK(size <= kMaxBytesArgument, "Metal passes at most ", kMaxBytesArgument,
              " bytes by value, but buffer ", index, " was given ", size, "; use a tensor");
  bind(index, copy(data, size), size);
  if (C10_UNLIKELY(exec::describes_buffers())) {
    describe(index, {exec::BoundBuffer::Kind::kValue, launch_.buffers[index], size});
  }
}

void Encoder::set_functions(unsigned index, const std::vector<std::string>& functions,
                            const exec::Kernel& kernel) {
  const exec::KernelNotes* notes = exec::notes_of(kernel);
  const void* type = nullptr;
  for (uint32_t i = 0; notes != nullptr && i < kernel.argument_count; ++i) {
    const msl::abi::Argument& argument = kernel.arguments[i];
    const bool is_here = argument.kind == msl::abi::ArgumentKind::kBuffer &&
                         argument.index == static_cast<int>(index);
    if (is_here && notes->tables[i] != nullptr) type = notes->tables[i];
  }
  TORCH_CHECK(type != nullptr, "Unexpected argument types");  // as torch says it of strings
  // As visible_function_table reads it: the number of functions, then their addresses.
  std::vector<const void*> addresses{reinterpret_cast<const void*>(functions.size())};
  for (const std::string& name : functions) {
    if (name.empty()) {
      addresses.push_back(nullptr);
      continue;
    }
    const auto found = notes->visible.find(name);
    TORCH_CHECK_VALUE(found != notes->visible.end(), "Metal kernel '", kernel.name,
                      "': its source has no visible function '", name, "' that a table can hold");
    TORCH_CHECK_TYPE(found->second.type == type, "Metal kernel '", kernel.name, "': the function '",
                     name, "' is not of the type of the table in buffer ", index);
    addresses.push_back(found->second.address);
  }
  set_bytes(index, addresses.data(), addresses.size() * sizeof(void*));
  tables_ |= 1u << index;
}

void Encoder::describe(unsigned index, exec::BoundBuffer bound) {
  if (described_ == nullptr) described_ = std::make_unique<exec::BoundBuffers>();
  (*described_)[index] = std::move(bound);
}

void Encoder::set_buffer(unsigned index, void* address, uint64_t bytes) {
  bind(index, address, bytes);
  if (C10_UNLIKELY(exec::describes_buffers())) {
    describe(index, {exec::BoundBuffer::Kind::kMemory, address, bytes});
  }
}

void Encoder::set_elements(unsigned index, void* address, int64_t count, c10::ScalarType type) {
  const uint64_t bytes = count * c10::elementSize(type);
  bind(index, address, bytes);
  if (C10_UNLIKELY(exec::describes_buffers())) {
    exec::BoundBuffer bound{exec::BoundBuffer::Kind::kTensor, address, bytes};
    bound.dtype = c10::getDtypeNames(type).first;
    bound.element_bytes = c10::elementSize(type);
    bound.sizes = {count};
    bound.strides = {1};
    describe(index, std::move(bound));
  }
}

void Encoder::set_tensor(unsigned index, const at::TensorBase& tensor) {
  TORCH_CHECK(tensor.defined(), "Passed an undefined tensor to MPS op");
  if (tensor.device().is_cpu()) {
    TORCH_CHECK(tensor.dim() == 0, "Passed CPU tensor to MPS op");
    set_bytes(index, scalar_bytes(tensor.const_data_ptr(), tensor.scalar_type()));
    return;
  }
  TORCH_CHECK(tensor.device().is_mps(), "Expected an MPS tensor, but got one on ", tensor.device());
  void* address = const_cast<void*>(tensor.const_data_ptr());
  bind(index, address, bytes_behind(tensor, address));
  if (C10_UNLIKELY(exec::describes_buffers())) describe(index, bound_tensor(tensor));
}

void Encoder::set_handle(unsigned index, const msl::abi::Tensor& description,
                         const at::TensorBase& tensor) {
  set_value(index, description);
  if (C10_UNLIKELY(exec::describes_buffers())) {
    exec::BoundBuffer bound = bound_tensor(tensor);
    bound.kind = exec::BoundBuffer::Kind::kHandle;
    describe(index, std::move(bound));
  }
}

Encoder::Textures& Encoder::own_textures() {
  if (textures_ == nullptr) {
    textures_ = std::make_shared<Textures>();
  } else if (textures_.use_count() > 1) {
    textures_ = std::make_shared<Textures>(*textures_);
  }
  launch_.textures = textures_->textures.data();
  launch_.samplers = reinterpret_cast<const msl::abi::u64*>(textures_->samplers.data());
  return *textures_;
}

void Encoder::set_texture(unsigned index, const msl::abi::Texture& description,
                          c10::ArrayRef<at::Tensor> levels) {
  TORCH_CHECK(index < msl::abi::kMaxTextures, "Metal kernels have textures 0 to ",
              msl::abi::kMaxTextures - 1, ", but texture ", index, " was set");
  Textures& table = own_textures();
  table.descriptions.push_back(std::make_shared<const msl::abi::Texture>(description));
  table.textures[index] = table.descriptions.back().get();
  if (C10_UNLIKELY(exec::describes_buffers())) {
    if (described_ == nullptr) described_ = std::make_unique<exec::BoundBuffers>();
    std::erase_if(described_->textures, [index](const auto& t) { return t.first == index; });
    for (const at::Tensor& level : levels) {
      described_->textures.emplace_back(index, bound_tensor(level));
    }
  }
}

void Encoder::set_sampler(unsigned index, uint64_t sampler) {
  TORCH_CHECK(index < msl::abi::kMaxSamplers, "Metal kernels have samplers 0 to ",
              msl::abi::kMaxSamplers - 1, ", but sampler ", index, " was set");
  Textures& table = own_textures();
  table.samplers[index] = sampler;
  table.bound_samplers |= 1u << index;
}

void Encoder::set_operand(at::TensorIteratorBase& iter, unsigned operand) {
  const at::TensorBase& tensor = iter.tensor_base(operand);
  if (C10_UNLIKELY(tensor.device().is_cpu())) {
    set_tensor(operand, tensor);
    return;
  }
  void* address = iter.data_ptr(operand);
  bind(operand, address, bytes_behind(tensor, address));
  if (C10_UNLIKELY(exec::describes_buffers())) describe(operand, bound_tensor(tensor));
}

void Encoder::set_threadgroup_bytes(const std::array<uint32_t, msl::abi::kMaxBuffers>& bytes) {
  std::copy(bytes.begin(), bytes.end(), launch_.threadgroup_bytes);
}

void Encoder::check_bound(const exec::Kernel& kernel) {
  using msl::abi::ArgumentKind;
  const exec::KernelNotes* notes = exec::notes_of(kernel);
  for (uint32_t i = 0; i < kernel.argument_count; ++i) {
    const msl::abi::Argument& argument = kernel.arguments[i];
    const bool is_off = C10_UNLIKELY(notes != nullptr) && !notes->is_on(i);
    if (is_off || !exec::is_used(argument)) {
      const bool is_handle =
          argument.kind == ArgumentKind::kTexture || argument.kind == ArgumentKind::kSampler;
      if (is_handle && textures_ == nullptr)
        own_textures();  // a kernel reads its entry in any case
      continue;
    }
    if (argument.kind == ArgumentKind::kBuffer) {
      TORCH_CHECK_TYPE(notes == nullptr || notes->tables[i] == nullptr ||
                           !(bound_ >> argument.index & 1) || tables_ >> argument.index & 1,
                       "Metal kernel '", kernel.name, "': argument '", argument.name,
                       "' is a table of functions, which takes a list of names of visible "
                       "functions");
      TORCH_CHECK(bound_ >> argument.index & 1, "Metal kernel '", kernel.name,
                  "': nothing is bound to buffer ", argument.index, " ('", argument.type, " ",
                  argument.name, "')");
    } else if (argument.kind == ArgumentKind::kThreadgroup) {
      // torch's classes have no setThreadgroupMemoryLength.
      TORCH_CHECK(launch_.threadgroup_bytes[argument.index] != 0, "Metal kernel '", kernel.name,
                  "': the length of its threadgroup argument '", argument.name,
                  "' cannot be set from torch; declare the memory inside the kernel, or give its "
                  "length to metalops.compile_shader");
    } else if (argument.kind == ArgumentKind::kTexture) {
      for (uint32_t t = 0; t < argument.texture->count; ++t) {
        TORCH_CHECK(textures_ != nullptr && textures_->textures.at(argument.index + t) != nullptr,
                    "Metal kernel '", kernel.name, "': nothing is bound to texture ",
                    argument.index + t, " ('", argument.type, " ", argument.name, "')");
      }
    } else if (argument.kind == ArgumentKind::kSampler) {
      TORCH_CHECK(textures_ != nullptr && textures_->bound_samplers >> argument.index & 1,
                  "Metal kernel '", kernel.name, "': nothing is bound to sampler ", argument.index,
                  " ('", argument.type, " ", argument.name, "')");
    }
  }
}

bool Encoder::set_grid(const exec::Kernel& kernel, std::array<uint64_t, 3> threads,
                       std::array<uint64_t, 3> group) {
  check_bound(kernel);
  if (threads[0] == 0 || threads[1] == 0 || threads[2] == 0) return false;
  for (int axis = 0; axis < 3; ++axis) {
    TORCH_CHECK(threads[axis] <= std::numeric_limits<uint32_t>::max(), "Metal kernel '",
                kernel.name, "': a grid of ", threads[axis],
                " threads along one axis exceeds 32 bits");
    TORCH_CHECK_VALUE(group[axis] > 0, "Threadgroup size must be positive, but is (", group[0],
                      ", ", group[1], ", ", group[2], ")");
    launch_.grid[axis] = static_cast<uint32_t>(threads[axis]);
    launch_.group[axis] = static_cast<uint32_t>(group[axis]);
  }
  return true;
}

void Encoder::check_dispatch(const exec::Kernel& kernel, std::array<uint64_t, 3> threads,
                             std::array<uint64_t, 3> group) {
  if (set_grid(kernel, threads, group)) exec::check_launch(kernel, launch_);
}

void Encoder::dispatch(const exec::Kernel& kernel, std::array<uint64_t, 3> threads,
                       std::array<uint64_t, 3> group) {
  if (set_grid(kernel, threads, group)) run_or_queue(kernel, /*checks_order=*/true);
}

void Encoder::dispatch_in_order(const exec::Kernel& kernel, std::array<uint64_t, 3> threads,
                                std::array<uint64_t, 3> group) {
  if (set_grid(kernel, threads, group)) run_or_queue(kernel, /*checks_order=*/false);
}

void Encoder::run_or_queue(const exec::Kernel& kernel, bool checks_order) {
  streams::follow(streams::Followers::Work::kLaunch);
  if (C10_UNLIKELY(streams::in_use())) {
    if (checks_order && exec::checks_stream_order()) check_order(kernel);
    if (!streams::is_current_default()) return queue(kernel);
  }
  Turn turn;
  run(kernel, /*threads=*/0);
}

void Encoder::check_order(const exec::Kernel& kernel) const {
  if (described_ == nullptr) return;
  exec::StreamWork work{c10::str("kernel '", kernel.name, "'"), streams::current(), {}};
  for (uint32_t i = 0; i < kernel.argument_count; ++i) {
    const msl::abi::Argument& argument = kernel.arguments[i];
    if (argument.kind == msl::abi::ArgumentKind::kTexture) {
      for (const auto& [index, level] : described_->textures) {
        if (index - argument.index >= argument.texture->count) continue;
        work.access(level, argument.writable,
                    c10::str("texture ", index, " ('", argument.name, "', "));
      }
    }
    if (argument.kind != msl::abi::ArgumentKind::kBuffer) continue;
    const exec::BoundBuffer& bound = (*described_)[argument.index];
    work.access(bound, argument.writable,
                c10::str("buffer ", argument.index, " ('", argument.name, "', "));
  }
  exec::check_order(std::move(work));
}

void Encoder::queue(const exec::Kernel& kernel) {
  exec::check_launch(kernel, launch_);
  // Sanitizers and hooks of launches report at the call.
  if (exec::launch_hook != nullptr || exec::sanitize_mode() != exec::SanitizeMode::kOff) {
    streams::before_direct_work();
    Turn turn;
    return run(kernel, /*threads=*/0);
  }
  struct Queued {
    exec::Launch launch;
    std::vector<std::shared_ptr<unsigned char[]>> values;
    std::shared_ptr<const Textures> textures;
  };
  auto queued = std::make_shared<Queued>(Queued{launch_, spill_, textures_});
  if (inline_used_ != 0) {
    // Blocks of new are aligned to 16 bytes, as every argument is within `inline_`.
    std::shared_ptr<unsigned char[]> values(new unsigned char[inline_used_]);
    std::memcpy(values.get(), inline_, inline_used_);
    for (void*& address : queued->launch.buffers) {
      const auto* place = static_cast<unsigned char*>(address);
      const bool is_inline = inline_ <= place && place < inline_ + inline_used_;
      if (is_inline) address = values.get() + (place - inline_);
    }
    queued->values.push_back(std::move(values));
  }
  streams::submit(kernel.name, [queued, &kernel] { exec::run(kernel, queued->launch); });
}

void Encoder::run(const exec::Kernel& kernel, int threads) {
  exec::run(kernel, launch_, exec::Engine::kAutomatic, threads, described_.get());
}

void Encoder::dispatch_1d_in_turn(const exec::Kernel& kernel, uint32_t threads) {
  launch_.grid[0] = threads;
  launch_.group[0] = std::min(threads, kernel.max_threads_per_threadgroup);
  launch_.grid[1] = launch_.grid[2] = launch_.group[1] = launch_.group[2] = 1;
  run(kernel, /*threads=*/1);
}

std::array<uint64_t, 3> group_for_1d(const exec::Kernel& kernel, uint64_t length) {
  return {std::clamp<uint64_t>(length, 1, kernel.max_threads_per_threadgroup), 1, 1};
}

std::array<uint64_t, 3> group_for_2d(const exec::Kernel& kernel, uint64_t inner, uint64_t outer) {
  const uint64_t limit = kernel.max_threads_per_threadgroup;
  const uint64_t x = std::clamp<uint64_t>(inner, 1, limit);
  return {x, std::clamp<uint64_t>(outer, 1, limit / x), 1};
}

}  // namespace metalops
