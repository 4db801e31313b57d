// Libraries, functions and pipelines.
#include <c10/util/Exception.h>
#include <metal/compile.h>
#include <metal/metallib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_set>

#include <csrc/host/objc/dispatch.h>
#include <csrc/host/objc/metal.h>

METALOPS_OBJC_CLASS(MTLFunctionConstantValues)
METALOPS_OBJC_CLASS(MTLCompileOptions)
METALOPS_OBJC_CLASS(MTLFunctionConstant)
METALOPS_OBJC_CLASS(MTLFunctionDescriptor)
METALOPS_OBJC_CLASS(MTLComputePipelineDescriptor)
METALOPS_OBJC_CLASS(MTLComputePipelineReflection)
METALOPS_OBJC_CLASS(MetalopsBinding)
METALOPS_OBJC_CLASS(MetalopsLibrary)
METALOPS_OBJC_CLASS(MetalopsFunction)
METALOPS_OBJC_CLASS(MetalopsComputePipelineState)

namespace metalops::objc {
namespace {

// MTLLibraryError
constexpr long kUnsupported = 1;
constexpr long kCompileFailure = 3;
constexpr long kFunctionNotFound = 5;
constexpr long kFileNotFound = 6;

// ---- values of function constants

struct ConstantValue {
  long index;  // -1 if it is given by name
  std::string name;
  std::string bytes;
};
struct ConstantValues : objc_object {
  std::vector<ConstantValue> values;
};

// The scalars of MTLDataType, each followed by its vectors of 2, 3 and 4.
struct ScalarType {
  UInteger first;
  size_t bytes;
};
constexpr std::array<ScalarType, 12> kScalarTypes{{{3, 4},
                                                   {16, 2},
                                                   {29, 4},
                                                   {33, 4},
                                                   {37, 2},
                                                   {41, 2},
                                                   {45, 1},
                                                   {49, 1},
                                                   {53, 1},
                                                   {81, 8},
                                                   {85, 8},
                                                   {121, 2}}};

}  // namespace

size_t bytes_of_type(UInteger type, id self, SEL method) {
  for (const ScalarType& scalar : kScalarTypes) {
    if (type < scalar.first || type > scalar.first + 3) continue;
    const UInteger components = type - scalar.first + 1;
    return scalar.bytes * (components == 3 ? 4 : components);
  }
  TORCH_CHECK_VALUE(false, written(self, method), ": the type ", type,
                    " is no MTLDataType of a scalar or vector");
}

namespace {

void set_values(ConstantValues* self, SEL method, const char* values, UInteger type, Range range) {
  const size_t bytes = bytes_of_type(type, self, method);
  for (UInteger i = 0; i < range.length; ++i) {
    self->values.push_back(
        {static_cast<long>(range.location + i), "", std::string(values + i * bytes, bytes)});
  }
}

void define_constant_values() {
  define<ConstantValues>(
      METALOPS_OBJC_SYMBOLS(MTLFunctionConstantValues), &class_NSObject,
      {
          {"setConstantValue:type:atIndex:",
           [](ConstantValues* self, SEL method, const char* value, UInteger type, UInteger index) {
             set_values(self, method, value, type, {index, 1});
           }},
          {"setConstantValues:type:withRange:", set_values},
          {"setConstantValue:type:withName:",
           [](ConstantValues* self, SEL method, const char* value, UInteger type, id name) {
             const size_t bytes = bytes_of_type(type, self, method);
             self->values.push_back({-1, text_of(name), std::string(value, bytes)});
           }},
          {"reset", [](ConstantValues* self, SEL) { self->values.clear(); }},
          {"copy",
           [](ConstantValues* self, SEL) -> id {
             auto* made = make<ConstantValues>(&class_MTLFunctionConstantValues);
             made->values = self->values;
             return made;
           }},
      },
      {}, {"NSCopying"});
}

// Returns the part in which function constants have these values: later ones replace earlier ones.
std::shared_ptr<LibraryPart> specialise(const std::shared_ptr<LibraryPart>& part,
                                        const ConstantValues& values) {
  std::map<int, std::string> wanted;
  const auto& table = part->library->table();
  for (uint32_t i = 0; i < table.function_constant_count; ++i) {
    const auto& constant = table.function_constants[i];
    for (const ConstantValue& value : values.values) {
      const bool is_meant =
          value.index >= 0 ? value.index == constant.index : value.name == constant.name;
      if (!is_meant) continue;
      TORCH_CHECK_VALUE(value.bytes.size() >= constant.bytes, "The function constant '",
                        constant.name, "' has ", constant.bytes, " bytes, but its value has ",
                        value.bytes.size());
      wanted[constant.index] = value.bytes.substr(0, constant.bytes);
    }
  }
  if (wanted.empty()) return part;
  std::string key;
  std::vector<exec::Library::ConstantValue> given;
  for (const auto& [index, bytes] : wanted) {
    key += std::to_string(index) + "=" + bytes;
    given.push_back({index, bytes});
  }
  std::lock_guard<std::mutex> lock(part->mutex);
  auto& known = part->specialised[key];
  if (known == nullptr) {
    known = std::make_shared<LibraryPart>(part->library->specialise(given));
  }
  return known;
}

// ---- libraries

struct CompileOptions : objc_object {
  Strong macros;
  bool fast_math = true;
  long math_mode = 2;  // fast
  long functions = 0;  // fast
  UInteger language = 0;
  long type = 0;
  long optimization = 0;
  bool preserves_invariance = false;
};

void define_compile_options() {
  using Options = CompileOptions;
  define<Options>(METALOPS_OBJC_SYMBOLS(MTLCompileOptions), &class_NSObject,
                  {
                      {"preprocessorMacros", Accessors<&Options::macros>::get},
                      {"setPreprocessorMacros:", Accessors<&Options::macros>::set_copy},
                      {"fastMathEnabled", Accessors<&Options::fast_math>::get},
                      {"setFastMathEnabled:",
                       [](Options* self, SEL, bool fast) {
                         self->fast_math = fast;
                         self->math_mode = fast ? 2 : 0;
                       }},
                      {"mathMode", Accessors<&Options::math_mode>::get},
                      {"setMathMode:",
                       [](Options* self, SEL, long mode) {
                         self->math_mode = mode;
                         self->fast_math = mode == 2;
                       }},
                      {"mathFloatingPointFunctions", Accessors<&Options::functions>::get},
                      {"setMathFloatingPointFunctions:", Accessors<&Options::functions>::set},
                      {"languageVersion", Accessors<&Options::language>::get},
                      {"setLanguageVersion:", Accessors<&Options::language>::set},
                      {"libraryType", Accessors<&Options::type>::get},
                      {"setLibraryType:", Accessors<&Options::type>::set},
                      {"optimizationLevel", Accessors<&Options::optimization>::get},
                      {"setOptimizationLevel:", Accessors<&Options::optimization>::set},
                      {"preserveInvariance", Accessors<&Options::preserves_invariance>::get},
                      {"setPreserveInvariance:", Accessors<&Options::preserves_invariance>::set},
                      {"copy",
                       [](Options* self, SEL) -> id {
                         auto* made = make<Options>(&class_MTLCompileOptions);
                         made->macros = self->macros;
                         made->fast_math = self->fast_math;
                         made->math_mode = self->math_mode;
                         made->functions = self->functions;
                         made->language = self->language;
                         made->type = self->type;
                         made->optimization = self->optimization;
                         made->preserves_invariance = self->preserves_invariance;
                         return made;
                       }},
                  },
                  {}, {"NSCopying"});
}

// The value of __METAL_VERSION__ for an MTLLanguageVersion; 0 where the program leaves it open.
// Sources for older versions than Metal 3.1 are compiled in that.
uint32_t language_of(UInteger version) {
  if (version == 0) return 0;
  const auto number = static_cast<uint32_t>((version >> 16) * 100 + (version & 0xFFFF) * 10);
  return std::max<uint32_t>(number, 310);
}

// Macros as lines in front of the source, whose own lines keep their numbers.
std::string with_macros(const std::string& source, id macros) {
  if (macros == nullptr) return source;
  std::map<std::string, std::string> sorted;  // the same text for the same macros
  for (const auto& [name, value] : static_cast<Dictionary*>(macros)->items) {
    sorted[text_of(name)] = describe(value);
  }
  std::string text;
  for (const auto& [name, value] : sorted) text += "#define " + name + " " + value + "\n";
  return text + "#line 1\n" + source;
}

id new_library(const std::vector<std::shared_ptr<exec::Library>>& libraries) {
  auto* made = make<Library>(&class_MetalopsLibrary);
  for (const auto& library : libraries) {
    made->parts.push_back(std::make_shared<LibraryPart>(library));
  }
  return made;
}

// Opens a metallib in memory. Host code in the manner of Hugging Face's kernel-builder does so at
// each call, and releases the library or not: the same bytes are opened once.
std::vector<std::shared_ptr<exec::Library>> opened(const void* data, size_t bytes) {
  static auto& mutex = *new std::mutex;
  static auto& known =
      *new std::map<std::string, std::vector<std::shared_ptr<exec::Library>>, std::less<>>;
  const std::string_view text(static_cast<const char*>(data), bytes);
  {
    std::lock_guard<std::mutex> lock(mutex);
    const auto found = known.find(text);
    if (found != known.end()) return found->second;
  }
  auto libraries = read_metallib(text);  // without the lock: it may run Python
  std::lock_guard<std::mutex> lock(mutex);
  return known.emplace(text, std::move(libraries)).first->second;
}

// Returns what `make` returns, or nil and an NSError with the reason. Programs look at an error
// that they did not initialise, so it is nil where all is well.
template <class F>
id or_error(id* out, long code, const std::string& what, F make) {
  if (out != nullptr) *out = nullptr;
  try {
    return make();
  } catch (const c10::Error& e) {
    const std::string reason = what + e.what_without_backtrace();
    if (out == nullptr) TORCH_WARN(reason);
    return fail(out, error("MTLLibraryErrorDomain", code, reason));
  }
}

id function_with_name(Library* self, const std::string& name, const ConstantValues* values) {
  for (const auto& part : self->parts) {
    const auto& found = values == nullptr ? part : specialise(part, *values);
    const exec::Kernel* kernel = found->library->describe(name);
    if (kernel == nullptr) continue;
    auto* made = make<Function>(&class_MetalopsFunction);
    made->part = found;
    made->described = kernel;
    found->library->begin(name);
    return made;
  }
  return nullptr;
}

// Says why a function is not in a library, for kernels that the front end leaves out.
std::string reason_for_absence(Library* self, const std::string& name) {
  for (const auto& part : self->parts) {
    const std::string reason = part->library->why_absent(name);
    if (!reason.empty()) return ": the software Metal device leaves it out because of " + reason;
  }
  return "";
}

// Returns the function, which has to exist.
Function* existing_function(Library* self, const std::string& name, const ConstantValues* values) {
  id made = function_with_name(self, name, values);
  TORCH_CHECK(made != nullptr, "The function '", name, "' does not exist",
              reason_for_absence(self, name));
  return static_cast<Function*>(made);
}

struct FunctionDescriptor : objc_object {
  Strong name, specialized_name, values;
  UInteger options = 0;
};

id function_of_descriptor(Library* self, SEL method, id descriptor, id* out) {
  checked(descriptor, &class_MTLFunctionDescriptor, "MTLFunctionDescriptor", self, method);
  auto* described = static_cast<FunctionDescriptor*>(descriptor);
  return or_error(out, kFunctionNotFound, "", [&] {
    auto* made = existing_function(self, text_of(described->name),
                                   static_cast<ConstantValues*>(described->values.get()));
    made->specialized_name = described->specialized_name;
    return made;
  });
}

void define_function_descriptor() {
  using Descriptor = FunctionDescriptor;
  define<Descriptor>(
      METALOPS_OBJC_SYMBOLS(MTLFunctionDescriptor), &class_NSObject,
      {
          {"name", Accessors<&Descriptor::name>::get},
          {"setName:", Accessors<&Descriptor::name>::set_copy},
          {"specializedName", Accessors<&Descriptor::specialized_name>::get},
          {"setSpecializedName:", Accessors<&Descriptor::specialized_name>::set_copy},
          {"constantValues", Accessors<&Descriptor::values>::get},
          {"setConstantValues:",
           [](Descriptor* self, SEL method, id values) {
             if (values != nullptr) {
               checked(values, &class_MTLFunctionConstantValues, "MTLFunctionConstantValues", self,
                       method);
             }
             Accessors<&Descriptor::values>::set_copy(self, method, values);
           }},
          {"options", Accessors<&Descriptor::options>::get},
          {"setOptions:", Accessors<&Descriptor::options>::set},
          {"copy",
           [](Descriptor* self, SEL) -> id {
             auto* made = make<Descriptor>(&class_MTLFunctionDescriptor);
             made->name = self->name;
             made->specialized_name = self->specialized_name;
             made->values = self->values;
             made->options = self->options;
             return made;
           }},
      },
      {{"functionDescriptor",
        [](id, SEL) -> id {
          return autoreleased(make<Descriptor>(&class_MTLFunctionDescriptor));
        }}},
      {"NSCopying"});
}

void define_library() {
  define<Library>(METALOPS_OBJC_SYMBOLS(MetalopsLibrary), &class_NSObject,
                  {
                      {"device", get_device},
                      {"label", Accessors<&Library::label>::get},
                      {"setLabel:", Accessors<&Library::label>::set_copy},
                      {"type", [](Library*, SEL) { return 0l; }},
                      {"functionNames",
                       [](Library* self, SEL) {
                         std::vector<id> names;
                         for (const auto& part : self->parts) {
                           for (const auto& name : part->library->names())
                             names.push_back(string(name));
                         }
                         return array(names);
                       }},
                      {"newFunctionWithName:",
                       [](Library* self, SEL, id name) {
                         id made = function_with_name(self, text_of(name), nullptr);
                         if (made == nullptr) {
                           const std::string reason = reason_for_absence(self, text_of(name));
                           if (!reason.empty())
                             TORCH_WARN("newFunctionWithName: '", text_of(name), "'", reason);
                         }
                         return made;
                       }},
                      {"newFunctionWithName:constantValues:error:",
                       [](Library* self, SEL method, id name, id values, id* out) {
                         if (values != nullptr) {
                           checked(values, &class_MTLFunctionConstantValues,
                                   "MTLFunctionConstantValues", self, method);
                         }
                         return or_error(out, kFunctionNotFound, "", [&] {
                           return existing_function(self, text_of(name),
                                                    static_cast<ConstantValues*>(values));
                         });
                       }},
                      {"newFunctionWithDescriptor:error:", function_of_descriptor},
                  },
                  {}, {"MTLLibrary"});
}

// ---- functions

struct FunctionConstant : objc_object {
  Strong name;
  UInteger index = 0;
};

id function_constants(Function* self, SEL) {
  std::vector<std::pair<id, id>> constants;
  const auto& table = self->part->library->table();
  for (uint32_t i = 0; i < table.function_constant_count; ++i) {
    auto* made = make<FunctionConstant>(&class_MTLFunctionConstant);
    made->name = Strong(string(table.function_constants[i].name));
    made->index = static_cast<UInteger>(table.function_constants[i].index);
    constants.emplace_back(made->name, autoreleased(made));
  }
  return dictionary(constants);
}

void define_function() {
  define<FunctionConstant>(METALOPS_OBJC_SYMBOLS(MTLFunctionConstant), &class_NSObject,
                           {
                               {"name", Accessors<&FunctionConstant::name>::get},
                               {"index", Accessors<&FunctionConstant::index>::get},
                               {"required", [](FunctionConstant*, SEL) { return false; }},
                           });
  constexpr UInteger kKernel = 3;  // MTLFunctionTypeKernel
  define<Function>(METALOPS_OBJC_SYMBOLS(MetalopsFunction), &class_NSObject,
                   {
                       {"device", get_device},
                       {"label", Accessors<&Function::label>::get},
                       {"setLabel:", Accessors<&Function::label>::set_copy},
                       {"functionType", [](Function*, SEL) { return kKernel; }},
                       {"name",
                        [](Function* self, SEL) -> id {
                          const id given = self->specialized_name;
                          return given != nullptr ? given : string(self->described->name);
                        }},
                       {"functionConstantsDictionary", function_constants},
                       {"newArgumentEncoderWithBufferIndex:", new_argument_encoder},
                   },
                   {}, {"MTLFunction"});
}

// ---- pipelines

struct PipelineDescriptor : objc_object {
  Strong label;
  Strong function;
  bool is_multiple_of_width = false;
  UInteger max_threads = 0;
  bool indirect = false;
};

struct Binding : objc_object {
  Strong name;
  long type = 0;
  UInteger index = 0;
  bool is_used = true;
};
struct Reflection : objc_object {
  Strong bindings;
};

void define_pipelines() {
  using Descriptor = PipelineDescriptor;
  define<Descriptor>(
      METALOPS_OBJC_SYMBOLS(MTLComputePipelineDescriptor), &class_NSObject,
      {
          {"label", Accessors<&Descriptor::label>::get},
          {"setLabel:", Accessors<&Descriptor::label>::set_copy},
          {"computeFunction", Accessors<&Descriptor::function>::get},
          {"setComputeFunction:", Accessors<&Descriptor::function>::set},
          {"threadGroupSizeIsMultipleOfThreadExecutionWidth",
           Accessors<&Descriptor::is_multiple_of_width>::get},
          {"setThreadGroupSizeIsMultipleOfThreadExecutionWidth:",
           Accessors<&Descriptor::is_multiple_of_width>::set},
          {"maxTotalThreadsPerThreadgroup", Accessors<&Descriptor::max_threads>::get},
          {"setMaxTotalThreadsPerThreadgroup:", Accessors<&Descriptor::max_threads>::set},
          {"supportIndirectCommandBuffers", Accessors<&Descriptor::indirect>::get},
          {"setSupportIndirectCommandBuffers:", Accessors<&Descriptor::indirect>::set},
          {"reset",
           [](Descriptor* self, SEL) {
             self->label = self->function = Strong();
             self->is_multiple_of_width = self->indirect = false;
             self->max_threads = 0;
           }},
          {"copy",
           [](Descriptor* self, SEL) -> id {
             auto* made = make<Descriptor>(&class_MTLComputePipelineDescriptor);
             made->label = self->label;
             made->function = self->function;
             made->is_multiple_of_width = self->is_multiple_of_width;
             made->max_threads = self->max_threads;
             made->indirect = self->indirect;
             return made;
           }},
      },
      {}, {"NSCopying"});

  define<Binding>(METALOPS_OBJC_SYMBOLS(MetalopsBinding), &class_NSObject,
                  {
                      {"name", Accessors<&Binding::name>::get},
                      {"type", Accessors<&Binding::type>::get},
                      {"index", Accessors<&Binding::index>::get},
                      {"isUsed", Accessors<&Binding::is_used>::get},
                  },
                  {}, {"MTLBinding"});
  define<Reflection>(METALOPS_OBJC_SYMBOLS(MTLComputePipelineReflection), &class_NSObject,
                     {{"bindings", Accessors<&Reflection::bindings>::get}});

  define<PipelineState>(METALOPS_OBJC_SYMBOLS(MetalopsComputePipelineState), &class_NSObject,
                        {
                            {"device", get_device},
                            {"label", Accessors<&PipelineState::label>::get},
                            {"maxTotalThreadsPerThreadgroup",
                             [](PipelineState* self, SEL) -> UInteger {
                               return self->pipeline->described->max_threads_per_threadgroup;
                             }},
                            {"threadExecutionWidth",
                             [](PipelineState*, SEL) -> UInteger { return msl::abi::kSimdWidth; }},
                            {"staticThreadgroupMemoryLength",
                             [](PipelineState* self, SEL) -> UInteger {
                               return self->pipeline->described->static_threadgroup_bytes;
                             }},
                        },
                        {}, {"MTLComputePipelineState"});
}

}  // namespace

id library_of_source(id source, id options, id* out) {
  const std::string text = text_of(source);
  return or_error(out, kCompileFailure, "", [&] {
    if (options == nullptr) return new_library({compile_metal(text, 0, /*fast_math=*/true)});
    auto* chosen = static_cast<CompileOptions*>(options);
    TORCH_CHECK(chosen->type == 0,
                "The software Metal device has no dynamic libraries (MTLLibraryTypeDynamic)");
    return new_library({compile_metal(with_macros(text, chosen->macros),
                                      language_of(chosen->language), chosen->fast_math)});
  });
}

id library_of_bytes(const void* data, size_t bytes, id* out) {
  return or_error(out, kUnsupported, "The library cannot be loaded: ", [&] {
    return new_library(opened(data, bytes));
  });
}

id library_of_file(const std::string& path, id* out) {
  return or_error(out, exists(path) ? kUnsupported : kFileNotFound,
                  "The library '" + path + "' cannot be loaded: ", [&] {
                    return new_library(open_metallib(path));
                  });
}

id new_pipeline_state(c10::intrusive_ptr<Pipeline> pipeline) {
  auto* made = make<PipelineState>(&class_MetalopsComputePipelineState);
  made->pipeline = std::move(pipeline);
  return made;
}

id pipeline_of_function(id function, id* out) {
  if (out != nullptr) *out = nullptr;
  if (!is_kind_of(function, &class_MetalopsFunction)) {
    return fail(out, error("MTLLibraryErrorDomain", kFunctionNotFound,
                           std::string("A compute pipeline needs an MTLFunction, but the function "
                                       "is ") +
                               object_getClassName(function)));
  }
  auto* of = static_cast<Function*>(function);
  return new_pipeline_state(c10::make_intrusive<Pipeline>(of->part->library, of->described));
}

id pipeline_of_descriptor(id descriptor, id* out) {
  auto* described = static_cast<PipelineDescriptor*>(descriptor);
  id made = pipeline_of_function(described->function, out);
  if (made != nullptr) static_cast<PipelineState*>(made)->label = described->label;
  return made;
}

id reflection_of(id pipeline) {
  const exec::Kernel& kernel = *static_cast<PipelineState*>(pipeline)->pipeline->described;
  const exec::KernelNotes* notes = exec::notes_of(kernel);
  std::vector<id> bindings;
  for (uint32_t i = 0; i < kernel.argument_count; ++i) {
    const msl::abi::Argument& argument = kernel.arguments[i];
    using Kind = msl::abi::ArgumentKind;
    if (argument.index < 0) continue;  // a position in the grid or the like
    auto* made = make<Binding>(&class_MetalopsBinding);
    made->name = Strong(string(argument.name));
    made->index = static_cast<UInteger>(argument.index);
    made->is_used = (notes == nullptr || notes->is_on(i)) && exec::is_used(argument);
    made->type = argument.kind == Kind::kBuffer        ? 0
                 : argument.kind == Kind::kThreadgroup ? 1
                 : argument.kind == Kind::kTexture     ? 2
                                                       : 3;  // MTLBindingType
    bindings.push_back(autoreleased(made));
  }
  auto* made = make<Reflection>(&class_MTLComputePipelineReflection);
  made->bindings = Strong(array(bindings));
  return autoreleased(made);
}

void define_libraries() {
  define_constant_values();
  define_compile_options();
  define_library();
  define_function_descriptor();
  define_function();
  define_pipelines();
}

}  // namespace metalops::objc
