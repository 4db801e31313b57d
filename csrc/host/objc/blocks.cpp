// Copies of blocks, and of what they capture.
#include <csrc/host/objc/blocks.h>

#include <cstdint>
#include <cstring>

#include <csrc/host/objc/runtime.h>

extern "C" {
id objc_retain(id object);
void objc_release(id object);
extern void* _NSConcreteMallocBlock[32];
}

namespace metalops::objc {
namespace {

// Bits of Block::flags, and of Captured::flags.
constexpr int kCountMask = 0xffff;
constexpr int kIsCopy = 1 << 24;
constexpr int kHasHelpers = 1 << 25;
constexpr int kIsGlobal = 1 << 28;

// Kinds of captured variables, as clang says it to the functions below.
constexpr int kIsBlock = 7;
constexpr int kIsVariable = 8;        // of storage class __block
constexpr int kCalledByHelper = 128;  // for an object that a __block variable holds, uncounted

// A variable of storage class __block.
struct Variable {
  void* isa;
  Variable* forwarding;
  int flags;
  uint32_t size;
  void (*keep)(void* to, void* from);
  void (*destroy)(void*);
};

void retain_copy(int& flags) { __atomic_add_fetch(&flags, 1, __ATOMIC_RELAXED); }
bool release_copy(int& flags) {
  return (__atomic_sub_fetch(&flags, 1, __ATOMIC_ACQ_REL) & kCountMask) == 0;
}

Variable* captured(Variable* from) {
  if ((from->forwarding->flags & kIsCopy) != 0) {
    retain_copy(from->forwarding->flags);
    return from->forwarding;
  }
  auto* copy = static_cast<Variable*>(allocate_memory(from->size));
  std::memcpy(copy, from, from->size);
  copy->isa = nullptr;
  copy->flags = (from->flags & ~kCountMask) | kIsCopy | 2;  // the block's and the frame's
  copy->forwarding = from->forwarding = copy;
  if ((from->flags & kHasHelpers) != 0) copy->keep(copy, from);
  return copy;
}

void release(Variable* variable) {
  Variable* copy = variable->forwarding;
  if ((copy->flags & kIsCopy) == 0 || !release_copy(copy->flags)) return;
  if ((copy->flags & kHasHelpers) != 0) copy->destroy(copy);
  free_memory(copy);
}

}  // namespace
}  // namespace metalops::objc

using namespace metalops::objc;

extern "C" {

void* _Block_copy(const void* from) {
  auto* block = static_cast<Block*>(const_cast<void*>(from));
  if (block == nullptr || (block->flags & kIsGlobal) != 0) return block;
  if ((block->flags & kIsCopy) != 0) {
    retain_copy(block->flags);
    return block;
  }
  auto* copy = static_cast<Block*>(allocate_memory(block->descriptor->size));
  std::memcpy(copy, block, block->descriptor->size);
  copy->isa = _NSConcreteMallocBlock;
  copy->flags = (block->flags & ~kCountMask) | kIsCopy | 1;
  if ((copy->flags & kHasHelpers) != 0) copy->descriptor->copy(copy, block);
  return copy;
}

void _Block_release(const void* which) {
  auto* block = static_cast<Block*>(const_cast<void*>(which));
  if (block == nullptr || (block->flags & kIsCopy) == 0 || !release_copy(block->flags)) return;
  if ((block->flags & kHasHelpers) != 0) block->descriptor->dispose(block);
  block->isa = nullptr;
  free_memory(block);
}

void _Block_object_assign(void* to, const void* from, int flags) {
  const auto place = static_cast<const void**>(to);
  auto* object = const_cast<void*>(from);
  if ((flags & kCalledByHelper) != 0) {
    *place = object;
  } else if ((flags & kIsVariable) != 0) {
    *place = captured(static_cast<Variable*>(object));
  } else if ((flags & kIsBlock) == kIsBlock) {
    *place = _Block_copy(object);
  } else {
    *place = objc_retain(static_cast<id>(object));
  }
}

void _Block_object_dispose(const void* from, int flags) {
  auto* object = const_cast<void*>(from);
  if ((flags & kCalledByHelper) != 0) return;
  if ((flags & kIsVariable) != 0) {
    release(static_cast<Variable*>(object));
  } else if ((flags & kIsBlock) == kIsBlock) {
    _Block_release(object);
  } else {
    objc_release(static_cast<id>(object));
  }
}

}  // extern "C"
