// The error buffer and the exception made from it.
#include <metal/error_buffer.h>

#include <c10/metal/error.h>
#include <c10/util/Exception.h>

namespace metalops {
namespace {

c10::metal::ErrorMessages& messages() {
  static c10::metal::ErrorMessages buffer{};
  return buffer;
}

}  // namespace

void* error_buffer() { return &messages(); }

size_t error_buffer_bytes() { return sizeof(c10::metal::ErrorMessages); }

void raise_reported_errors() {
  c10::metal::ErrorMessages& buffer = messages();
  if (__atomic_load_n(&buffer.count, __ATOMIC_RELAXED) == 0) return;
  if (__atomic_exchange_n(&buffer.count, 0, __ATOMIC_ACQ_REL) == 0) return;
  // Raises the first report only, as torch does: the others are consequences of it or repeats.
  const c10::metal::ErrorMessage& first = buffer.msg[0];
  throw c10::AcceleratorError({first.func, first.file, first.line}, 1, first.message);
}

}  // namespace metalops
