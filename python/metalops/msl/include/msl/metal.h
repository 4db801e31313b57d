// Metal's standard library, for Metal code that was translated to C++: everything of <metal_stdlib>
// for compute kernels. Emitted code includes this and lives in namespace msl, which stands for the
// global namespace of the Metal program: msl itself holds only the names that are global in Metal
// (and abi, metal); the internals are in msl_impl.
#pragma once

#include <msl/array.h>
#include <msl/atomic.h>
#include <msl/compiler_builtins.h>
#include <msl/geometric.h>
#include <msl/integer.h>
#include <msl/limits.h>
#include <msl/math.h>
#include <msl/matrix.h>
#include <msl/pack.h>
#include <msl/relational.h>
#include <msl/simd.h>
#include <msl/simdgroup_matrix.h>
#include <msl/traits.h>
#include <msl/vector.h>

#if !defined(__CUDACC_RTC__)
#include <msl/instrument.h>
#include <msl/logging.h>
#include <msl/path.h>
#include <msl/threadgroup.h>
#endif

// Named by using-directives of programs; what it holds is absent (analysis/absent.py).
namespace msl::metal::raytracing {}
