// Descriptors of blit encoders.
#pragma once
#include <Metal/MTLComputePass.h>
