/* Kernels that go element by element, on the emulated device: the bits of the CPU's functions. */
#include <cmath>
#include <random>

#include "core/core.h"
#include "quant/quant.h"
#include "tests/common/fixture.h"
#include "tests/trainer/cuda/arrays.h"
#include "trainer/cuda/cuda.h"
#include "trainer/model/kernels.h"

namespace
{

using tw::Array;
using tw::Floats;

/* Values as layers have them, and what they must come through: zeros, huge and tiny ones, infinities, NaN. */
Floats make_values(size_t n, uint32_t seed, float scale)
{
    const float special[] = {0.0f, -0.0f, 1e30f, -1e30f, 1e-40f, -90.0f, 89.0f, INFINITY, -INFINITY, NAN};
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, scale);
    Floats values(n);
    for (size_t i = 0; i < n; i++) {
        values[i] = i % 97 == 13 ? special[i / 97 % 10] : normal(random);
    }
    return values;
}

class CudaPointwise : public tw::DeviceFixture
{
  protected:
    /* Every length around octets and blocks, arrays that are aligned and that are not. */
    template <class FN>
    static void sweep(FN check)
    {
        for (tw_type_t type : {TW_TYPE_FP32, TW_TYPE_BF16}) {
            for (size_t n : {0, 1, 7, 8, 9, 255, 2048, 2049, 6001}) {
                for (size_t skew : {0, 1}) {
                    SCOPED_TRACE(std::string(tw_type_name(type)) + " [" + std::to_string(n) + "], skew " +
                                 std::to_string(skew));
                    check(type, n, skew);
                }
            }
        }
    }
};

TEST_F(CudaPointwise, Gelu)
{
    sweep([](tw_type_t type, size_t n, size_t skew) {
        Array x(type, make_values(n, 1, 2), skew), y(type, Floats(n), skew), d(type, make_values(n, 2, 1), 0);
        Floats in = x.values(), forward(n), backward = d.values();
        tw_kernels()->gelu_forward(in.data(), n, forward.data());
        tw_kernels()->gelu_backward(in.data(), n, backward.data());
        ASSERT_RUNS(tw_cuda_gelu_forward(type, x.get(), n, y.get(), nullptr));
        ASSERT_RUNS(tw_cuda_gelu_backward(type, x.get(), n, d.get(), nullptr));
        y.expect(forward, "y");
        d.expect(backward, "d");
        x.expect(in, "x is only read");
        ASSERT_RUNS(tw_cuda_gelu_forward(type, x.get(), n, x.get(), nullptr));
        x.expect(forward, "in place");
    });
}

TEST_F(CudaPointwise, Swiglu)
{
    sweep([](tw_type_t type, size_t n, size_t skew) {
        Array gate(type, make_values(n, 3, 2), 0), up(type, make_values(n, 4, 1), skew);
        Array y(type, Floats(n), 0), dy(type, make_values(n, 5, 1), skew), d_gate(type, Floats(n), 0);
        Floats g = gate.values(), u = up.values(), forward(n), by_up = dy.values(), by_gate(n);
        tw_kernels()->swiglu_forward(g.data(), u.data(), n, forward.data());
        tw_kernels()->swiglu_backward(g.data(), u.data(), n, by_up.data(), by_gate.data());
        ASSERT_RUNS(tw_cuda_swiglu_forward(type, gate.get(), up.get(), n, y.get(), nullptr));
        ASSERT_RUNS(tw_cuda_swiglu_backward(type, gate.get(), up.get(), n, dy.get(), d_gate.get(), nullptr));
        y.expect(forward, "y");
        dy.expect(by_up, "by up");
        d_gate.expect(by_gate, "by gate");
        gate.expect(g, "gate is only read");
        up.expect(u, "up is only read");
    });
}

TEST_F(CudaPointwise, Types)
{
    sweep([](tw_type_t /*type*/, size_t n, size_t skew) {
        Array wide(TW_TYPE_FP32, make_values(n, 9, 2), skew), narrow(TW_TYPE_BF16, Floats(n), 0);
        Floats scaled = wide.values();
        for (float &value : scaled) {
            value *= 0.7f;
        }
        uint16_t *bits = static_cast<uint16_t *>(narrow.get());
        ASSERT_RUNS(tw_cuda_narrow(static_cast<float *>(wide.get()), n, 0.7f, bits, nullptr));
        narrow.expect(scaled, "narrow");
    });
}

/* More than the largest grid takes at once: threads have several turns. */
TEST_F(CudaPointwise, ManyTurns)
{
    const size_t n = ((size_t)1 << 22) + 4099;
    Array x(TW_TYPE_FP32, make_values(n, 6, 2)), y(TW_TYPE_FP32, Floats(n));
    Floats in = x.values(), forward(n);
    tw_kernels()->gelu_forward(in.data(), n, forward.data());
    ASSERT_RUNS(tw_cuda_gelu_forward(TW_TYPE_FP32, x.get(), n, y.get(), nullptr));
    y.expect(forward, "y");
}

TEST_F(CudaPointwise, OtherTypesAreRefused)
{
    expect_log("gelu: there is no kernel for fp16");
    EXPECT_EQ(tw_cuda_gelu_forward(TW_TYPE_FP16, nullptr, 8, nullptr, nullptr), TW_ERR_INVALID);
    expect_log("swiglu backwards: there is no kernel for byte");
    EXPECT_EQ(tw_cuda_swiglu_backward(TW_TYPE_BYTE, nullptr, nullptr, 8, nullptr, nullptr, nullptr),
              TW_ERR_INVALID);
}

} // namespace
