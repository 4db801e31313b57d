// Captures. A GPU trace document of the software Metal device is a trace of metalops, which
// `python -m metalops replay` runs.
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

MTL_EXTERN NSErrorDomain const MTLCaptureErrorDomain;

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
- (id<MTLCaptureScope>)newCaptureScopeWithDevice:(id<MTLDevice>)device NS_RETURNS_RETAINED;
- (id<MTLCaptureScope>)newCaptureScopeWithCommandQueue:(id<MTLCommandQueue>)queue
    NS_RETURNS_RETAINED;
- (BOOL)supportsDestination:(MTLCaptureDestination)destination;
- (BOOL)startCaptureWithDescriptor:(MTLCaptureDescriptor*)descriptor error:(NSError**)error;
- (void)stopCapture;
@property(readonly) BOOL isCapturing;
@end
#endif
