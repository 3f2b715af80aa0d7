#include "bench/collectives/check.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "tests/common/fixture.h"

namespace
{

constexpr int kWorld = 4;
const int kNodeOf[kWorld] = {0, 0, 1, 1};

tw_quant_codec_t make_codec(int bits, int hadamard)
{
    const tw_quant_kind_t kind = bits == 4 ? TW_QUANT_INT4 : TW_QUANT_INT8;
    return {kind, 64, TW_QUANT_SCALE_BF16, TW_QUANT_ROUND_NEAREST, hadamard, 0};
}

/* Computes results as the collectives do, plainly, and has them checked; then with one element moved. */
class CheckTest : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        tw_bench_data_params_t params = {TW_TYPE_FP32, 30000, 7, nullptr};
        ASSERT_EQ(TW_OK, tw_bench_data_create(&params, &data_));
    }
    void TearDown() override
    {
        tw_bench_data_destroy(data_);
        tw::Fixture::TearDown();
    }

    tw_bench_check_params_t params(tw_coll_op_t op, const tw_quant_codec_t *codec) const
    {
        tw_bench_check_params_t p = {};
        p.data = data_;
        p.type = TW_TYPE_FP32;
        p.op = op;
        p.node_of = kNodeOf;
        p.world = kWorld;
        p.codec = codec;
        return p;
    }
    std::vector<float> input(size_t tensor, int version, int shard) const
    {
        size_t n = tw_bench_data_tensor(data_, tensor)->n_elems;
        std::vector<float> out(tw_coll_shard_elems(n, kWorld, shard));
        tw_bench_data_fill(data_, tensor, version, tw_coll_shard_offset(n, kWorld, shard), out.size(),
                           out.data());
        return out;
    }
    static std::vector<float> round_trip(const tw_quant_codec_t &codec, const std::vector<float> &x)
    {
        tw_quant_params_t params = {codec, TW_MEM_HOST, "ref"};
        tw_quant_t *quant = nullptr;
        EXPECT_EQ(TW_OK, tw_quant_create(&params, &quant));
        std::vector<char> wire(tw_quant_encoded_bytes(&codec, x.size()));
        std::vector<float> out(x.size());
        tw_quant_args_t args = {};
        args.factor = 1;
        tw_quant_segment_t encode = {x.data(), nullptr, wire.data(), x.size(), 0, 0};
        tw_quant_segment_t decode = {wire.data(), nullptr, out.data(), x.size(), 0, 0};
        EXPECT_EQ(TW_OK, tw_quant_encode(quant, &args, &encode, 1));
        EXPECT_EQ(TW_OK, tw_quant_decode(quant, &args, &decode, 1));
        tw_quant_destroy(quant);
        return out;
    }
    static void add(std::vector<float> &sum, const std::vector<float> &x)
    {
        sum.resize(x.size());
        for (size_t i = 0; i < x.size(); i++) {
            sum[i] += x[i];
        }
    }
    static void scale(std::vector<float> &x, float factor)
    {
        for (float &v : x) {
            v *= factor;
        }
    }
    /* Mean over one hop (every input encoded) or two (each node's plain sum encoded). */
    std::vector<float> reduced(size_t tensor, int shard, const tw_quant_codec_t &codec, bool two_hop) const
    {
        std::vector<float> sum;
        for (int node = 0; node < 2; node++) {
            std::vector<float> node_sum;
            for (int r = 2 * node; r < 2 * node + 2; r++) {
                std::vector<float> x = input(tensor, r, shard);
                add(node_sum, two_hop ? x : round_trip(codec, x));
            }
            add(sum, two_hop ? round_trip(codec, node_sum) : node_sum);
        }
        scale(sum, 1.0f / kWorld);
        return sum;
    }
    static tw_bench_check_sums_t check(const tw_bench_check_params_t &p, size_t tensor, int shard,
                                       const std::vector<float> &result)
    {
        tw_bench_check_sums_t sums = {};
        EXPECT_EQ(TW_OK, tw_bench_check_shard(&p, tensor, shard, result.data(), &sums));
        return sums;
    }
    /* Right as it is; wrong as soon as one element is off by a step of its block, or is no number. */
    static void expect_sharp(const tw_bench_check_params_t &p, size_t tensor, int shard,
                             std::vector<float> result, double step)
    {
        tw_bench_check_sums_t sums = check(p, tensor, shard, result);
        EXPECT_EQ(0u, sums.n_outside);
        EXPECT_GT(sums.ref2, 0);
        size_t at = result.size() / 2;
        float before = result[at];
        result[at] += static_cast<float>(step);
        EXPECT_GT(check(p, tensor, shard, result).n_outside, 0u) << "an error of " << step << " was not seen";
        result[at] = NAN;
        EXPECT_GT(check(p, tensor, shard, result).n_outside, 0u);
        result[at] = before;
    }
    static double largest(const std::vector<float> &x)
    {
        double most = 0;
        for (float v : x) {
            most = std::max(most, std::fabs(double(v)));
        }
        return most;
    }

    tw_bench_data_t *data_ = nullptr;
};

TEST_F(CheckTest, PlainGatherAllowsNoErrorAtAll)
{
    tw_bench_check_params_t p = params(TW_COLL_ALLGATHER, nullptr);
    for (int shard = 0; shard < kWorld; shard++) {
        std::vector<float> x = input(2, 0, shard);
        tw_bench_check_sums_t sums = check(p, 2, shard, x);
        EXPECT_EQ(0u, sums.n_outside);
        EXPECT_EQ(0, sums.err2);
        x[5] = std::nextafter(x[5], 1.0f);
        EXPECT_EQ(1u, check(p, 2, shard, x).n_outside);
    }
}

TEST_F(CheckTest, QuantizedGather)
{
    for (int bits : {8, 4}) {
        for (int hadamard : {0, 1}) {
            tw_quant_codec_t codec = make_codec(bits, hadamard);
            tw_bench_check_params_t p = params(TW_COLL_ALLGATHER, &codec);
            for (size_t tensor : {size_t(0), size_t(2), size_t(9)}) {
                std::vector<float> x = input(tensor, 0, 1);
                /* A step of the largest block; rotated, sqrt(32) of them are allowed to meet in one
                 * element. */
                double step =
                    2 * tw_quant_error_bound(&codec, largest(x) * (hadamard ? 6 : 1)) * (hadamard ? 6 : 1);
                expect_sharp(p, tensor, 1, round_trip(codec, x), step);
            }
        }
    }
}

TEST_F(CheckTest, RmseIsThatOfTheResult)
{
    tw_quant_codec_t codec = make_codec(4, 0);
    tw_bench_check_params_t p = params(TW_COLL_ALLGATHER, &codec);
    std::vector<float> x = input(2, 0, 0), y = round_trip(codec, x);
    double err2 = 0, ref2 = 0, most = 0;
    for (size_t i = 0; i < x.size(); i++) {
        double diff = double(y[i]) - x[i];
        err2 += diff * diff;
        ref2 += double(x[i]) * x[i];
        most = std::max(most, std::fabs(diff));
    }
    tw_bench_check_sums_t sums = check(p, 2, 0, y);
    EXPECT_DOUBLE_EQ(err2, sums.err2);
    EXPECT_DOUBLE_EQ(ref2, sums.ref2);
    EXPECT_DOUBLE_EQ(most, sums.max_abs_err);
    EXPECT_GT(most, 0);
}

TEST_F(CheckTest, PlainMeanAllowsRoundingOnly)
{
    tw_bench_check_params_t p = params(TW_COLL_REDUCE_SCATTER, nullptr);
    std::vector<float> sum;
    double magnitude = 0;
    for (int r = 0; r < kWorld; r++) {
        add(sum, input(2, r, 3));
        magnitude += largest(input(2, r, 3));
    }
    scale(sum, 1.0f / kWorld);
    expect_sharp(p, 2, 3, sum, magnitude * (2 * kWorld + 80) * 0x1p-24);
    /* A sum that was not divided, or divided by the nodes alone, is wrong. */
    scale(sum, 2);
    EXPECT_GT(check(p, 2, 3, sum).n_outside, sum.size() / 2);
}

TEST_F(CheckTest, QuantizedMeanOverOneHopAndTwo)
{
    for (int bits : {8, 4}) {
        for (int hadamard : {0, 1}) {
            for (int two_hop : {0, 1}) {
                tw_quant_codec_t codec = make_codec(bits, hadamard);
                tw_bench_check_params_t p = params(TW_COLL_REDUCE_SCATTER, &codec);
                p.two_hop = two_hop;
                std::vector<float> mean = reduced(2, 2, codec, two_hop);
                expect_sharp(p, 2, 2, mean, 1.0);
                if (bits == 8) {
                    scale(mean, 1.5f);
                    EXPECT_GT(check(p, 2, 2, mean).n_outside, 0u);
                }
            }
        }
    }
}

TEST_F(CheckTest, InnerCodecWidensTheBound)
{
    tw_quant_codec_t codec = make_codec(8, 0), inner = make_codec(4, 0);
    std::vector<float> sum;
    for (int node = 0; node < 2; node++) {
        std::vector<float> node_sum;
        add(node_sum, round_trip(inner, input(2, 2 * node, 0)));
        add(node_sum, round_trip(inner, input(2, 2 * node + 1, 0)));
        add(sum, round_trip(codec, node_sum));
    }
    scale(sum, 1.0f / kWorld);
    tw_bench_check_params_t p = params(TW_COLL_REDUCE_SCATTER, &codec);
    p.two_hop = 1;
    EXPECT_GT(check(p, 2, 0, sum).n_outside, 0u) << "an error of 4 bits must not pass as one of 8";
    p.inner = &inner;
    expect_sharp(p, 2, 0, sum, 1.0);
}

TEST_F(CheckTest, AllReduceEncodesTheMeanOnceMore)
{
    tw_quant_codec_t codec = make_codec(8, 0);
    tw_bench_check_params_t p = params(TW_COLL_ALLREDUCE, &codec);
    expect_sharp(p, 2, 1, round_trip(codec, reduced(2, 1, codec, false)), 1.0);
}

TEST_F(CheckTest, EmptyShardsAreRight)
{
    tw_bench_data_params_t params_one = {TW_TYPE_FP32, 1, 7, nullptr};
    tw_bench_data_destroy(data_);
    ASSERT_EQ(TW_OK, tw_bench_data_create(&params_one, &data_));
    tw_bench_check_params_t p = params(TW_COLL_ALLGATHER, nullptr);
    EXPECT_EQ(0u, check(p, 0, 3, {}).n_outside);
    EXPECT_EQ(0u, check(p, 0, 0, input(0, 0, 0)).n_outside);
}

} // namespace
