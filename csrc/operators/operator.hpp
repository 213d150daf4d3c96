// Derives a torch operator from the struct of its arguments (include/gdn_cuda/arguments.hpp): schema, boxed kernel for CUDA
// tensors, `validate_<name>`, which runs only the checks, and calls through torch's dispatcher.
//
//     GDN_REGISTER(FusedDecode, prepare, run)
//
// registers `run(const FusedDecode&)`, which returns the operator's result, and `prepare(const FusedDecode&)` for the checks.
// CPU tensors run the Python implementation, which calls `validate_<name>` first, so that validation is written once.
#pragma once

#include <torch/csrc/stable/library.h>

#include <array>
#include <gdn_cuda/arguments.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "dispatch.hpp"
#include "last_references.hpp"
#include "new_tensor.hpp"
#include "tensor.hpp"

namespace gdn_cuda {

// A size that stays symbolic when torch traces a call.
struct SymInt {
    int64_t value = 0;
    operator int64_t() const { return value; }
};

// Options that several operators share: a struct of its own among the arguments, whose members are arguments of the operator.
template <class T>
concept SharedOptions = requires(T& options) { T::fields(options, [](const char*, auto&) {}); };
template <class Op>
void visit_members(auto& arguments, const auto& visit) {
    Op::fields(arguments, [&](const char* name, auto& member) {
        using Member = std::remove_cvref_t<decltype(member)>;
        if constexpr (SharedOptions<Member>) {
            visit_members<Member>(member, visit);
        } else {
            visit(name, member);
        }
    });
}

// Whether an argument has a default in schemas: None, or a flag's value.
template <class T>
constexpr bool kMayBeLeftOut = std::is_same_v<T, bool>;
template <class T>
constexpr bool kMayBeLeftOut<std::optional<T>> = true;
template <>
constexpr bool kMayBeLeftOut<OptionalWritten> = true;

template <class Op>
concept HasOutput = std::is_same_v<decltype(Op::out), Output>;
// In the order of the schema. Where there is an `out`, what may be left out of a call follows what may not.
template <class Op>
void visit_arguments(auto& arguments, const auto& visit) {
    if constexpr (HasOutput<Op>) {
        const auto visit_some = [&]<bool kLeftOut>(std::bool_constant<kLeftOut>) {
            visit_members<Op>(arguments, [&](const char* name, auto& member) {
                if constexpr (kMayBeLeftOut<std::remove_cvref_t<decltype(member)>> == kLeftOut) visit(name, member);
            });
        };
        visit_some(std::false_type());
        visit_some(std::true_type());
    } else {
        visit_members<Op>(arguments, visit);
    }
}

namespace detail {

using torch::stable::detail::from;
using torch::stable::detail::to;

// A type's name in a schema; "!" is replaced by a mutation mark.
template <class T>
constexpr const char* kSchemaWord = nullptr;
template <>
constexpr const char* kSchemaWord<Tensor> = "Tensor";
template <>
constexpr const char* kSchemaWord<Given> = "Tensor";
template <>
constexpr const char* kSchemaWord<OptionalTensor> = "Tensor?";
template <>
constexpr const char* kSchemaWord<Written> = "Tensor!";
template <>
constexpr const char* kSchemaWord<Output> = "Tensor!";
template <>
constexpr const char* kSchemaWord<OptionalWritten> = "Tensor!?";
template <>
constexpr const char* kSchemaWord<bool> = "bool";
template <>
constexpr const char* kSchemaWord<int64_t> = "int";
template <>
constexpr const char* kSchemaWord<SymInt> = "SymInt";
template <>
constexpr const char* kSchemaWord<std::optional<int64_t>> = "int?";
template <>
constexpr const char* kSchemaWord<double> = "float";
template <>
constexpr const char* kSchemaWord<std::optional<double>> = "float?";
template <>
constexpr const char* kSchemaWord<std::optional<ScalarType>> = "ScalarType?";
// An enumeration whose values have names: a string in the schema. `names_of(T{})` has them in order.
template <class T>
concept Named = std::is_enum_v<T> && requires { names_of(T{}); };
template <class T>
constexpr const char* schema_word() {
    constexpr const char* kWord = Named<T> ? "str" : std::is_enum_v<T> ? "int" : kSchemaWord<T>;
    static_assert(kWord != nullptr, "no word for this type in a schema");
    return kWord;
}

template <class T>
struct Result {
    static std::string words() { return schema_word<T>(); }
    static void put(StableIValue* stack, T&& value) { stack[0] = from(value); }
};
template <>
struct Result<void> {
    static std::string words() { return "()"; }
};
template <class... T>
struct Result<std::tuple<T...>> {
    static std::string words() {
        std::string words;
        ((words += words.empty() ? "(" : ", ", words += Result<T>::words()), ...);
        return words += ')';
    }
    static void put(StableIValue* stack, std::tuple<T...>&& values) {
        std::apply([&](T&... value) { ((*stack++ = from(value)), ...); }, values);
    }
};

template <Named T>
T value_named(const std::string& name, const char* function, const char* argument) {
    std::string expected;
    int64_t value = 0;
    for (const char* each : names_of(T{})) {
        if (name == each) return T(value);
        expected += fmt::format("{}'{}'", value++ == 0 ? "one of " : ", ", each);
    }
    fail(function, argument, expected, fmt::format("'{}'", name));
}
template <class T>
void take(T& member, StableIValue value, const char* function, const char* argument) {
    if constexpr (Named<T>) {
        const auto text = to<StringHandle>(value);
        const char* data = nullptr;
        TORCH_ERROR_CODE_CHECK(torch_string_c_str(text, &data));
        const std::string name = data;
        TORCH_ERROR_CODE_CHECK(torch_delete_string(text));  // to<std::string> leaks its result in torch 2.10 to 2.14
        member = value_named<T>(name, function, argument);
    } else if constexpr (std::is_base_of_v<Given, T>) {
        member.emplace(to<Tensor>(value));
    } else if constexpr (std::is_same_v<T, OptionalWritten>) {
        static_cast<OptionalTensor&>(member) = to<OptionalTensor>(value);
    } else if constexpr (std::is_enum_v<T> || std::is_same_v<T, SymInt>) {
        member = T{to<int64_t>(value)};
    } else {
        member = to<T>(value);
    }
}
template <class T>
StableIValue give(const T& member) {
    if constexpr (Named<T>) {
        return from(std::string(names_of(member)[static_cast<size_t>(member)]));
    } else if constexpr (std::is_base_of_v<Given, T>) {
        return from(static_cast<const Tensor&>(member));
    } else if constexpr (std::is_same_v<T, OptionalWritten>) {
        return from(static_cast<const OptionalTensor&>(member));
    } else if constexpr (std::is_enum_v<T> || std::is_same_v<T, SymInt>) {
        return from(static_cast<int64_t>(member));
    } else {
        return from(member);
    }
}

template <class Op>
Op taken_from(const StableIValue* stack) {
    Op arguments;
    visit_arguments<Op>(arguments, [&](const char* name, auto& member) { take(member, *stack++, Op::name, name); });
    return arguments;
}

template <class Op, auto kRun>
void run_boxed(StableIValue* stack, uint64_t, uint64_t) {
    using Returned = std::invoke_result_t<decltype(kRun), const Op&>;
    std::optional<Op> arguments(taken_from<Op>(stack));
    if constexpr (std::is_void_v<Returned>) {
        kRun(*arguments);
    } else {
        Result<Returned>::put(stack, kRun(*arguments));
    }
    drop(arguments);
}
template <class Op, auto kPrepare>
void check_boxed(StableIValue* stack, uint64_t, uint64_t) {
    kPrepare(taken_from<Op>(stack));
}

// "Tensor query, Tensor(a!) state_pool, Tensor? slots=None, …"; without mutation marks for `validate_<name>`, which writes
// nothing. Torch wants defaults at the end only: Python leaves them out of calls there (gdn_cuda/operators/schema.py).
template <class Op>
std::string schema_arguments(bool marked) {
    std::string text, rest, rest_without;  // `rest`: the last arguments, all with defaults
    const char* separator = "";
    char mark = 'a';
    Op none;
    visit_arguments<Op>(none, [&](const char* name, auto& member) {
        std::string argument;
        for (const char* c = schema_word<std::remove_reference_t<decltype(member)>>(); *c != 0; ++c) {
            if (*c != '!')
                argument += *c;
            else if (marked)
                argument += {'(', mark++, '!', ')'};
        }
        argument = fmt::format("{}{} {}", separator, argument, name);
        separator = ", ";
        using Member = std::remove_cvref_t<decltype(member)>;
        if constexpr (kMayBeLeftOut<Member>) {
            const char* value = "None";
            if constexpr (std::is_same_v<Member, bool>) value = member ? "True" : "False";
            rest += fmt::format("{}={}", argument, value);
            rest_without += argument;
        } else {
            text += rest_without + argument;
            rest.clear(), rest_without.clear();
        }
    });
    return text + rest;
}

}  // namespace detail

template <class Op, auto kRun>
void define(torch::stable::detail::StableLibrary& library) {
    using Returned = std::invoke_result_t<decltype(kRun), const Op&>;
    const std::string arguments = detail::schema_arguments<Op>(true), result = detail::Result<Returned>::words();
    library.def(fmt::format("{}({}) -> {}", Op::name, arguments, result).c_str());
}
template <class Op>
std::string check_name() {
    return fmt::format("validate_{}", Op::name);
}
template <class Op>
void define_check(torch::stable::detail::StableLibrary& library) {
    library.def(fmt::format("{}({}) -> ()", check_name<Op>(), detail::schema_arguments<Op>(false)).c_str());
}

#define GDN_REGISTER(Op, prepare, run)                 \
    STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda, m) {       \
        define<Op, run>(m);                            \
    }                                                  \
    STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CUDA, m) {     \
        m.impl(Op::name, &detail::run_boxed<Op, run>); \
    }                                                  \
    GDN_REGISTER_CHECK(Op, prepare)

// `validate_<name>` alone: Python composes the operator itself.
#define GDN_REGISTER_CHECK(Op, prepare)                                      \
    STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda, m) {                             \
        define_check<Op>(m);                                                 \
    }                                                                        \
    STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CPU, m) {                            \
        m.impl(check_name<Op>().c_str(), &detail::check_boxed<Op, prepare>); \
    }

// ---- Calls from C++

// Throws if a required tensor is missing.
template <class Arguments>
void require_given(const char* function, const Arguments& arguments) {
    visit_arguments<Arguments>(arguments, [&](const char* name, const auto& member) {
        using Member = std::remove_cvref_t<decltype(member)>;
        if constexpr (std::is_base_of_v<Given, Member> && !std::is_same_v<Member, Output>)
            if (!member) fail(function, name, "a tensor", "none");
    });
}

template <class Op, class Returned>
Returned call_through_torch(const Op& arguments) {
    std::array<StableIValue, 32> stack;  // more than any operator needs
    size_t count = 0;
    visit_arguments<Op>(arguments, [&](const char*, const auto& member) { stack.at(count++) = detail::give(member); });
    call_dispatcher(Op::name, stack.data());
    if constexpr (std::is_same_v<Returned, Tensor>) {
        return tensor_of(stack[0]);
    } else if constexpr (!std::is_void_v<Returned>) {
        return [&]<size_t... kAt>(std::index_sequence<kAt...>) {
            return Returned{tensor_of(stack[kAt])...};
        }(std::make_index_sequence<std::tuple_size_v<Returned>>());
    }
}

// Whether kernels compute with the first tensor, which decides the dispatch in torch too.
template <class Op>
bool on_gpu(const Op& arguments) {
    const Tensor* first = nullptr;
    visit_arguments<Op>(arguments, [&](const char*, const auto& member) {
        if constexpr (std::is_base_of_v<Given, std::remove_cvref_t<decltype(member)>>)
            if (first == nullptr) first = &static_cast<const Tensor&>(member);
    });
    return on_gpu(*first);
}

// CUDA tensors go directly to `kRun`, others through torch's dispatcher to the Python implementation.
template <class Op, auto kRun>
auto call(const Op& arguments) {
    using Returned = std::invoke_result_t<decltype(kRun), const Op&>;
    return on_gpu(arguments) ? kRun(arguments) : call_through_torch<Op, Returned>(arguments);
}

// Defines an operator's function that a header in include/gdn_cuda declares.
#define GDN_FUNCTION(function, Op, run)                                   \
    decltype(function(std::declval<const Op&>())) function(const Op& x) { \
        require_given(Op::name, x);                                       \
        return call<Op, run>(x);                                          \
    }

// The result of an operator that writes it to `out`. `with_new_out(x)`: the arguments with a new one, where there is none.
template <class Op, auto kRun>
Tensor into_out(const Op& x, const auto& with_new_out) {
    require_given(Op::name, x);
    if (!x.out) return into_out<Op, kRun>(with_new_out(x), with_new_out);
    call<Op, kRun>(x);
    return x.out;
}

// `arguments` with a new `out`, of the shape and dtype of `like`.
template <class Op>
Op with_output_like(const Tensor& like, Op arguments) {
    arguments.out.emplace(new_tensor(like, like.sizes()));
    return arguments;
}

}  // namespace gdn_cuda
