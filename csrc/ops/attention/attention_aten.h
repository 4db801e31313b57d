// The choice of who serves torch.nn.functional.scaled_dot_product_attention on MPS.
#pragma once
namespace metalops {

// kAlways: metalops serves all that it supports. kUnlessFused: stock MPS serves what it has a fused
// kernel for, one that does not materialise the scores. kUnlessSmall: torch serves the calls whose
// scores take little memory. kNever: torch serves every call.
enum class AttentionUse { kAlways, kUnlessFused, kUnlessSmall, kNever };

// Sets the choice for the whole process and returns the previous one.
AttentionUse set_attention_use(AttentionUse use);

// Returns false if torch is to serve every call: by the choice, or because of
// torch.nn.attention.sdpa_kernel(SDPBackend.MATH).
bool may_serve_attention();

}  // namespace metalops
