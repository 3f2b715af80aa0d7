/* Sums and copies of plain tensors: the CPU's against the rule, the GPU's against the CPU's. */
#include <algorithm>
#include <cmath>
#include <cstring>

#ifdef TW_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

#include "collectives/gpu/sums.h"
#ifdef TW_HAVE_CUDA
#include "collectives/gpu/sums_kernels.cuh"
#endif
#include "tests/collectives/gpu/sums_ref.h"
#include "tests/collectives/quantized/quantized.h"
#include "tests/common/fixture.h"

namespace
{

class GpuSum : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        allow_descriptors("nvidia"); /* a GPU's driver opens files when it likes */
        allow_descriptors("anon_inode:");
        allow_descriptors("pipe:");
        allow_descriptors("socket:");
        allow_descriptors("/dev/");
    }
};

struct SumCase {
    tw_type_t in, out;
    int n_inputs;
    float factor;
    std::vector<size_t> sizes;
    size_t skew; /**< elements by which memory is off 16 bytes */
};

/** Means of fp16 are held to its largest number. */
float limit_of(const SumCase &c)
{
    return c.n_inputs == 3 && c.out == TW_TYPE_FP16 ? 65504.0f : INFINITY;
}

/** Some are NaN of different bits, but no two of an element; some are infinite, also with both signs. */
float special_of(int k, size_t i, float otherwise)
{
    const float sign = k % 2 ? -1.0f : 1.0f;
    const bool all_nan = i % 59 == 3 && (k == 0 || i % 2), one_nan = i % 59 == (size_t)(4 + k);
    if (i % 61 == 5 || (i % 61 == 6 && k == 0) || (i % 59 == 3 && !all_nan)) {
        return sign * INFINITY;
    }
    return all_nan ? std::nanf("0x56000") : one_nan ? std::copysign(std::nanf("0x12000"), sign) : otherwise;
}

/** Inputs one behind the other, and what becomes of them. */
struct SumMemory {
    tw::Bytes in, out;
    size_t stride = 0;
    std::vector<tw_gpu_sum_segment_t> segments;
    tw_gpu_sum_t sum = {};

    explicit SumMemory(const SumCase &c)
    {
        size_t in_bytes = tw_type_bytes(c.in), out_bytes = tw_type_bytes(c.out), total = 0;
        for (size_t n : c.sizes) {
            total += n;
        }
        stride = ((total + c.skew) * in_bytes + 15) / 16 * 16;
        in.resize(stride * (size_t)c.n_inputs);
        out.assign((total + c.skew) * out_bytes, 0);
        std::vector<float> values(stride / in_bytes);
        for (int k = 0; k < c.n_inputs; k++) {
            for (size_t i = 0; i < values.size(); i++) {
                values[i] = i % 53 == 7 ? 65504.0f : tw::value_of(k, 3, i);
                values[i] = special_of(k, i, values[i]);
            }
            tw_convert_from_fp32(c.in == TW_TYPE_BYTE ? TW_TYPE_FP32 : c.in, values.data(), 1,
                                 &in[(size_t)k * stride],
                                 c.in == TW_TYPE_BYTE ? values.size() / 4 : values.size());
        }
        size_t at = c.skew;
        for (size_t n : c.sizes) {
            segments.push_back({in.data() + at * in_bytes, out.data() + at * out_bytes, n});
            at += n;
        }
        sum.in = c.in;
        sum.out = c.out;
        sum.n_inputs = c.n_inputs;
        sum.stride = stride;
        sum.factor = c.factor;
        sum.limit = limit_of(c);
        sum.segments = segments.data();
        sum.n_segments = segments.size();
    }
};

std::vector<SumCase> all_cases()
{
    std::vector<SumCase> cases;
    for (tw_type_t in : {TW_TYPE_FP32, TW_TYPE_BF16, TW_TYPE_FP16}) {
        for (tw_type_t out : {in, TW_TYPE_FP32}) {
            for (int n_inputs : {1, 2, 3, 17}) {
                for (size_t skew : {(size_t)0, (size_t)1, 16 / tw_type_bytes(in)}) {
                    cases.push_back({in,
                                     out,
                                     n_inputs,
                                     n_inputs == 3 ? 0.34f : 1.0f,
                                     /* the last two begin as their memory does: aligned, or not */
                                     {0, 1, 7, 8, 9, 7, 2048, n_inputs == 2 ? (size_t)70001 : 3001},
                                     skew});
                }
            }
        }
    }
    for (size_t skew : {0, 1, 16}) {
        cases.push_back({TW_TYPE_BYTE, TW_TYPE_BYTE, 1, 1.0f, {0, 1, 15, 16, 17, 70001}, skew});
    }
    return cases;
}

/* Element by element, as sums.h says. */
TEST_F(GpuSum, ReferenceFollowsTheRule)
{
    for (const SumCase &c : all_cases()) {
        SumMemory memory(c);
        tw_gpu_sum_ref(&memory.sum);
        for (const tw_gpu_sum_segment_t &segment : memory.segments) {
            size_t in_bytes = tw_type_bytes(c.in), out_bytes = tw_type_bytes(c.out);
            for (size_t i = 0; i < segment.n_elems; i += 1 + i / 16) {
                char want[4];
                float acc = 0, value = 0;
                const char *src = (const char *)segment.src + i * in_bytes;
                if (c.in == TW_TYPE_BYTE) {
                    ASSERT_EQ(((const char *)segment.dst)[i], *src);
                    continue;
                }
                for (int k = 0; k < c.n_inputs; k++) {
                    tw_convert_to_fp32(c.in, src + (size_t)k * memory.stride, &value, 1);
                    acc = k == 0 ? value : acc + value;
                }
                acc *= c.factor;
                acc = std::isfinite(acc) ? std::clamp(acc, -limit_of(c), limit_of(c)) : acc;
                tw_convert_from_fp32(c.out, &acc, 1, want, 1);
                ASSERT_EQ(memcmp((const char *)segment.dst + i * out_bytes, want, out_bytes), 0)
                    << tw_type_name(c.in) << " " << tw_type_name(c.out) << " " << c.n_inputs << " " << i;
            }
        }
    }
}

#ifdef TW_HAVE_CUDA

/** Thread after thread, on the CPU. */
struct OnCpu {
    typedef void (*pointer)(const tw_gpu_sum_kernels::Params &params, tw_gpu_sum_kernels::Place place);
    template <class BODY>
    static pointer of()
    {
        return [](const tw_gpu_sum_kernels::Params &params, tw_gpu_sum_kernels::Place place) {
            BODY::run(params, place);
        };
    }
};

tw_status_t run_kernels_on_cpu(const tw_gpu_sum_t *sum)
{
    OnCpu::pointer body = tw_gpu_sum_kernels::select<OnCpu>(sum);
    return tw_gpu_sum_kernels::for_each_launch(
        sum, [&](const tw_gpu_sum_kernels::Params &params, size_t n_segments, size_t blocks) {
            tw_gpu_sum_kernels::Place place = {0, 0, (unsigned)blocks, 0};
            for (place.segment = 0; place.segment < n_segments; place.segment++) {
                for (place.block = 0; place.block < blocks; place.block++) {
                    for (place.thread = 0; place.thread < tw_gpu_sum_kernels::threads; place.thread++) {
                        body(params, place);
                    }
                }
            }
            return TW_OK;
        });
}

TEST_F(GpuSum, KernelsOnTheCpu)
{
    for (const SumCase &c : all_cases()) {
        SumMemory memory(c);
        tw_gpu_sum_ref(&memory.sum);
        tw::Bytes want = memory.out;
        std::fill(memory.out.begin(), memory.out.end(), (char)0);
        EXPECT_EQ(run_kernels_on_cpu(&memory.sum), TW_OK);
        ASSERT_TRUE(memory.out == want)
            << tw_type_name(c.in) << " " << tw_type_name(c.out) << " " << c.n_inputs << " skew " << c.skew;
    }
}

/* More segments than a launch takes, and more elements than its blocks take in one turn. */
TEST_F(GpuSum, ManyAndLong)
{
    SumCase many = {TW_TYPE_BF16, TW_TYPE_FP32, 2, 1.0f, std::vector<size_t>(150, 33), 0};
    many.sizes[148] = 4; /* so that the last one is aligned */
    many.sizes[149] = tw_gpu_sum_kernels::max_blocks * tw_gpu_sum_kernels::threads * 8 + 4099;
    SumMemory memory(many);
    tw_gpu_sum_ref(&memory.sum);
    tw::Bytes want = memory.out;
    std::fill(memory.out.begin(), memory.out.end(), (char)0);
    EXPECT_EQ(run_kernels_on_cpu(&memory.sum), TW_OK);
    EXPECT_TRUE(memory.out == want);
}

bool has_gpu()
{
    int n = 0;
    bool found = cudaGetDeviceCount(&n) == cudaSuccess && n > 0;
    (void)cudaGetLastError();
    return found;
}

/** The same memory on the GPU. */
void run_on_gpu(const SumMemory &memory, tw::Bytes *out)
{
    char *in_at = nullptr, *out_at = nullptr;
    ASSERT_EQ(cudaMalloc((void **)&in_at, memory.in.size() + 16), cudaSuccess);
    ASSERT_EQ(cudaMalloc((void **)&out_at, memory.out.size() + 16), cudaSuccess);
    ASSERT_EQ(cudaMemcpy(in_at, memory.in.data(), memory.in.size(), cudaMemcpyHostToDevice), cudaSuccess);
    ASSERT_EQ(cudaMemset(out_at, 0, memory.out.size()), cudaSuccess);
    std::vector<tw_gpu_sum_segment_t> segments = memory.segments;
    for (tw_gpu_sum_segment_t &segment : segments) {
        segment.src = in_at + ((const char *)segment.src - memory.in.data());
        segment.dst = out_at + ((char *)segment.dst - memory.out.data());
    }
    tw_gpu_sum_t sum = memory.sum;
    sum.segments = segments.data();
    EXPECT_EQ(tw_gpu_sum_cuda(&sum, nullptr), TW_OK);
    out->resize(memory.out.size());
    EXPECT_EQ(cudaMemcpy(out->data(), out_at, out->size(), cudaMemcpyDeviceToHost), cudaSuccess);
    EXPECT_EQ(cudaFree(in_at), cudaSuccess);
    EXPECT_EQ(cudaFree(out_at), cudaSuccess);
}

TEST_F(GpuSum, KernelsGiveTheSameBits)
{
    if (!has_gpu()) {
        GTEST_SKIP() << "no GPU here";
    }
    for (const SumCase &c : all_cases()) {
        SumMemory memory(c);
        tw::Bytes got;
        tw_gpu_sum_ref(&memory.sum);
        run_on_gpu(memory, &got);
        ASSERT_TRUE(got == memory.out)
            << tw_type_name(c.in) << " " << tw_type_name(c.out) << " " << c.n_inputs << " skew " << c.skew;
    }
}

TEST_F(GpuSum, RefusesOtherTypes)
{
    if (!has_gpu()) {
        GTEST_SKIP() << "no GPU here";
    }
    tw_gpu_sum_t sum = {};
    sum.in = TW_TYPE_FP32;
    sum.out = TW_TYPE_BF16;
    sum.n_inputs = 2;
    sum.factor = 1;
    sum.limit = INFINITY;
    expect_log("cannot sum fp32 into bf16");
    EXPECT_EQ(tw_gpu_sum_cuda(&sum, nullptr), TW_ERR_INVALID);
}

#endif

} // namespace
