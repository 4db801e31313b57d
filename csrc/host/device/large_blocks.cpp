// The cache of freed large blocks.
#include <device/large_blocks.h>
#include <exec/sanitize/findings.h>
#include <locks.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <list>
#include <mutex>
#include <unordered_map>

namespace metalops::device {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr uintptr_t kSmallestPage = 4096;

struct LargeBlock {
  void* memory;
  size_t capacity;
};

class LargeBlocks {
 public:
  void* allocate(size_t bytes) {
    const size_t wanted = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    if (wanted < bytes) return nullptr;
    LargeBlock block = take(wanted);
    if (block.memory == nullptr) block = map(wanted);
    if (block.memory == nullptr) {
      release(0);
      block = map(wanted);
    }
    if (block.memory == nullptr) return nullptr;
    std::lock_guard<ForkSafeMutex> lock(mutex_);
    in_use_.emplace(block.memory, Use{bytes, block.capacity});
    beyond_use_ += block.capacity - bytes;
    return block.memory;
  }

  void free(void* memory, size_t most) {
    const bool keeps = exec::sanitize_mode() == exec::SanitizeMode::kOff;
    LargeBlock block{memory, 0};
    {
      std::lock_guard<ForkSafeMutex> lock(mutex_);
      const auto found = in_use_.find(memory);
      block.capacity = found->second.capacity;
      beyond_use_ -= block.capacity - found->second.bytes;
      in_use_.erase(found);
    }
    if (!keeps || block.capacity > most) {
      unmap(block);
      return;
    }
    // The system may reclaim the pages until they are written to.
    madvise(block.memory, block.capacity, MADV_FREE);
    {
      std::lock_guard<ForkSafeMutex> lock(mutex_);
      kept_.push_back(block);
      add_kept(block.capacity);
    }
    release(most);
  }

  size_t bytes(const void* memory) {
    // Without the lock for what mmap() cannot have made.
    if (reinterpret_cast<uintptr_t>(memory) % kSmallestPage != 0) return 0;
    std::lock_guard<ForkSafeMutex> lock(mutex_);
    const auto found = in_use_.find(memory);
    return found == in_use_.end() ? 0 : found->second.bytes;
  }

  void release(size_t most) {
    std::list<LargeBlock> released;
    {
      std::lock_guard<ForkSafeMutex> lock(mutex_);
      while (kept_bytes() > most) {
        remove_kept(kept_.front().capacity);
        released.splice(released.end(), kept_, kept_.begin());
      }
    }
    for (const LargeBlock& block : released) unmap(block);
  }

  size_t kept_bytes() const { return kept_bytes_.load(std::memory_order_relaxed); }
  size_t bytes_beyond_use() const { return beyond_use_.load(std::memory_order_relaxed); }

 private:
  struct Use {
    size_t bytes;
    size_t capacity;
  };

  // Takes the smallest kept block that holds `wanted` bytes and wastes little; of equal ones the
  // most recently used, of which most is still in caches.
  LargeBlock take(size_t wanted) {
    if (kept_bytes() == 0 || exec::sanitize_mode() != exec::SanitizeMode::kOff) return {};
    std::lock_guard<ForkSafeMutex> lock(mutex_);
    auto best = kept_.end();
    for (auto block = kept_.begin(); block != kept_.end(); ++block) {
      if (block->capacity < wanted || block->capacity - wanted > wanted / 8) continue;
      if (best == kept_.end() || block->capacity <= best->capacity) best = block;
    }
    if (best == kept_.end()) return {};
    const LargeBlock block = *best;
    kept_.erase(best);
    remove_kept(block.capacity);
    return block;
  }

  static LargeBlock map(size_t capacity) {
    void* memory = mmap(nullptr, capacity, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return {};
    madvise(memory, capacity, MADV_HUGEPAGE);
    return {memory, capacity};
  }

  static void unmap(const LargeBlock& block) { munmap(block.memory, block.capacity); }

  void add_kept(size_t capacity) {
    kept_bytes_ += capacity;
    beyond_use_ += capacity;
  }
  void remove_kept(size_t capacity) {
    kept_bytes_ -= capacity;
    beyond_use_ -= capacity;
  }

  ForkSafeMutex mutex_;
  std::unordered_map<const void*, Use> in_use_;
  std::list<LargeBlock> kept_;  // least recently used first
  std::atomic<size_t> kept_bytes_{0};
  std::atomic<size_t> beyond_use_{0};
};

LargeBlocks& large_blocks() {
  static LargeBlocks& blocks = *new LargeBlocks;
  return blocks;
}

}  // namespace

void* allocate_large(size_t bytes) { return large_blocks().allocate(bytes); }

void free_large(void* memory, size_t most) { large_blocks().free(memory, most); }

size_t large_bytes(const void* memory) { return large_blocks().bytes(memory); }

void release_kept(size_t most) { large_blocks().release(most); }

size_t kept_bytes() { return large_blocks().kept_bytes(); }

size_t large_bytes_beyond_use() { return large_blocks().bytes_beyond_use(); }

}  // namespace metalops::device
