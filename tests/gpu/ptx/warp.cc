#include "tests/gpu/ptx/warp.h"

#include <algorithm>
#include <cstdio>

#include "tests/gpu/ptx/report.h"
#include "tests/gpu/ptx/settings.h"

namespace tw::ptx
{

/* Lanes that run together, until they part, wait, or come to where others are. */
struct Warp::Group {
    u32 lanes;
    u32 others; /* the lowest place of other lanes: there they may join */
    u64 burst;  /* instructions until others have their turn */
};

/* ---- values and reports ---- */

u64 Warp::get(const Operand &o, u32 lane, Type type) const
{
    const u64 value = get(o, lane);
    switch (type) {
    case Type::S8:
        return (u64)(s64)(s8)value;
    case Type::S16:
        return (u64)(s64)(s16)value;
    case Type::S32:
        return (u64)(s64)(s32)value;
    default:
        break;
    }
    const int bits = bits_of(type);
    return bits >= 64 ? value : value & ((1ull << bits) - 1);
}

void Warp::report_here(const char *kind, u32 lane, const std::string &text)
{
    const Insn &in = kernel->code[pc];
    const auto file = kernel->module->files.find(in.source_file);
    const std::string source = file == kernel->module->files.end() ? "?" : file->second;
    const std::string &path = kernel->module->path;
    const std::string where =
        kernel->name + " | " + path.substr(path.rfind('/') + 1) + ":" + std::to_string(in.line);
    report(kind, where,
           source + ":" + std::to_string(in.source_line) + ", block " + std::to_string(block->id[0]) + "," +
               std::to_string(block->id[1]) + "," + std::to_string(block->id[2]) + " thread " +
               std::to_string(id * 32 + lane) + ": " + text + "\n    " +
               (in.line > 0 ? kernel->module->lines[(size_t)in.line - 1] : ""));
}

void Warp::begin(Block *the_block, u32 the_id, u8 *the_registers, u8 *the_local)
{
    const u32 threads = std::min(32u, the_block->threads - the_id * 32);
    block = the_block;
    kernel = block->kernel;
    id = the_id;
    registers = the_registers;
    local = the_local;
    alive = all_lanes = threads == 32 ? ~0u : (1u << threads) - 1;
    waiting = at_barrier = 0;
    epoch = 1;
    instructions = sectors_of = 0;
    for (u32 l = 0; l < 32; l++) {
        pcs[l] = copy_group[l] = carry[l] = 0;
        calls[l].clear();
        copies[l].clear();
    }
}

/* ---- lanes ---- */

u32 Warp::lanes_at(u32 among, u32 where) const
{
    u32 there = 0;
    for_lanes(among, [&](u32 l) { there |= (u32)(pcs[l] == where) << l; });
    return there;
}

void Warp::set_pcs(u32 lanes, u32 to)
{
    for_lanes(lanes, [&](u32 l) { pcs[l] = to; });
}

/* Those that are furthest behind; with PTX_DIVERGE any, and not always all of a place. */
Warp::Group Warp::choose(u32 runnable)
{
    u32 first = ~0u, others = ~0u;
    const auto random = [this] { return (u32)(block->random() >> 7); };
    if (settings().diverge) {
        u32 left = runnable;
        for (u32 skip = random() % (u32)__builtin_popcount(runnable); skip > 0; skip--) {
            left &= left - 1;
        }
        first = pcs[__builtin_ctz(left)];
    } else {
        for_lanes(runnable, [&](u32 l) { first = std::min(first, pcs[l]); });
    }
    pc = first;
    Group group = {lanes_at(runnable, pc), ~0u, ~0ull};
    if (!settings().diverge) {
        for_lanes(runnable & ~group.lanes, [&](u32 l) { others = std::min(others, pcs[l]); });
        group.others = others;
    } else if (runnable != group.lanes) {
        const u32 some = group.lanes & (random() ^ random() << 16);
        group.lanes = random() % 4 == 0 && some ? some : group.lanes;
        group.burst = 1 + random() % 200;
    }
    return group;
}

/* ---- where lanes go: each returns whether the group is at its end ---- */

struct Flows {
    using Go = bool (*)(Warp &, Warp::Group *, const Insn &, u32 active);

    static bool plain(Warp &w, Warp::Group *, const Insn &in, u32 active)
    {
        if (active && in.run) {
            in.run(w, in, active);
        }
        w.pc++;
        return false;
    }

    static bool branch(Warp &w, Warp::Group *group, const Insn &in, u32 active)
    {
        if (active && in.target <= w.pc && w.block->branches_left-- == 0) {
            fatal("too many branches backwards in " + w.kernel->name);
        }
        if (active == group->lanes || !active) {
            w.pc = active ? in.target : w.pc + 1;
            return false;
        }
        w.set_pcs(active, in.target);
        w.set_pcs(group->lanes & ~active, w.pc + 1);
        return true;
    }

    static bool table(Warp &w, Warp::Group *group, const Insn &in, u32 active)
    {
        w.set_pcs(group->lanes & ~active, w.pc + 1);
        for_lanes(active, [&](u32 l) {
            const u64 i = w.get(in.a, l);
            if (i >= in.table.size()) {
                w.report_here("BRX-RANGE", l, std::to_string(i) + " of " + std::to_string(in.table.size()));
            }
            w.pcs[l] = in.table[i < in.table.size() ? i : 0];
        });
        return true;
    }

    static bool exit(Warp &w, Warp::Group *group, const Insn &, u32 active)
    {
        for_lanes(active, [&](u32 l) {
            if (!w.copies[l].empty()) {
                w.report_here("CP-ASYNC-PENDING-AT-EXIT", l, "");
                w.copies[l].clear();
            }
        });
        w.alive &= ~active;
        group->lanes &= ~active;
        w.pc++;
        w.set_pcs(group->lanes, w.pc);
        if (active) {
            w.waiting = 0; /* who waits for one that has gone may go on */
        }
        return active != 0;
    }

    static void move(Warp &w, u32 lane, const std::vector<Move> &moves)
    {
        u8 *const memory = w.local + (size_t)lane * w.kernel->local_bytes;
        for (const Move &each : moves) {
            memcpy(memory + each.to, memory + each.from, each.bytes);
        }
    }

    static bool call(Warp &w, Warp::Group *group, const Insn &in, u32 active)
    {
        w.set_pcs(group->lanes & ~active, w.pc + 1);
        for_lanes(active, [&](u32 l) {
            w.calls[l].push_back(w.pc);
            move(w, l, in.call->arguments);
        });
        w.set_pcs(active, in.target);
        return true;
    }

    static bool ret(Warp &w, Warp::Group *group, const Insn &, u32 active)
    {
        w.set_pcs(group->lanes & ~active, w.pc + 1);
        for_lanes(active, [&](u32 l) {
            const u32 from = w.calls[l].back();
            w.calls[l].pop_back();
            move(w, l, w.kernel->code[from].call->results);
            w.pcs[l] = from + 1;
        });
        return true;
    }

    static bool barrier(Warp &w, Warp::Group *group, const Insn &, u32 active)
    {
        if (active != group->lanes) {
            w.report_here("BAR-PREDICATED", (u32)__builtin_ctz(group->lanes), "not all lanes come to it");
        }
        w.set_pcs(group->lanes, w.pc);
        w.at_barrier |= group->lanes;
        return true;
    }

    static u32 mask_of(const Warp &w, const Insn &in, u32 lane)
    {
        return in.aligned_warp ? ~0u : (u32)w.get(in.mask, lane);
    }

    /* Those that are here and have the same mask as the first. */
    static u32 met(Warp &w, const Insn &in, u32 here, u32 mask)
    {
        u32 lanes = 0;
        for_lanes(here, [&](u32 l) {
            const u32 own = mask_of(w, in, l);
            lanes |= (u32)(own == mask) << l;
            if (!(own >> l & 1)) {
                w.report_here("MASK-WITHOUT-SELF", l, "");
            }
        });
        return lanes;
    }

    static void check_mask(Warp &w, u32 mask, u32 lanes)
    {
        char text[96];
        snprintf(text, sizeof(text), "the mask is %08x, of the lanes there are %08x", mask, lanes);
        if (mask & ~lanes & w.all_lanes) {
            w.report_here("MASK-EXITED", (u32)__builtin_ctz(lanes), text);
        } else if (mask & ~lanes) {
            w.report_here("MASK-PARTIAL-WARP", (u32)__builtin_ctz(lanes), text);
        }
    }

    static bool meet(Warp &w, Warp::Group *group, const Insn &in, u32 active)
    {
        if (!active) {
            w.pc++;
            return false;
        }
        const u32 mask = mask_of(w, in, (u32)__builtin_ctz(active));
        const u32 lanes = met(w, in, active | w.lanes_at(w.waiting, w.pc), mask);
        w.set_pcs(group->lanes & ~active, w.pc + 1);
        w.set_pcs(active, w.pc);
        if (mask & ~lanes & w.alive) {
            w.waiting |= active;
            return true;
        }
        check_mask(w, mask, lanes);
        in.run(w, in, lanes);
        w.waiting &= ~lanes;
        if (lanes == group->lanes) {
            w.pc++;
            return false;
        }
        w.set_pcs(lanes, w.pc + 1);
        return true;
    }
};

bool Warp::step(Group *group)
{
    static const Flows::Go go[] = {Flows::plain, Flows::branch, Flows::table,   Flows::exit,
                                   Flows::ret,   Flows::call,   Flows::barrier, Flows::meet};
    const Insn &in = kernel->code[pc];
    u32 active = group->lanes;
    warp_instructions++;
    if (in.guard.kind != Operand::nothing) {
        for_lanes(group->lanes, [&](u32 l) { active &= ~((u32)!predicate(in.guard, l) << l); });
    }
    if (block->count) {
        instructions++;
        block->count->instructions++;
        block->count->lanes += (u64)__builtin_popcount(active);
    }
    return go[(size_t)in.flow](*this, group, in, active);
}

/* No lane can go on. */
Warp::State Warp::stuck()
{
    if (!alive) {
        return State::exited;
    }
    if (!waiting) {
        return State::at_barrier;
    }
    const u32 lane = (u32)__builtin_ctz(waiting);
    char text[128];
    pc = pcs[lane];
    snprintf(text, sizeof(text), "lanes %08x of %08x wait here, lanes %08x at a barrier of the block",
             waiting, alive, at_barrier);
    report_here("WARP-DEADLOCK", lane, text);
    alive = 0;
    return State::exited;
}

Warp::State Warp::run(u64 quantum)
{
    for (;;) {
        const u32 runnable = alive & ~waiting & ~at_barrier;
        if (!runnable) {
            return stuck();
        }
        Group group = choose(runnable);
        for (bool ended = false; !ended;) {
            if (pc >= group.others || group.burst-- == 0) {
                set_pcs(group.lanes, pc);
                break;
            }
            if (quantum-- == 0) {
                set_pcs(group.lanes, pc);
                return State::running;
            }
            ended = step(&group);
        }
    }
}

} // namespace tw::ptx
