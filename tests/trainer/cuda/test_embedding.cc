/* Embeddings on the emulated device: the bits of trainer/model, which adds rows one after the other. */
#include "core/core.h"
#include "tests/common/fixture.h"
#include "tests/trainer/cuda/arrays.h"
#include "trainer/cuda/embedding.h"

namespace
{

using tw::Array;
using tw::Floats;
using tw::normal_values;
using Tokens = tw::Device<int32_t>;

struct Shape {
    tw_type_t weight_type, type;
    size_t seq_len, channels, skew;
    bool has_positions;
};

class CudaEmbedding : public tw::DeviceFixture
{
  protected:
    static constexpr size_t vocab = 700;

    static tw_cuda_embedding_t describe(const Shape &s, const Tokens &tokens)
    {
        return {s.weight_type, s.type, tokens.size(), s.seq_len, s.channels, tokens.data()};
    }

    static void forward(const Shape &s, const Tokens &tokens)
    {
        const tw_cuda_embedding_t embedding = describe(s, tokens);
        const size_t c = s.channels;
        Array words(s.weight_type, normal_values(vocab * c, 1), s.skew);
        Array positions(s.weight_type, normal_values(s.seq_len * c, 2), s.skew);
        Array x(s.type, Floats(tokens.size() * c), s.skew);
        const Floats word = words.values(), position = positions.values();
        Floats wanted(tokens.size() * c);
        for (size_t i = 0; i < wanted.size(); i++) {
            wanted[i] = word[size_t(tokens[i / c]) * c + i % c];
            wanted[i] += s.has_positions ? position[i / c % s.seq_len * c + i % c] : 0;
        }
        ASSERT_RUNS(tw_cuda_embedding_forward(&embedding, words.get(),
                                              s.has_positions ? positions.get() : nullptr, x.get(), nullptr));
        x.expect(wanted, "x");
    }

    static void backward(const Shape &s, const Tokens &tokens)
    {
        const tw_cuda_embedding_t embedding = describe(s, tokens);
        const size_t c = s.channels;
        Array dx(s.type, normal_values(tokens.size() * c, 3), s.skew);
        Array words(TW_TYPE_FP32, normal_values(vocab * c, 4));
        Array positions(TW_TYPE_FP32, normal_values(s.seq_len * c, 5));
        Floats by_word = words.values(), by_position = positions.values();
        const Floats d = dx.values();
        for (size_t i = 0; i < d.size(); i++) {
            by_word[size_t(tokens[i / c]) * c + i % c] += d[i];
            by_position[i / c % s.seq_len * c + i % c] += s.has_positions ? d[i] : 0;
        }
        ASSERT_RUNS(tw_cuda_embedding_backward(
            &embedding, dx.get(), static_cast<float *>(words.get()),
            s.has_positions ? static_cast<float *>(positions.get()) : nullptr, nullptr));
        words.expect(by_word, "by words");
        positions.expect(by_position, "by positions");
    }

    /* n random words. */
    static Tokens random_tokens(size_t n, size_t words)
    {
        std::mt19937 random(7);
        Tokens tokens(n);
        std::generate(tokens.begin(), tokens.end(), [&] { return int32_t(random() % words); });
        return tokens;
    }
};

TEST_F(CudaEmbedding, Forward)
{
    for (tw_type_t weight_type : {TW_TYPE_FP32, TW_TYPE_BF16}) {
        for (tw_type_t type : {TW_TYPE_FP32, TW_TYPE_BF16}) {
            for (size_t rows : {0, 1, 8, 30}) {
                for (size_t channels : {8, 31, 264}) {
                    forward({weight_type, type, 10, channels, 0, true}, random_tokens(rows, vocab));
                    forward({weight_type, type, 10, channels, 1, false}, random_tokens(rows, vocab));
                    ASSERT_FALSE(HasFatalFailure()) << rows << " " << channels;
                }
            }
        }
    }
}

TEST_F(CudaEmbedding, Backward)
{
    for (tw_type_t type : {TW_TYPE_FP32, TW_TYPE_BF16}) {
        for (size_t rows : {0, 1, 8, 30, 300}) {
            for (size_t channels : {8, 31, 264}) {
                backward({type, type, 10, channels, channels % 2, true}, random_tokens(rows, vocab));
                ASSERT_FALSE(HasFatalFailure()) << rows << " " << channels;
            }
        }
    }
    backward({TW_TYPE_FP32, TW_TYPE_FP32, 10, 8, 0, false}, random_tokens(30, vocab));
}

/* More rows of a block's words than it lists at a time: one word, and words that one block has. */
TEST_F(CudaEmbedding, FullLists)
{
    const Shape shape = {TW_TYPE_BF16, TW_TYPE_BF16, 1500, 8, 0, true};
    Tokens tokens(3000, 5);
    backward(shape, tokens);
    tokens = random_tokens(3000, 5);
    for (int32_t &token : tokens) {
        token *= 128;
    }
    backward(shape, tokens);
}

TEST_F(CudaEmbedding, OtherTypesAreRefused)
{
    tw_cuda_embedding_t embedding = {TW_TYPE_FP16, TW_TYPE_BF16, 1, 1, 1, nullptr};
    expect_log("embedding: there is no kernel for fp16");
    EXPECT_EQ(tw_cuda_embedding_forward(&embedding, nullptr, nullptr, nullptr, nullptr), TW_ERR_INVALID);
    embedding.type = TW_TYPE_FP16;
    expect_log("embedding backwards: there is no kernel for fp16");
    EXPECT_EQ(tw_cuda_embedding_backward(&embedding, nullptr, nullptr, nullptr, nullptr), TW_ERR_INVALID);
}

} // namespace
