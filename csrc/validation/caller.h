// Where in the program a message was sent.
#pragma once
#include <string>

namespace metalops::validation {

// Returns the return address of the innermost call on the stack that was made by the program:
// neither by the library that has this function nor by torch or the standard libraries. Null if
// there is none.
const void* caller();

// Returns "relu.mm:42" if the program has debug information, else "relu.so, launch+0x1c", as on a
// Mac in any case. Starts a process that reads debug information, once for each address. "" if
// nothing is known.
std::string place_of(const void* address);

}  // namespace metalops::validation
