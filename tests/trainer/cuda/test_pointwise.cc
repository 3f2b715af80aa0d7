/* Kernels that go element by element, on the emulated device: the bits of the CPU's functions. */
#include <cmath>
#include <random>

#include "core/core.h"
#include "quant/quant.h"
#include "tests/common/fixture.h"
#include "tests/trainer/cuda/emulated.h"
#include "trainer/cuda/pointwise.cuh"
#include "trainer/model/kernels.h"

namespace
{

namespace kernels = tw_trainer_kernels;
using Floats = std::vector<float>;

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

/* An array of a type, `skew` elements off 16 bytes, with what must not be written behind it. */
class Array
{
  public:
    Array(tw_type_t type, const Floats &values, size_t skew) : type_(type), n_(values.size())
    {
        memory_.assign((n_ + skew) * tw_type_bytes(type) + 64, 0xee);
        at_ = (16 - reinterpret_cast<uintptr_t>(memory_.data()) % 16) % 16 + skew * tw_type_bytes(type);
        tw_convert_from_fp32(type, values.data(), 1, get(), n_);
    }
    void *get()
    {
        return memory_.data() + at_;
    }
    /* As they are in memory, widened. */
    Floats values() const
    {
        Floats wide(n_);
        tw_convert_to_fp32(type_, memory_.data() + at_, wide.data(), n_);
        return wide;
    }
    void expect(const Floats &wanted, const char *what) const
    {
        const size_t bytes = n_ * tw_type_bytes(type_);
        std::vector<uint8_t> rounded(bytes + 1);
        tw_convert_from_fp32(type_, wanted.data(), 1, rounded.data(), n_);
        const Floats got = values();
        for (size_t i = 0; i < n_; i++) {
            if (std::isnan(wanted[i])) {
                ASSERT_TRUE(std::isnan(got[i])) << what << " " << i;
            } else {
                const size_t size = tw_type_bytes(type_);
                ASSERT_EQ(memcmp(memory_.data() + at_ + i * size, rounded.data() + i * size, size), 0)
                    << what << " " << i << ": " << got[i] << ", not " << wanted[i];
            }
        }
        for (size_t i = at_ + bytes; i < memory_.size(); i++) {
            ASSERT_EQ(memory_[i], 0xee) << what << ": written behind it";
        }
    }

  private:
    tw_type_t type_;
    size_t n_, at_;
    std::vector<uint8_t> memory_;
};

class CudaPointwise : public tw::Fixture
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
    static constexpr tw::Emulated device = {};
};

TEST_F(CudaPointwise, Gelu)
{
    sweep([](tw_type_t type, size_t n, size_t skew) {
        Array x(type, make_values(n, 1, 2), skew), y(type, Floats(n), skew), d(type, make_values(n, 2, 1), 0);
        Floats in = x.values(), forward(n), backward = d.values();
        tw_kernels()->gelu_forward(in.data(), n, forward.data());
        tw_kernels()->gelu_backward(in.data(), n, backward.data());
        ASSERT_EQ(kernels::gelu_forward(device, type, x.get(), n, y.get()), TW_OK);
        ASSERT_EQ(kernels::gelu_backward(device, type, x.get(), n, d.get()), TW_OK);
        y.expect(forward, "y");
        d.expect(backward, "d");
        x.expect(in, "x is only read");
        ASSERT_EQ(kernels::gelu_forward(device, type, x.get(), n, x.get()), TW_OK);
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
        ASSERT_EQ(kernels::swiglu_forward(device, type, gate.get(), up.get(), n, y.get()), TW_OK);
        ASSERT_EQ(kernels::swiglu_backward(device, type, gate.get(), up.get(), n, dy.get(), d_gate.get()),
                  TW_OK);
        y.expect(forward, "y");
        dy.expect(by_up, "by up");
        d_gate.expect(by_gate, "by gate");
        gate.expect(g, "gate is only read");
        up.expect(u, "up is only read");
    });
}

/* More than the largest grid takes at once: every thread has several turns. */
TEST_F(CudaPointwise, ManyTurns)
{
    kernels::Pointwise p = {};
    const size_t n = 3 * kernels::threads * kernels::octet_elems + 5;
    Array x(TW_TYPE_FP32, make_values(n, 6, 2), 0), y(TW_TYPE_FP32, Floats(n), 0);
    Floats in = x.values(), forward(n);
    tw_kernels()->gelu_forward(in.data(), n, forward.data());
    p.in[0] = x.get();
    p.out[0] = y.get();
    p.n = n;
    using Kernel = kernels::PointwiseKernel<float, kernels::GeluForward>;
    ASSERT_EQ(device.run<Kernel>(1, "gelu", p), TW_OK);
    y.expect(forward, "y");
}

TEST_F(CudaPointwise, OtherTypesAreRefused)
{
    expect_log("gelu: there is no kernel for fp16");
    EXPECT_EQ(kernels::gelu_forward(device, TW_TYPE_FP16, nullptr, 8, nullptr), TW_ERR_INVALID);
    expect_log("swiglu backwards: there is no kernel for byte");
    EXPECT_EQ(kernels::swiglu_backward(device, TW_TYPE_BYTE, nullptr, nullptr, 8, nullptr, nullptr),
              TW_ERR_INVALID);
}

} // namespace
