/** Handlers of instructions that do the same in each lane: what the operation is, of which type. */
#pragma once

#include <type_traits>

#include "tests/gpu/ptx/warp.h"

namespace tw::ptx
{

/** Cells hold values that are extended to them; a reader cuts what it does not read. */
template <class T>
using Cell = std::conditional_t<sizeof(T) == 8, u64, u32>;

template <class T>
inline T from_cell(Cell<T> cell)
{
    if constexpr (std::is_floating_point_v<T>) {
        return bits_as<T>(cell);
    } else {
        return (T)cell;
    }
}

/** Of floating point: the bits of a result. */
template <class T>
inline Cell<T> to_cell(T value)
{
    if constexpr (std::is_floating_point_v<T>) {
        return result_bits(value);
    } else if constexpr (sizeof(T) < 4) {
        return (std::make_unsigned_t<T>)value;
    } else {
        return (Cell<T>)value;
    }
}

/** d = op(a) */
template <class D, class T, class OP>
void unary(Warp &w, const Insn &in, u32 lanes)
{
    Cell<D> *const d = w.row_out<Cell<D>>(in.d);
    const Cell<T> *const a = w.row<Cell<T>>(in.a);
    for_lanes(lanes, [&](u32 l) { d[l] = to_cell<D>(OP()(from_cell<T>(a[l]))); });
}

/** d = op(a, b) */
template <class D, class T, class OP>
void binary(Warp &w, const Insn &in, u32 lanes)
{
    Cell<D> *const d = w.row_out<Cell<D>>(in.d);
    const Cell<T> *const a = w.row<Cell<T>>(in.a), *const b = w.row<Cell<T>>(in.b);
    for_lanes(lanes, [&](u32 l) { d[l] = to_cell<D>(OP()(from_cell<T>(a[l]), from_cell<T>(b[l]))); });
}

/** d = op(a, b, c) */
template <class D, class T, class C, class OP>
void ternary(Warp &w, const Insn &in, u32 lanes)
{
    Cell<D> *const d = w.row_out<Cell<D>>(in.d);
    const Cell<T> *const a = w.row<Cell<T>>(in.a), *const b = w.row<Cell<T>>(in.b);
    const Cell<C> *const c = w.row<Cell<C>>(in.c);
    for_lanes(lanes, [&](u32 l) {
        d[l] = to_cell<D>(OP()(from_cell<T>(a[l]), from_cell<T>(b[l]), from_cell<C>(c[l])));
    });
}

/** The binary handler of an integer type, with its sign. NULL: not of such a type. */
template <class OP>
Handler binary_of(Type type)
{
    switch (type) {
    case Type::S16:
        return binary<s16, s16, OP>;
    case Type::S32:
        return binary<s32, s32, OP>;
    case Type::S64:
        return binary<s64, s64, OP>;
    case Type::b16:
    case Type::U16:
        return binary<u16, u16, OP>;
    case Type::b32:
    case Type::U32:
        return binary<u32, u32, OP>;
    case Type::b64:
    case Type::U64:
        return binary<u64, u64, OP>;
    default:
        return nullptr;
    }
}

/** The number that a register of a floating type holds. ftz: a denormal of f32 is 0. */
inline double number_of(Type type, bool ftz, u64 bits)
{
    switch (type) {
    case Type::f32:
        return ftz ? flush(float_of((u32)bits)) : float_of((u32)bits);
    case Type::f64:
        return double_of(bits);
    case Type::f16:
        return float_from_half((u16)bits);
    default:
        return float_from_bf16((u16)bits);
    }
}

/** The same type without a sign. */
inline Type unsigned_of(Type type)
{
    switch (bits_of(type)) {
    case 16:
        return Type::U16;
    case 64:
        return Type::U64;
    default:
        return Type::U32;
    }
}

} // namespace tw::ptx
