#pragma once
#include <simd/simd.h>
