// Plan functions, and checks of arguments, for callers that are not C++: each tells the names,
// kinds and places of its call's fields, so that nobody else has to know the struct
// (python/metalops/ops/_cuda/plan.py).
#pragma once
#include <csrc/plans/arguments.h>
#include <csrc/plans/plan.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace metalops::plans {

enum class FieldKind : int32_t { kView, kFloat64, kInt64, kBool, kOperand, kText, kType, kBools };

struct Field {
  const char* name;  // without the structs that it is in
  FieldKind kind;
  int32_t offset;  // in bytes
};

template <class T>
constexpr FieldKind field_kind() {
  if constexpr (std::is_same_v<T, View>) {
    return FieldKind::kView;
  } else if constexpr (std::is_same_v<T, double>) {
    return FieldKind::kFloat64;
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return FieldKind::kInt64;
  } else if constexpr (std::is_same_v<T, Operand>) {
    return FieldKind::kOperand;
  } else if constexpr (std::is_same_v<T, Text>) {
    return FieldKind::kText;
  } else if constexpr (std::is_same_v<T, Type>) {
    return FieldKind::kType;
  } else if constexpr (std::is_same_v<T, std::array<bool, sizeof(T)>>) {
    return FieldKind::kBools;
  } else {
    static_assert(std::is_same_v<T, bool>, "a field of this type has no kind");
    return FieldKind::kBool;
  }
}

// Returns the last name of a field's: "query" of "inputs.query" and of "inputs. query".
constexpr const char* field_name(const char* field) {
  const char* name = field;
  for (; *field != 0; ++field) {
    if (*field == '.' || *field == ' ') {
      name = field + 1;
    }
  }
  return name;
}

// Calls a plan function, or a check, which adds no steps.
template <class Call>
void run_entry(void (*function)(Plan&, const Call&, const Device&), Plan& plan, const Call& call,
               const Device& device) {
  function(plan, call, device);
}
template <class Call>
void run_entry(void (*check)(const Call&), Plan&, const Call& call, const Device&) {
  check(call);
}

// A plan function or a check. call: the struct that its header declares.
struct Entry {
  const char* name;
  int32_t call_bytes;
  int32_t fields_count;
  const Field* fields;
  const void* defaults;  // a call of which nothing is said
  void (*add_steps)(Plan& plan, const void* call, const Device& device);
};

// Expands to the entry of the plan function X(Plan&, const Call&, const Device&), or of the check
// X(const Call&); the fields are all of the call's, those of a struct in it one by one.
#define METALOPS_PLAN_ENTRY(function, CALL, ...)                                       \
  [] {                                                                                 \
    using Call = CALL;                                                                 \
    static const Field fields[] = {METALOPS_PLAN_FIELDS(__VA_ARGS__)};                 \
    static const Call defaults{};                                                      \
    return Entry{#function,                                                            \
                 sizeof(Call),                                                         \
                 sizeof(fields) / sizeof(Field),                                       \
                 fields,                                                               \
                 &defaults,                                                            \
                 [](Plan& plan, const void* call, const Device& device) {              \
                   run_entry(function, plan, *static_cast<const Call*>(call), device); \
                 }};                                                                   \
  }()

// A Field of each argument: the recursion of C++20's __VA_OPT__, for at most 256 of them.
#define METALOPS_PLAN_FIELDS(...) __VA_OPT__(METALOPS_EXPAND_256(METALOPS_PLAN_FIELD(__VA_ARGS__)))
#define METALOPS_PLAN_FIELD(field, ...)                          \
  Field{field_name(#field), field_kind<decltype(Call::field)>(), \
        static_cast<int32_t>(offsetof(Call, field))},            \
      __VA_OPT__(METALOPS_PLAN_FIELD_AGAIN METALOPS_PARENTHESES(__VA_ARGS__))
#define METALOPS_PLAN_FIELD_AGAIN() METALOPS_PLAN_FIELD
#define METALOPS_PARENTHESES ()
#define METALOPS_EXPAND_4(...) __VA_ARGS__
#define METALOPS_EXPAND_16(...) \
  METALOPS_EXPAND_4(METALOPS_EXPAND_4(METALOPS_EXPAND_4(METALOPS_EXPAND_4(__VA_ARGS__))))
#define METALOPS_EXPAND_64(...) \
  METALOPS_EXPAND_16(METALOPS_EXPAND_16(METALOPS_EXPAND_16(METALOPS_EXPAND_16(__VA_ARGS__))))
#define METALOPS_EXPAND_256(...) \
  METALOPS_EXPAND_64(METALOPS_EXPAND_64(METALOPS_EXPAND_64(METALOPS_EXPAND_64(__VA_ARGS__))))

}  // namespace metalops::plans
