/** A kernel as the machine runs it. */
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/ptx/number.h"

namespace tw::ptx
{

enum class Type : u8 {
    none,
    b8,
    b16,
    b32,
    b64,
    b128,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    f16,
    bf16,
    f16x2,
    bf16x2,
    f32,
    f64,
    pred
};

/** Type::none if it is none. */
Type type_named(const std::string &name);
int bits_of(Type type);
bool is_signed(Type type);
bool is_float(Type type);

/** param is the kernel's; argument is a function's, in memory of the thread's own. */
enum class Space : u8 { generic, global, shared, local, param, argument, constant };

/** Where generic addresses of other spaces than global begin. */
constexpr u64 shared_base = 0x00f1000000000000ull, local_base = 0x00f2000000000000ull,
              param_base = 0x00f3000000000000ull;

enum class Compare : u8 { eq, ne, lt, le, gt, ge, lo, ls, hi, hs, equ, neu, ltu, leu, gtu, geu, num, nan };

/** A row of 32 cells, one for each lane, of `width` bytes: registers, or a constant 32 times. */
struct Operand {
    enum Kind : u8 { nothing, reg, constant } kind = nothing;
    u8 width = 0;
    bool negated = false; /**< of predicates */
    u32 offset = 0;
};

/** What an instruction does to where its lanes are. meet: lanes that a mask names come together. */
enum class Flow : u8 { plain, branch, table, exit, ret, call, barrier, meet };

/** Bytes that go from one place in the thread's memory to another at a call or a return. */
struct Move {
    u32 from, to, bytes;
};

struct Call {
    std::vector<Move> arguments, results;
};

class Warp;
struct Insn;
using Handler = void (*)(Warp &warp, const Insn &insn, u32 lanes);

struct Insn {
    Handler run = nullptr;
    Flow flow = Flow::plain;
    Type type = Type::b32, from_type = Type::none;
    Space space = Space::generic;
    Compare compare = Compare::eq;
    Round round = Round::rn;
    bool ftz = false, sat = false, nan = false, relu = false, carry_out = false, constant_cache = false;
    bool flag = false;         /**< of the instruction: carry in, wrap, transposed, ... */
    bool aligned_warp = false; /**< all 32 lanes take part */
    u8 mode = 0;               /**< which of its kind: of atomics, votes, ... */
    u8 combine = 0;            /**< of setp: 1 and, 2 or, 3 xor */
    Operand guard, d, d2, a, b, c, mask;
    s64 offset = 0, offset2 = 0;
    u32 target = 0, bytes = 0;
    int line = 0, source_file = 0, source_line = 0;
    std::vector<Operand> vector;
    std::vector<u32> table;
    std::shared_ptr<Call> call;
};

struct Token {
    std::string text;
    int line;
};

struct Parameter {
    std::string name;
    u32 bytes, align;
};

struct Function {
    std::string name;
    bool entry = false;
    u32 max_threads = 0; /**< 0: not said */
    std::vector<Parameter> parameters, results;
    std::vector<Token> body;
};

struct Variable {
    Space space = Space::global;
    u64 offset = 0, bytes = 1;
    u32 align = 1;
};

/** A .ptx file. */
struct Module {
    std::string path;
    std::map<std::string, Function> functions;
    std::map<std::string, Variable> variables;
    std::map<int, std::string> files;
    std::vector<std::string> lines;
    u32 shared_bytes = 0;
};

struct Slot {
    u32 offset, bytes;
};

struct Kernel {
    std::string name;
    const Module *module = nullptr;
    const Function *function = nullptr;
    std::vector<Insn> code;
    std::vector<u8> constants;
    std::map<std::string, Operand> specials; /**< %tid.x and the like */
    std::vector<Slot> parameters;
    u32 parameter_bytes = 0, register_bytes = 0, local_bytes = 0, shared_bytes = 0;

    u32 dynamic_shared_offset() const
    {
        return (shared_bytes + 15) / 16 * 16;
    }
};

} // namespace tw::ptx
