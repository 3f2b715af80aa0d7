/* Copies and plain sums, between views in pieces and buffers. */
#include <cmath>
#include <cstring>
#include <deque>
#include <vector>

#include "collectives/schedule/schedule.h"
#include "quant/quant.h"
#include "tests/collectives/world.h"
#include "tests/common/fixture.h"

namespace
{

/* A schedule of one rank, run to its end. */
class Work : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        int node = 0;
        tw::Fixture::SetUp();
        ASSERT_EQ(tw_transport_local_create(1, &node, &transport), TW_OK);
        ASSERT_EQ(tw_scratch_create(1 << 20, &scratch), TW_OK);
        new_sched();
    }
    void TearDown() override
    {
        tw_sched_destroy(sched);
        EXPECT_EQ(tw_scratch_used_bytes(scratch), 0u);
        tw_scratch_destroy(scratch);
        tw_transport_destroy(transport);
        tw::Fixture::TearDown();
    }
    /* Another schedule; the views stay. */
    void new_sched()
    {
        tw_sched_destroy(sched);
        tw_sched_env_t env = {transport, scratch, &peer, 0, 1, 4, 0, nullptr};
        ASSERT_EQ(tw_sched_create(&env, &sched), TW_OK);
    }
    void run()
    {
        int moved = 1;
        ASSERT_EQ(tw_sched_seal(sched), TW_OK);
        ASSERT_GE(tw_sched_step(sched, &moved), 0);
        while (moved) {
            moved = 0;
            ASSERT_GE(tw_sched_compute_one(sched, &moved), 0);
        }
        EXPECT_EQ(tw_sched_step(sched, &moved), TW_OK);
    }
    /* Values in pieces of `step` elements, each with a gap behind it. */
    const tw_view_t *pieces(tw_type_t type, const std::vector<float> &values, size_t step)
    {
        size_t bytes = tw_type_bytes(type);
        views.emplace_back();
        extents.emplace_back(values.size());
        tw_view_init(&views.back(), bytes, extents.back().data());
        memory.emplace_back(values.size() * bytes * 2 + 64);
        uint8_t *at = memory.back().data() + bytes;
        for (size_t i = 0; i < values.size(); i += step) {
            size_t n = std::min(step, values.size() - i);
            tw_convert_from_fp32(type, &values[i], 1, at, n);
            tw_view_append(&views.back(), at, n);
            at += (n + 1) * bytes;
        }
        return &views.back();
    }
    std::vector<float> read(tw_type_t type, const tw_view_t *view)
    {
        std::vector<uint8_t> packed(view->n_elems * tw_type_bytes(type));
        std::vector<float> values(view->n_elems);
        tw_view_read(view, 0, view->n_elems, packed.data());
        tw_convert_to_fp32(type, packed.data(), values.data(), view->n_elems);
        return values;
    }
    static std::vector<float> numbers(size_t n, int salt)
    {
        std::vector<float> values(n);
        for (size_t i = 0; i < n; i++) {
            values[i] = (float)((int)((i * 7919 + (size_t)salt * 104729) % 4001) - 2000) / 16;
        }
        return values;
    }

    const int peer = 0;
    tw_transport_t *transport = nullptr;
    tw_scratch_t *scratch = nullptr;
    tw_sched_t *sched = nullptr;
    std::deque<tw_view_t> views;
    std::deque<std::vector<tw_view_extent_t>> extents;
    std::deque<std::vector<uint8_t>> memory;
};

constexpr tw_type_t TYPES[] = {TW_TYPE_FP32, TW_TYPE_BF16, TW_TYPE_FP16};

TEST_F(Work, CopyBetweenDifferentPieces)
{
    const tw_view_t *from = pieces(TW_TYPE_BF16, numbers(5000, 1), 7);
    const tw_view_t *to = pieces(TW_TYPE_BF16, std::vector<float>(5000), 11);
    tw_sbuf_t buffer = tw_sched_buffer(sched, 10000);
    tw_span_t middle = tw_span_buffer(buffer, 0, 10000);
    tw_task_t first = tw_work_copy(sched, tw_span_view(from, 0, 5000), middle);
    tw_sched_after(sched, tw_work_copy(sched, middle, tw_span_view(to, 0, 5000)), first);
    EXPECT_EQ(tw_work_copy(sched, tw_span_view(from, 9, 0), tw_span_view(to, 9, 0)), TW_TASK_NONE);
    run();
    EXPECT_EQ(read(TW_TYPE_BF16, to), read(TW_TYPE_BF16, from));
}

/* Order and rounding as promised: ((a + b) + c) in fp32, times scale and factor as one, rounded once. */
TEST_F(Work, SumsInOrderAndRoundsOnce)
{
    for (tw_type_t type : TYPES) {
        for (size_t n_inputs : {1, 2, 3, 5}) {
            for (float factor : {1.0f, 1.0f / 3, 1.0f / 7}) {
                const float scale = factor == 1.0f / 7 ? 1.0f / 3 : 1.0f;
                size_t n = 4099;
                std::vector<tw_span_t> inputs;
                std::vector<float> expected(n);
                new_sched();
                for (size_t k = 0; k < n_inputs; k++) {
                    const tw_view_t *view = pieces(type, numbers(n, (int)k), 13 * k + 5);
                    std::vector<float> x = read(type, view);
                    for (size_t i = 0; i < n; i++) {
                        expected[i] = k ? expected[i] + x[i] : x[i];
                    }
                    inputs.push_back(tw_span_view(view, 0, n));
                }
                std::vector<uint8_t> rounded(n * 4);
                tw_convert_from_fp32(type, expected.data(), scale * factor, rounded.data(), n);
                tw_convert_to_fp32(type, rounded.data(), expected.data(), n);
                const tw_view_t *to = pieces(type, std::vector<float>(n), 17);
                tw_work_sum_t sum = {type,  inputs.data(), n_inputs, 0,
                                     scale, factor,        INFINITY, tw_span_view(to, 0, n)};
                EXPECT_NE(tw_work_reduce(sched, &sum), TW_TASK_NONE);
                run();
                EXPECT_EQ(read(type, to), expected) << tw_type_name(type) << " " << n_inputs;
            }
        }
    }
}

TEST_F(Work, SumIntoOneOfTheInputs)
{
    for (size_t n_inputs : {2, 3}) {
        size_t n = 3000;
        new_sched();
        const tw_view_t *a = pieces(TW_TYPE_FP32, numbers(n, 1), 9);
        const tw_view_t *b = pieces(TW_TYPE_FP32, numbers(n, 2), 14);
        std::vector<float> x = read(TW_TYPE_FP32, a), y = read(TW_TYPE_FP32, b), expected(n);
        for (size_t i = 0; i < n; i++) {
            expected[i] = n_inputs == 2 ? x[i] + y[i] : x[i] + y[i] + y[i];
        }
        tw_span_t inputs[] = {tw_span_view(a, 0, n), tw_span_view(b, 0, n), tw_span_view(b, 0, n)};
        tw_work_sum_t sum = {TW_TYPE_FP32, inputs, n_inputs, 0, 1, 1, INFINITY, inputs[1]};
        tw_work_reduce(sched, &sum);
        run();
        EXPECT_EQ(read(TW_TYPE_FP32, b), expected);
    }
}

} // namespace
