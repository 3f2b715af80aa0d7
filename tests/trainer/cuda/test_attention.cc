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
     * units; y by a row's worth of that. Tensor cores get probabilities rounded to bf16. */
    double y_bound() const
    {
        const double most = largest(qkv.values());
        const double of_score = tw::fp32_unit * (double(s.of.width) + 8) * most * most * 4;
        const double of_factor = s.type == TW_TYPE_BF16 ? tw::bf16_unit / 2 : 0;
        return (of_score + of_factor + tw::fp32_unit * double(s.of.seq_len + 8)) * most;
    }
    /* Gradients of fp32 are sums over T of products of such things. */
    double gradient_bound() const
    {
        const double terms = double(s.of.heads / s.of.kv_heads) * 16; /* large probabilities of a key */
        return terms * y_bound() * (1 + largest(dy.values())) * (1 + largest(qkv.values()));
    }

    /* Those of bf16, a head of a row at a time: y, factors and the result are rounded to half a unit each.
     * Terms of a sum may cancel, and rows differ: what is off is measured by a usual row, too. */
    void expect_gradients_near(const Floats &wanted) const
    {
        const Floats got = dqkv.values();
        const size_t width = s.of.width, n = got.size() / width;
        Floats of_row(n), off(n);
        double usual = 0;
        for (size_t i = 0; i < got.size(); i++) {
            const float less = got[i] - wanted[i];
            of_row[i / width] += wanted[i] * wanted[i];
            off[i / width] += less * less;
            usual += double(wanted[i]) * wanted[i];
        }
        usual = std::sqrt(usual / double(n));
        for (size_t r = 0; r < n; r++) {
            ASSERT_LE(std::sqrt(off[r]), 2 * tw::bf16_unit * (std::sqrt(of_row[r]) + usual))
                << "row " << r * width / stride << ", channels from " << r * width % stride << " on";
        }
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
    if (shape.type == TW_TYPE_BF16) {
        c.expect_gradients_near(dqkv);
    } else {
        c.dqkv.expect_near(dqkv, c.gradient_bound(), "dqkv");
    }
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

/* Lengths around tiles of 32, 64 and 128. */
TEST_F(CudaAttention, Lengths)
{
    for (size_t seq_len : {1, 2, 63, 64, 65, 150}) {
        sweep({{TW_TYPE_FP32, {1, seq_len, 1, 1, 16, 0, nullptr}, 0}});
    }
    for (size_t seq_len : {1, 2, 31, 32, 33, 64, 65, 127, 128, 129, 300}) {
        sweep({{TW_TYPE_BF16, {1, seq_len, 1, 1, 16, 0, nullptr}, 0}});
    }
}

/* Widths around what a product takes at a time and what a kernel is made for. */
TEST_F(CudaAttention, Widths)
{
    for (size_t width : {1, 7, 31, 64, 72, 128, 136, 256}) {
        sweep({{TW_TYPE_FP32, {1, 67, 1, 1, width, 0, nullptr}, 0}});
    }
    for (size_t width : {1, 7, 16, 31, 64, 72, 80, 96, 128, 136, 256}) {
        sweep({{TW_TYPE_BF16, {1, 140, 1, 1, width, 0, nullptr}, 0}});
    }
    sweep({{TW_TYPE_FP32, {1, 40, 2, 1, 24, 0, nullptr}, 1},
           {TW_TYPE_BF16, {1, 140, 2, 1, 24, 0, nullptr}, 3},
           {TW_TYPE_BF16, {1, 140, 1, 1, 64, 0, nullptr}, 1}});
}

/* Many heads of q share one of k and v, in sequences of some tiles. */
TEST_F(CudaAttention, Heads)
{
    sweep({{TW_TYPE_FP32, {2, 70, 4, 4, 8, 0, nullptr}, 0},
           {TW_TYPE_FP32, {3, 70, 6, 2, 8, 0, nullptr}, 0},
           {TW_TYPE_BF16, {2, 70, 4, 4, 8, 0, nullptr}, 0},
           {TW_TYPE_BF16, {2, 200, 3, 1, 16, 0, nullptr}, 0},
           {TW_TYPE_BF16, {2, 70, 6, 2, 80, 0, nullptr}, 0}});
}

TEST_F(CudaAttention, Windows)
{
    for (size_t window : {1, 5, 63, 64, 65, 129, 300}) {
        sweep({{TW_TYPE_FP32, {1, 200, 1, 1, 8, window, nullptr}, 0},
               {TW_TYPE_BF16, {1, 290, 1, 1, 8, window, nullptr}, 0}});
    }
    sweep({{TW_TYPE_BF16, {2, 130, 4, 2, 128, 33, nullptr}, 0}});
}

/* Documents of all sizes beside tiles, in each sequence others, with a window and without. */
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
    for (tw_type_t type : {TW_TYPE_FP32, TW_TYPE_BF16}) {
        sweep({{type, {batch, seq_len, 2, 1, 8, 0, starts.data()}, 0},
               {type, {batch, seq_len, 1, 1, 8, 50, starts.data()}, 0}});
    }
}

/* Blocks and warps run in another order each time: bits are the same. */
TEST_F(CudaAttention, SameBitsAgain)
{
    const Shape shape = {TW_TYPE_BF16, {2, 200, 4, 2, 64, 0, nullptr}, 0};
    Case first(shape), again(shape);
    first.run();
    again.run();
    again.y.expect(first.y.values(), "y");
    again.dqkv.expect(first.dqkv.values(), "dqkv");
    EXPECT_EQ(memcmp(first.lse.data(), again.lse.data(), first.lse.size() * sizeof(float)), 0);
}

/* Scores of hundreds: exponentials are taken of differences. */
TEST_F(CudaAttention, LargeScores)
{
    for (tw_type_t type : {TW_TYPE_FP32, TW_TYPE_BF16}) {
        Case c({type, {1, 100, 1, 1, 64, 0, nullptr}, 0}, 20);
        c.run();
        for (float value : c.y.values()) {
            ASSERT_TRUE(std::isfinite(value));
        }
        for (float value : c.dqkv.values()) {
            ASSERT_TRUE(std::isfinite(value));
        }
    }
}

/* What sees a NaN is one; what does not see it, is not. Only of v, whose products are made with weights of 0,
 * a tile of 64 may have it whole, as on the CPU; on tensor cores the queries of a warp. */
TEST_F(CudaAttention, NanSpreadsToWhatSeesIt)
{
    const size_t n = 100, at = 70, width = 8;
    for (tw_type_t type : {TW_TYPE_FP32, TW_TYPE_BF16}) {
        for (float bad : {NAN, INFINITY}) {
            for (size_t part : {size_t(0), width, 2 * width}) { /* of q, k, v */
                Case c({type, {1, n, 1, 1, width, 0, nullptr}, 0});
                tw_convert_from_fp32(type, &bad, 1, c.qkv.get(at * c.stride + part), 1);
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
