// Captures for Apple's debugger, which the software Metal device does not make: a program that asks
// whether it can gets NO.
#pragma once
#include <Metal/MTLTypes.h>

#ifdef __OBJC__
typedef NS_ENUM(NSInteger, MTLCaptureDestination) {
  MTLCaptureDestinationDeveloperTools = 1,
  MTLCaptureDestinationGPUTraceDocument = 2,
};
typedef NS_ENUM(NSInteger, MTLCaptureError) {
  MTLCaptureErrorNotSupported = 1,
  MTLCaptureErrorAlreadyCapturing = 2,
  MTLCaptureErrorInvalidDescriptor = 3,
};

@protocol MTLCaptureScope <NSObject>
@property(copy) NSString* label;
- (void)beginScope;
- (void)endScope;
@end

@interface MTLCaptureDescriptor : NSObject
@property(strong) id captureObject;
@property MTLCaptureDestination destination;
@property(copy) NSURL* outputURL;
@end

@interface MTLCaptureManager : NSObject
+ (MTLCaptureManager*)sharedCaptureManager;
- (id<MTLCaptureScope>)newCaptureScopeWithDevice:(id<MTLDevice>)device;
- (BOOL)supportsDestination:(MTLCaptureDestination)destination;
- (BOOL)startCaptureWithDescriptor:(MTLCaptureDescriptor*)descriptor error:(NSError**)error;
- (void)stopCapture;
@property(readonly) BOOL isCapturing;
@end
#endif
