"""Names of the C++ library that emitted code uses. They are spelled here and nowhere else."""

PROGRAM = "::msl"  # the namespace for the program's global namespace
ABI = "::msl::abi"
SUPPORT = "::msl::msl_support"  # rewrite.h and launch.h
INTERNAL = "::msl::msl_impl"

THREADGROUP_VARIABLE = "::msl::msl_impl::threadgroup_variable"
