/** An optimizer on a device, emulated or not, beside AdamW and the norm on this processor. */
#ifndef TW_TESTS_TRAINER_DEVICE_OPTIMIZER_CHECK_H
#define TW_TESTS_TRAINER_DEVICE_OPTIMIZER_CHECK_H

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "quant/arithmetic/adamw.h"
#include "tests/trainer/device/on_device.h"
#include "trainer/cuda/optimizer.h"
#include "trainer/device/optimizer.h"
#include "trainer/engine/norm.h"

namespace tw
{

/** A unit's shard on this processor: pieces of 40 and of 300 elements, and one of 10 between them that is
 *  frozen. */
struct HostShard {
    static constexpr size_t n_elems = 350, n_moments = 340;
    std::vector<float> master, m, v, grads;
    std::vector<uint16_t> narrow, weights; /* gradients in bf16; new weights */

    explicit HostShard(uint32_t seed)
        : master(n_elems), m(n_moments), v(n_moments), grads(n_elems), narrow(n_elems), weights(n_elems, 7)
    {
        std::mt19937 random(seed);
        std::normal_distribution<float> normal;
        for (float &value : master) {
            value = normal(random);
        }
        for (float &value : grads) {
            value = normal(random);
        }
        tw_convert_from_fp32(TW_TYPE_BF16, grads.data(), 1.0f, narrow.data(), n_elems);
    }
    const void *grads_of(tw_type_t type) const
    {
        return type == TW_TYPE_BF16 ? (const void *)narrow.data() : grads.data();
    }
    void step(tw_type_t type, const tw_device_piece_t &piece, float scale)
    {
        const tw_adamw_factors_t factors = tw_adamw_factors_of(&piece.adamw);
        std::vector<float> of_type(n_elems);
        tw_convert_to_fp32(type, grads_of(type), of_type.data(), n_elems);
        for (size_t i = 0; i < piece.n_elems; i++) {
            const size_t at = piece.first + i, moment = piece.first_moment + i;
            master[at] = tw_adamw_element(&factors, of_type[at] * scale, master[at], &m[moment], &v[moment]);
        }
        tw_convert_from_fp32(TW_TYPE_BF16, &master[piece.first], 1.0f, &weights[piece.first], piece.n_elems);
    }
};

inline std::vector<tw_device_piece_t> pieces_of(uint64_t step)
{
    tw_device_piece_t first = {}, last = {};
    first.n_elems = 40;
    first.adamw = {0.01, 0.9, 0.95, 1e-8, 0.1, step, TW_TYPE_BF16, nullptr};
    last.first = 50;
    last.first_moment = 40;
    last.n_elems = 300;
    last.adamw = {0.02, 0.9, 0.95, 1e-8, 0, step, TW_TYPE_BF16, nullptr};
    return {first, last};
}

/** Memory as the model's; freed by the caller in the end. */
struct Taken {
    tw_model_t *model;
    std::vector<void *> memory;
    static void *take(void *ctx, size_t n_bytes)
    {
        auto *taken = static_cast<Taken *>(ctx);
        taken->memory.push_back(tw_model_alloc(taken->model, n_bytes));
        return taken->memory.back();
    }
};

/** Three units, three steps, of which the second sends masters instead of weights. */
inline void check_optimizer(tw_device_t *device, tw_type_t grad_type)
{
    const tw_model_config_t config = tiny_gpt2();
    Taken taken = {};
    ASSERT_EQ(tw_device_model_create(&config, device, &taken.model), TW_OK);
    const std::vector<tw_device_shard_t> shards(3, {HostShard::n_elems, HostShard::n_moments});
    const tw_device_optimizer_params_t params = {taken.model, shards.data(), shards.size(), grad_type,
                                                 0,           Taken::take,   &taken};
    tw_device_optimizer_t *optimizer = nullptr;
    ASSERT_EQ(tw_device_optimizer_create(&params, &optimizer), TW_OK);
    std::vector<HostShard> wanted, got;
    for (uint32_t u = 0; u < 3; u++) {
        wanted.emplace_back(u);
        got.emplace_back(u);
        const tw_device_state_copy_t copy = {got[u].master.data(), got[u].m.data(), got[u].v.data()};
        ASSERT_EQ(tw_device_optimizer_load(optimizer, u, &copy), TW_OK);
    }
    for (uint64_t step = 1; step <= 3; step++) {
        std::vector<uint64_t> bins(2 * TW_CUDA_NORM_BINS);
        tw_norm_t norm = {}, norm_of_device = {};
        for (size_t u = 0; u < 3; u++) {
            ASSERT_EQ(tw_device_optimizer_gradients(optimizer, u, got[u].grads_of(grad_type)), TW_OK);
            ASSERT_EQ(tw_device_optimizer_norm(optimizer, u, 3, 300), TW_OK);
            tw_norm_add(&norm, grad_type,
                        (const char *)got[u].grads_of(grad_type) + 3 * tw_type_bytes(grad_type), 300);
        }
        ASSERT_EQ(tw_device_optimizer_bins(optimizer, bins.data()), TW_OK);
        tw_norm_add_bins(&norm_of_device, bins.data(), 0);
        tw_norm_add_bins(&norm_of_device, bins.data() + TW_CUDA_NORM_BINS, 32);
        EXPECT_EQ(memcmp(&norm, &norm_of_device, sizeof(norm)), 0) << "step " << step;

        ASSERT_EQ(tw_device_optimizer_begin(optimizer, 0.37f), TW_OK);
        for (size_t u = 0; u <= 3; u++) {
            const auto pieces = pieces_of(step);
            if (u < 3) {
                const tw_device_news_t news = {step == 2 ? nullptr : got[u].weights.data(),
                                               step == 2 ? got[u].master.data() : nullptr};
                ASSERT_EQ(tw_device_optimizer_step(optimizer, u, pieces.data(), pieces.size(), &news), TW_OK);
                for (const tw_device_piece_t &piece : pieces) {
                    wanted[u].step(grad_type, piece, 0.37f);
                }
            }
            if (u > 0) {
                ASSERT_EQ(tw_device_optimizer_wait(optimizer, u - 1), TW_OK);
                if (step == 2) {
                    EXPECT_EQ(got[u - 1].master, wanted[u - 1].master);
                } else {
                    EXPECT_EQ(got[u - 1].weights, wanted[u - 1].weights);
                }
            }
        }
    }
    for (size_t u = 0; u < 3; u++) {
        const tw_device_state_copy_t copy = {got[u].master.data(), got[u].m.data(), got[u].v.data()};
        ASSERT_EQ(tw_device_optimizer_store(optimizer, u, &copy), TW_OK);
        EXPECT_EQ(got[u].master, wanted[u].master);
        EXPECT_EQ(got[u].m, wanted[u].m);
        EXPECT_EQ(got[u].v, wanted[u].v);
    }
    tw_device_optimizer_destroy(optimizer);
    for (void *memory : taken.memory) {
        tw_model_free(taken.model, memory);
    }
    tw_model_destroy(taken.model);
}

} // namespace tw

#endif
