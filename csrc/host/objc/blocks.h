// The layout of a block, for C++ code that calls or keeps one.
#pragma once
#include <Block.h>

#include <memory>

namespace metalops::objc {

struct Block {
  void* isa;
  int flags;
  int reserved;
  void* invoke;
  struct Descriptor {
    unsigned long reserved;
    unsigned long size;
    void (*copy)(void* to, const void* from);
    void (*dispose)(const void*);
  }* descriptor;
};

template <class R = void, class... A>
R call_block(const void* block, A... arguments) {
  const auto* one = static_cast<const Block*>(block);
  return reinterpret_cast<R (*)(const void*, A...)>(one->invoke)(block, arguments...);
}

// A copy that is kept as long as somebody has it.
using KeptBlock = std::shared_ptr<const void>;
inline KeptBlock keep_block(const void* block) {
  return {_Block_copy(block), [](const void* copy) { _Block_release(copy); }};
}

}  // namespace metalops::objc
