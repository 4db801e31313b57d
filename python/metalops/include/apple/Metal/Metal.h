// Apple's Metal, as far as compute goes. It belongs to the software Metal device: on a Mac the
// headers of the SDK are used.
#pragma once
#include <Metal/MTLArgument.h>
#include <Metal/MTLArgumentEncoder.h>
#include <Metal/MTLBlitCommandEncoder.h>
#include <Metal/MTLBlitPass.h>
#include <Metal/MTLBuffer.h>
#include <Metal/MTLCaptureManager.h>
#include <Metal/MTLCommandBuffer.h>
#include <Metal/MTLCommandEncoder.h>
#include <Metal/MTLCommandQueue.h>
#include <Metal/MTLComputeCommandEncoder.h>
#include <Metal/MTLComputePass.h>
#include <Metal/MTLComputePipeline.h>
#include <Metal/MTLCounters.h>
#include <Metal/MTLDevice.h>
#include <Metal/MTLEvent.h>
#include <Metal/MTLFunctionConstantValues.h>
#include <Metal/MTLFunctionDescriptor.h>
#include <Metal/MTLHeap.h>
#include <Metal/MTLLibrary.h>
#include <Metal/MTLPixelFormat.h>
#include <Metal/MTLResidencySet.h>
#include <Metal/MTLResource.h>
#include <Metal/MTLSampler.h>
#include <Metal/MTLTexture.h>
#include <Metal/MTLTypes.h>
