// Imports of a loaded library: the functions that it calls through its table of other libraries.
#pragma once
#include <string_view>

namespace metalops::device {

// Lets `library` ("libtorch_cpu.so") call another function instead of one of its own, of which the
// symbol begins so. That works for what it calls through its table of imports, as libraries do that
// were linked without -Bsymbolic. replaced: becomes the function that was called before, while it
// still is. Returns whether there was such an entry.
bool replace_import(std::string_view library, std::string_view symbol, void* replacement,
                    void** replaced);

}  // namespace metalops::device
