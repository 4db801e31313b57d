// A part of simd.h.
#pragma once
#include <simd/simd.h>
