// A function of a library is described by its name and the values of its function constants.
#pragma once
#include <Metal/MTLFunctionConstantValues.h>

#ifdef __OBJC__
typedef NS_OPTIONS(NSUInteger, MTLFunctionOptions) {
  MTLFunctionOptionNone = 0,
  MTLFunctionOptionCompileToBinary = 1 << 0,
};

@interface MTLFunctionDescriptor : NSObject <NSCopying>
+ (MTLFunctionDescriptor*)functionDescriptor;
@property(nonatomic, copy) NSString* name;
// The name that the function has instead.
@property(nonatomic, copy) NSString* specializedName;
@property(nonatomic, copy) MTLFunctionConstantValues* constantValues;
@property(nonatomic) MTLFunctionOptions options;
@end
#endif
