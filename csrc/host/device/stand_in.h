// Stock MPS operators, served by torch's CPU kernels on the same memory; and the error for operators that stock MPS
// lacks.
#pragma once
#include <string>
#include <vector>

namespace metalops::device {

// Registers a stand-in on the MPS key for each of these overloads ("aten::sin.out") that has no kernel there yet.
// Returns those that got one.
std::vector<std::string> register_stand_ins(const std::vector<std::string>& overloads);

}  // namespace metalops::device
