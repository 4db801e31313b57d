// Allocators of the software device: MPS memory with statistics and watermarks, large results of
// CPU kernels, pinned memory.
#include <ATen/Context.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>
#include <device/allocator.h>
#include <device/device.h>
#include <device/large_blocks.h>
#include <exec/sanitize/fresh_outputs.h>
#include <exec/sanitize/red_zones.h>
#include <exec/sanitize/stream_order.h>
#include <locks.h>
#include <metal/streams.h>
#include <sys/mman.h>
#include <torch_internals.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace metalops::device {
namespace {

constexpr size_t kAlignment = 64;
// High watermark, as a ratio of physical memory. Live bytes may exceed it, for large allocations
// that are never touched as a whole; a Mac's limit is 1.7.
constexpr double kDefaultHighWatermark = 4.0;
constexpr double kMaxHighWatermark = 4.0;
// Low watermark: freed blocks are kept as long as live and kept bytes are fewer. A Mac, where
// little else needs the memory, begins to free at 1.4.
constexpr double kDefaultLowWatermark = 0.5;
constexpr const char* kHighWatermarkVariable = "PYTORCH_MPS_HIGH_WATERMARK_RATIO";
constexpr const char* kLowWatermarkVariable = "PYTORCH_MPS_LOW_WATERMARK_RATIO";

bool is_watermark(double ratio) { return ratio >= 0.0 && ratio <= kMaxHighWatermark; }

size_t page_size() {
  static const size_t size = sysconf(_SC_PAGE_SIZE);
  return size;
}

size_t physical_memory() {
  static const size_t size = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * page_size();
  return size;
}

// Parses a text that is one number; NaN if it is anything else.
double parse_number(std::string_view text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end ? value : std::numeric_limits<double>::quiet_NaN();
}

// `which`: "high" or "low".
double watermark_from_environment(const char* which, const char* variable, double otherwise) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return otherwise;
  const double ratio = parse_number(text);
  TORCH_CHECK(is_watermark(ratio), "invalid ", which, " watermark ratio '", text, "' in ", variable,
              ": expected a number from 0.0 to ", kMaxHighWatermark);
  return ratio;
}

constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

// One allocation statistic, like c10::CachingAllocator::Stat but updated by several threads, with
// one atomic instruction per block that is allocated or freed.
class Counter {
 public:
  void add(int64_t amount) {
    const int64_t allocated = allocated_.fetch_add(amount, std::memory_order_relaxed) + amount;
    const int64_t now = allocated - freed_.load(std::memory_order_relaxed);
    int64_t peak = peak_.load(std::memory_order_relaxed);
    while (now > peak && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
    }
  }
  void remove(int64_t amount) { freed_.fetch_add(amount, std::memory_order_relaxed); }
  int64_t current() const {
    // `freed_` is read first: whatever is freed in between was allocated before.
    const int64_t freed = freed_.load(std::memory_order_acquire);
    return allocated_.load(std::memory_order_relaxed) - freed;
  }
  void reset_accumulated() {
    allocated_before_ = allocated_.load(std::memory_order_relaxed);
    freed_before_ = freed_.load(std::memory_order_relaxed);
  }
  void reset_peak() { peak_.store(current(), std::memory_order_relaxed); }
  c10::CachingAllocator::Stat stat() const {
    c10::CachingAllocator::Stat out;
    out.current = current();
    out.peak = peak_.load(std::memory_order_relaxed);
    out.allocated = allocated_.load(std::memory_order_relaxed) - allocated_before_;
    out.freed = freed_.load(std::memory_order_relaxed) - freed_before_;
    return out;
  }

 private:
  // Totals since the process began, and their values when the statistics were last reset.
  std::atomic<int64_t> allocated_{0}, freed_{0}, allocated_before_{0}, freed_before_{0};
  std::atomic<int64_t> peak_{0};
};

struct Statistics {
  Counter blocks;
  Counter bytes;
  std::atomic<int64_t> out_of_memory{0};
};

Statistics& statistics() {
  static Statistics s;
  return s;
}

// A limit in bytes, given as a ratio of physical memory; 0.0 means no limit. The environment
// variable is read on first use, so that an error in it is raised where Python can catch it and not
// while the library is loaded.
class Watermark {
 public:
  constexpr Watermark(const char* name, const char* variable, double otherwise)
      : name_(name), variable_(variable), otherwise_(otherwise) {}

  size_t bytes() {
    size_t now = bytes_;
    if (now != kUnset) return now;
    const size_t read = of(watermark_from_environment(name_, variable_, otherwise_));
    // A value that the program has set in the meantime stays.
    return bytes_.compare_exchange_strong(now, read) ? read : now;
  }
  void set(double ratio) {
    TORCH_CHECK(is_watermark(ratio), "invalid ", name_, " watermark ratio ", ratio);
    bytes_ = of(ratio);
  }

 private:
  static constexpr size_t kUnset = 0;
  static size_t of(double ratio) {
    if (ratio == 0.0) return kNoLimit;
    return std::max(size_t{1}, static_cast<size_t>(ratio * static_cast<double>(physical_memory())));
  }

  const char* const name_;
  const char* const variable_;
  const double otherwise_;
  std::atomic<size_t> bytes_{kUnset};
};

constinit Watermark high_watermark("high", kHighWatermarkVariable, kDefaultHighWatermark);
constinit Watermark low_watermark("low", kLowWatermarkVariable, kDefaultLowWatermark);

std::string format_size(size_t bytes) {
  static constexpr std::array<const char*, 4> kUnits = {"bytes", "KiB", "MiB", "GiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  char text[64];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", value, kUnits[unit]);
  return text;
}

[[noreturn]] void raise_out_of_memory(size_t bytes) {
  Statistics& s = statistics();
  ++s.out_of_memory;
  const size_t limit = high_watermark.bytes();
  const std::string max_allowed = limit == kNoLimit ? "unlimited" : format_size(limit);
  TORCH_CHECK_WITH(
      OutOfMemoryError, false,
      "MPS backend out of memory (MPS allocated: ", format_size(s.bytes.current()),
      ", other allocations: 0 bytes, max allowed: ", max_allowed, "). Tried to allocate ",
      format_size(bytes),
      " on shared pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory "
      "allocations (may cause system failure).");
}

// Returns how many bytes may be kept for reuse beside `live` bytes.
size_t most_kept(size_t live) {
  const size_t limit = std::min(low_watermark.bytes(), high_watermark.bytes());
  return live < limit ? limit - live : 0;
}

void check_limit(size_t bytes) {
  low_watermark.bytes();  // raises errors in its environment variable
  const size_t limit = high_watermark.bytes();
  const auto fits = [&] { return bytes <= limit && statistics().bytes.current() + bytes <= limit; };
  if (!fits() && streams::has_queued()) streams::run_all();  // frees what waits for queued work
  if (!fits()) raise_out_of_memory(bytes);
}

// Counts an allocated block; releases kept blocks that no longer fit the low watermark.
void count(size_t bytes) {
  Statistics& s = statistics();
  s.blocks.add(1);
  s.bytes.add(static_cast<int64_t>(bytes));
  if (kept_bytes() != 0) release_kept(most_kept(s.bytes.current()));
}

void uncount(size_t bytes) {
  statistics().blocks.remove(1);
  statistics().bytes.remove(static_cast<int64_t>(bytes));
}

// Precedes a block from malloc, at the end of its alignment padding.
struct Header {
  uint32_t bytes;  // fewer than kLargeFrom
  uint32_t padding;
  uint64_t check;  // no other memory has this value in front of it, but by a chance of 1 in 2^64
};
static_assert(kLargeFrom <= std::numeric_limits<uint32_t>::max());

Header make_header(const void* memory, uint32_t bytes, uint32_t padding) {
  constexpr uint64_t kFraction = 0x9E3779B97F4A7C15;  // of the golden ratio: any odd number
  const uint64_t sizes = uint64_t{bytes} << 32 | padding;
  return {bytes, padding, (sizes ^ kFraction) * kFraction ^ reinterpret_cast<uintptr_t>(memory)};
}

Header& header_of(void* memory) {
  return *reinterpret_cast<Header*>(static_cast<char*>(memory) - sizeof(Header));
}

// The sizes of memory that has no header: adopted memory, and blocks with red zones.
class OtherSizes {
 public:
  void add(const void* memory, size_t bytes) {
    std::lock_guard<ForkSafeMutex> lock(mutex_);
    sizes_[memory] = bytes;
    count_ = sizes_.size();
  }
  void remove(const void* memory) {
    std::lock_guard<ForkSafeMutex> lock(mutex_);
    sizes_.erase(memory);
    count_ = sizes_.size();
  }
  std::optional<size_t> find(const void* memory) const {
    if (count_ == 0) return std::nullopt;  // without the lock, as in most programs
    std::lock_guard<ForkSafeMutex> lock(mutex_);
    const auto found = sizes_.find(memory);
    return found != sizes_.end() ? std::optional(found->second) : std::nullopt;
  }

 private:
  mutable ForkSafeMutex mutex_;
  std::unordered_map<const void*, size_t> sizes_;
  std::atomic<size_t> count_{0};
};
OtherSizes& other_sizes() {
  static OtherSizes& one = *new OtherSizes;
  return one;
}

// Returns a block aligned by hand: malloc keeps small blocks for reuse by this thread,
// posix_memalign does not. Null when there is no memory.
void* allocate_small(size_t bytes) {
  void* const start = std::malloc(bytes + sizeof(Header) + kAlignment);
  if (start == nullptr) return nullptr;
  const uintptr_t first = reinterpret_cast<uintptr_t>(start) + sizeof(Header);
  void* const memory = reinterpret_cast<void*>((first + kAlignment - 1) / kAlignment * kAlignment);
  const auto padding = static_cast<char*>(memory) - static_cast<char*>(start);
  header_of(memory) =
      make_header(memory, static_cast<uint32_t>(bytes), static_cast<uint32_t>(padding));
  return memory;
}

void before_free(const void* memory) {
  exec::note_stream_free(memory);
  if (C10_UNLIKELY(streams::followers.before_free != nullptr)) {
    streams::followers.before_free(memory);
  }
}

// Frees memory when no stream has queued work that may use it.
template <void (*release)(void*)>
void free_when_unused(void* memory) {
  if (C10_LIKELY(!streams::has_queued()) || !streams::keep(memory, release)) release(memory);
}

void release_block(void* memory) {
  exec::note_free(memory);
  // The header is cleared, since malloc may give the same address to others.
  const Header header = std::exchange(header_of(memory), {});
  uncount(header.bytes);
  std::free(static_cast<char*>(memory) - header.padding);
}

void release_large_block(void* memory) {
  uncount(large_bytes(memory));
  free_large(memory, most_kept(statistics().bytes.current()));
}

// The deleters of device memory.
void free_block(void* memory) {
  before_free(memory);
  free_when_unused<release_block>(memory);
}

void free_large_block(void* memory) {
  before_free(memory);
  free_when_unused<release_large_block>(memory);
}

// Bytes on either side of each allocation under AddressSanitizer, whose own red zones are narrower
// and hold its bookkeeping, which a kernel that writes there would destroy.
constexpr size_t kRedZone = size_t{16} << 10;

struct GuardedBlock {
  void* memory;
  size_t bytes;
};

void release_guarded_block(void* context) {
  auto* block = static_cast<GuardedBlock*>(context);
  exec::note_free(block->memory);
  other_sizes().remove(block->memory);
  uncount(block->bytes);
  char* const start = static_cast<char*>(block->memory) - kRedZone;
  exec::unpoison(start, block->bytes + 2 * kRedZone);
  std::free(start);
  delete block;
}

void free_guarded_block(void* context) {
  before_free(static_cast<GuardedBlock*>(context)->memory);
  free_when_unused<release_guarded_block>(context);
}

c10::DataPtr allocate_guarded_block(size_t bytes) {
  void* start = nullptr;
  if (posix_memalign(&start, kAlignment, bytes + 2 * kRedZone) != 0) raise_out_of_memory(bytes);
  char* const memory = static_cast<char*>(start) + kRedZone;
  exec::note_allocation(memory, bytes);
  other_sizes().add(memory, bytes);
  exec::poison(start, kRedZone);
  exec::poison(memory + bytes, kRedZone);
  count(bytes);
  return {memory, new GuardedBlock{memory, bytes}, &free_guarded_block, kDevice};
}

c10::DataPtr allocate_block(size_t bytes) {
  if (bytes == 0) return {nullptr, kDevice};
  check_limit(bytes);
  if (exec::has_red_zones()) return allocate_guarded_block(bytes);
  if (bytes >= kLargeFrom) {
    void* memory = allocate_large(bytes);
    if (memory == nullptr) raise_out_of_memory(bytes);
    count(bytes);
    return {memory, memory, &free_large_block, kDevice};
  }
  void* memory = allocate_small(bytes);
  if (memory == nullptr) raise_out_of_memory(bytes);
  exec::note_allocation(memory, bytes);
  count(bytes);
  return {memory, memory, &free_block, kDevice};
}

// Returns the size that was requested of device memory, by its first address; -1 for other
// addresses.
ssize_t bytes_of(const void* memory) {
  if (memory == nullptr) return -1;
  if (const size_t large = large_bytes(memory)) return static_cast<ssize_t>(large);
  if (const auto other = other_sizes().find(memory)) return static_cast<ssize_t>(*other);
  if (exec::has_red_zones()) return -1;
  // A program may ask for an address that is none of ours, with nothing in front of it.
  const auto address = reinterpret_cast<uintptr_t>(memory);
  if (address % kAlignment != 0) return -1;
  unsigned char in_core;
  auto* page = reinterpret_cast<void*>((address - 1) / page_size() * page_size());
  if (address % page_size() == 0 && mincore(page, 1, &in_core) != 0) return -1;
  const Header header = header_of(const_cast<void*>(memory));
  const bool is_block = header.check == make_header(memory, header.bytes, header.padding).check;
  return is_block ? static_cast<ssize_t>(header.bytes) : -1;
}

void release_storage(void* context) { internals::release(static_cast<c10::StorageImpl*>(context)); }

// Frees an adopted storage. Its size is unchanged, because nobody else holds it.
void release_adopted(void* context) {
  const auto* storage = static_cast<c10::StorageImpl*>(context);
  other_sizes().remove(storage->data());
  uncount(storage->nbytes());
  release_storage(context);
}

void free_adopted(void* context) {
  before_free(static_cast<c10::StorageImpl*>(context)->data());
  free_when_unused<release_adopted>(context);
}

class HostAllocator final : public at::mps::IMPSAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr memory = allocate_block(bytes);
    exec::note_stream_allocation(memory.get(), streams::current());
    return memory;
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    std::memcpy(destination, source, bytes);
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override { release_kept(0); }
  // Memory is never reused before all streams have done what they had queued when it was freed.
  void recordStream(const c10::DataPtr& memory, c10::Stream stream) override {
    streams::check(stream.id());
    exec::note_stream_use(memory.get(), stream.id());
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    const Statistics& s = statistics();
    c10::CachingDeviceAllocator::DeviceStats out;
    const auto blocks = s.blocks.stat();
    const auto bytes = s.bytes.stat();
    auto reserved = bytes;
    reserved.current = static_cast<int64_t>(getDriverAllocatedMemory());
    reserved.peak = std::max(reserved.peak, reserved.current);
    out.allocation[0] = out.segment[0] = out.active[0] = blocks;
    out.allocated_bytes[0] = out.active_bytes[0] = out.requested_bytes[0] = bytes;
    out.reserved_bytes[0] = reserved;
    out.num_ooms = s.out_of_memory;
    out.num_device_alloc = blocks.allocated;
    out.num_device_free = blocks.freed;
    return out;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {
    statistics().blocks.reset_accumulated();
    statistics().bytes.reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex) override {
    statistics().blocks.reset_peak();
    statistics().bytes.reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override {
    const size_t total = physical_memory();
    const size_t used = statistics().bytes.current();
    return {used < total ? total - used : 0, total};
  }

  void freeInactiveBuffers() const override { release_kept(0); }
  ssize_t getUnalignedBufferSize(const void* memory) const override { return bytes_of(memory); }
  c10::IntArrayRef getBufferShape(const void*) const override { return {}; }
  id_t getBufferId(const void*) const override { return 0; }
  void setBufferShape(const void*, const c10::IntArrayRef&) const override {}
  // Read at each call: other tests use the same process.
  bool isSharedBuffer(const void*) const override {
    const char* text = std::getenv("METALOPS_PRIVATE_BUFFERS");
    return text == nullptr || std::string_view(text) != "1";
  }
  c10::DataPtr allocScalarBufferWithValue(void* value, size_t bytes) const override {
    c10::DataPtr data = allocate_block(bytes);
    std::memcpy(data.get(), value, bytes);
    return data;
  }
  std::string formatSize(size_t bytes) const override { return format_size(bytes); }
  void setLowWatermarkRatio(double ratio) const override {
    low_watermark.set(ratio);
    release_kept(most_kept(getCurrentAllocatedMemory()));
  }
  void setHighWatermarkRatio(double ratio) const override {
    high_watermark.set(ratio);
    release_kept(most_kept(getCurrentAllocatedMemory()));
  }
  ssize_t getLowWatermarkValue() const override {
    const size_t most = std::numeric_limits<ssize_t>::max();
    return static_cast<ssize_t>(std::min(getLowWatermarkLimit(), most)) -
           static_cast<ssize_t>(getCurrentAllocatedMemory());
  }
  size_t getLowWatermarkLimit() const override { return low_watermark.bytes(); }
  size_t getHighWatermarkLimit() const override { return high_watermark.bytes(); }
  size_t getTotalAllocatedMemory() const override { return getCurrentAllocatedMemory(); }
  size_t getCurrentAllocatedMemory() const override { return statistics().bytes.current(); }
  size_t getDriverAllocatedMemory() const override {
    return getCurrentAllocatedMemory() + large_bytes_beyond_use();
  }
  size_t getRecommendedMaxMemory() const override { return physical_memory(); }
  std::pair<const void*, uint32_t> getSharedBufferPtr(const void* pointer) const override {
    return {pointer, 1};
  }
  c10::Storage getHostAliasStorage(const c10::Storage& storage) const override {
    TORCH_CHECK(storage.device().is_mps(), "_host_alias_storage: expected an MPS storage, but got ",
                storage.device());
    return cpu_alias(storage);
  }
  bool recordEvents(c10::ArrayRef<const void*>) const override { return false; }
  bool waitForEvents(c10::ArrayRef<const void*>) const override { return false; }
};

HostAllocator& host_allocator() {
  static HostAllocator a;
  return a;
}

// Registered while the library is loaded, before anything can request a tensor.
const struct Registration {
  Registration() { c10::SetAllocator(c10::DeviceType::MPS, &host_allocator()); }
} registration;

thread_local bool serves_device = false;

// torch's allocator of CPU tensors, except for large tensors that CPU kernels make for the device:
// those take blocks as device tensors do.
class CpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = nullptr;
    if (bytes >= kLargeFrom && serves_device && !exec::has_red_zones()) {
      memory = allocate_large(bytes);
    }
    if (memory == nullptr) return others.allocate(bytes);
    c10::profiledCPUMemoryReporter().New(memory, bytes);
    return {memory, memory, &free_large_result, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return others.raw_deleter() == nullptr ? nullptr : &free_any;
  }
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    others.copy_data(destination, source, bytes);
  }

 private:
  static inline c10::Allocator& others = *c10::GetCPUAllocator();

  static void free_large_result(void* memory) {
    c10::profiledCPUMemoryReporter().Delete(memory);
    free_large(memory, most_kept(statistics().bytes.current()));
  }
  static void free_any(void* memory) {
    if (large_bytes(memory) != 0) {
      free_large_result(memory);
    } else {
      others.raw_deleter()(memory);
    }
  }
};

const struct CpuRegistration {
  CpuRegistration() { c10::SetCPUAllocator(new CpuAllocator); }
} cpu_registration;

// Pinned memory: ordinary host memory, recorded as pinned.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const size_t size = std::max<size_t>(bytes, 1);
    void* memory = internals::alloc_cpu(size);
    std::lock_guard<ForkSafeMutex> lock(mutex);
    ranges[static_cast<const char*>(memory)] = size;
    return {memory, memory, &release, c10::Device(c10::kCPU)};
  }
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    std::memcpy(destination, source, bytes);
  }

  static bool owns(const void* pointer) {
    const auto* address = static_cast<const char*>(pointer);
    std::lock_guard<ForkSafeMutex> lock(mutex);
    auto after = ranges.upper_bound(address);
    if (after == ranges.begin()) return false;
    const auto& [begin, size] = *--after;
    return address < begin + size;
  }

 private:
  static inline ForkSafeMutex& mutex = *new ForkSafeMutex;
  static inline auto& ranges = *new std::map<const char*, size_t>;
  static void release(void* memory) {
    {
      std::lock_guard<ForkSafeMutex> lock(mutex);
      ranges.erase(static_cast<const char*>(memory));
    }
    internals::free_cpu(memory);
  }
};

}  // namespace

at::mps::IMPSAllocator& allocator() { return host_allocator(); }

ServesDevice::ServesDevice() : before_(std::exchange(serves_device, true)) {}

ServesDevice::~ServesDevice() { serves_device = before_; }

c10::Allocator& pinned_allocator() {
  static PinnedAllocator a;
  return a;
}

c10::Storage cpu_alias(const c10::Storage& mps_storage) {
  auto* impl = internals::impl(mps_storage);
  internals::hold(impl);
  c10::DataPtr data(impl->mutable_data(), impl, &release_storage, c10::Device(c10::kCPU));
  return c10::Storage(c10::Storage::use_byte_size_t(), impl->nbytes(), std::move(data),
                      c10::GetCPUAllocator(),
                      /*resizable=*/true);
}

c10::DataPtr adopt(c10::Storage cpu_storage) {
  const size_t bytes = cpu_storage.nbytes();
  void* memory = cpu_storage.mutable_data();
  // Device memory is aligned: it is an MTLBuffer for programs in Objective-C (objc/runtime.h).
  const bool is_aligned = reinterpret_cast<uintptr_t>(memory) % kAlignment == 0;
  if ((exec::has_red_zones() || !is_aligned) && bytes != 0) {
    c10::DataPtr copy = allocate_block(bytes);
    std::memcpy(copy.get(), memory, bytes);
    return copy;
  }
  check_limit(bytes);
  count(bytes);
  if (memory != nullptr) other_sizes().add(memory, bytes);
  exec::note_stream_allocation(memory, streams::current());
  return {memory, internals::take(std::move(cpu_storage)), &free_adopted, kDevice};
}

c10::Storage adopt_storage(c10::Storage cpu_storage) {
  const size_t bytes = cpu_storage.nbytes();
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes, adopt(std::move(cpu_storage)),
                      &host_allocator(),
                      /*resizable=*/true);
}

void resize(const c10::Storage& mps_storage, size_t bytes) {
  auto* impl = internals::impl(mps_storage);
  TORCH_CHECK(impl->resizable(), "Trying to resize storage that is not resizable");
  c10::DataPtr memory = allocate_block(bytes);
  const size_t kept = std::min(bytes, impl->nbytes());
  if (kept != 0) {
    streams::before_direct_work();
    std::memcpy(memory.get(), impl->data(), kept);
  }
  internals::replace_memory(mps_storage, std::move(memory), bytes);
}

void zero(void* begin, size_t bytes, const c10::DataPtr& owner) {
  auto* first = static_cast<char*>(begin);
  auto* last = first + bytes;
  if (owner.get_deleter() == &free_large_block) {
    const uintptr_t page = page_size();
    auto* first_page =
        reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(first) + page - 1) / page * page);
    auto* last_page = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(last) / page * page);
    if (first_page < last_page && madvise(first_page, last_page - first_page, MADV_DONTNEED) == 0) {
      std::memset(first, 0, first_page - first);
      std::memset(last_page, 0, last - last_page);
      return;
    }
  }
  std::memset(first, 0, bytes);
}

}  // namespace metalops::device

namespace at::mps {

IMPSAllocator* getIMPSAllocator() { return &metalops::device::allocator(); }

bool isMPSPinnedPtr(const void* data) { return metalops::device::PinnedAllocator::owns(data); }

}  // namespace at::mps
