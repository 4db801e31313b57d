// Arguments that a stock MPS kernel rejects and torch's CPU kernel accepts. A stand-in raises the
// error that a Mac raises.
#pragma once
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <string>

namespace metalops::device {

// Raises if the MPS kernel would reject these arguments.
using Refusal = void (*)(c10::ArrayRef<c10::IValue> arguments);

// Returns the check of an operator ("aten::linalg_inv_ex"), or null.
Refusal find_refusal(const std::string& operator_name);

}  // namespace metalops::device
