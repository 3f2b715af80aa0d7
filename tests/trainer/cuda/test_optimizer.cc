/* The norm of gradients and AdamW on the emulated device: the bits of the CPU's. */
#include "core/core.h"
#include "quant/arithmetic/adamw.h"
#include "tests/common/fixture.h"
#include "tests/trainer/cuda/arrays.h"
#include "trainer/cuda/optimizer.h"
#include "trainer/engine/norm.h"

namespace
{

using tw::Array;
using tw::Device;
using tw::Floats;
using tw::normal_values;

class CudaOptimizer : public tw::DeviceFixture
{
};

/* ---- norm ---------------------------------------------------------------------------------------------- */

template <class T>
void expect_norm(tw_type_t type, const T *values, size_t n)
{
    tw_norm_t wanted = {}, got = {};
    Device<uint64_t> bins(2 * TW_CUDA_NORM_BINS);
    tw_norm_add(&wanted, type, values, n);
    /* in two parts, in the other order */
    ASSERT_RUNS(tw_cuda_norm_bins(type, values + n / 3, n - n / 3, bins.data(), nullptr));
    ASSERT_RUNS(tw_cuda_norm_bins(type, values, n / 3, bins.data(), nullptr));
    tw_norm_add_bins(&got, bins.data(), 0);
    tw_norm_add_bins(&got, bins.data() + TW_CUDA_NORM_BINS, 32);
    EXPECT_EQ(memcmp(got.limbs, wanted.limbs, sizeof(got.limbs)), 0) << n;
    EXPECT_EQ(got.n_nonfinite, wanted.n_nonfinite) << n;
}

/* Every bf16 there is, and lengths around octets and blocks, aligned and not. */
TEST_F(CudaOptimizer, NormOfAllValues)
{
    Device<uint16_t> values(65536 + 1);
    for (size_t i = 0; i < values.size(); i++) {
        values[i] = uint16_t(i * 40503);
    }
    for (size_t skew : {0, 1}) {
        for (size_t n : {0, 1, 7, 8, 9, 255, 2048, 2049, 6001, 65536}) {
            expect_norm(TW_TYPE_BF16, values.data() + skew, n);
        }
    }
}

/* Every exponent, with all of the mantissa's bits. */
TEST_F(CudaOptimizer, NormOfFp32)
{
    Device<float> values(40000 + 1);
    uint32_t bits = 1;
    for (float &value : values) {
        bits = bits * 1664525u + 1013904223u;
        memcpy(&value, &bits, sizeof(value));
    }
    for (size_t skew : {0, 1}) {
        for (size_t n : {0, 1, 7, 8, 9, 2048, 2049, 40000}) {
            expect_norm(TW_TYPE_FP32, values.data() + skew, n);
        }
    }
}

/* As many of the largest squares as a block may have of one exponent would not fit a bin of fewer lanes. */
TEST_F(CudaOptimizer, NormOfManyLargeValues)
{
    const Device<uint16_t> values(((size_t)1 << 20) + 5, 0x3fff);
    Device<uint64_t> bins(2 * TW_CUDA_NORM_BINS);
    ASSERT_RUNS(tw_cuda_norm_bins(TW_TYPE_BF16, values.data(), values.size(), bins.data(), nullptr));
    EXPECT_EQ(bins[0x7f], uint64_t(255) * 255 * values.size());
    /* in fp32 two bins' worth: 2^48 a value, and 2^64 all together */
    const Device<float> wide(((size_t)1 << 16) + 5, std::nextafterf(2, 0));
    expect_norm(TW_TYPE_FP32, wide.data(), wide.size());
}

/* ---- AdamW --------------------------------------------------------------------------------------------- */

struct Shape {
    tw_type_t grad_type, weight_type;
    size_t n, skew;
    bool has_weights, is_scaled;
};

float *floats(Array &array)
{
    return static_cast<float *>(array.get());
}

void check(const Shape &s)
{
    const Device<float> grad_scale(1, 0.37f);
    const tw_quant_adamw_t adamw = {0.001, 0.9, 0.95,        1e-8,
                                    0.1,   3,   s.grad_type, s.is_scaled ? grad_scale.data() : nullptr};
    const tw_adamw_factors_t factors = tw_adamw_factors_of(&adamw);
    Array grad(s.grad_type, normal_values(s.n, 1), s.skew), weights(s.weight_type, Floats(s.n, 5), s.skew);
    Array master(TW_TYPE_FP32, normal_values(s.n, 2)), m(TW_TYPE_FP32, normal_values(s.n, 3), s.skew);
    Array v(TW_TYPE_FP32, normal_values(s.n, 4, 9));
    Floats of_grad = grad.values(), of_master = master.values(), of_m = m.values(), of_v = v.values();
    for (size_t i = 0; i < s.n; i++) {
        const float g = of_grad[i] * (s.is_scaled ? grad_scale[0] : 1);
        of_master[i] = tw_adamw_element(&factors, g, of_master[i], &of_m[i], &of_v[i]);
    }
    const tw_cuda_adamw_tensor_t tensor = {grad.get(),
                                           floats(master),
                                           floats(m),
                                           floats(v),
                                           s.has_weights ? weights.get() : nullptr,
                                           s.weight_type,
                                           s.n};
    ASSERT_RUNS(tw_cuda_adamw(&adamw, &tensor, nullptr));
    master.expect(of_master, "master");
    m.expect(of_m, "m");
    v.expect(of_v, "v");
    weights.expect(s.has_weights ? of_master : Floats(s.n, 5), "weights");
    grad.expect(of_grad, "the gradient is only read");
}

TEST_F(CudaOptimizer, AdamW)
{
    for (tw_type_t grad_type : {TW_TYPE_FP32, TW_TYPE_BF16}) {
        for (tw_type_t weight_type : {TW_TYPE_FP32, TW_TYPE_BF16}) {
            for (size_t n : {0, 1, 8, 9, 2049}) {
                check({grad_type, weight_type, n, n % 2, true, true});
                check({grad_type, weight_type, n, 0, false, false});
                ASSERT_FALSE(HasFatalFailure()) << n;
            }
        }
    }
}

/* quant's AdamW, which the trainer uses on CPUs, does the same. */
TEST_F(CudaOptimizer, AdamWBesideQuants)
{
    const size_t n = 1000;
    tw_quant_params_t params = {};
    params.codec.kind = TW_QUANT_INT8;
    params.codec.block = 2048;
    params.mem = TW_MEM_HOST;
    tw_quant_args_t args = {};
    args.type = TW_TYPE_BF16;
    const tw_quant_adamw_t adamw = {0.01, 0.9, 0.99, 1e-8, 0.1, 7, TW_TYPE_BF16, nullptr};
    Array grad(TW_TYPE_BF16, normal_values(n, 1));
    const Floats first[] = {normal_values(n, 2), normal_values(n, 3), normal_values(n, 4, 9)};
    Device<float> master[2], m[2], v[2];
    for (int side = 0; side < 2; side++) {
        master[side].assign(first[0].begin(), first[0].end());
        m[side].assign(first[1].begin(), first[1].end());
        v[side].assign(first[2].begin(), first[2].end());
    }
    std::vector<uint8_t> scratch(tw_quant_encoded_bytes(&params.codec, n));
    tw_quant_adamw_segment_t segment = {};
    segment.grad = segment.replica = grad.get();
    segment.master = master[0].data();
    segment.m = m[0].data();
    segment.v = v[0].data();
    segment.dst = scratch.data();
    segment.n_elems = n;
    tw_quant_t *quant = nullptr;
    ASSERT_EQ(tw_quant_create(&params, &quant), TW_OK);
    EXPECT_EQ(tw_quant_adamw_encode_delta(quant, &args, &adamw, &segment, 1), TW_OK);
    tw_quant_destroy(quant);
    Array weights(TW_TYPE_BF16, Floats(n));
    const tw_cuda_adamw_tensor_t tensor = {
        grad.get(), master[1].data(), m[1].data(), v[1].data(), weights.get(), TW_TYPE_BF16, n};
    ASSERT_RUNS(tw_cuda_adamw(&adamw, &tensor, nullptr));
    EXPECT_EQ(master[0], master[1]);
    EXPECT_EQ(m[0], m[1]);
    EXPECT_EQ(v[0], v[1]);
    weights.expect(tw::on_cpu(master[0]), "weights");
}

TEST_F(CudaOptimizer, NonsenseIsRefused)
{
    tw_quant_adamw_t adamw = {0.1, 0.9, 0.9, 1e-8, 0, 0, TW_TYPE_BF16, nullptr};
    const tw_cuda_adamw_tensor_t tensor = {};
    expect_log("adamw: the first step is 1");
    EXPECT_EQ(tw_cuda_adamw(&adamw, &tensor, nullptr), TW_ERR_INVALID);
    expect_log("norm of gradients: there is no kernel for fp16");
    EXPECT_EQ(tw_cuda_norm_bins(TW_TYPE_FP16, nullptr, 1, nullptr, nullptr), TW_ERR_INVALID);
    adamw.grad_type = TW_TYPE_FP16;
    expect_log("adamw: there is no kernel for fp16");
    EXPECT_EQ(tw_cuda_adamw(&adamw, &tensor, nullptr), TW_ERR_INVALID);
}

} // namespace
