/** 32 lanes that run a kernel, and the block that they are of. */
#pragma once

#include <random>
#include <string>
#include <vector>

#include "tests/gpu/ptx/memory.h"
#include "tests/gpu/ptx/program.h"
#include "tests/gpu/ptx/report.h"

namespace tw::ptx
{

enum class Access : u8 { read, write, atomic };

/** What is known of a byte of shared memory. An epoch ends at a barrier: the block's of the block, the
 *  warp's of bar.warp.sync. */
struct SharedByte {
    enum State : u8 { garbage, written, copying };
    enum Readers : u8 { one, of_the_warp, of_warps };
    u32 write_epoch, write_warp_epoch, read_epoch;
    u16 writer, reader;
    State state;
    Readers readers;
    bool by_atomic;
};

/** A cp.async that has not been waited for: its bytes come then. */
struct Copy {
    u32 to, bytes, group;
    u8 data[16];
};

struct Block {
    const Kernel *kernel = nullptr;
    u32 id[3], grid[3], dim[3];
    u32 index = 0, threads = 0, launch = 0, epoch = 1;
    std::vector<u8> parameters, shared;
    std::vector<SharedByte> shared_bytes;
    u32 shared_size = 0;
    std::minstd_rand random;
    Count *count = nullptr; /**< NULL: nothing is counted */
    u64 branches_left = 0;
};

template <class F>
inline void for_lanes(u32 lanes, F each)
{
    if (lanes == ~0u) {
        for (u32 l = 0; l < 32; l++) {
            each(l);
        }
        return;
    }
    for (; lanes; lanes &= lanes - 1) {
        each((u32)__builtin_ctz(lanes));
    }
}

class Warp
{
  public:
    enum class State { exited, at_barrier, running };

    /** All lanes at the beginning. registers: of the kernel's register_bytes, aligned to 64. */
    void begin(Block *block, u32 id, u8 *registers, u8 *local);
    /** Run until the end, a barrier of the block, or so many instructions. */
    State run(u64 quantum);

    /* ---- registers ---- */

    /** The cells of an operand: of 32 or 64 bits. */
    template <class CELL>
    const CELL *row(const Operand &o) const
    {
        return (const CELL *)((o.kind == Operand::constant ? kernel->constants.data() : registers) +
                              o.offset);
    }
    template <class CELL>
    CELL *row_out(const Operand &o)
    {
        return (CELL *)(registers + o.offset);
    }
    u64 get(const Operand &o, u32 lane) const
    {
        return o.width == 8 ? row<u64>(o)[lane] : row<u32>(o)[lane];
    }
    /** A value of a type, with its sign, in 64 bits. */
    u64 get(const Operand &o, u32 lane, Type type) const;
    bool predicate(const Operand &o, u32 lane) const
    {
        return ((row<u32>(o)[lane] & 1) != 0) != o.negated;
    }
    void put(const Operand &o, u32 lane, u64 value)
    {
        if (o.kind == Operand::reg && o.width == 8) {
            row_out<u64>(o)[lane] = value;
        } else if (o.kind == Operand::reg) {
            row_out<u32>(o)[lane] = (u32)value;
        }
    }

    /* ---- memory ---- */

    /** Where a lane's bytes are, or NULL after a report. */
    u8 *memory(const Insn &insn, Space space, u64 address, u32 bytes, u32 lane, Access access);
    void copy_begin(u32 lane, const Copy &copy);
    /** The first n copies of a lane have come. */
    void copies_end(u32 lane, size_t n);

    void report_here(const char *kind, u32 lane, const std::string &text);

    const Kernel *kernel = nullptr;
    Block *block = nullptr;
    u32 id = 0, pc = 0, pcs[32];
    u32 alive = 0, waiting = 0, at_barrier = 0; /**< lanes */
    u32 epoch = 1;
    u8 carry[32];
    u32 copy_group[32];
    std::vector<Copy> copies[32];
    u32 all_lanes = 0; /**< that the block has in this warp */
    u64 instructions = 0;

  private:
    struct Group;
    friend struct Flows;

    u8 *shared(u64 address, u32 bytes, u32 lane, Access access);
    void check_shared(u64 address, SharedByte *byte, u16 thread, Access access);
    void note_shared(SharedByte *byte, u16 thread, Access access);
    void count_global(const Allocation &a, u64 address, u32 bytes, Access access);
    u8 *global(const Insn &insn, u64 address, u32 bytes, u32 lane, Access access);
    void check_races(const Insn &insn, Touch *touch, u32 lane, Access access);
    u32 lanes_at(u32 among, u32 where) const;
    void set_pcs(u32 lanes, u32 to);
    Group choose(u32 runnable);
    bool step(Group *group);
    State stuck();

    u8 *registers = nullptr, *local = nullptr;
    std::vector<u32> calls[32];
    std::vector<u64> sectors; /**< that the instruction has touched so far, when so many had run */
    u64 sectors_of = 0;
};

} // namespace tw::ptx
