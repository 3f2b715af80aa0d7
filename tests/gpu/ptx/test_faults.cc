/* Each kind of report is provoked by a kernel or a call with that fault, one without it gets none. */
#include <gtest/gtest.h>

#include <climits>
#include <cmath>
#include <random>
#include <vector>

#include <cuda_runtime_api.h>

#include "tests/gpu/ptx/faults.h"
#include "tests/gpu/ptx/number.h"
#include "tests/gpu/ptx/report.h"
#include "tests/gpu/ptx/settings.h"

namespace tw::ptx
{

namespace
{

constexpr size_t elems = 256;

/* Memory of the device, 0 in it unless it is to be garbage. */
template <class T = int>
class Device
{
  public:
    explicit Device(size_t n, bool garbage = false) : bytes(n * sizeof(T))
    {
        EXPECT_EQ(cudaMalloc(&memory, bytes), cudaSuccess);
        if (!garbage) {
            EXPECT_EQ(cudaMemset(memory, 0, bytes), cudaSuccess);
        }
    }
    explicit Device(const std::vector<T> &values) : Device(values.size())
    {
        EXPECT_EQ(cudaMemcpy(memory, values.data(), bytes, cudaMemcpyDefault), cudaSuccess);
    }
    ~Device()
    {
        EXPECT_EQ(cudaFree(memory), cudaSuccess);
    }
    Device(const Device &) = delete;
    void operator=(const Device &) = delete;
    T *get() const
    {
        return (T *)memory;
    }
    std::vector<T> read() const
    {
        std::vector<T> values(bytes / sizeof(T));
        EXPECT_EQ(cudaMemcpy(values.data(), memory, bytes, cudaMemcpyDefault), cudaSuccess);
        return values;
    }

  private:
    void *memory = nullptr;
    size_t bytes;
};

class Machine : public testing::Test
{
  protected:
    void SetUp() override
    {
        kept = settings();
        clear_reports();
    }
    void TearDown() override
    {
        settings() = kept;
        clear_reports();
    }

    /* Kinds that were reported since the last time, with spaces between. */
    static std::string take_reports()
    {
        std::string kinds;
        for (const auto &[kind, n] : report_counts()) {
            kinds += (kinds.empty() ? "" : " ") + kind;
        }
        clear_reports();
        return kinds;
    }

    static std::string kinds_of(const char *kernel, unsigned threads, int n, unsigned blocks = 1,
                                size_t shared = 0, bool garbage = false)
    {
        Device<> to(elems), from(elems, garbage);
        int *to_at = to.get();
        const int *from_at = from.get();
        void *args[] = {&to_at, &from_at, &n};
        EXPECT_EQ(cudaLaunchKernel(fault_kernel(kernel), dim3(blocks), dim3(threads), args, shared, nullptr),
                  cudaSuccess);
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        return take_reports();
    }

  private:
    Settings kept;
};

/* ---- memory ---- */

TEST_F(Machine, AccessOutOfBounds)
{
    EXPECT_EQ(kinds_of("within_bounds", 256, 1), "");
    EXPECT_EQ(kinds_of("out_of_bounds", 256, 1), "OOB-GLOBAL");
    EXPECT_EQ(kinds_of("out_of_bounds", 256, -1), "OOB-GLOBAL");
    EXPECT_EQ(kinds_of("reads_out_of_bounds", 256, 1), "OOB-GLOBAL");
    EXPECT_EQ(kinds_of("shared_out_of_bounds", 32, 1, 1, 128), "OOB-SHARED");
    EXPECT_EQ(kinds_of("shared_out_of_bounds", 32, 0, 1, 128), "");
}

TEST_F(Machine, HostPointer)
{
    std::vector<int> host(elems);
    Device<> to(elems);
    int *to_at = to.get(), n = 0;
    const int *from_at = host.data();
    void *args[] = {&to_at, &from_at, &n};
    cudaLaunchKernel(fault_kernel("within_bounds"), dim3(1), dim3(32), args, 0, nullptr);
    EXPECT_EQ(take_reports(), "OOB-GLOBAL");
}

TEST_F(Machine, Misaligned)
{
    EXPECT_EQ(kinds_of("misaligned", 32, 0), "MISALIGNED");
}

TEST_F(Machine, Garbage)
{
    EXPECT_EQ(kinds_of("garbage_of_shared", 64, 20), "UNINIT-SHARED");
    EXPECT_EQ(kinds_of("garbage_of_shared", 64, 64), "");
    EXPECT_EQ(kinds_of("within_bounds", 64, 0, 1, 0, true), "UNINIT-GLOBAL");
}

/* ---- races ---- */

TEST_F(Machine, RacesInABlock)
{
    EXPECT_EQ(kinds_of("no_barrier", 256, 0), "RACE-SHARED-RAW RACE-SHARED-WAR UNINIT-SHARED");
    EXPECT_EQ(kinds_of("with_barrier", 256, 0), "");
    EXPECT_EQ(kinds_of("no_barrier_before_write", 256, 0), "RACE-SHARED-RAW RACE-SHARED-WAR");
    EXPECT_EQ(kinds_of("two_writers", 256, 0), "RACE-SHARED-WAW RACE-WARP-WAW");
}

TEST_F(Machine, RacesInAWarp)
{
    EXPECT_EQ(kinds_of("no_syncwarp", 32, 0), "RACE-WARP-RAW");
    EXPECT_EQ(kinds_of("with_syncwarp", 32, 0), "");
}

TEST_F(Machine, RacesBetweenBlocks)
{
    settings().races = true;
    EXPECT_EQ(kinds_of("blocks_write_the_same", 1, 0, 4), "RACE-BLOCKS-WAW");
    EXPECT_EQ(kinds_of("blocks_write_the_same", 1, 0, 1), "");
    EXPECT_EQ(kinds_of("blocks_read_what_others_write", 1, 0, 4), "RACE-BLOCKS-RAW");
}

TEST_F(Machine, RacesOfWarpsOnGlobalMemory)
{
    EXPECT_EQ(kinds_of("global_no_barrier", 256, 0), "");
    settings().races = true;
    EXPECT_EQ(kinds_of("global_no_barrier", 256, 0), "RACE-GLOBAL-RAW RACE-GLOBAL-WAR");
    EXPECT_EQ(kinds_of("global_with_barriers", 256, 0), "");
}

TEST_F(Machine, AsynchronousCopies)
{
    EXPECT_EQ(kinds_of("copy_read_before_wait", 32, 0), "CP-ASYNC-READ-BEFORE-WAIT");
    EXPECT_EQ(kinds_of("copy_read_after_wait", 32, 0), "");
    EXPECT_EQ(kinds_of("copy_never_waited_for", 32, 0), "CP-ASYNC-PENDING-AT-EXIT");
}

/* ---- barriers and masks ---- */

TEST_F(Machine, Barriers)
{
    EXPECT_EQ(kinds_of("divergent_barrier", 64, 7), "BAR-DIFFERENT-PLACES BAR-DIVERGENT-WARP");
    EXPECT_EQ(kinds_of("divergent_barrier", 64, 64), "");
    EXPECT_EQ(kinds_of("barrier_after_exit", 64, 40), "BAR-AFTER-EXIT");
    EXPECT_EQ(kinds_of("barrier_after_exit", 64, 64), "");
}

TEST_F(Machine, Masks)
{
    EXPECT_EQ(kinds_of("shfl_of_exited", 32, 20), "MASK-EXITED SHFL-INACTIVE");
    EXPECT_EQ(kinds_of("shfl_of_exited", 32, 32), "");
    EXPECT_EQ(kinds_of("shfl_of_exited", 20, 32), "MASK-PARTIAL-WARP SHFL-INACTIVE");
    EXPECT_EQ(kinds_of("mask_without_self", 16, 1), "");
    EXPECT_NE(kinds_of("mask_without_self", 32, 1).find("MASK-WITHOUT-SELF"), std::string::npos);
    EXPECT_EQ(kinds_of("waits_for_whom_a_barrier_holds", 32, 7), "WARP-DEADLOCK");
}

TEST_F(Machine, LanesThatStayApartFindTheSame)
{
    settings().diverge = true;
    for (settings().seed = 1; settings().seed < 20; settings().seed++) {
        EXPECT_EQ(kinds_of("with_barrier", 256, 0), "");
        EXPECT_EQ(kinds_of("with_syncwarp", 32, 0), "");
        EXPECT_NE(kinds_of("no_barrier", 256, 0).find("RACE-SHARED-RAW"), std::string::npos);
    }
}

/* ---- launches ---- */

TEST_F(Machine, Launches)
{
    EXPECT_EQ(kinds_of("within_bounds", 2048, 0), "LAUNCH-LIMITS");
    EXPECT_EQ(kinds_of("within_bounds", 32, 0, 1, 50000), "SHARED-OVER-48K");
    EXPECT_EQ(kinds_of("bounded", 128, 0), "LAUNCH-BOUNDS");
    EXPECT_EQ(kinds_of("bounded", 64, 0), "");
}

TEST_F(Machine, LargeParameters)
{
    Device<> to(elems);
    Large large;
    for (int i = 0; i < 2000; i++) {
        large.values[i] = i * i;
    }
    int *to_at = to.get();
    void *args[] = {&to_at, &large};
    cudaLaunchKernel(fault_kernel("large_parameters"), dim3(1), dim3(256), args, 0, nullptr);
    EXPECT_EQ(take_reports(), "PARAMS-OVER-4K");
    EXPECT_EQ(to.read()[255], 255 * 255);
}

TEST_F(Machine, Traps)
{
    EXPECT_EQ(kinds_of("divides_by_zero", 32, 0), "DIV0");
    EXPECT_EQ(kinds_of("divides_by_zero", 32, 3), "");
    EXPECT_EQ(kinds_of("traps", 32, 0), "TRAP");
    EXPECT_EQ(kinds_of("traps", 32, 1), "");
}

/* ---- the runtime ---- */

TEST_F(Machine, RuntimeCalls)
{
    Device<> at(elems);
    std::vector<int> host(elems + 1);
    int local = 0;
    cudaMemcpy(at.get(), host.data(), (elems + 1) * sizeof(int), cudaMemcpyDefault);
    EXPECT_EQ(take_reports(), "RUNTIME-OOB");
    EXPECT_NE(cudaFree(&local), cudaSuccess);
    EXPECT_EQ(take_reports(), "RUNTIME-FREE");
    EXPECT_NE(cudaLaunchKernel(&local, dim3(1), dim3(1), nullptr, 0, nullptr), cudaSuccess);
    EXPECT_EQ(take_reports(), "RUNTIME-LAUNCH");
    EXPECT_NE(cudaStreamDestroy((cudaStream_t)(void *)&local), cudaSuccess);
    EXPECT_EQ(take_reports(), "RUNTIME-STREAM");
    cudaGetLastError();
}

TEST_F(Machine, Captures)
{
    Device<> at(elems);
    std::vector<int> host(elems);
    cudaStream_t stream, other;
    cudaEvent_t event;
    cudaGraph_t graph;
    void *memory = nullptr;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    cudaEventCreate(&event);
    cudaEventRecord(event, other);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    cudaMemcpyAsync(at.get(), host.data(), sizeof(int), cudaMemcpyDefault, stream);
    EXPECT_EQ(take_reports(), "CAPTURE-PAGEABLE");
    EXPECT_NE(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(take_reports(), "CAPTURE-SYNC");
    cudaStreamWaitEvent(stream, event, 0);
    EXPECT_EQ(take_reports(), "CAPTURE-WAIT");
    cudaEventQuery(event);
    EXPECT_EQ(take_reports(), "CAPTURE-UNSAFE");
    cudaMalloc(&memory, 16);
    EXPECT_EQ(take_reports(), "CAPTURE-UNSAFE");
    cudaFree(memory);
    cudaThreadExchangeStreamCaptureMode(&mode);
    cudaEventQuery(event);
    cudaThreadExchangeStreamCaptureMode(&mode);
    EXPECT_EQ(take_reports(), "");
    cudaStreamEndCapture(stream, &graph);
    cudaEventQuery(event);
    EXPECT_EQ(take_reports(), "");
    cudaGraphDestroy(graph);
    cudaEventDestroy(event);
    cudaStreamDestroy(stream);
    cudaStreamDestroy(other);
    cudaGetLastError();
}

TEST_F(Machine, LazyStreamsAndTheLastError)
{
    settings().lazy = settings().last_error = true;
    Device<> at(elems);
    cudaStream_t stream;
    cudaEvent_t event;
    int value = 0;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaEventCreate(&event);
    cudaMemsetAsync(at.get(), 1, sizeof(int), stream);
    cudaEventRecord(event, stream);
    cudaMemcpy(&value, at.get(), sizeof(int), cudaMemcpyDefault);
    EXPECT_EQ(value, 0) << "nothing has waited for the stream";
    EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
    cudaMemcpy(&value, at.get(), sizeof(int), cudaMemcpyDefault);
    EXPECT_EQ(take_reports(), "LAST-ERROR-LEFT");
    EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
    EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
    cudaMemcpy(&value, at.get(), sizeof(int), cudaMemcpyDefault);
    EXPECT_EQ(take_reports(), "");
    EXPECT_EQ(value, 0x01010101);
    cudaEventDestroy(event);
    cudaStreamDestroy(stream);
}

/* ---- arithmetic ---- */

u32 float_bits(float x)
{
    return x != x ? 0x7fffffffu : bits_as<u32>(x);
}

u32 to_int(float x)
{
    const double near = rint((double)x);
    return x != x ? 0 : near >= 0x1p31 ? 0x7fffffffu : near < -0x1p31 ? 0x80000000u : (u32)(int)near;
}

u32 to_unsigned(float x)
{
    return x != x || x <= 0 ? 0 : x >= 0x1p32f ? ~0u : (u32)x;
}

u32 reversed(u32 x)
{
    u32 r = 0;
    for (int i = 0; i < 32; i++) {
        r |= (x >> i & 1) << (31 - i);
    }
    return r;
}

/* As on a GPU: the number, if one is NaN; -0 below 0. */
float smaller(float p, float q)
{
    if (p != p || q != q) {
        return p != p ? q : p;
    }
    return p < q || (p == q && std::signbit(p)) ? p : q;
}

std::vector<u32> expected(float p, float q, int u, int v)
{
    const u32 a = (u32)u, b = (u32)v;
    const u64 both = (u64)b << 32 | a;
    return {
        float_bits(p + q),
        float_bits(p * q),
        float_bits(p / q),
        float_bits(fmaf(p, q, p)),
        float_bits(sqrtf(fabsf(p))),
        to_int(p),
        to_unsigned(q),
        float_bits(rintf(p)),
        float_bits(floorf(q)),
        float_bits(smaller(p, q)),
        float_bits(-smaller(-p, -q)),
        (u32)(u / (v | 1)),
        a % (b | 1),
        (u32)((u64)a * b >> 32),
        (u32)__builtin_popcount(a),
        v ? (u32)__builtin_clz(b) : 32,
        reversed(a),
        (u32)(both >> 8 & 255) | (u32)(both >> 24 & 255) << 8 | (u32)(both >> 40 & 255) << 16 |
            (u32)(both >> 56) << 24,
        (u32)(both << (a & 31) >> 32),
        (u32)(u >> (v & 31)) ^ a >> (v & 31),
        p < q    ? 1u
        : p >= q ? 2u
                 : 3u,
        float_bits((float)u),
        float_bits((float)((u64)a << 32 | b)),
        (u32)((u ? __builtin_ctz(a) + 1 : 0) + 100 * (u < v)),
    };
}

TEST_F(Machine, ArithmeticIsThatOfTheHost)
{
    constexpr int n = 5000;
    std::mt19937 random(1);
    std::vector<float> x(n), y(n);
    std::vector<int> a(n), b(n);
    for (size_t i = 0; i < n; i++) {
        const u32 near_one = i % 3 == 0 ? 0x83ffffffu : ~0u, one = i % 3 == 0 ? 0x3c000000u : 0;
        x[i] = float_of((random() & near_one) | one);
        y[i] = float_of((random() & near_one) | one);
        a[i] = (int)random() >> (i % 32);
        b[i] = (int)random() >> (i % 31);
    }
    Device<float> dx(x), dy(y);
    Device<int> da(a), db(b);
    Device<u32> out(n * n_results);
    const float *px = dx.get(), *py = dy.get();
    const int *pa = da.get(), *pb = db.get();
    u32 *po = out.get();
    int count = n;
    void *args[] = {&px, &py, &pa, &pb, &po, &count};
    cudaLaunchKernel(fault_kernel("arithmetic"), dim3((n + 127) / 128), dim3(128), args, 0, nullptr);
    const std::vector<u32> got = out.read();
    for (size_t i = 0; i < n; i++) {
        const std::vector<u32> want = expected(x[i], y[i], a[i], b[i]);
        for (size_t k = 0; k < n_results; k++) {
            ASSERT_EQ(got[i * n_results + k], want[k])
                << "result " << k << " of " << x[i] << " " << y[i] << " " << a[i] << " " << b[i];
        }
    }
    EXPECT_EQ(take_reports(), "");
}

} // namespace

} // namespace tw::ptx
