// torch's headers name this protocol; the software Metal device has no argument encoders.
#pragma once
#include <Metal/MTLBuffer.h>

#ifdef __OBJC__
@protocol MTLArgumentEncoder <NSObject>
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index;
@end
#endif
