#include "tests/gpu/ptx/program.h"

namespace tw::ptx
{

Type type_named(const std::string &name)
{
    static const std::map<std::string, Type> types = {
        {"b8", Type::b8},         {"b16", Type::b16}, {"b32", Type::b32},   {"b64", Type::b64},
        {"b128", Type::b128},     {"u8", Type::U8},   {"u16", Type::U16},   {"u32", Type::U32},
        {"u64", Type::U64},       {"s8", Type::S8},   {"s16", Type::S16},   {"s32", Type::S32},
        {"s64", Type::S64},       {"f16", Type::f16}, {"bf16", Type::bf16}, {"f16x2", Type::f16x2},
        {"bf16x2", Type::bf16x2}, {"f32", Type::f32}, {"f64", Type::f64},   {"pred", Type::pred},
    };
    const auto found = types.find(name);
    return found == types.end() ? Type::none : found->second;
}

int bits_of(Type type)
{
    switch (type) {
    case Type::b8:
    case Type::U8:
    case Type::S8:
        return 8;
    case Type::b16:
    case Type::U16:
    case Type::S16:
    case Type::f16:
    case Type::bf16:
        return 16;
    case Type::b64:
    case Type::U64:
    case Type::S64:
    case Type::f64:
        return 64;
    case Type::b128:
        return 128;
    case Type::pred:
        return 1;
    default:
        return 32;
    }
}

bool is_signed(Type type)
{
    return type == Type::S8 || type == Type::S16 || type == Type::S32 || type == Type::S64;
}

bool is_float(Type type)
{
    return type == Type::f16 || type == Type::bf16 || type == Type::f16x2 || type == Type::bf16x2 ||
           type == Type::f32 || type == Type::f64;
}

} // namespace tw::ptx
