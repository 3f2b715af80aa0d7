/* Changes with loss: all replicas follow alike, the error is the codec's, and what must not be rounded is
 * not. */
#include "hpz/round.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/common/fixture.h"
#include "tests/fuzz/mutate.h"

namespace
{

using tw::fuzz::Random;

constexpr size_t n_elems = 5000, n_before = 24; /* a norm before the matrix */

/* A unit of a norm and a rounded matrix, kept by its owner and by another rank. */
class HpzRound : public tw::Fixture
{
  protected:
    void TearDown() override
    {
        tw_hpz_round_destroy(round);
        tw::Fixture::TearDown();
    }
    void begin(tw_type_t as, const char *text)
    {
        tw_hpz_round_destroy(round);
        type = as;
        size = tw_type_bytes(type);
        ASSERT_EQ(tw_quant_codec_parse(text, &codec), TW_OK);
        parts = {{0, n_before, type, 0}, {n_before * size, n_elems, type, 1}};
        ASSERT_EQ(create((n_before + n_elems) * size, &round), TW_OK);
        message.assign(tw_hpz_round_bound_bytes(round), 0xee);
        values.assign(n_before + n_elems, 0);
        for (float &value : values) {
            value = (float)random.below(2001) / 1000.0F - 1.0F;
        }
        fresh = given();
        run = other = fresh;
        tw_hpz_round_begin(round, fresh.data());
    }
    tw_status_t create(size_t run_bytes, tw_hpz_round_t **out)
    {
        tw_hpz_kept_params_t params = {"layer", run_bytes, parts.data(), parts.size(), 1, &codec};
        return tw_hpz_round_create(&params, out);
    }
    std::vector<uint8_t> given() const
    {
        std::vector<uint8_t> bytes(values.size() * size);
        tw_convert_from_fp32(type, values.data(), 1, bytes.data(), values.size());
        return bytes;
    }
    std::vector<float> numbers(const std::vector<uint8_t> &bytes) const
    {
        std::vector<float> found(bytes.size() / size);
        tw_convert_to_fp32(type, bytes.data(), found.data(), found.size());
        return found;
    }
    /* Of rounded bytes, sent to the other end. */
    size_t send(int lossless = 0)
    {
        size_t bytes = 0, rounded = 0, used = 0;
        fresh = given();
        EXPECT_EQ(
            tw_hpz_round_encode(round, run.data(), fresh.data(), lossless, message.data(), &bytes, &rounded),
            TW_OK);
        EXPECT_LE(bytes, message.size());
        EXPECT_EQ(tw_hpz_round_decode(round, other.data(), message.data(), bytes, &used), TW_OK);
        EXPECT_EQ(used, bytes);
        EXPECT_EQ(other, run);
        return rounded;
    }
    /* Nothing is left for what follows but the norm. */
    bool is_settled() const
    {
        return std::equal(fresh.begin() + (ptrdiff_t)(n_before * size), fresh.end(),
                          run.begin() + (ptrdiff_t)(n_before * size));
    }
    void move(float by)
    {
        for (float &value : values) {
            value += by * ((float)random.below(2001) / 1000.0F - 1.0F);
        }
    }

    Random random{1};
    tw_type_t type = TW_TYPE_BF16;
    size_t size = 2;
    tw_quant_codec_t codec = {};
    std::vector<tw_hpz_part_t> parts;
    tw_hpz_round_t *round = nullptr;
    std::vector<float> values;
    std::vector<uint8_t> fresh, run, other, message;
};

TEST_F(HpzRound, TheErrorIsThatOfTheLastChange)
{
    for (tw_type_t as : {TW_TYPE_BF16, TW_TYPE_FP16, TW_TYPE_FP32}) {
        for (const char *text : {"int8", "int4", "int4:block=96", "int2", "fp8"}) {
            begin(as, text);
            for (int step = 0; step < 6; step++) {
                std::vector<float> before = numbers(run);
                move(0.05F);
                ASSERT_EQ(send(), n_elems * size) << text << " step " << step;
                ASSERT_TRUE(is_settled());
                std::vector<float> wanted = numbers(given()), got = numbers(run);
                double amax = 0, most = 0;
                for (size_t e = n_before; e < got.size(); e++) {
                    amax = std::max(amax, (double)std::fabs(wanted[e] - before[e]));
                    most = std::max(most, (double)std::fabs(wanted[e] - got[e]));
                }
                /* and half a unit in the last place of a number up to 2 */
                double rounding = as == TW_TYPE_BF16 ? 0x1p-8 : as == TW_TYPE_FP16 ? 0x1p-11 : 0x1p-24;
                double bound = tw_quant_error_bound(&codec, amax);
                EXPECT_LE(most, bound + rounding) << text << " step " << step;
                EXPECT_GT(most, 0);
            }
        }
    }
}

TEST_F(HpzRound, WhatIsGivenAgainCostsNothingAndStays)
{
    begin(TW_TYPE_BF16, "int4");
    move(0.05F);
    EXPECT_EQ(send(), n_elems * size);
    std::vector<uint8_t> before = run;
    for (int again = 0; again < 2; again++) {
        EXPECT_EQ(send(), 0U);
        EXPECT_TRUE(is_settled());
        EXPECT_EQ(run, before);
    }
}

TEST_F(HpzRound, WhatMustNotBeRoundedIsLeft)
{
    begin(TW_TYPE_BF16, "int4");
    move(0.05F);
    EXPECT_EQ(send(1), 0U); /* nothing is lost */
    EXPECT_EQ(fresh, given());
    std::copy(fresh.begin(), fresh.end(), run.begin()); /* the change without loss sees to that */
    other = run;
    EXPECT_EQ(send(), 0U);
    EXPECT_EQ(fresh, given());

    for (float wrong : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        float was = values[n_before + 7];
        values[n_before + 7] = wrong;
        EXPECT_EQ(send(), 0U); /* it comes */
        EXPECT_EQ(fresh, given());
        run = other = fresh;
        values[n_before + 7] = was;
        EXPECT_EQ(send(), 0U); /* and goes */
        EXPECT_EQ(fresh, given());
        run = other = fresh;
    }
    for (float &value : values) {
        value *= 1.2F; /* by more than an eighth */
    }
    EXPECT_EQ(send(), 0U);
    EXPECT_EQ(fresh, given());
    run = other = fresh;
    for (float &value : values) {
        value *= 1.1F;
    }
    EXPECT_EQ(send(), n_elems * size);
}

TEST_F(HpzRound, PartsThatCannotBeRounded)
{
    begin(TW_TYPE_BF16, "int4");
    tw_hpz_round_t *none = nullptr;
    expect_log("cannot be rounded");
    parts = {{0, 100, TW_TYPE_BYTE, 1}};
    EXPECT_EQ(create(200, &none), TW_ERR_INVALID);
    parts = {{2, 10, TW_TYPE_FP32, 1}};
    EXPECT_EQ(create(200, &none), TW_ERR_INVALID);
    tw_hpz_kept_params_t params = {"layer", 200, parts.data(), parts.size(), 1, nullptr};
    expect_log("there is no codec");
    EXPECT_EQ(tw_hpz_round_create(&params, &none), TW_ERR_INVALID);
    parts[0].rounded = 0;
    EXPECT_EQ(tw_hpz_round_create(&params, &none), TW_OK);
    EXPECT_EQ(none, nullptr);
    EXPECT_EQ(tw_hpz_round_bound_bytes(none), 0U);
}

TEST_F(HpzRound, MessagesThatNobodyWrites)
{
    begin(TW_TYPE_BF16, "int4");
    move(0.05F);
    EXPECT_EQ(send(), n_elems * size);
    expect_log("makes no sense");
    size_t used;
    for (size_t bytes : {(size_t)0, (size_t)15, message.size() - 1}) {
        std::vector<uint8_t> shorter(message.begin(), message.begin() + (ptrdiff_t)bytes);
        EXPECT_EQ(tw_hpz_round_decode(round, other.data(), shorter.data(), bytes, &used), TW_ERR_FORMAT);
    }
    for (size_t bit : {1, 7, 8, 127}) {
        std::vector<uint8_t> wrong = message;
        wrong[bit / 8] = (uint8_t)(wrong[bit / 8] | 1 << bit % 8);
        EXPECT_EQ(tw_hpz_round_decode(round, other.data(), wrong.data(), wrong.size(), &used), TW_ERR_FORMAT);
    }
}

} // namespace
