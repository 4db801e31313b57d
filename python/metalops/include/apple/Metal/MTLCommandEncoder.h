// The methods of all encoders.
#pragma once
#include <Metal/MTLBuffer.h>

#ifdef __OBJC__
typedef NS_ENUM(NSUInteger, MTLDispatchType) {
  MTLDispatchTypeSerial = 0,
  MTLDispatchTypeConcurrent = 1,
};

@protocol MTLCommandEncoder <NSObject>
@property(copy) NSString* label;
@property(readonly) id<MTLDevice> device;
- (void)endEncoding;
- (void)insertDebugSignpost:(NSString*)text;
- (void)pushDebugGroup:(NSString*)text;
- (void)popDebugGroup;
@end
#endif
