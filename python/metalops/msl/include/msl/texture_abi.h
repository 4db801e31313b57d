// Textures and samplers that kernels take as arguments: the kernel's declaration of one, and what a
// launch passes for it. Equal on every target.
#pragma once

namespace msl::abi {

constexpr unsigned kMaxTextures = 128;  // Metal's texture argument table
constexpr unsigned kMaxSamplers = 16;   // Metal's sampler argument table
constexpr unsigned kMaxTextureLevels = 15;

enum class TextureKind : unsigned { k1d, k1dArray, k2d, k2dArray, k3d, kCube, kCubeArray, kBuffer };

// How the components of a texel are stored. Names of packed formats list the components from the
// least significant bit, as those of MTLPixelFormat do.
enum class TexelEncoding : unsigned char {
  kUnorm8,
  kSnorm8,
  kSrgb8,  // alpha is not encoded
  kUint8,
  kSint8,
  kUnorm16,
  kSnorm16,
  kUint16,
  kSint16,
  kHalf,
  kUint32,
  kSint32,
  kFloat,
  kB5G6R5,
  kA1Bgr5,
  kAbgr4,
  kBgr5A1,
  kRgb10A2,
  kBgr10A2,
  kRgb10A2Uint,
  kRg11B10Float,
  kRgb9E5Float
};

enum class TexelOrder : unsigned char { kRgba, kBgra, kAlpha };

struct TexelFormat {
  TexelEncoding encoding;
  unsigned char channels;
  TexelOrder order;
  unsigned char bytes;  // of a texel
};

// The uses of a format by kernels, as bits of Texture::usage; all of them read.
constexpr unsigned kUsageWrite = 1;
constexpr unsigned kUsageReadWrite = 2;

struct TextureLevel {
  unsigned char* texels;
  unsigned long row_bytes;
  unsigned long slice_bytes;  // from one array element, face or plane of depth to the next
  unsigned width, height, depth;
  unsigned reserved;
};

struct Texture {
  TextureKind kind;
  TexelFormat format;
  unsigned layers;  // array elements; for cubes, faces
  unsigned level_count;
  unsigned usage;
  unsigned is_null;                        // stands for a texture that is switched off
  TextureLevel levels[kMaxTextureLevels];  // only the first level_count exist
};

// A sampler is one number with these fields, bit offset and width. The limits of the level of
// detail are bits of a half.
struct SamplerField {
  unsigned offset, width;
};
constexpr SamplerField kMagFilter = {0, 1};  // nearest, linear
constexpr SamplerField kMinFilter = {1, 1};  // nearest, linear
constexpr SamplerField kMipFilter = {2, 2};  // none, nearest, linear
constexpr SamplerField kAddress = {4, 3};    // AddressMode of s; t and r follow
constexpr SamplerField kPixelCoordinates = {13, 1};
constexpr SamplerField kCompare = {14, 4};  // metal::compare_func
constexpr SamplerField kBorder = {18, 2};   // transparent black, opaque black, opaque white
constexpr SamplerField kMaxAnisotropy = {20, 5};
constexpr SamplerField kMinLod = {32, 16};
constexpr SamplerField kMaxLod = {48, 16};

enum class AddressMode : unsigned {
  kClampToEdge,
  kClampToZero,
  kClampToBorder,
  kRepeat,
  kMirroredRepeat,
  kMirrorClampToEdge  // only for samplers that the host makes
};

// The declaration of a kernel's texture parameter.
enum class TextureComponent : unsigned { kFloat, kInt, kUint };
enum class TextureAccess : unsigned { kSample, kRead, kWrite, kReadWrite };
struct TextureArgument {
  TextureKind kind;
  TextureComponent component;
  TextureAccess access;
  unsigned is_depth;
  unsigned count;  // of an array of textures; 1 otherwise
};

}  // namespace msl::abi
