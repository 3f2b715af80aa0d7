#include "tests/gpu/ptx/faults.h"

#include <cuda_runtime.h>

#include <stdexcept>

using namespace tw::ptx;

/* All take (int *to, const int *from, int n); blocks have one dimension, `to` and `from` 256 elements. */

#define KERNEL(name) static __global__ void name(int *to, const int *from, int n)

KERNEL(out_of_bounds)
{
    to[threadIdx.x + n] = from[threadIdx.x];
}

KERNEL(reads_out_of_bounds)
{
    to[threadIdx.x] = from[threadIdx.x + n];
}

KERNEL(within_bounds)
{
    to[threadIdx.x] = from[threadIdx.x] + n;
}

KERNEL(misaligned)
{
    const char *at = (const char *)from + 4 + 16 * threadIdx.x;
    ((uint4 *)to)[threadIdx.x] = *(const uint4 *)at;
}

KERNEL(shared_out_of_bounds)
{
    extern __shared__ int open[];
    open[threadIdx.x + n] = from[threadIdx.x];
    to[threadIdx.x] = open[threadIdx.x + n];
}

KERNEL(no_barrier)
{
    __shared__ int s[256];
    s[threadIdx.x] = from[threadIdx.x];
    to[threadIdx.x] = s[255 - threadIdx.x];
}

KERNEL(with_barrier)
{
    __shared__ int s[256];
    s[threadIdx.x] = from[threadIdx.x];
    __syncthreads();
    to[threadIdx.x] = s[255 - threadIdx.x];
}

KERNEL(no_barrier_before_write)
{
    __shared__ volatile int s[256];
    s[threadIdx.x] = from[threadIdx.x];
    __syncthreads();
    const int other = s[255 - threadIdx.x];
    s[threadIdx.x] = other;
    to[threadIdx.x] = other;
}

KERNEL(two_writers)
{
    __shared__ volatile int s[256];
    s[threadIdx.x / 64] = from[threadIdx.x];
    __syncthreads();
    to[threadIdx.x] = s[threadIdx.x / 64];
}

KERNEL(no_syncwarp)
{
    __shared__ volatile int s[32];
    s[threadIdx.x] = from[threadIdx.x];
    to[threadIdx.x] = s[31 - threadIdx.x];
}

KERNEL(with_syncwarp)
{
    __shared__ volatile int s[32];
    s[threadIdx.x] = from[threadIdx.x];
    __syncwarp();
    to[threadIdx.x] = s[31 - threadIdx.x];
}

KERNEL(divergent_barrier)
{
    if ((int)threadIdx.x < n) {
        to[threadIdx.x] = 1;
        __syncthreads();
        to[threadIdx.x] += 1;
    } else {
        __syncthreads();
        to[threadIdx.x] = (int)clock();
    }
}

KERNEL(barrier_after_exit)
{
    if ((int)threadIdx.x >= n) {
        return;
    }
    __syncthreads();
    to[threadIdx.x] = from[threadIdx.x];
}

KERNEL(shfl_of_exited)
{
    if ((int)threadIdx.x >= n) {
        return;
    }
    to[threadIdx.x] = __shfl_sync(0xffffffffu, from[threadIdx.x], 31);
}

KERNEL(mask_without_self)
{
    to[threadIdx.x] = (int)__ballot_sync(0x0000ffffu, from[threadIdx.x] & n);
}

KERNEL(waits_for_whom_a_barrier_holds)
{
    if ((int)threadIdx.x < n) {
        to[threadIdx.x] = (int)__ballot_sync(0xffffffffu, from[threadIdx.x]);
    } else {
        __syncthreads();
        to[threadIdx.x] = (int)clock();
    }
}

KERNEL(garbage_of_shared)
{
    __shared__ int s[64];
    if ((int)threadIdx.x < n) {
        s[threadIdx.x] = 1;
    }
    __syncthreads();
    to[threadIdx.x] = s[threadIdx.x];
}

KERNEL(blocks_write_the_same)
{
    to[0] = (int)blockIdx.x;
}

KERNEL(global_no_barrier)
{
    to[threadIdx.x] = from[threadIdx.x];
    const int other = ((volatile int *)to)[255 - threadIdx.x];
    ((volatile int *)to)[threadIdx.x] = other;
}

KERNEL(global_with_barriers)
{
    to[threadIdx.x] = from[threadIdx.x];
    __syncthreads();
    const int other = ((volatile int *)to)[255 - threadIdx.x];
    __syncthreads();
    ((volatile int *)to)[threadIdx.x] = other;
}

KERNEL(blocks_read_what_others_write)
{
    to[blockIdx.x + 1] = ((volatile int *)to)[blockIdx.x];
}

static __device__ unsigned shared_address(const void *at)
{
    return (unsigned)__cvta_generic_to_shared(at);
}

KERNEL(copy_read_before_wait)
{
    __shared__ int s[32];
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(&s[threadIdx.x])),
                 "l"(from + threadIdx.x)
                 : "memory");
    to[threadIdx.x] = s[threadIdx.x];
    asm volatile("cp.async.wait_all;" ::: "memory");
}

KERNEL(copy_read_after_wait)
{
    __shared__ int s[32];
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(&s[threadIdx.x])),
                 "l"(from + threadIdx.x)
                 : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    to[threadIdx.x] = s[threadIdx.x];
}

KERNEL(copy_never_waited_for)
{
    __shared__ int s[32];
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(&s[threadIdx.x])),
                 "l"(from + threadIdx.x)
                 : "memory");
    to[threadIdx.x] = n;
}

KERNEL(divides_by_zero)
{
    to[threadIdx.x] = from[threadIdx.x] / n;
}

KERNEL(traps)
{
    if (from[threadIdx.x] == n) {
        __trap();
    }
    to[threadIdx.x] = n;
}

static __global__ void large_parameters(int *to, Large large)
{
    to[threadIdx.x] = large.values[threadIdx.x];
}

static __global__ void __launch_bounds__(64) bounded(int *to, const int *from, int n)
{
    to[threadIdx.x] = from[threadIdx.x] + n;
}

/* ---- right ones: arithmetic ---- */

static __device__ unsigned bits(float x)
{
    return __float_as_uint(x);
}

static __global__ void arithmetic(const float *x, const float *y, const int *a, const int *b, unsigned *out,
                                  int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    const float p = x[i], q = y[i];
    const int u = a[i], v = b[i];
    const unsigned results[n_results] = {
        bits(p + q),
        bits(p * q),
        bits(p / q),
        bits(__fmaf_rn(p, q, p)),
        bits(sqrtf(fabsf(p))),
        (unsigned)__float2int_rn(p),
        __float2uint_rz(q),
        bits(rintf(p)),
        bits(floorf(q)),
        bits(fminf(p, q)),
        bits(fmaxf(p, q)),
        (unsigned)(u / (v | 1)),
        (unsigned)u % ((unsigned)v | 1),
        __umulhi((unsigned)u, (unsigned)v),
        (unsigned)__popc((unsigned)u),
        (unsigned)__clz(v),
        __brev((unsigned)u),
        __byte_perm((unsigned)u, (unsigned)v, 0x7531),
        __funnelshift_l((unsigned)u, (unsigned)v, (unsigned)u & 63),
        (unsigned)(u >> (v & 31)) ^ ((unsigned)u >> (v & 31)),
        p < q    ? 1u
        : p >= q ? 2u
                 : 3u,
        bits((float)u),
        bits((float)(((unsigned long long)(unsigned)u << 32) | (unsigned)v)),
        (unsigned)(__ffs(u) + 100 * (u < v)),
    };
    for (int k = 0; k < n_results; k++) {
        out[i * n_results + k] = results[k];
    }
}

namespace tw::ptx
{

#define ROW(name)                   \
    {                               \
#name, (const void *)::name \
    }

const void *fault_kernel(const std::string &name)
{
    static const struct {
        const char *name;
        const void *function;
    } kernels[] = {
        ROW(out_of_bounds),
        ROW(reads_out_of_bounds),
        ROW(within_bounds),
        ROW(misaligned),
        ROW(shared_out_of_bounds),
        ROW(no_barrier),
        ROW(with_barrier),
        ROW(global_no_barrier),
        ROW(global_with_barriers),
        ROW(no_barrier_before_write),
        ROW(two_writers),
        ROW(no_syncwarp),
        ROW(with_syncwarp),
        ROW(divergent_barrier),
        ROW(barrier_after_exit),
        ROW(shfl_of_exited),
        ROW(mask_without_self),
        ROW(waits_for_whom_a_barrier_holds),
        ROW(garbage_of_shared),
        ROW(blocks_write_the_same),
        ROW(blocks_read_what_others_write),
        ROW(copy_read_before_wait),
        ROW(copy_read_after_wait),
        ROW(copy_never_waited_for),
        ROW(divides_by_zero),
        ROW(traps),
        ROW(large_parameters),
        ROW(bounded),
        ROW(arithmetic),
    };
    for (const auto &kernel : kernels) {
        if (name == kernel.name) {
            return kernel.function;
        }
    }
    throw std::runtime_error("there is no kernel " + name);
}

} // namespace tw::ptx
