// Imports of a loaded library: the functions that it calls through its PLT.
#pragma once
#include <string_view>

namespace metalops::device {

// Makes `library` ("libtorch_cpu.so") call `replacement` instead of a function whose symbol begins
// with `symbol`. This works for calls through the library's table of imports, that is, for
// libraries linked without -Bsymbolic. `replaced` receives the function that was called before,
// ahead of the exchange, if it is one of the library's own; it may be null. Returns false if there
// is no such entry.
bool replace_import(std::string_view library, std::string_view symbol, void* replacement,
                    void** replaced);

}  // namespace metalops::device
