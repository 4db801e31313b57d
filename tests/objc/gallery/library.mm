// Libraries, function constants and pipelines.
#include "kernels.h"

static std::string text(NSString* string) { return string == nil ? "nil" : string.UTF8String; }

TEST(functions_have_names) {
  NSArray* names = library().functionNames;
  CHECK([names containsObject:@"scale"] && [names containsObject:@"sums"]);
  id<MTLFunction> function = [library() newFunctionWithName:@"scale"];
  EQUAL(text(function.name), "scale");
  EQUAL(function.functionType, MTLFunctionTypeKernel);
  CHECK([library() newFunctionWithName:@"no such kernel"] == nil);
  EQUAL(function.functionConstantsDictionary[@"slope"].index, 3u);
}

TEST(wrong_source_is_an_error_with_its_line) {
  NSError* error = nil;
  id<MTLLibrary> none =
      [device() newLibraryWithSource:@"kernel void f(device float* x) {\n  x[0] = y;\n}"
                             options:nil
                               error:&error];
  CHECK(none == nil && [error.domain isEqualToString:MTLLibraryErrorDomain]);
  EQUAL(error.code, MTLLibraryErrorCompileFailure);
  CHECK(check::has(text(error.localizedDescription), "program_source:2"));
}

TEST(an_error_is_nil_where_all_is_well) {
  NSError* error = (NSError*)@"not initialised";
  id<MTLFunction> function = [library() newFunctionWithName:@"sums"];
  id<MTLComputePipelineState> state = [device() newComputePipelineStateWithFunction:function
                                                                              error:&error];
  CHECK(error == nil && state != nil);
  EQUAL(state.threadExecutionWidth, 32u);
  EQUAL(state.maxTotalThreadsPerThreadgroup, 1024u);
}

TEST(macros_are_defined_and_lines_stay) {
  MTLCompileOptions* options = [MTLCompileOptions new];
  options.preprocessorMacros = @{@"FACTOR" : @3, @"NAME" : @"thrice"};
  options.languageVersion = MTLLanguageVersion3_1;
  NSError* error = nil;
  id<MTLLibrary> made = [device()
      newLibraryWithSource:@"kernel void NAME(device int* x, uint i [[thread_position_in_grid]]) "
                           @"{ x[i] = FACTOR * __METAL_VERSION__ + __LINE__; }"
                   options:options
                     error:&error];
  CHECK(made != nil);
  EQUAL(text(made.functionNames[0]), "thrice");
  id<MTLCommandBuffer> commands = [[device() newCommandQueue] commandBuffer];
  id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
  id<MTLBuffer> out = [device() newBufferWithLength:4 options:0];
  [encoder setComputePipelineState:
               [device() newComputePipelineStateWithFunction:[made newFunctionWithName:@"thrice"]
                                                       error:nil]];
  [encoder setBuffer:out offset:0 atIndex:0];
  [encoder dispatchThreads:MTLSizeMake(1, 1, 1) threadsPerThreadgroup:MTLSizeMake(1, 1, 1)];
  [encoder endEncoding];
  [commands commit];
  EQUAL(*(int*)out.contents, 3 * 310 + 1);
}

static float scaled_by(id<MTLFunction> function) {
  id<MTLCommandBuffer> commands = [[device() newCommandQueue] commandBuffer];
  id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
  id<MTLBuffer> in = counting(8), out = counting(8);
  encode_scale(encoder, in, out, 2, 8);
  [encoder setComputePipelineState:[device() newComputePipelineStateWithFunction:function
                                                                           error:nil]];
  [encoder dispatchThreads:MTLSizeMake(8, 1, 1) threadsPerThreadgroup:MTLSizeMake(8, 1, 1)];
  [encoder endEncoding];
  [commands commit];
  [commands waitUntilCompleted];
  return floats(out)[3];
}

static float scaled_with(MTLFunctionConstantValues* values) {
  NSError* error = nil;
  id<MTLFunction> function = [library() newFunctionWithName:@"scale"
                                             constantValues:values
                                                      error:&error];
  CHECK(function != nil && error == nil);
  return scaled_by(function);
}

static id<MTLFunction> of_descriptor(MTLFunctionDescriptor* descriptor) {
  NSError* error = nil;
  id<MTLFunction> function = [library() newFunctionWithDescriptor:descriptor error:&error];
  CHECK(function != nil && error == nil);
  return function;
}

TEST(function_constants_by_index_and_name) {
  MTLFunctionConstantValues* values = [MTLFunctionConstantValues new];
  EQUAL(scaled_with(values), 6);
  float slope = 5;
  [values setConstantValue:&slope type:MTLDataTypeFloat atIndex:3];
  EQUAL(scaled_with(values), 15);
  slope = 7;
  [values setConstantValue:&slope type:MTLDataTypeFloat withName:@"slope"];
  EQUAL(scaled_with(values), 21);
  RAISES("-[MTLFunctionConstantValues setConstantValue:type:atIndex:]: the type 1 ",
         [values setConstantValue:&slope type:MTLDataTypeStruct atIndex:0]);
}

TEST(functions_of_descriptors) {
  MTLFunctionConstantValues* values = [MTLFunctionConstantValues new];
  float slope = 5;
  [values setConstantValue:&slope type:MTLDataTypeFloat atIndex:3];
  MTLFunctionDescriptor* descriptor = [MTLFunctionDescriptor functionDescriptor];
  descriptor.name = @"scale";
  descriptor.constantValues = values;
  [values reset];  // the descriptor has a copy
  EQUAL(scaled_by(of_descriptor(descriptor)), 15);
  EQUAL(text(of_descriptor(descriptor).name), "scale");
  descriptor.specializedName = @"scale_by_5";
  MTLFunctionDescriptor* same = [descriptor copy];
  descriptor.constantValues = nil;
  EQUAL(scaled_by(of_descriptor(descriptor)), 6);
  EQUAL(scaled_by(of_descriptor(same)), 15);
  EQUAL(text(of_descriptor(same).name), "scale_by_5");
  descriptor.name = @"no such kernel";
  NSError* error = nil;
  CHECK([library() newFunctionWithDescriptor:descriptor error:&error] == nil);
  CHECK(check::has(text(error.localizedDescription), "no such kernel"));
  RAISES("-[MTLLibrary newFunctionWithDescriptor:error:]",
         [library() newFunctionWithDescriptor:(MTLFunctionDescriptor*)values error:&error]);
}

TEST(pipelines_of_descriptors_with_reflection) {
  MTLComputePipelineDescriptor* descriptor = [MTLComputePipelineDescriptor new];
  descriptor.label = @"my pipeline";
  descriptor.computeFunction = [library() newFunctionWithName:@"scale"];
  MTLComputePipelineReflection* reflection = nil;
  NSError* error = nil;
  id<MTLComputePipelineState> state =
      [device() newComputePipelineStateWithDescriptor:descriptor
                                              options:MTLPipelineOptionBindingInfo
                                           reflection:&reflection
                                                error:&error];
  EQUAL(text(state.label), "my pipeline");
  EQUAL(reflection.bindings.count, 3u);
  EQUAL(text(reflection.bindings[2].name), "factor");
  CHECK(reflection.bindings[2].used);
  __block bool called = false;
  dispatch_semaphore_t done = dispatch_semaphore_create(0);
  [device() newComputePipelineStateWithFunction:descriptor.computeFunction
                              completionHandler:^(id<MTLComputePipelineState> made, NSError* e) {
                                called = made != nil && e == nil;
                                dispatch_semaphore_signal(done);
                              }];
  dispatch_semaphore_wait(done, DISPATCH_TIME_FOREVER);
  CHECK(called);
  descriptor.computeFunction = nil;
  CHECK([device() newComputePipelineStateWithDescriptor:descriptor
                                                options:0
                                             reflection:nil
                                                  error:&error] == nil);
  CHECK(error != nil);
}

TEST(reflection_of_a_specialisation_says_what_it_uses) {
  MTLFunctionConstantValues* values = [MTLFunctionConstantValues new];
  float slope = 5;
  [values setConstantValue:&slope type:MTLDataTypeFloat atIndex:3];
  id<MTLFunction> function = [library() newFunctionWithName:@"scale"
                                             constantValues:values
                                                      error:nil];
  MTLComputePipelineReflection* reflection = nil;
  [device() newComputePipelineStateWithFunction:function
                                        options:MTLPipelineOptionBindingInfo
                                     reflection:&reflection
                                          error:nil];
  EQUAL(reflection.bindings.count, 3u);
  CHECK(reflection.bindings[0].used && reflection.bindings[1].used);
  CHECK(!reflection.bindings[2].used);
}

TEST(an_access_to_a_buffer_that_is_nil_is_an_error) {
  id<MTLCommandBuffer> commands = [[device() newCommandQueue] commandBuffer];
  id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
  encode_scale(encoder, nil, counting(64), 2, 64);
  [encoder endEncoding];
  RAISES("kernel 'scale' was ended because it accesses a buffer to which nothing is bound (in)",
         [commands commit]);
  CHECK(commands.status == MTLCommandBufferStatusError);
}

TEST(metallibs_of_others_are_errors) {
  NSError* error = nil;
  dispatch_data_t data = dispatch_data_create("MTLB and more", 13, nullptr, nullptr);
  CHECK([device() newLibraryWithData:data error:&error] == nil);
  CHECK(check::has(text(error.localizedDescription), "Apple GPUs"));
  CHECK([device() newLibraryWithURL:[NSURL fileURLWithPath:@"/no/such.metallib"]
                              error:&error] == nil);
  CHECK(check::has(text(error.localizedDescription), "/no/such.metallib"));
  CHECK([device() newDefaultLibrary] == nil);
}

TEST(the_device_describes_itself) {
  EQUAL(device().maxThreadgroupMemoryLength, 32768u);
  EQUAL(device().maxThreadsPerThreadgroup.width, 1024u);
  CHECK([device() supportsFamily:MTLGPUFamilyApple7] &&
        ![device() supportsFamily:MTLGPUFamilyApple10]);
  EQUAL([MTLCopyAllDevices() count], 1u);
  CHECK(device().hasUnifiedMemory && device().name.length > 0);
}

TEST(options_are_copied_and_dynamic_libraries_are_none) {
  MTLCompileOptions* options = [[MTLCompileOptions alloc] init];
  options.preprocessorMacros = @{@"FACTOR" : @3};
  options.fastMathEnabled = NO;
  options.languageVersion = MTLLanguageVersion3_2;
  MTLCompileOptions* same = [options copy];
  CHECK([same.preprocessorMacros isEqual:options.preprocessorMacros] && !same.fastMathEnabled);
  EQUAL(same.mathMode, MTLMathModeSafe);
  EQUAL(same.languageVersion, MTLLanguageVersion3_2);
  same.libraryType = MTLLibraryTypeDynamic;
  NSError* error = nil;
  CHECK([device() newLibraryWithSource:kSource options:same error:&error] == nil);
  CHECK(check::has(error.localizedDescription.UTF8String, "no dynamic libraries"));
}
