/** A rank's training, on a device or on the CPU, step by step. */
#ifndef TW_TESTS_TRAINER_DEVICE_TRAINING_H
#define TW_TESTS_TRAINER_DEVICE_TRAINING_H

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/trainer/engine/ranks.h"
#include "trainer/config/config.h"
#include "trainer/data/data.h"
#include "trainer/device/device.h"
#include "trainer/engine/engine.h"

namespace tw
{

using Sets = std::vector<std::string>;
using Floats = std::vector<float>;

/** As its config says; a model of the Llama family is a small Qwen3. */
inline tw_model_config_t shape_of(const tw_train_options_t *o)
{
    tw_model_config_t shape = {};
    shape.vocab_size = (size_t)o->vocab_size;
    shape.n_positions = (size_t)o->sequence;
    shape.n_layer = (size_t)o->n_layer;
    shape.n_head = (size_t)o->n_head;
    shape.n_embd = (size_t)o->n_embd;
    shape.layer_norm_epsilon = o->layer_norm_epsilon;
    shape.products = TW_TYPE_BF16;
    if (o->family != TW_MODEL_GPT2) {
        shape.family = TW_MODEL_QWEN3;
        shape.n_head = 4;
        shape.llama.n_kv_head = 2;
        shape.llama.head_dim = 8;
        shape.llama.n_inner = 40;
        shape.llama.rope.theta = 10000;
        shape.llama.has_head = 1;
    }
    return shape;
}

/** A rank's model, data and engine; the device is borrowed, NULL: on the CPU. */
class Job
{
  public:
    Job(const Sets &sets, tw_coll_t *world, tw_device_t *device)
    {
        std::vector<const char *> pointers;
        for (const std::string &set : sets) {
            pointers.push_back(set.c_str());
        }
        EXPECT_EQ(tw_train_config_create(nullptr, pointers.data(), pointers.size(), &config_), TW_OK);
        EXPECT_EQ(tw_train_config_resolve(config_, tw_coll_size(world), tw_coll_n_nodes(world)), TW_OK);
        options = tw_train_config_options(config_);
        tw_data_config_t data_config = {};
        data_config.path = options->data;
        data_config.val_share = options->val_share;
        data_config.document_token = -1;
        EXPECT_EQ(tw_data_open(&data_config, &data_), TW_OK);
        const tw_model_config_t shape = shape_of(options);
        EXPECT_EQ(device ? tw_device_model_create(&shape, device, &model) : tw_model_create(&shape, &model),
                  TW_OK);
        const tw_engine_params_t params = {options, model, data_, world, {}};
        status = tw_engine_create(&params, &engine);
    }
    Job(const Job &) = delete;
    Job &operator=(const Job &) = delete;
    ~Job()
    {
        tw_engine_destroy(engine);
        tw_model_destroy(model);
        tw_data_close(data_);
        tw_train_config_destroy(config_);
    }

    double step()
    {
        tw_trainer_step_t done = {};
        status = tw_engine_step(engine, &done);
        return done.loss;
    }

    /** Masters and moments, as a checkpoint takes them. */
    std::vector<Floats> state()
    {
        size_t n_pieces;
        std::vector<Floats> all;
        EXPECT_EQ(tw_engine_sync(engine), TW_OK);
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
    }

    const tw_train_options_t *options = nullptr;
    tw_model_t *model = nullptr;
    tw_engine_t *engine = nullptr;
    tw_status_t status = TW_OK;

  private:
    tw_train_config_t *config_ = nullptr;
    tw_data_t *data_ = nullptr;
};

/** A rank alone: losses near the CPU's, and the same bits wherever the optimizer lies, and whether gradients
 *  leave behind the next block or are waited for. */
inline void check_training(tw_coll_t *world, tw_device_t *device)
{
    const std::vector<Sets> others = {{"zero_optimization.offload_optimizer.device=cpu"},
                                      {"zero_optimization.overlap_comm=n"},
                                      {"zero_optimization.stage=3"}};
    Sets sets = tiny_sets();
    sets.emplace_back("zero_optimization.stage=2");
    Job host(sets, world, nullptr), first(sets, world, device);
    std::vector<double> losses;
    for (int step = 0; step < 3; step++) {
        losses.push_back(first.step());
        EXPECT_EQ(first.status, TW_OK);
        EXPECT_NEAR(losses.back(), host.step(), 0.01 * losses.back());
    }
    for (const Sets &more : others) {
        Sets all = sets;
        all.insert(all.end(), more.begin(), more.end());
        Job job(all, world, device);
        for (double loss : losses) {
            EXPECT_EQ(job.step(), loss) << more[0];
        }
        EXPECT_EQ(job.state(), first.state()) << more[0];
    }
}

} // namespace tw

#endif
