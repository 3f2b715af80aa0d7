/* The difference between two runs as a message: any parts, any changes, nothing but what an encoder
 * writes. */
#include <cstring>

#include "hpz/change.h"
#include "tests/common/fixture.h"
#include "tests/fuzz/mutate.h"

namespace
{

using tw::fuzz::Input;
using tw::fuzz::Random;

/* Two ends that keep the same run. */
class HpzChange : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        ASSERT_EQ(tw_hpz_change_create(&change), TW_OK);
    }
    void TearDown() override
    {
        tw_hpz_change_destroy(change);
        tw_hpz_form_cleanup(&form);
        tw_hpz_bytes_cleanup(&message);
        tw::Fixture::TearDown();
    }
    static tw_hpz_kept_params_t params_of(size_t run_bytes, const std::vector<tw_hpz_part_t> &parts)
    {
        return {"layer", run_bytes, parts.data(), parts.size(), 1, nullptr};
    }
    void begin(size_t run_bytes, const std::vector<tw_hpz_part_t> &parts)
    {
        tw_hpz_form_cleanup(&form);
        tw_hpz_kept_params_t params = params_of(run_bytes, parts);
        ASSERT_EQ(tw_hpz_form_init(&form, &params), TW_OK);
        fresh.assign(run_bytes, 0);
        sender = receiver = fresh;
        sender_states.assign(form.n_coded + 1, 0);
        receiver_states = sender_states;
    }
    /* What the sender's end writes of `fresh`. */
    size_t encode()
    {
        size_t bytes = 0;
        EXPECT_EQ(tw_hpz_bytes_need(&message, tw_hpz_change_bound_bytes(&form)), TW_OK);
        EXPECT_EQ(tw_hpz_change_encode(change, &form, sender.data(), sender_states.data(), fresh.data(),
                                       message.data, &bytes, &changed),
                  TW_OK);
        EXPECT_EQ(sender, fresh);
        EXPECT_LE(bytes, tw_hpz_change_bound_bytes(&form));
        return bytes;
    }
    tw_status_t decode(const uint8_t *data, size_t bytes)
    {
        return tw_hpz_change_decode(change, &form, receiver.data(), receiver_states.data(), data, bytes);
    }
    /* To the other end. */
    size_t send()
    {
        size_t bytes = encode();
        if (bytes > 0) {
            EXPECT_EQ(decode(message.data, bytes), TW_OK);
        }
        EXPECT_EQ(receiver, fresh);
        EXPECT_EQ(receiver_states, sender_states);
        return bytes;
    }
    tw_status_t init_status(size_t run_bytes, const std::vector<tw_hpz_part_t> &parts)
    {
        tw_hpz_kept_params_t params = params_of(run_bytes, parts);
        tw_hpz_form_t one;
        tw_status_t status = tw_hpz_form_init(&one, &params);
        tw_hpz_form_cleanup(&one);
        return status;
    }

    tw_hpz_change_t *change = nullptr;
    tw_hpz_form_t form = {};
    tw_hpz_bytes_t message = {};
    std::vector<uint8_t> fresh, sender, receiver, sender_states, receiver_states;
    size_t changed = 0;
};

/* bf16 values of a layer, and a small step of each. */
void fill(std::vector<uint8_t> *run, size_t offset, size_t n_elems, Random *random)
{
    for (size_t i = 0; i < n_elems; i++) {
        uint16_t value = (uint16_t)(0x3c00 + random->below(0x180) + (random->below(2) << 15));
        memcpy(run->data() + offset + 2 * i, &value, sizeof(value));
    }
}

void step(std::vector<uint8_t> *run, size_t offset, size_t n_elems, Random *random)
{
    for (size_t i = 0; i < n_elems; i++) {
        uint16_t value;
        memcpy(&value, run->data() + offset + 2 * i, sizeof(value));
        value = (uint16_t)(value + random->below(5) - 2);
        memcpy(run->data() + offset + 2 * i, &value, sizeof(value));
    }
}

TEST_F(HpzChange, NothingIsNothing)
{
    begin(1000, {{0, 500, TW_TYPE_BF16, 0}});
    EXPECT_EQ(send(), 0U);
    EXPECT_EQ(changed, 0U);
}

TEST_F(HpzChange, SmallStepsTakeAFewBits)
{
    const size_t n = 100000;
    Random random(1);
    begin(2 * n, {{0, n, TW_TYPE_BF16, 0}});
    fill(&fresh, 0, n, &random);
    send();
    step(&fresh, 0, n, &random);
    EXPECT_LT(send(), n * 3 / 8 + 2000); /* five values: 2.33 bits */
    EXPECT_EQ(changed, 2 * n);
}

/* fp8, which needs no part of its own and has no states. */
TEST_F(HpzChange, SoDoThoseOfBytes)
{
    const size_t n = 600000, n_half = 1000;
    Random random(6);
    begin(n + 2 * n_half, {{n / 2, n_half, TW_TYPE_BF16, 0}});
    for (uint8_t &code : fresh) {
        code = (uint8_t)(0x30 + random.below(0x40) + (random.below(2) << 7));
    }
    send();
    EXPECT_EQ(form.n_coded, n_half);
    for (uint8_t &code : fresh) {
        code = (uint8_t)(code + random.below(3) - 1);
    }
    EXPECT_LT(send(), n / 4); /* three values: 1.58 bits */
    EXPECT_EQ(changed, fresh.size());
    EXPECT_EQ(encode(), 0U);
    for (size_t at = 0; at < fresh.size(); at += 5) {
        fresh[at] ^= 1;
    }
    size_t bytes = encode();
    receiver[6] ^= 1;
    allow_log("");
    EXPECT_EQ(decode(message.data, bytes), TW_ERR_FORMAT);
}

/* A LoRA's adapters among frozen weights. */
TEST_F(HpzChange, WhatIsFrozenCostsNothing)
{
    const size_t n = 1000000, first = 300001, n_adapter = 2000;
    Random random(2);
    begin(2 * n, {{0, n, TW_TYPE_BF16, 0}});
    fill(&fresh, 0, n, &random);
    send();
    step(&fresh, 2 * first, n_adapter, &random);
    size_t bytes = send();
    EXPECT_LT(bytes, n_adapter * 2);
    EXPECT_LT(changed, 2 * n_adapter + 2 * TW_HPZ_STEP_BYTES);
    fresh[2 * n - 1] ^= 1;
    EXPECT_LT(send(), 400U);
}

/* fp32: the upper halves as a delta, the lower ones as they are. */
TEST_F(HpzChange, Words)
{
    const size_t n = 20000;
    Random random(3);
    begin(4 * n, {{0, n, TW_TYPE_FP32, 0}});
    std::vector<float> values(n);
    for (size_t i = 0; i < n; i++) {
        values[i] = 0.01F + (float)random.below(10000) / 1e5F;
    }
    memcpy(fresh.data(), values.data(), fresh.size());
    send();
    for (float &value : values) {
        value += (float)random.below(1000) / 1e8F;
    }
    memcpy(fresh.data(), values.data(), fresh.size());
    EXPECT_LT(send(), fresh.size() * 6 / 10);
}

/* Types side by side, at odd places, with gaps; every byte may change by itself. */
TEST_F(HpzChange, AnyPartsAnyBytes)
{
    const std::vector<std::vector<tw_hpz_part_t>> shapes = {
        {},
        {{0, 501, TW_TYPE_BF16, 0}},
        {{2, 100, TW_TYPE_FP16, 0}, {202, 100, TW_TYPE_FP32, 0}, {700, 300, TW_TYPE_BF16, 0}},
        {{1, 100, TW_TYPE_BF16, 0}, {203, 199, TW_TYPE_FP32, 0}, {1000, 2, TW_TYPE_BYTE, 0}},
        {{0, 1, TW_TYPE_FP32, 0},
         {4, 1, TW_TYPE_BF16, 0},
         {6, 1, TW_TYPE_FP32, 0},
         {1310, 0, TW_TYPE_BF16, 0}},
    };
    for (size_t run_bytes : {1310, 1311}) {
        for (const auto &parts : shapes) {
            Random random(run_bytes);
            begin(run_bytes, parts);
            for (size_t at = 0; at < run_bytes; at += 7) {
                fresh[at] = (uint8_t)(fresh[at] + 1);
                ASSERT_GT(send(), 0U) << at;
            }
            for (int i = 0; i < 20; i++) {
                for (size_t k = random.below(200); k > 0; k--) {
                    fresh[random.below(run_bytes)] = (uint8_t)random.below(256);
                }
                send();
            }
        }
    }
}

/* Each step of a run by itself, as far apart as pieces are apart: the list is as long as it gets. */
TEST_F(HpzChange, ManyPieces)
{
    for (size_t apart = 1; apart < 9; apart++) {
        begin(64 * TW_HPZ_STEP_BYTES * 9 + 1, {{0, 100, TW_TYPE_BF16, 0}});
        for (size_t at = 0; at < fresh.size(); at += apart * TW_HPZ_STEP_BYTES) {
            fresh[at] = 1;
        }
        fresh.back() = 1;
        send();
        EXPECT_EQ(changed<fresh.size(), apart> TW_HPZ_GAP_STEPS + 1) << apart;
    }
}

TEST_F(HpzChange, BadPartsAreRefused)
{
    expect_log("does not fit into a run");
    expect_log("a run of 0 bytes");
    expect_log("a run of 2147483649 bytes");
    EXPECT_EQ(init_status(100, {{0, 50, TW_TYPE_BF16, 0}, {98, 1, TW_TYPE_BF16, 0}}), TW_ERR_INVALID);
    EXPECT_EQ(init_status(100, {{0, 51, TW_TYPE_BF16, 0}}), TW_ERR_INVALID);
    EXPECT_EQ(init_status(100, {{4, 1, TW_TYPE_BF16, 0}, {0, 1, TW_TYPE_BF16, 0}}), TW_ERR_INVALID);
    EXPECT_EQ(init_status(100, {{SIZE_MAX, 1, TW_TYPE_BF16, 0}}), TW_ERR_INVALID);
    EXPECT_EQ(init_status(100, {{0, SIZE_MAX / 2 + 2, TW_TYPE_FP32, 0}}), TW_ERR_INVALID);
    EXPECT_EQ(init_status(100, {{0, 1, (tw_type_t)9, 0}}), TW_ERR_INVALID);
    EXPECT_EQ(init_status(0, {}), TW_ERR_INVALID);
    EXPECT_EQ(init_status(TW_HPZ_RUN_BYTES_MAX + 1, {}), TW_ERR_INVALID);
}

/* A replica that is not the one a message was made of is noticed, as far as the message is coded. */
TEST_F(HpzChange, AnotherReplicaIsNoticed)
{
    const size_t n = 10000;
    Random random(4);
    begin(2 * n, {{0, n, TW_TYPE_BF16, 0}});
    fill(&fresh, 0, n, &random);
    send();
    step(&fresh, 0, n, &random);
    size_t bytes = encode();
    receiver[100] ^= 1;
    allow_log("");
    EXPECT_EQ(decode(message.data, bytes), TW_ERR_FORMAT);
}

/* Whatever comes, nothing outside the run is written, and the answer is an error or a run. */
TEST_F(HpzChange, AnyMessageIsHarmless)
{
    Random random(5);
    allow_log("");
    for (int i = 0; i < 400; i++) {
        begin(5000, {{0, 1000, TW_TYPE_BF16, 0}, {2100, 500, TW_TYPE_FP32, 0}});
        for (size_t k = 0; k < 200; k++) {
            fresh[random.below(fresh.size())] = (uint8_t)random.below(256);
        }
        size_t bytes = encode();
        Input input(message.data, message.data + bytes);
        for (size_t k = 1 + random.below(3); k > 0; k--) {
            input[random.below(input.size())] = (uint8_t)random.below(256);
        }
        input.resize(input.size() - random.below(2) * random.below(40));
        tw_status_t status = decode(input.data(), input.size());
        EXPECT_TRUE(status == TW_OK || status == TW_ERR_FORMAT);
    }
    EXPECT_EQ(decode(nullptr, 0), TW_ERR_FORMAT);
}

} // namespace
