// A stand-in for the runtime of Objective-C that writes down the messages it gets, and calls of
// csrc/macos for test_textures.py. An object is its name.
#include <c10/util/Exception.h>
#include <csrc/macos/texture.h>

#include <cstdint>
#include <deque>
#include <sstream>
#include <string>

namespace {

std::string messages;
uint64_t alignment, length;

void* object(const std::string& name) {
  static std::deque<std::string> all;
  return &all.emplace_back(name);
}

}  // namespace

// Numbers and pointers arrive in other registers than floats, in the order of the arguments.
extern "C" uint64_t receive(void* self, void* selector, uint64_t a, uint64_t b, uint64_t c,
                            float x) __asm__("objc_msgSend");
extern "C" uint64_t receive(void* self, void* selector, uint64_t a, uint64_t b, uint64_t c,
                            float x) {
  const std::string& name = *static_cast<const std::string*>(self);
  const std::string message = static_cast<const char*>(selector);
  const auto id = [](void* made) { return reinterpret_cast<uint64_t>(made); };
  if (message == "new") return id(object("a " + name));
  if (message == "device") return id(object("device"));
  if (message == "length") return length;
  if (message == "resourceOptions") return 48;
  std::ostringstream line;
  line << name << " " << message;
  if (message == "setNormalizedCoordinates:") {
    line << " " << (a & 1);
  } else if (message.find("Lod") != std::string::npos) {
    line << " " << x;
  } else if (message.rfind("newTexture", 0) == 0) {
    line << " " << *reinterpret_cast<const std::string*>(a) << " " << b << " " << c;
  } else if (message.rfind("newSampler", 0) == 0) {
    line << " " << *reinterpret_cast<const std::string*>(a);
  } else if (message != "release") {
    line << " " << a;
  }
  messages += line.str() + "\n";
  if (message.rfind("minimum", 0) == 0) return alignment;
  return message.rfind("new", 0) == 0 ? id(object("made")) : 0;
}
extern "C" void* objc_getClass(const char* name) { return object(name); }
extern "C" void* sel_registerName(const char* name) { return const_cast<char*>(name); }

namespace {

template <class F>
const char* messages_of(F call) {
  messages.clear();
  try {
    call();
  } catch (const c10::Error& error) {
    messages += std::string("error: ") + error.what_without_backtrace();
  }
  return messages.c_str();
}

}  // namespace

extern "C" const char* texture_messages(uint64_t format, uint64_t is_buffer, uint64_t width,
                                        uint64_t height, uint64_t row_bytes, uint64_t texel_bytes,
                                        uint64_t offset, uint64_t usage, uint64_t gpu_alignment,
                                        uint64_t buffer_length) {
  alignment = gpu_alignment;
  length = buffer_length;
  return messages_of([&] {
    metalops::make_texture(object("buffer"), {format, is_buffer != 0, width, height, row_bytes,
                                              texel_bytes, offset, usage});
  });
}
extern "C" const char* sampler_messages(uint64_t bits) {
  return messages_of([&] { metalops::make_sampler(object("device"), bits); });
}
