#include "tests/gpu/ptx/launch.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "tests/gpu/ptx/report.h"
#include "tests/gpu/ptx/settings.h"
#include "tests/gpu/ptx/warp.h"

namespace tw::ptx
{

namespace
{

class Grid
{
  public:
    Grid(const Kernel *the_kernel, const u32 grid[3], const u32 dim[3], size_t the_dynamic, Count *count)
        : kernel(the_kernel), dynamic((u32)the_dynamic)
    {
        static u32 launches;
        std::copy(grid, grid + 3, block.grid);
        std::copy(dim, dim + 3, block.dim);
        block.kernel = kernel;
        block.threads = dim[0] * dim[1] * dim[2];
        block.launch = ++launches;
        block.random.seed((u32)settings().seed * 7919u + block.launch);
        block.count = count;
        block.branches_left = settings().branches;
    }

    /* What a GPU would refuse. */
    bool allowed()
    {
        char text[160];
        const u32 *g = block.grid, *b = block.dim;
        snprintf(text, sizeof(text), "grid %u,%u,%u block %u,%u,%u shared memory %u + %u", g[0], g[1], g[2],
                 b[0], b[1], b[2], kernel->shared_bytes, dynamic);
        const bool limits = block.threads && block.threads <= 1024 && b[2] <= 64 && g[0] && g[1] && g[2] &&
                            g[0] <= 0x7fffffffu && g[1] <= 65535 && g[2] <= 65535;
        const u32 bound = kernel->function->max_threads;
        const char *const kind = !limits                                      ? "LAUNCH-LIMITS"
                                 : bound && block.threads > bound             ? "LAUNCH-BOUNDS"
                                 : kernel->shared_bytes + dynamic > 48 * 1024 ? "SHARED-OVER-48K"
                                                                              : nullptr;
        if (kernel->parameter_bytes > 4096) {
            report("PARAMS-OVER-4K", kernel->name, std::to_string(kernel->parameter_bytes) + " bytes");
        }
        if (kind) {
            report(kind, kernel->name, text);
        }
        return !kind;
    }

    void run(const std::vector<const void *> &parameters)
    {
        std::vector<u32> order(block.grid[0] * block.grid[1] * block.grid[2]);
        block.parameters.resize(kernel->parameter_bytes + 64);
        for (size_t i = 0; i < kernel->parameters.size(); i++) {
            memcpy(&block.parameters[kernel->parameters[i].offset], parameters[i],
                   kernel->parameters[i].bytes);
        }
        make_room();
        std::iota(order.begin(), order.end(), 0);
        if (settings().seed) {
            std::shuffle(order.begin(), order.end(), block.random);
        }
        for (u32 index : order) {
            begin_block(index);
            run_block();
            count_block();
        }
        if (block.count) {
            block.count->longest += longest;
        }
    }

  private:
    /* Registers and memory of threads begin as garbage: what is not set shows. */
    void make_room()
    {
        const size_t n_warps = (block.threads + 31) / 32;
        const size_t words = n_warps * kernel->register_bytes / 8;
        warps.resize(n_warps);
        states.resize(n_warps);
        registers.resize(words + 8);
        for (size_t i = 0; i < registers.size(); i++) {
            registers[i] = 0x7fc1a5a5a5a5a5a5ull + i * 0x9e3779b97f4a7c15ull;
        }
        local.assign((size_t)kernel->local_bytes * 32 * n_warps + 64, 0xa7);
        block.shared_size = dynamic ? kernel->dynamic_shared_offset() + dynamic : kernel->shared_bytes;
        block.shared.resize(block.shared_size + 64);
        block.shared_bytes.resize(block.shared_size + 64);
    }

    void begin_block(u32 index)
    {
        block.index = index;
        block.id[0] = index % block.grid[0];
        block.id[1] = index / block.grid[0] % block.grid[1];
        block.id[2] = index / block.grid[0] / block.grid[1];
        block.epoch = 1;
        std::fill(block.shared_bytes.begin(), block.shared_bytes.end(), SharedByte());
        for (size_t i = 0; i < block.shared.size(); i++) {
            block.shared[i] = (u8)(0xb7 + i * 31 + index);
        }
        const u64 aligned = ((u64)registers.data() + 63) / 64 * 64;
        for (u32 i = 0; i < warps.size(); i++) {
            warps[i].begin(&block, i, (u8 *)aligned + (size_t)i * kernel->register_bytes,
                           local.data() + (size_t)i * 32 * kernel->local_bytes);
            for (const auto &[name, operand] : kernel->specials) {
                for_lanes(~0u, [&](u32 l) { warps[i].put(operand, l, special(name, i, l)); });
            }
            states[i] = Warp::State::running;
        }
    }

    u32 special(const std::string &name, u32 warp, u32 lane) const
    {
        const u32 thread = warp * 32 + lane, *dim = block.dim;
        const u32 id[] = {thread % dim[0], thread / dim[0] % dim[1], thread / dim[0] / dim[1]};
        const std::pair<const char *, const u32 *> triples[] = {
            {"%tid.", id}, {"%ntid.", dim}, {"%ctaid.", block.id}, {"%nctaid.", block.grid}};
        const std::pair<const char *, u32> singles[] = {
            {"%laneid", lane},
            {"%lanemask_lt", (1u << lane) - 1},
            {"%lanemask_le", (u32)((2ull << lane) - 1)},
            {"%lanemask_gt", ~(u32)((2ull << lane) - 1)},
            {"%lanemask_ge", ~((1u << lane) - 1)},
            {"%lanemask_eq", 1u << lane},
            {"%warpid", warp},
            {"%nwarpid", (u32)warps.size()},
            {"%dynamic_smem_size", dynamic},
        };
        for (const auto &[prefix, values] : triples) {
            if (name.rfind(prefix, 0) == 0) {
                return values[name.back() - 'x'];
            }
        }
        for (const auto &[single, value] : singles) {
            if (name == single) {
                return value;
            }
        }
        fatal("there is no " + name);
    }

    void count_block()
    {
        for (const Warp &warp : warps) {
            longest = std::max(longest, warp.instructions);
        }
        if (block.count) {
            block.count->warps += warps.size();
        }
    }

    /* Each warp until a barrier or its end, until all have ended. */
    void run_block()
    {
        std::vector<u32> order(warps.size());
        std::iota(order.begin(), order.end(), 0);
        for (;;) {
            if (settings().seed) {
                std::shuffle(order.begin(), order.end(), block.random);
            }
            for (u32 i : order) {
                if (states[i] == Warp::State::running) {
                    states[i] = warps[i].run(settings().seed ? 1 + block.random() % 5000 : 1000000);
                }
            }
            const auto count = [this](Warp::State s) { return std::count(states.begin(), states.end(), s); };
            if (count(Warp::State::running)) {
                continue;
            }
            if (!count(Warp::State::at_barrier)) {
                return;
            }
            check_barrier(count(Warp::State::exited) != 0);
            reduce_at_barrier();
            leave_barrier();
        }
    }

    template <class F>
    void each_at_barrier(F f)
    {
        for (size_t i = 0; i < warps.size(); i++) {
            if (states[i] == Warp::State::at_barrier) {
                for_lanes(warps[i].at_barrier, [&](u32 l) { f(warps[i], l); });
            }
        }
    }

    /* The first one's place. */
    u32 barrier_place()
    {
        u32 place = ~0u;
        each_at_barrier([&](Warp &w, u32 l) { place = place == ~0u ? w.pcs[l] : place; });
        return place;
    }

    void check_barrier(bool some_exited)
    {
        const u32 place = barrier_place();
        Warp *last = nullptr;
        each_at_barrier([&](Warp &w, u32 l) {
            const u32 first_of_warp = w.pcs[__builtin_ctz(w.at_barrier)];
            w.pc = w.pcs[l];
            if (w.pcs[l] != place) {
                w.report_here(w.pcs[l] != first_of_warp ? "BAR-DIVERGENT-WARP" : "BAR-DIFFERENT-PLACES", l,
                              "others are at line " + std::to_string(kernel->code[place].line));
            }
            if (&w != last && w.alive != w.all_lanes) {
                w.report_here("BAR-AFTER-EXIT", l, "some lanes of the warp have exited");
            }
            last = &w;
        });
        if (some_exited) {
            last->report_here("BAR-AFTER-EXIT", 0, "whole warps have exited");
        }
    }

    void reduce_at_barrier()
    {
        const Insn &in = kernel->code[barrier_place()];
        u32 all = 0, yes = 0;
        if (!in.mode) {
            return;
        }
        each_at_barrier([&](Warp &w, u32 l) {
            all++;
            yes += w.predicate(in.b, l);
        });
        const u32 results[] = {0, yes, yes == all, yes != 0};
        each_at_barrier([&](Warp &w, u32 l) { w.put(in.d, l, results[in.mode]); });
    }

    void leave_barrier()
    {
        block.epoch++;
        each_at_barrier([](Warp &w, u32 l) { w.pcs[l]++; });
        for (size_t i = 0; i < warps.size(); i++) {
            if (states[i] == Warp::State::at_barrier) {
                warps[i].at_barrier = 0;
                warps[i].epoch++;
                states[i] = Warp::State::running;
            }
        }
    }

    const Kernel *kernel;
    u32 dynamic;
    u64 longest = 0; /* instructions of a warp */
    Block block;
    std::vector<Warp> warps;
    std::vector<Warp::State> states;
    std::vector<u64> registers;
    std::vector<u8> local;
};

} // namespace

void launch(const Kernel *kernel, const u32 grid[3], const u32 block[3], size_t dynamic_shared,
            const std::vector<const void *> &parameters)
{
    Count &count = count_launch(kernel->name);
    Grid all(kernel, grid, block, dynamic_shared, settings().count ? &count : nullptr);
    if (all.allowed()) {
        all.run(parameters);
    }
}

} // namespace tw::ptx
