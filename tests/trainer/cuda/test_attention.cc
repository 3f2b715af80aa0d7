/* Attention on the emulated device beside the CPU's, which makes rows of T x T matrices. */
#include "core/core.h"
#include "tests/common/fixture.h"
#include "tests/trainer/cuda/arrays.h"
#include "trainer/cuda/attention.h"
#include "trainer/model/attention.h"

namespace
{

using tw::Array;
using tw::Device;
using tw::Floats;
using tw::largest;
using tw::normal_values;

struct Shape {
    tw_type_t type;
    tw_attention_shape_t of;
    size_t skew;
};

/* The CPU's arithmetic is fp32 with fp32 factors. */
class Cpu
{
  public:
    Cpu()
    {
        EXPECT_EQ(tw_products_create(&products), TW_OK);
        compute.products = &products;
        compute.kernels = tw_kernels();
        compute.type = TW_TYPE_FP32;
    }
    ~Cpu()
    {
        tw_products_destroy(products);
    }
    Cpu(const Cpu &) = delete;
    Cpu &operator=(const Cpu &) = delete;

    tw_products_t *products = nullptr;
    tw_compute_t compute = {};
};

/* q, k and v in one row, as a product leaves them, and their gradients likewise. */
struct Case {
    Shape s;
    size_t rows, q_width, kv_width, stride;
    Array qkv, y, dy, dqkv;
    Device<float> lse, workspace;
    tw_cuda_attention_t attention = {};
    tw_cuda_attention_gradients_t gradients = {};

    explicit Case(const Shape &shape, float deviation = 1)
        : s(shape), rows(s.of.batch * s.of.seq_len), q_width(s.of.heads * s.of.width),
          kv_width(s.of.kv_heads * s.of.width), stride(q_width + 2 * kv_width),
          qkv(s.type, normal_values(rows * stride, 1, 0, deviation), s.skew),
          y(s.type, Floats(rows * q_width, 7.0f), s.skew),
          dy(s.type, normal_values(rows * q_width, 2), s.skew),
          dqkv(s.type, Floats(rows * stride, 7.0f), s.skew), lse(rows * s.of.heads, NAN)
    {
        attention.type = s.type;
        attention.batch = s.of.batch;
        attention.seq_len = s.of.seq_len;
        attention.heads = s.of.heads;
        attention.kv_heads = s.of.kv_heads;
        attention.width = s.of.width;
        attention.window = s.of.window;
        attention.starts = s.of.starts;
        attention.q = qkv.get();
        attention.k = qkv.get(q_width);
        attention.v = qkv.get(q_width + kv_width);
        attention.q_stride = attention.k_stride = attention.v_stride = stride;
        attention.lse = lse.data();
        gradients.y = y.get();
        gradients.dy = dy.get();
        gradients.y_stride = gradients.dy_stride = q_width;
        gradients.dq = dqkv.get();
        gradients.dk = dqkv.get(q_width);
        gradients.dv = dqkv.get(q_width + kv_width);
        gradients.dq_stride = gradients.dk_stride = gradients.dv_stride = stride;
        workspace.assign(tw_cuda_attention_workspace_bytes(&attention) / sizeof(float), NAN);
        gradients.workspace = workspace.data();
    }

    void run()
    {
        ASSERT_RUNS(tw_cuda_attention_forward(&attention, y.get(), q_width, nullptr));
        ASSERT_RUNS(tw_cuda_attention_backward(&attention, &gradients, nullptr));
    }

    /* A score is off by the rounding of D products, an exponential by so much of itself, and by its own two
     * units; y by a row's worth of that. Gradients are sums over T of products of such things. */
    double y_bound() const
    {
        const double most = largest(qkv.values());
        const double of_score = tw::fp32_unit * (double(s.of.width) + 8) * most * most * 4;
        return (of_score + tw::fp32_unit * double(s.of.seq_len + 8)) * most;
    }
    double gradient_bound() const
    {
        const double of_y = s.type == TW_TYPE_BF16 ? tw::bf16_unit * largest(y.values()) : 0;
        const double terms = double(s.of.heads / s.of.kv_heads) * 16; /* large probabilities of a key */
        return terms * (y_bound() + of_y) * (1 + largest(dy.values())) * (1 + largest(qkv.values()));
    }
};

void check(const Cpu &cpu, const Shape &shape)
{
    Case c(shape);
    const Floats wide = c.qkv.values();
    Floats scratch(tw_attention_scratch_elems(shape.of.seq_len)), y(c.rows * c.q_width);
    Floats dqkv(c.rows * c.stride);
    tw_attention_forward(&cpu.compute, &shape.of, wide.data(), scratch.data(), y.data());
    tw_attention_backward(&cpu.compute, &shape.of, wide.data(), c.dy.values().data(), scratch.data(),
                          dqkv.data());
    c.run();
    c.y.expect_near(y, c.y_bound(), "y");
    c.dqkv.expect_near(dqkv, c.gradient_bound(), "dqkv");
    c.qkv.expect(wide, "qkv is only read");
}

class CudaAttention : public tw::DeviceFixture
{
  protected:
    Cpu cpu;

    void sweep(const std::vector<Shape> &shapes)
    {
        for (const Shape &s : shapes) {
            SCOPED_TRACE(std::string(tw_type_name(s.type)) + " B " + std::to_string(s.of.batch) + " T " +
                         std::to_string(s.of.seq_len) + " H " + std::to_string(s.of.heads) + " K " +
                         std::to_string(s.of.kv_heads) + " D " + std::to_string(s.of.width) + " window " +
                         std::to_string(s.of.window));
            check(cpu, s);
            if (HasFatalFailure()) {
                return;
            }
        }
    }
};

/* Lengths around tiles of 64. */
TEST_F(CudaAttention, Lengths)
{
    for (tw_type_t type : {TW_TYPE_FP32, TW_TYPE_BF16}) {
        for (size_t seq_len : {1, 2, 63, 64, 65, 150}) {
            sweep({{type, {1, seq_len, 1, 1, 16, 0, nullptr}, 0}});
        }
    }
}

/* Widths around what a product takes at a time and what a kernel is made for. */
TEST_F(CudaAttention, Widths)
{
    for (size_t width : {1, 7, 31, 64, 72, 128, 136, 256}) {
        sweep({{TW_TYPE_FP32, {1, 67, 1, 1, width, 0, nullptr}, 0},
               {TW_TYPE_BF16, {1, 67, 1, 1, width, 0, nullptr}, 0}});
    }
    sweep(
        {{TW_TYPE_FP32, {1, 40, 2, 1, 24, 0, nullptr}, 1}, {TW_TYPE_BF16, {1, 40, 2, 1, 24, 0, nullptr}, 3}});
}

TEST_F(CudaAttention, Heads)
{
    sweep({{TW_TYPE_FP32, {2, 70, 4, 4, 8, 0, nullptr}, 0},
           {TW_TYPE_FP32, {3, 70, 6, 2, 8, 0, nullptr}, 0},
           {TW_TYPE_BF16, {2, 70, 3, 1, 16, 0, nullptr}, 0}});
}

TEST_F(CudaAttention, Windows)
{
    for (size_t window : {1, 5, 63, 64, 65, 129, 300}) {
        sweep({{TW_TYPE_FP32, {1, 200, 1, 1, 8, window, nullptr}, 0}});
    }
    sweep({{TW_TYPE_BF16, {2, 130, 4, 2, 8, 33, nullptr}, 0}});
}

/* Documents of all sizes beside tiles of 64, in each sequence others, with a window and without. */
TEST_F(CudaAttention, Documents)
{
    constexpr size_t batch = 2, seq_len = 200;
    Device<int32_t> starts(batch * seq_len);
    for (size_t b = 0; b < batch; b++) {
        const std::vector<size_t> at =
            b ? std::vector<size_t>{0, 130} : std::vector<size_t>{0, 3, 67, 68, 158};
        for (size_t t = 0; t < seq_len; t++) {
            starts[b * seq_len + t] = int32_t(*(std::upper_bound(at.begin(), at.end(), t) - 1));
        }
    }
    sweep({{TW_TYPE_FP32, {batch, seq_len, 2, 1, 8, 0, starts.data()}, 0},
           {TW_TYPE_FP32, {batch, seq_len, 1, 1, 8, 50, starts.data()}, 0}});
}

/* Scores of hundreds: exponentials are taken of differences. */
TEST_F(CudaAttention, LargeScores)
{
    Case c({TW_TYPE_FP32, {1, 100, 1, 1, 64, 0, nullptr}, 0}, 20);
    c.run();
    for (float value : c.y.values()) {
        ASSERT_TRUE(std::isfinite(value));
    }
    for (float value : c.dqkv.values()) {
        ASSERT_TRUE(std::isfinite(value));
    }
}

/* What sees a NaN is one; what does not see it, is not. Only of v, whose products are made with weights of 0,
 * a tile of 64 may have it whole, as on the CPU. */
TEST_F(CudaAttention, NanSpreadsToWhatSeesIt)
{
    const size_t n = 100, at = 70, width = 8;
    for (float bad : {NAN, INFINITY}) {
        for (size_t part : {size_t(0), width, 2 * width}) { /* of q, k, v */
            Case c({TW_TYPE_FP32, {1, n, 1, 1, width, 0, nullptr}, 0});
            memcpy(c.qkv.get(at * c.stride + part), &bad, sizeof(bad));
            c.run();
            const Floats y = c.y.values();
            for (size_t t = 0; t < n; t++) {
                const bool sees = part == 0 ? t == at : t >= at, shares = part == 2 * width && t >= 64;
                if (sees && std::isnan(bad)) {
                    ASSERT_TRUE(std::isnan(y[t * width])) << t << " " << part;
                } else if (!sees && !shares) {
                    ASSERT_TRUE(std::isfinite(y[t * width])) << t << " " << part;
                }
            }
        }
    }
}

TEST_F(CudaAttention, NonsenseIsRefused)
{
    tw_cuda_attention_t attention = {};
    attention.type = TW_TYPE_BF16;
    attention.width = 257;
    expect_log("attention: heads of width 257; it is 1 to 256");
    EXPECT_EQ(tw_cuda_attention_forward(&attention, nullptr, 0, nullptr), TW_ERR_INVALID);
    attention.width = 8;
    attention.heads = 3;
    attention.kv_heads = 2;
    const tw_cuda_attention_gradients_t gradients = {};
    expect_log("attention: 3 heads of q are no multiple of 2 of k and v");
    EXPECT_EQ(tw_cuda_attention_backward(&attention, &gradients, nullptr), TW_ERR_INVALID);
    attention.type = TW_TYPE_FP16;
    expect_log("attention: there is no kernel for fp16");
    EXPECT_EQ(tw_cuda_attention_forward(&attention, nullptr, 0, nullptr), TW_ERR_INVALID);
}

} // namespace
