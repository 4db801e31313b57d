// The names of MPSGraph that torch's headers mention. The software Metal device has no graphs: a
// program that uses one does not link.
#pragma once
#include <MetalPerformanceShaders/MetalPerformanceShaders.h>

#ifdef __OBJC__
@interface MPSGraphObject : NSObject
@end
@interface MPSGraph : MPSGraphObject
@end
@interface MPSGraphTensor : MPSGraphObject
@end
@interface MPSGraphTensorData : MPSGraphObject
@end
@interface MPSGraphDevice : MPSGraphObject
@end
@interface MPSGraphExecutable : MPSGraphObject
@end
@interface MPSGraphExecutionDescriptor : MPSGraphObject
@end
@interface MPSGraphCompilationDescriptor : MPSGraphObject
@end
#endif
