#pragma once
#include <metal_stdlib>
#if __METAL_VERSION__ >= 400
#include <msl_tensors>
#endif
