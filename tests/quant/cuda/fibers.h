/** A CUDA thread block on the CPU, for tests: every thread is a fiber that runs until it has to wait for
 *  others. What it watches: exchanges that not all lanes of a warp take part in, barriers that not all
 *  threads reach. Warps run in random order and get ahead of one another, so that a missing barrier shows.
 *  Private to emulator.h. */
#ifndef TW_TESTS_QUANT_CUDA_FIBERS_H
#define TW_TESTS_QUANT_CUDA_FIBERS_H

#include <sys/mman.h>
#ifndef __x86_64__
#include <ucontext.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace tw::emulator
{

[[noreturn]] inline void fail(const char *what)
{
    fprintf(stderr, "emulated kernel: %s\n", what);
    abort();
}

constexpr size_t stack_bytes = 128 << 10;
constexpr uint32_t warp_lanes = 32, threads_max = 256;
constexpr uint32_t words_max = 6; /* that a lane shows to its warp */

enum class State { ready, exchange, barrier, done };

/* Where a fiber or the scheduler was left. On x86-64 its stack says all; elsewhere ucontext, whose switch is
 * a call of the kernel: most of what a test would take. */
#ifdef __x86_64__
using Context = void *;

__attribute__((naked, noinline)) static void switch_context(Context * /*from*/, Context * /*to*/)
{
    asm("pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
        "movq %rsp, (%rdi)\n movq (%rsi), %rsp\n"
        "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret");
}

/* The first switch to it calls `enter`, which does not return. */
inline void prepare_context(Context *context, uint8_t *stack, size_t bytes, void (*enter)())
{
    /* Six registers, where `ret` goes to, and an address that nobody returns to: at `enter` the stack is as
     * after a call. */
    void **top = reinterpret_cast<void **>(stack + bytes) - 8;
    memset(top, 0, 8 * sizeof(*top));
    top[6] = reinterpret_cast<void *>(enter);
    *context = top;
}
#else
using Context = ucontext_t;

inline void switch_context(Context *from, Context *to)
{
    swapcontext(from, to);
}

inline void prepare_context(Context *context, uint8_t *stack, size_t bytes, void (*enter)())
{
    getcontext(context);
    context->uc_stack.ss_sp = stack;
    context->uc_stack.ss_size = bytes;
    context->uc_link = nullptr;
    makecontext(context, enter, 0);
}
#endif

struct Fiber {
    Context context;
    void *fake_stack;
    State state;
    uint32_t mask;                /* of the exchange it waits in */
    uint32_t exchanges;           /* so far */
    uint64_t value[2];            /* of the last two: a lane may be one ahead of its partner */
    uint32_t words[2][words_max]; /* likewise */
};

class Block
{
  public:
    Block()
    {
        stacks_ = static_cast<uint8_t *>(mmap(nullptr, threads_max * stack_bytes, PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        if (stacks_ == MAP_FAILED) {
            fail("no memory for stacks");
        }
    }
    ~Block()
    {
        munmap(stacks_, threads_max * stack_bytes);
    }
    Block(const Block &) = delete;
    Block &operator=(const Block &) = delete;

    /** Run all threads of one block to their ends. */
    void run(uint32_t n_threads, const std::function<void()> &body)
    {
        body_ = &body;
        n_threads_ = n_threads;
        for (uint32_t t = 0; t < n_threads; t++) {
            start(t);
        }
        std::vector<uint32_t> warps((n_threads + warp_lanes - 1) / warp_lanes);
        std::iota(warps.begin(), warps.end(), 0);
        do {
            while (run_some_warp(warps)) {
            }
        } while (open_barrier());
    }

    uint64_t exchange(uint64_t value, uint32_t mask)
    {
        Fiber &own = fibers_[current_];
        const uint32_t turn = own.exchanges++ % 2, partner = current_ ^ mask;
        if (partner >= n_threads_ || mask >= warp_lanes) {
            fail("exchange with a lane that does not exist");
        }
        own.value[turn] = value;
        own.mask = mask;
        wait(State::exchange);
        return fibers_[partner].value[turn];
    }

    /** A bit for each lane of the warp whose value is not 0. */
    uint32_t ballot(bool yes)
    {
        Fiber &own = fibers_[current_];
        const uint32_t turn = own.exchanges++ % 2, first = current_ / warp_lanes * warp_lanes;
        own.value[turn] = yes;
        own.mask = UINT32_MAX;
        wait(State::exchange);
        uint32_t bits = 0;
        for (uint32_t t = first; t < std::min(first + warp_lanes, n_threads_); t++) {
            bits |= uint32_t(fibers_[t].value[turn]) << (t - first);
        }
        return bits;
    }

    /** What lanes of a warp have shown one another: until the next exchange but one. */
    class Shown
    {
      public:
        Shown(const Fiber *first, uint32_t turn) : first_(first), turn_(turn)
        {
        }
        uint32_t operator()(uint32_t lane, uint32_t i) const
        {
            return first_[lane].words[turn_][i];
        }

      private:
        const Fiber *first_;
        uint32_t turn_;
    };

    /** A lane's n words, for all lanes of a whole warp. */
    Shown show(const uint32_t *words, uint32_t n)
    {
        Fiber &own = fibers_[current_];
        const uint32_t turn = own.exchanges++ % 2, first = current_ / warp_lanes * warp_lanes;
        if (n > words_max || first + warp_lanes > n_threads_) {
            fail("words of a warp that is not whole, or too many");
        }
        std::copy(words, words + n, own.words[turn]);
        own.mask = UINT32_MAX - n;
        wait(State::exchange);
        return {fibers_ + first, turn};
    }

    void barrier()
    {
        wait(State::barrier);
    }

    uint32_t current() const
    {
        return current_;
    }

  private:
    void start(uint32_t t)
    {
        Fiber &fiber = fibers_[t];
        fiber = Fiber();
        prepare_context(&fiber.context, stacks_ + t * stack_bytes, stack_bytes, enter);
    }

    static void enter()
    {
        Block *self = running_;
        self->arrived(nullptr);
        (*self->body_)();
        self->wait(State::done);
    }

    /* From the scheduler to a fiber, until that waits. */
    void resume(uint32_t t)
    {
        current_ = t;
        running_ = this;
#ifdef __SANITIZE_ADDRESS__
        __sanitizer_start_switch_fiber(&fake_stack_, stacks_ + t * stack_bytes, stack_bytes);
#endif
        switch_context(&scheduler_, &fibers_[t].context);
#ifdef __SANITIZE_ADDRESS__
        __sanitizer_finish_switch_fiber(fake_stack_, nullptr, nullptr);
#endif
    }

    /* From a fiber to the scheduler, until it is resumed. */
    void wait(State state)
    {
        Fiber &own = fibers_[current_];
        own.state = state;
#ifdef __SANITIZE_ADDRESS__
        __sanitizer_start_switch_fiber(state == State::done ? nullptr : &own.fake_stack, scheduler_stack_,
                                       scheduler_stack_bytes_);
#endif
        switch_context(&own.context, &scheduler_);
        arrived(own.fake_stack);
    }

    void arrived([[maybe_unused]] void *fake_stack)
    {
#ifdef __SANITIZE_ADDRESS__
        __sanitizer_finish_switch_fiber(fake_stack, &scheduler_stack_, &scheduler_stack_bytes_);
#endif
    }

    /* Run one that can, for a while: sometimes one warp is far ahead, sometimes all keep step. False: none
     * can. */
    bool run_some_warp(std::vector<uint32_t> &warps)
    {
        std::shuffle(warps.begin(), warps.end(), random_);
        for (uint32_t warp : warps) {
            if (!run_warp(warp)) {
                continue;
            }
            for (uint32_t more = random_() % 2 ? random_() % 64 : 0; more && run_warp(warp); more--) {
            }
            return true;
        }
        return false;
    }

    /* Run a warp's lanes until each waits; if all wait in the same exchange, it has taken place. */
    bool run_warp(uint32_t warp)
    {
        const uint32_t first = warp * warp_lanes, end = std::min(first + warp_lanes, n_threads_);
        bool ran = false;
        uint32_t waiting = 0;
        for (uint32_t t = first; t < end; t++) {
            if (fibers_[t].state == State::ready) {
                resume(t);
                ran = true;
            }
            waiting += fibers_[t].state == State::exchange;
        }
        if (waiting == 0) {
            return ran;
        }
        for (uint32_t t = first; t < end; t++) {
            const Fiber &fiber = fibers_[t];
            if (fiber.state != State::exchange || fiber.mask != fibers_[first].mask ||
                fiber.exchanges != fibers_[first].exchanges) {
                fail("lanes of a warp disagree about an exchange");
            }
        }
        for (uint32_t t = first; t < end; t++) {
            fibers_[t].state = State::ready;
        }
        return true;
    }

    /* Nobody can run: either all are done, or all stand before a barrier. */
    bool open_barrier()
    {
        uint32_t waiting = 0;
        for (uint32_t t = 0; t < n_threads_; t++) {
            waiting += fibers_[t].state == State::barrier;
        }
        if (waiting != 0 && waiting != n_threads_) {
            fail("a barrier that not all threads reach");
        }
        for (uint32_t t = 0; t < n_threads_ && waiting; t++) {
            fibers_[t].state = State::ready;
        }
        return waiting != 0;
    }

    uint8_t *stacks_;
    Fiber fibers_[threads_max];
    static inline Block *running_ = nullptr;
    Context scheduler_;
    [[maybe_unused]] void *fake_stack_ = nullptr;
    [[maybe_unused]] const void *scheduler_stack_ = nullptr;
    [[maybe_unused]] size_t scheduler_stack_bytes_ = 0;
    const std::function<void()> *body_ = nullptr;
    uint32_t n_threads_ = 0, current_ = 0;
    std::mt19937 random_{1};
};

} // namespace tw::emulator

#endif
