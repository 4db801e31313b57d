// Who serves torch.nn.functional.scaled_dot_product_attention on MPS.
#pragma once
namespace metalops {

// kAlways: metalops, whatever it takes. kUnlessFused: but for what stock MPS has a kernel for that
// does not materialise the scores. kNever: torch.
enum class AttentionUse { kAlways, kUnlessFused, kNever };

// For the whole process. Returns what it was before.
AttentionUse set_attention_use(AttentionUse use);

}  // namespace metalops
