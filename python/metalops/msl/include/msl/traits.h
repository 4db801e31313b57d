// metal_type_traits: Metal's subset of <type_traits>, in which vectors have the traits of their
// elements.
//
// Code in the wild declares forward, void_t, make_void, is_empty, is_static and pointer_element in
// namespace metal itself, where Metal has none: they stay absent here. It also uses Apple's
// internal names _disjunction, _conjunction.
#pragma once

#include <msl/config.h>

namespace msl {

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef __INTPTR_TYPE__ intptr_t;
typedef __UINTPTR_TYPE__ uintptr_t;

// A pointer or a reference as the argument of a template that tells address spaces apart. spaces: a
// digit for each level (dialect/specialisations.py).
template <int spaces, class T>
struct msl_spaced;

// The template argument of a copy that takes `device T*` where its template took any pointer
// (dialect/space_copies.py).
template <class T>
struct msl_pointee_of;
template <class T>
struct msl_pointee_of<T*> {
  typedef T type;
};
template <class T>
struct msl_pointee_of<T* const> : msl_pointee_of<T*> {};
template <class T>
struct msl_pointee_of<T&> : msl_pointee_of<T> {};
template <class T>
using msl_pointee = typename msl_pointee_of<T>::type;
template <class T>
struct msl_without_const {
  typedef T type;
};
template <class T>
struct msl_without_const<const T> {
  typedef T type;
};
template <class T>
struct msl_decayed_of : msl_without_const<T> {};
template <class T>
struct msl_decayed_of<T&> : msl_without_const<T> {};
template <class T>
using msl_decayed = typename msl_decayed_of<T>::type;  // the type of a value
template <class T>
using msl_constant_pointee = typename msl_without_const<msl_pointee<T>>::type;

// The first parameter of call operators that address spaces tell apart, which cannot have names of
// their own. spaces: a digit for each address space in the parameters (dialect/call_operators.py).
template <unsigned long spaces>
struct msl_in {};
template <class F, class In, class... A>
MSL_INLINE constexpr auto msl_called(int, F& f, In, A&&... x)
    -> decltype(f(static_cast<A&&>(x)...)) {
  return f(static_cast<A&&>(x)...);
}
template <class F, class In, class... A>
MSL_INLINE constexpr auto msl_called(long, F& f, In in, A&&... x)
    -> decltype(f(in, static_cast<A&&>(x)...)) {
  return f(in, static_cast<A&&>(x)...);
}
// msl_callable(f)(in, x...) is f(in, x...) for an object with such call operators, and f(x...) for
// any other, a lambda or a function.
template <class F>
struct msl_callable_of {
  F& f;
  template <class In, class... A>
  MSL_INLINE constexpr auto operator()(In in, A&&... x) const
      -> decltype(msl_called(0, f, in, static_cast<A&&>(x)...)) {
    return msl_called(0, f, in, static_cast<A&&>(x)...);
  }
};
template <class F>
MSL_INLINE constexpr msl_callable_of<F> msl_callable(F& f) {
  return {f};
}
template <class F>
MSL_INLINE constexpr msl_callable_of<F> msl_callable(F&& f) {
  return {f};
}

// The copies of a generic lambda (dialect/lambda_copies.py).
template <class... F>
struct msl_several : F... {
  using F::operator()...;
};
template <class... F>
msl_several(F...) -> msl_several<F...>;
#define msl_no_pointer_auto auto

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;

struct bfloat;
#if MSL_NATIVE_HALF
typedef _Float16 half;
#else
struct half;
#endif

static_assert(sizeof(long) == 8, "Metal's long has 64 bits");

namespace metal {

using nullptr_t = decltype(nullptr);

template <class T, int N>
struct vec;
template <class T, int N>
struct packed_vec;

template <class T, T V>
struct integral_constant {
  static constexpr T value = V;
  using value_type = T;
  using type = integral_constant;
  constexpr operator T() const { return V; }
  constexpr T operator()() const { return V; }
};
template <bool B>
using bool_constant = integral_constant<bool, B>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;

// ---- type transformations -----------------------------------------------------------------------

template <bool B, class T = void>
struct enable_if {};
template <class T>
struct enable_if<true, T> {
  using type = T;
};
template <bool B, class T = void>
using enable_if_t = typename enable_if<B, T>::type;

template <bool B, class T, class F>
struct conditional {
  using type = T;
};
template <class T, class F>
struct conditional<false, T, F> {
  using type = F;
};
template <bool B, class T, class F>
using conditional_t = typename conditional<B, T, F>::type;

#define MSL_TYPE_CHANGE(name, from, to) \
  template <class T>                    \
  struct name<from> {                   \
    using type = to;                    \
  };
#define MSL_TYPE_CHANGES(name)             \
  template <class T>                       \
  using name##_t = typename name<T>::type; \
  template <class T>                       \
  struct name {                            \
    using type = T;                        \
  };
template <class T>
struct remove_const;
template <class T>
struct remove_volatile;
template <class T>
struct remove_reference;
template <class T>
struct remove_pointer;
template <class T>
struct remove_extent;
template <class T>
struct type_identity;
MSL_TYPE_CHANGES(remove_const)
MSL_TYPE_CHANGE(remove_const, const T, T)
MSL_TYPE_CHANGES(remove_volatile)
MSL_TYPE_CHANGE(remove_volatile, volatile T, T)
MSL_TYPE_CHANGES(remove_reference)
MSL_TYPE_CHANGE(remove_reference, T&, T)
MSL_TYPE_CHANGE(remove_reference, T&&, T)
MSL_TYPE_CHANGES(remove_pointer)
MSL_TYPE_CHANGE(remove_pointer, T*, T)
MSL_TYPE_CHANGE(remove_pointer, T* const, T)
MSL_TYPE_CHANGE(remove_pointer, T* volatile, T)
MSL_TYPE_CHANGE(remove_pointer, T* const volatile, T)
MSL_TYPE_CHANGES(remove_extent)
MSL_TYPE_CHANGE(remove_extent, T[], T)
template <class T, size_t N>
struct remove_extent<T[N]> {
  using type = T;
};
MSL_TYPE_CHANGES(type_identity)
#undef MSL_TYPE_CHANGES
#undef MSL_TYPE_CHANGE

template <class T>
struct remove_all_extents {
  using type = T;
};
template <class T>
struct remove_all_extents<T[]> : remove_all_extents<T> {};
template <class T, size_t N>
struct remove_all_extents<T[N]> : remove_all_extents<T> {};
template <class T>
using remove_all_extents_t = typename remove_all_extents<T>::type;

template <class T>
struct remove_cv {
  using type = remove_const_t<remove_volatile_t<T>>;
};
template <class T>
using remove_cv_t = typename remove_cv<T>::type;
template <class T>
struct remove_cvref {
  using type = remove_cv_t<remove_reference_t<T>>;
};
template <class T>
using remove_cvref_t = typename remove_cvref<T>::type;
template <class T>
struct remove_addrspace {  // address spaces are erased before this code is compiled
  using type = T;
};
template <class T>
using remove_addrspace_t = typename remove_addrspace<T>::type;

template <class T>
struct add_const {
  using type = const T;
};
template <class T>
using add_const_t = typename add_const<T>::type;
template <class T>
struct add_volatile {
  using type = volatile T;
};
template <class T>
using add_volatile_t = typename add_volatile<T>::type;
template <class T>
struct add_cv {
  using type = const volatile T;
};
template <class T>
using add_cv_t = typename add_cv<T>::type;
template <class T>
struct add_lvalue_reference {
  using type = T&;
};
template <class T>
using add_lvalue_reference_t = typename add_lvalue_reference<T>::type;
template <class T>
struct add_rvalue_reference {
  using type = T&&;
};
template <>
struct add_rvalue_reference<void> {
  using type = void;
};
template <class T>
using add_rvalue_reference_t = typename add_rvalue_reference<T>::type;
template <class T>
struct add_pointer {
  using type = remove_reference_t<T>*;
};
template <class T>
using add_pointer_t = typename add_pointer<T>::type;

template <class T>
add_rvalue_reference_t<T> declval() noexcept;

template <class T>
struct underlying_type {
  using type = __underlying_type(T);
};
template <class T>
using underlying_type_t = typename underlying_type<T>::type;

// ---- type predicates ----------------------------------------------------------------------------

#define MSL_QUESTION(name, ...)                      \
  template <class T>                                 \
  struct name : bool_constant<bool(__VA_ARGS__)> {}; \
  template <class T>                                 \
  inline constexpr bool name##_v = bool(__VA_ARGS__);
#define MSL_QUESTION2(name, ...)                     \
  template <class T, class U>                        \
  struct name : bool_constant<bool(__VA_ARGS__)> {}; \
  template <class T, class U>                        \
  inline constexpr bool name##_v = bool(__VA_ARGS__);

}  // namespace metal

namespace msl_impl {

template <class T, class U>
inline constexpr bool same = false;
template <class T>
inline constexpr bool same<T, T> = true;

template <class T>
inline constexpr bool is_const = false;
template <class T>
inline constexpr bool is_const<const T> = true;
template <class T>
inline constexpr bool is_volatile = false;
template <class T>
inline constexpr bool is_volatile<volatile T> = true;
template <class T>
inline constexpr bool is_pointer = false;
template <class T>
inline constexpr bool is_pointer<T*> = true;
template <class T>
inline constexpr bool is_lvalue_reference = false;
template <class T>
inline constexpr bool is_lvalue_reference<T&> = true;
template <class T>
inline constexpr bool is_rvalue_reference = false;
template <class T>
inline constexpr bool is_rvalue_reference<T&&> = true;
template <class T>
inline constexpr bool is_array = false;
template <class T>
inline constexpr bool is_array<T[]> = true;
template <class T, size_t N>
inline constexpr bool is_array<T[N]> = true;
// const applied to a function or a reference type changes nothing; only these two behave so.
template <class T>
inline constexpr bool is_function =
    !is_const<const T> && !is_lvalue_reference<T> && !is_rvalue_reference<T>;

// The kinds of scalar. (Keyed by unqualified type.)
enum class Kind { kNone, kBool, kSigned, kUnsigned, kFloat, kHalf, kBfloat };
template <class T>
inline constexpr Kind kind = Kind::kNone;
template <>
inline constexpr Kind kind<bool> = Kind::kBool;
template <>
inline constexpr Kind kind<char> = Kind::kSigned;
template <>
inline constexpr Kind kind<signed char> = Kind::kSigned;
template <>
inline constexpr Kind kind<short> = Kind::kSigned;
template <>
inline constexpr Kind kind<int> = Kind::kSigned;
template <>
inline constexpr Kind kind<long> = Kind::kSigned;
template <>
inline constexpr Kind kind<long long> = Kind::kSigned;
template <>
inline constexpr Kind kind<unsigned char> = Kind::kUnsigned;
template <>
inline constexpr Kind kind<unsigned short> = Kind::kUnsigned;
template <>
inline constexpr Kind kind<unsigned int> = Kind::kUnsigned;
template <>
inline constexpr Kind kind<unsigned long> = Kind::kUnsigned;
template <>
inline constexpr Kind kind<unsigned long long> = Kind::kUnsigned;
template <>
inline constexpr Kind kind<float> = Kind::kFloat;
template <>
inline constexpr Kind kind<double> = Kind::kFloat;
template <>
inline constexpr Kind kind<half> = Kind::kHalf;
template <>
inline constexpr Kind kind<bfloat> = Kind::kBfloat;

template <class T>
inline constexpr bool is_integer_scalar =
    kind<T> == Kind::kBool || kind<T> == Kind::kSigned || kind<T> == Kind::kUnsigned;
template <class T>
inline constexpr bool is_arithmetic_scalar = kind<T> != Kind::kNone;

// The element type of a vector, and any other type itself.
template <class T>
struct element {
  using type = T;
};
template <class T, int N>
struct element<metal::vec<T, N>> {
  using type = T;
};
template <class T, int N>
struct element<metal::packed_vec<T, N>> {
  using type = T;
};
template <class T>
inline constexpr Kind element_kind = kind<typename element<metal::remove_cv_t<T>>::type>;

struct convertible {
  template <class To>
  static void take(To);
  template <class From, class To, class = decltype(take<To>(metal::declval<From>()))>
  static metal::true_type test(int);
  template <class, class>
  static metal::false_type test(...);
};

template <class... T>
struct to_void {
  using type = void;
};

}  // namespace msl_impl

namespace metal {

MSL_QUESTION2(is_same, msl_impl::same<T, U>)
MSL_QUESTION(is_void, msl_impl::same<remove_cv_t<T>, void>)
MSL_QUESTION(is_const, msl_impl::is_const<T>)
MSL_QUESTION(is_volatile, msl_impl::is_volatile<T>)
MSL_QUESTION(is_array, msl_impl::is_array<T>)
MSL_QUESTION(is_pointer, msl_impl::is_pointer<remove_cv_t<T>>)
MSL_QUESTION(is_lvalue_reference, msl_impl::is_lvalue_reference<T>)
MSL_QUESTION(is_rvalue_reference, msl_impl::is_rvalue_reference<T>)
MSL_QUESTION(is_reference, msl_impl::is_lvalue_reference<T> || msl_impl::is_rvalue_reference<T>)
MSL_QUESTION(is_function, msl_impl::is_function<T>)
MSL_QUESTION(is_class, __is_class(T))
MSL_QUESTION(is_union, __is_union(T))
MSL_QUESTION(is_enum, __is_enum(T))
MSL_QUESTION(is_final, __is_final(T))
MSL_QUESTION(is_polymorphic, __is_polymorphic(T))
MSL_QUESTION(is_abstract, __is_abstract(T))
MSL_QUESTION(is_standard_layout, __is_standard_layout(T))
MSL_QUESTION(is_trivially_copyable, __is_trivially_copyable(T))
MSL_QUESTION(is_trivial, __is_trivial(T))
MSL_QUESTION(is_pod, __is_pod(T))
MSL_QUESTION(is_literal_type, __is_literal_type(T))
MSL_QUESTION2(is_base_of, __is_base_of(T, U))
MSL_QUESTION2(is_convertible, decltype(msl_impl::convertible::test<T, U>(0))::value)

// True for vectors of such elements too: c10/metal uses is_floating_point_v && is_scalar_v.
MSL_QUESTION(is_integral, msl_impl::element_kind<T> == msl_impl::Kind::kBool ||
                              msl_impl::element_kind<T> == msl_impl::Kind::kSigned ||
                              msl_impl::element_kind<T> == msl_impl::Kind::kUnsigned)
MSL_QUESTION(is_floating_point, msl_impl::element_kind<T> == msl_impl::Kind::kFloat ||
                                    msl_impl::element_kind<T> == msl_impl::Kind::kHalf ||
                                    msl_impl::element_kind<T> == msl_impl::Kind::kBfloat)
MSL_QUESTION(is_arithmetic, msl_impl::element_kind<T> != msl_impl::Kind::kNone)
MSL_QUESTION(is_signed,
             is_floating_point_v<T> || msl_impl::element_kind<T> == msl_impl::Kind::kSigned)
MSL_QUESTION(is_unsigned, is_integral_v<T>&& msl_impl::element_kind<T> != msl_impl::Kind::kSigned)
MSL_QUESTION(is_fundamental, is_arithmetic_v<T> || is_void_v<T>)
MSL_QUESTION(is_scalar,
             msl_impl::is_arithmetic_scalar<remove_cv_t<T>> || is_enum_v<T> || is_pointer_v<T>)
MSL_QUESTION(is_vector, is_arithmetic_v<T> && !msl_impl::is_arithmetic_scalar<remove_cv_t<T>>)
MSL_QUESTION(is_compound, !is_fundamental_v<T>)
MSL_QUESTION(is_object, !is_function_v<T> && !is_reference_v<T> && !is_void_v<T>)

template <class T, class... Args>
struct is_constructible : bool_constant<__is_constructible(T, Args...)> {};
template <class T, class... Args>
inline constexpr bool is_constructible_v = __is_constructible(T, Args...);
MSL_QUESTION(is_default_constructible, __is_constructible(T))
MSL_QUESTION(is_copy_constructible, __is_constructible(T, const T&))
MSL_QUESTION(is_move_constructible, __is_constructible(T, T&&))
MSL_QUESTION2(is_assignable, __is_assignable(T, U))
MSL_QUESTION(is_copy_assignable, __is_assignable(T&, const T&))
MSL_QUESTION(is_move_assignable, __is_assignable(T&, T&&))
MSL_QUESTION(is_trivially_default_constructible, __is_trivially_constructible(T))
MSL_QUESTION(is_trivially_copy_constructible, __is_trivially_constructible(T, const T&))
#undef MSL_QUESTION
#undef MSL_QUESTION2

template <class T>
struct rank : integral_constant<size_t, 0> {};
template <class T>
struct rank<T[]> : integral_constant<size_t, rank<T>::value + 1> {};
template <class T, size_t N>
struct rank<T[N]> : integral_constant<size_t, rank<T>::value + 1> {};
template <class T>
inline constexpr size_t rank_v = rank<T>::value;
template <class T, unsigned I = 0>
struct extent : integral_constant<size_t, 0> {};
template <class T, unsigned I>
struct extent<T[], I> : extent<T, I - 1> {};
template <class T>
struct extent<T[], 0> : integral_constant<size_t, 0> {};
template <class T, size_t N, unsigned I>
struct extent<T[N], I> : extent<T, I - 1> {};
template <class T, size_t N>
struct extent<T[N], 0> : integral_constant<size_t, N> {};
template <class T, unsigned I = 0>
inline constexpr size_t extent_v = extent<T, I>::value;
template <class T>
struct alignment_of : integral_constant<size_t, alignof(T)> {};
template <class T>
inline constexpr size_t alignment_of_v = alignof(T);

template <class... B>
struct conjunction : true_type {};
template <class B>
struct conjunction<B> : B {};
template <class B, class... Rest>
struct conjunction<B, Rest...> : conditional_t<bool(B::value), conjunction<Rest...>, B> {};
template <class... B>
inline constexpr bool conjunction_v = conjunction<B...>::value;
template <class... B>
struct disjunction : false_type {};
template <class B>
struct disjunction<B> : B {};
template <class B, class... Rest>
struct disjunction<B, Rest...> : conditional_t<bool(B::value), B, disjunction<Rest...>> {};
template <class... B>
inline constexpr bool disjunction_v = disjunction<B...>::value;
template <class... B>
using _conjunction = conjunction<B...>;
template <class... B>
using _disjunction = disjunction<B...>;
template <class B>
struct negation : bool_constant<!bool(B::value)> {};
template <class B>
inline constexpr bool negation_v = negation<B>::value;

template <class T>
struct decay {
  using bare = remove_reference_t<T>;
  using type =
      conditional_t<is_array_v<bare>, remove_extent_t<bare>*,
                    conditional_t<is_function_v<bare>, add_pointer_t<bare>, remove_cv_t<bare>>>;
};
template <class T>
using decay_t = typename decay<T>::type;

template <class... T>
struct common_type {};
template <class T>
struct common_type<T> : decay<T> {};
template <class T, class U>
struct common_type<T, U> {
  using type = decay_t<decltype(true ? declval<T>() : declval<U>())>;
};
template <class T, class U, class... Rest>
struct common_type<T, U, Rest...> : common_type<typename common_type<T, U>::type, Rest...> {};
template <class... T>
using common_type_t = typename common_type<T...>::type;

template <class F, class... Args>
struct invoke_result {
  using type = decltype(declval<F>()(declval<Args>()...));
};
template <class F, class... Args>
using invoke_result_t = typename invoke_result<F, Args...>::type;

template <class T>
struct make_scalar {
  using type = typename msl_impl::element<T>::type;
};
template <class T>
using make_scalar_t = typename make_scalar<T>::type;
// The number of components; 1 for scalars.
template <class T>
struct vec_elements : integral_constant<int, 1> {};
template <class T, int N>
struct vec_elements<vec<T, N>> : integral_constant<int, N> {};
template <class T, int N>
struct vec_elements<packed_vec<T, N>> : integral_constant<int, N> {};
template <class T>
struct vec_elements<const T> : vec_elements<T> {};
template <class T>
inline constexpr int vec_elements_v = vec_elements<T>::value;
template <class T, int N>
struct make_vector {
  using type = vec<T, N>;
};
template <class T, int N>
using make_vector_t = typename make_vector<T, N>::type;

template <class T>
struct make_unsigned {
  using type = T;
};
template <class T>
struct make_signed {
  using type = T;
};
#define MSL_SIGNS(S, U)     \
  template <>               \
  struct make_unsigned<S> { \
    using type = U;         \
  };                        \
  template <>               \
  struct make_signed<U> {   \
    using type = S;         \
  };
MSL_SIGNS(signed char, unsigned char)
MSL_SIGNS(short, unsigned short)
MSL_SIGNS(int, unsigned int)
MSL_SIGNS(long, unsigned long)
MSL_SIGNS(long long, unsigned long long)
#undef MSL_SIGNS
template <>
struct make_unsigned<char> {
  using type = unsigned char;
};
template <class T, int N>
struct make_unsigned<vec<T, N>> {
  using type = vec<typename make_unsigned<T>::type, N>;
};
template <class T, int N>
struct make_signed<vec<T, N>> {
  using type = vec<typename make_signed<T>::type, N>;
};
template <class T>
using make_unsigned_t = typename make_unsigned<T>::type;
template <class T>
using make_signed_t = typename make_signed<T>::type;

template <class T, T... I>
struct integer_sequence {
  using value_type = T;
  static constexpr size_t size() noexcept { return sizeof...(I); }
};
template <size_t... I>
using index_sequence = integer_sequence<size_t, I...>;

}  // namespace metal

namespace msl_impl {
template <class T, size_t N, T... I>
struct count_up : count_up<T, N - 1, T(N - 1), I...> {};
template <class T, T... I>
struct count_up<T, 0, I...> {
  using type = metal::integer_sequence<T, I...>;
};
}  // namespace msl_impl

namespace metal {
template <class T, T N>
using make_integer_sequence = typename msl_impl::count_up<T, size_t(N)>::type;
template <size_t N>
using make_index_sequence = make_integer_sequence<size_t, N>;
}  // namespace metal

}  // namespace msl
