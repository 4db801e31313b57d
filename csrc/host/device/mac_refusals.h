// Arguments that a stock MPS kernel refuses and torch's CPU kernel takes. A stand-in raises what a
// Mac raises.
#pragma once
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <string>

namespace metalops::device {

// Raises when the MPS kernel would refuse these arguments.
using Refusal = void (*)(c10::ArrayRef<c10::IValue> arguments);

// The refusal of an operator ("aten::linalg_inv_ex"), or null.
Refusal find_refusal(const std::string& operator_name);

}  // namespace metalops::device
