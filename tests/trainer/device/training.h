/** A rank's training, on a device or on the CPU, step by step. */
#ifndef TW_TESTS_TRAINER_DEVICE_TRAINING_H
#define TW_TESTS_TRAINER_DEVICE_TRAINING_H

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/trainer/engine/params.h"
#include "trainer/device/device.h"
#include "trainer/engine/engine.h"

namespace tw
{

using Sets = std::vector<std::string>;
using Floats = std::vector<float>;

inline const char *const gpt2 = "model.family=gpt2";
/** A small Qwen3 of grouped heads. */
inline const char *const llama = "model.family=qwen3";

/** Products round as on a GPU. */
inline Sets shaped(Sets sets)
{
    const auto has = [&](const char *set) { return std::find(sets.begin(), sets.end(), set) != sets.end(); };
    if (has(llama)) {
        sets.insert(sets.end(), {"model.n_head=4", "model.n_kv_head=2", "model.n_inner=40"});
    }
    if (!has("bf16.enabled=n")) {
        sets.emplace_back("thinwire.products=bf16");
    }
    return sets;
}

/** A rank's model, data and engine, of tiny_sets and these; the device is borrowed, NULL: on the CPU. */
class Job : public Params
{
  public:
    Job(const Sets &sets, tw_coll_t *coll, tw_device_t *device)
        : Params(shaped(sets), coll, [device](const tw_model_config_t *of, tw_model_t **out) {
              return device ? tw_device_model_create(of, device, out) : tw_model_create(of, out);
          })
    {
        model = params.model;
        status = tw_engine_create(&params, &engine);
    }
    Job(const Job &) = delete;
    Job &operator=(const Job &) = delete;
    ~Job()
    {
        tw_engine_destroy(engine);
    }

    double step()
    {
        tw_trainer_step_t done = {};
        status = tw_engine_step(engine, &done);
        return done.loss;
    }

    /** Masters and moments, as a checkpoint takes them: in stage 0 from rank 0 alone. */
    std::vector<Floats> state()
    {
        size_t n_pieces;
        std::vector<Floats> all;
        EXPECT_EQ(tw_engine_sync(engine), TW_OK);
        if (options->stage == 0 && tw_coll_rank(params.coll) > 0) {
            return all;
        }
        const tw_engine_piece_t *pieces = tw_engine_pieces(engine, &n_pieces);
        for (size_t p = 0; p < n_pieces; p++) {
            for (const float *part : {pieces[p].master, pieces[p].m, pieces[p].v}) {
                all.emplace_back(part, part ? part + pieces[p].n_elems : part);
            }
        }
        return all;
    }
    /** And as it gives them back. */
    void load(const std::vector<Floats> &state, uint64_t step)
    {
        size_t n_pieces, at = 0;
        const tw_engine_piece_t *pieces = tw_engine_pieces(engine, &n_pieces);
        for (size_t p = 0; p < n_pieces; p++) {
            for (float *part : {pieces[p].master, pieces[p].m, pieces[p].v}) {
                std::copy(state[at].begin(), state[at].end(), part);
                at++;
            }
        }
        EXPECT_EQ(tw_engine_loaded(engine, step, 0), TW_OK);
        EXPECT_EQ(tw_engine_bring_state(engine), TW_OK);
    }

    tw_model_t *model = nullptr;
    tw_engine_t *engine = nullptr;
    tw_status_t status = TW_OK;
};

/** A rank alone: losses near the CPU's, and the same bits wherever the optimizer lies, and whether gradients
 *  leave behind the next block or are waited for. */
inline void check_training(tw_coll_t *coll, tw_device_t *device)
{
    const std::vector<Sets> others = {{"zero_optimization.offload_optimizer.device=cpu"},
                                      {"zero_optimization.overlap_comm=n"},
                                      {"zero_optimization.stage=3"}};
    const Sets sets = {"zero_optimization.stage=2"};
    Job host(sets, coll, nullptr), first(sets, coll, device);
    std::vector<double> losses;
    for (int step = 0; step < 3; step++) {
        losses.push_back(first.step());
        EXPECT_EQ(first.status, TW_OK);
        EXPECT_NEAR(losses.back(), host.step(), 0.01 * losses.back());
    }
    for (const Sets &more : others) {
        Sets all = sets;
        all.insert(all.end(), more.begin(), more.end());
        Job job(all, coll, device);
        for (double loss : losses) {
            EXPECT_EQ(job.step(), loss) << more[0];
        }
        EXPECT_EQ(job.state(), first.state()) << more[0];
    }
}

} // namespace tw

#endif
