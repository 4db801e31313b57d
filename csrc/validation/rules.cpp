// The table of rules, and how violations are reported.
#include <csrc/validation/caller.h>
#include <csrc/validation/rules.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <utility>

namespace metalops::validation {
namespace {

constexpr Severity kError = Severity::kError;
constexpr Severity kWarning = Severity::kWarning;
constexpr bool kAlways = true;
constexpr bool kIfEnabled = false;

// docs/mac_extensions.md has this table, too (python docs/generate.py).
constexpr Description kTable[] = {
    {Rule::kSecondEncoder, "second-encoder", kError, Kind::kRuntime, kAlways,
     "A command buffer has one open encoder at a time, and that of torch's stream stays open after "
     "torch's kernels until MPSStream::endKernelCoalescing()",
     "Metal's assertion 'A command encoder is already encoding to this command buffer'; "
     "pytorch/pytorch#164093"},
    {Rule::kEncoderAfterEnd, "encoder-after-end", kError, Kind::kRuntime, kAlways,
     "An encoder takes no commands after endEncoding", "Apple: MTLCommandEncoder endEncoding"},
    {Rule::kEncoderAfterCommit, "encoder-after-commit", kError, Kind::kRuntime, kAlways,
     "An encoder takes no commands after its command buffer was committed, which torch also does "
     "in torch::mps::commit() and MPSStream::synchronize()",
     "Apple: MTLCommandBuffer commit; torch's MPSStream.mm"},
    {Rule::kEncoderNotEnded, "encoder-not-ended", kError, Kind::kRuntime, kAlways,
     "An encoder gets endEncoding before its command buffer is committed, before the encoder is "
     "released and before torch encodes its next operator",
     "Metal's assertion 'Command encoder released without endEncoding'; Apple: MTLCommandEncoder "
     "endEncoding"},
    {Rule::kEncoderOffQueue, "encoder-off-queue", kError, Kind::kRuntime, kIfEnabled,
     "The encoders of torch's command buffer are used on the serial queue of its stream only, "
     "inside dispatch_sync on torch::mps::get_dispatch_queue() or MPSStream::queue()",
     "pytorch/pytorch#198039"},
    {Rule::kCommandBufferOffQueue, "command-buffer-off-queue", kWarning, Kind::kRuntime, kIfEnabled,
     "torch's command buffer is taken on the serial queue of its stream: another thread may commit "
     "it in between",
     "pytorch/pytorch#164093 on torch::mps::get_command_buffer"},
    {Rule::kCommandBufferAfterCommit, "command-buffer-after-commit", kError, Kind::kRuntime,
     kAlways, "A command buffer takes no commands, no handlers and no second commit after commit",
     "Apple: MTLCommandBuffer commit"},
    {Rule::kNotCommitted, "not-committed", kWarning, Kind::kRuntime, kIfEnabled,
     "A command buffer of an own queue runs when it is committed; one that is released before "
     "never runs",
     "Apple: MTLCommandBuffer commit"},
    {Rule::kWaitBeforeCommit, "wait-before-commit", kError, Kind::kRuntime, kAlways,
     "A wait for a command buffer that was not committed never ends",
     "Apple: MTLCommandBuffer waitUntilCompleted"},
    {Rule::kDispatchSyncOnOwnQueue, "dispatch-sync-on-own-queue", kError, Kind::kRuntime, kAlways,
     "dispatch_sync on the serial queue that runs the caller never returns",
     "Apple: dispatch_sync"},
    {Rule::kBytesTooLong, "bytes-too-long", kError, Kind::kValue, kAlways,
     "setBytes passes from 1 to 4,096 bytes; more need a buffer",
     "Apple: MTLComputeCommandEncoder setBytes:length:atIndex:"},
    {Rule::kIndexTooLarge, "index-too-large", kError, Kind::kIndex, kAlways,
     "Kernels have the buffer indices 0 to 30", "Apple: Metal feature set tables"},
    {Rule::kOutOfBounds, "out-of-bounds", kError, Kind::kValue, kAlways,
     "Offsets and ranges lie within their buffer",
     "Apple: MTLComputeCommandEncoder setBuffer:offset:atIndex:, MTLBlitCommandEncoder"},
    {Rule::kUnalignedOffset, "unaligned-offset", kError, Kind::kValue, kIfEnabled,
     "The offset of a buffer is a multiple of the alignment of the type that the kernel reads "
     "there, and of 4 in constant memory",
     "Apple: MTLComputeCommandEncoder setBuffer:offset:atIndex:; Metal feature set tables"},
    {Rule::kUnalignedCopy, "unaligned-copy", kWarning, Kind::kRuntime, kIfEnabled,
     "On macOS offsets and sizes of copies and fills of buffers are multiples of 4",
     "Apple: MTLBlitCommandEncoder copyFromBuffer:..., fillBuffer:range:value:"},
    {Rule::kUnboundBuffer, "unbound-buffer", kError, Kind::kRuntime, kAlways,
     "Something is bound to every buffer and threadgroup argument that a kernel uses with the "
     "values "
     "that its function constants have",
     "Apple: Metal API validation, 'missing Buffer binding at index'"},
    {Rule::kThreadgroupTooLarge, "threadgroup-too-large", kError, Kind::kValue, kAlways,
     "A threadgroup has at least one thread and at most maxTotalThreadsPerThreadgroup of the "
     "pipeline",
     "Apple: MTLComputePipelineState maxTotalThreadsPerThreadgroup"},
    {Rule::kThreadgroupMemory, "threadgroup-memory", kError, Kind::kValue, kAlways,
     "A threadgroup has at most 32 KiB of memory, declared in the kernel and set by the encoder "
     "together",
     "Apple: Metal feature set tables; MTLDevice maxThreadgroupMemoryLength"},
    {Rule::kThreadgroupMemoryAlignment, "threadgroup-memory-alignment", kError, Kind::kValue,
     kIfEnabled, "Lengths of threadgroup memory are multiples of 16 bytes",
     "Apple: MTLComputeCommandEncoder setThreadgroupMemoryLength:atIndex:"},
    {Rule::kFreedInFlight, "freed-in-flight", kError, Kind::kRuntime, kIfEnabled,
     "Memory stays allocated until the command buffer that uses it has completed: that of tensors, "
     "which torch gives to other tensors, and buffers of a command buffer that does not retain "
     "them",
     "Apple: MTLCommandQueue commandBufferWithUnretainedReferences; torch's MPSAllocator.mm"},
    {Rule::kContentsInFlight, "contents-in-flight", kWarning, Kind::kRuntime, kIfEnabled,
     "The CPU reads a buffer's contents when the command buffer that writes them has completed: "
     "call waitUntilCompleted first",
     "Apple: Synchronizing CPU and GPU work"},
    {Rule::kUnsynchronisedQueue, "unsynchronised-queue", kError, Kind::kRuntime, kIfEnabled,
     "Work of an own queue and of torch's stream on the same memory is ordered by "
     "waitUntilCompleted, by torch.mps.synchronize() or by an event",
     "Apple: Resource synchronization; Metal tracks hazards within one queue"},
};
static_assert(sizeof(kTable) / sizeof(kTable[0]) == kRules);
constexpr bool is_in_order() {
  for (int i = 0; i < kRules; ++i) {
    if (static_cast<int>(kTable[i].rule) != i) return false;
  }
  return true;
}
static_assert(is_in_order());

void print(const std::string& text) { std::fprintf(stderr, "metalops: %s\n", text.c_str()); }

void end_process(Kind, const std::string& text) {
  print(text);
  std::abort();
}

Outlet& outlet() {
  static Outlet one{end_process, print};
  return one;
}

// Returns true the first time.
bool is_new(Rule rule, const void* address) {
  static auto& mutex = *new std::mutex;
  static auto& known = *new std::set<std::pair<Rule, const void*>>;
  std::lock_guard<std::mutex> lock(mutex);
  return known.emplace(rule, address).second;
}

}  // namespace

const Description& describe(Rule rule) { return kTable[static_cast<int>(rule)]; }

std::atomic<bool> detail::enabled{false};
void set_enabled(bool now) { detail::enabled = now; }

std::string message(Rule rule, const std::string& happened, const void* address) {
  const Description& about = describe(rule);
  const std::string place = place_of(address != nullptr ? address : caller());
  return (place.empty() ? place : place + ": ") +
         (about.severity == Severity::kError ? "error [" : "warning [") + about.name + "] " +
         happened + ". " + about.sentence + " (" + about.source + ")";
}

std::string text_of(Rule rule) {
  const Description& about = describe(rule);
  return std::string("[") + about.name + "] " + about.sentence + " (" + about.source + ")";
}

void warn(Rule rule, const std::string& happened, const void* address) {
  if (address == nullptr) address = caller();
  if (is_new(rule, address)) outlet().warn(message(rule, happened, address));
}

void report(Rule rule, const std::string& happened, const void* address) {
  if (!is_on(rule)) return;
  if (describe(rule).severity == Severity::kWarning) return warn(rule, happened, address);
  outlet().raise(describe(rule).kind, message(rule, happened, address));
}

void set_outlet(Outlet given) { outlet() = given; }

}  // namespace metalops::validation
