/* The engine by itself: what lies where, and what stops it. */
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <thread>

#include "tests/trainer/engine/job.h"
#include "tests/trainer/engine/params.h"
#include "trainer/engine/calls.h"
#include "trainer/engine/engine.h"

class TrainEngine : public tw::Fixture
{
  protected:
    /** body(rank, engine, model) on each of the ranks, with tiny_sets and these. */
    void run(const std::vector<int> &node_of, const std::vector<std::string> &sets,
             const std::function<void(int, tw_engine_t *, tw_model_t *)> &body)
    {
        tw::run_ranks(node_of, [&](int rank, tw_coll_t *coll) {
            const tw::Params all(sets, coll, tw_model_create);
            tw_engine_t *engine = nullptr;
            ASSERT_EQ(tw_engine_create(&all.params, &engine), TW_OK);
            body(rank, engine, all.params.model);
            tw_engine_destroy(engine);
        });
    }
};

/* Bytes of a mapping that the process has in use. */
static size_t present_bytes(const tw_engine_map_t &map)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), n_pages = (map.n_bytes + page - 1) / page;
    std::vector<uint64_t> entries(n_pages);
    const size_t n_bytes = n_pages * sizeof(entries[0]);
    const int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    EXPECT_EQ(
        pread(pagemap, entries.data(), n_bytes, (off_t)((uintptr_t)map.start / page * sizeof(entries[0]))),
        (ssize_t)n_bytes);
    close(pagemap);
    return page * (size_t)std::count_if(entries.begin(), entries.end(), [](uint64_t e) { return e >> 63; });
}

/* From the first weights on: masters, moments and shards, or replicas and the previous changes. Where one
 * layer is read the system maps some pages of its neighbours as well: the layers are large enough for that to
 * be little. */
TEST_F(TrainEngine, WhatLiesInFilesIsPutAway)
{
    const std::string files = ::testing::TempDir();
    struct {
        const char *how;
        std::vector<int> node_of;
        size_t n_maps;
    } cases[] = {{"thinwire.hpz=off", {0, 0}, 4}, {"thinwire.delta_lossless=y", {0, 1}, 5}};
    for (const auto &one : cases) {
        run(one.node_of,
            {"zero_optimization.stage=3", one.how, "model.n_layer=4", "model.n_embd=256",
             "zero_optimization.offload_optimizer.device=nvme",
             "zero_optimization.offload_optimizer.nvme_path=" + files,
             "zero_optimization.offload_param.device=nvme",
             "zero_optimization.offload_param.nvme_path=" + files},
            [&](int rank, tw_engine_t *engine, tw_model_t *) {
                for (int step = 0; step < 2; step++) {
                    ASSERT_EQ(engine->n_maps, one.n_maps);
                    for (size_t i = 0; i < engine->n_maps; i++) {
                        EXPECT_LT(present_bytes(engine->maps[i]), engine->maps[i].n_bytes / 4)
                            << one.how << ": file " << i << " of rank " << rank << ", step " << step;
                    }
                    tw_trainer_step_t out;
                    ASSERT_EQ(tw_engine_step(engine, &out), TW_OK);
                    ASSERT_EQ(tw_engine_drain(engine), TW_OK);
                }
            });
    }
}

/* More bytes than a size_t counts are refused wherever they were to lie, and counted nowhere. */
TEST_F(TrainEngine, MoreThanCanBeCountedIsRefused)
{
    const std::string files = ::testing::TempDir();
    for (tw_train_place_t place : {TW_TRAIN_NONE, TW_TRAIN_CPU, TW_TRAIN_NVME}) {
        tw_engine_t engine = {};
        engine.homes[TW_ENGINE_WEIGHTS].place = place;
        engine.homes[TW_ENGINE_WEIGHTS].folder = files.c_str();
        expect_log("out of memory for weights");
        EXPECT_EQ(tw_engine_alloc(&engine, TW_ENGINE_WEIGHTS, SIZE_MAX / 4 + 2, 4, "weights"), nullptr);
        EXPECT_EQ(engine.homes[TW_ENGINE_WEIGHTS].bytes, 0u);
        EXPECT_EQ(engine.n_maps, 0u);
        tw_engine_free_all(&engine);
    }
}

/* Processor time is told apart by who spends it. */
TEST_F(TrainEngine, ProcessorTimeOfThisThreadAndOfOthers)
{
    auto spin = [] {
        const tw_engine_processor_t begin = tw_engine_processor_get(nullptr);
        while (tw_engine_processor_since(nullptr, &begin).compute_sec < 0.02) {
        }
    };
    tw_engine_processor_t begin = tw_engine_processor_get(nullptr), spent;
    spin();
    spent = tw_engine_processor_since(nullptr, &begin);
    EXPECT_GE(spent.compute_sec, 0.02);
    EXPECT_LT(spent.progress_sec, 0.02);
    begin = tw_engine_processor_get(nullptr);
    std::thread(spin).join();
    spent = tw_engine_processor_since(nullptr, &begin);
    EXPECT_LT(spent.compute_sec, 0.02);
    EXPECT_GE(spent.progress_sec, 0.02 - spent.compute_sec);
}

/* The clocks of a process and of its threads do not tick together. */
TEST_F(TrainEngine, ProcessorTimeOfOthersIsNeverNegative)
{
    tw_engine_processor_t begin = tw_engine_processor_get(nullptr);
    begin.progress_sec += 1000.0;
    EXPECT_EQ(tw_engine_processor_since(nullptr, &begin).progress_sec, 0.0);
}

/* Every element of every tensor is in one rank's pieces; stage 0: in all of them. */
TEST_F(TrainEngine, PiecesMakeTheModel)
{
    for (const char *stage :
         {"zero_optimization.stage=0", "zero_optimization.stage=1", "zero_optimization.stage=3"}) {
        std::vector<std::vector<int>> owners;
        std::mutex mutex;
        run({0, 0, 1, 1}, {stage}, [&](int, tw_engine_t *engine, tw_model_t *model) {
            size_t n_pieces, n_tensors;
            const tw_engine_piece_t *pieces = tw_engine_pieces(engine, &n_pieces);
            const tw_model_tensor_t *tensors = tw_model_tensors(model, &n_tensors);
            std::lock_guard<std::mutex> guard(mutex);
            ASSERT_EQ(n_pieces, n_tensors);
            owners.resize(n_tensors);
            for (size_t p = 0; p < n_pieces; p++) {
                owners[pieces[p].tensor].resize(tensors[pieces[p].tensor].n_elems);
                for (size_t i = 0; i < pieces[p].n_elems; i++) {
                    owners[pieces[p].tensor].at(pieces[p].first + i)++;
                }
            }
        });
        int expected = std::string(stage).back() == '0' ? 4 : 1;
        for (const std::vector<int> &tensor : owners) {
            EXPECT_EQ(tensor, std::vector<int>(tensor.size(), expected)) << stage;
        }
    }
}

TEST_F(TrainEngine, ANumberThatIsNoneStopsAllRanksAndNamesATensor)
{
    for (const char *set :
         {"zero_optimization.stage=0", "zero_optimization.stage=2", "thinwire.delta_lossless=y"}) {
        run({0, 1, 1, 0}, {set, "thinwire.hpz=auto"}, [&](int rank, tw_engine_t *engine, tw_model_t *) {
            size_t n_pieces;
            const tw_engine_piece_t *pieces = tw_engine_pieces(engine, &n_pieces);
            if (rank == 1 || set[strlen(set) - 1] == '0') {
                pieces[0].master[0] = NAN;
            }
            ASSERT_EQ(tw_engine_loaded(engine, 0, 0), TW_OK);
            tw_trainer_step_t step;
            EXPECT_EQ(tw_engine_step(engine, &step), TW_ERR_MISMATCH);
        });
    }
    /* Stage 0: the first of all. */
    expect_log("rank 0: step 1: the weight of transformer.wte.weight is not finite");
    expect_log("rank 1: step 1: the weight of transformer.wte.weight is not finite");
    EXPECT_EQ(log_count("is not finite"), 3u); /* each time by one rank */
}

/* A gradient that is not finite makes those that backward comes to afterwards so, on all ranks: the first one
 * is named. */
TEST_F(TrainEngine, TheGradientWhereItBeganIsNamed)
{
    expect_log("rank 1: step 2: the gradient of transformer.h.1.attn.c_attn.weight is not finite");
    run({0, 1}, {"zero_optimization.stage=2"}, [&](int rank, tw_engine_t *engine, tw_model_t *) {
        const uint16_t infinite = 0x7f80;
        tw_trainer_step_t step;
        ASSERT_EQ(tw_engine_step(engine, &step), TW_OK);
        auto poison = [&](const char *name) {
            for (size_t t = 0; t < engine->n_tensors; t++) {
                if (std::string(engine->tensors[t].name) == name) {
                    void *grads = engine->units[engine->tensors[t].unit].shard_grads;
                    *(uint16_t *)tw_engine_grad_at(engine, grads, engine->piece_offsets[t]) = infinite;
                }
            }
        };
        poison("transformer.wte.weight");
        poison("transformer.h.0.mlp.c_proj.bias");
        poison(rank == 1 ? "transformer.h.1.attn.c_attn.weight" : "transformer.h.1.ln_1.weight");
        tw_engine_report_t report = {};
        int is_bad = 0;
        report.norm.n_nonfinite = 1;
        EXPECT_EQ(tw_engine_alarm(engine, &report, NAN, &is_bad), TW_ERR_MISMATCH);
    });
    EXPECT_EQ(log_count("is not finite"), 1u);
}

/* A bad gradient is gone in the next step, a bad weight is not: of one rank is enough. */
TEST_F(TrainEngine, WeightsThatAreNotFiniteAreNotSkipped)
{
    expect_log("is not finite: skipped");
    allow_log("the gradient of ");
    expect_log("rank 1: step 1: the weight of transformer.h.1.attn.c_attn.weight is not finite");
    run({0, 1}, {"zero_optimization.stage=2", "thinwire.bad_step=skip"},
        [&](int rank, tw_engine_t *engine, tw_model_t *) {
            tw_engine_report_t report = {};
            int is_bad = 0;
            report.norm.n_nonfinite = 1;
            EXPECT_EQ(tw_engine_alarm(engine, &report, NAN, &is_bad), TW_OK);
            EXPECT_EQ(1, is_bad);
            for (size_t t = 0; rank == 1 && t < engine->n_tensors; t++) {
                if (std::string(engine->tensors[t].name) == "transformer.h.1.attn.c_attn.weight") {
                    engine->pieces[t].master[0] = NAN;
                }
            }
            EXPECT_EQ(tw_engine_alarm(engine, &report, NAN, &is_bad), TW_ERR_MISMATCH);
        });
}

/* An output layer of its own is what backward comes to first, the embedding last. */
TEST_F(TrainEngine, AnOutputLayersGradientIsNamedFirst)
{
    expect_log("rank 0: step 1: the gradient of lm_head.weight is not finite");
    run({0, 1}, {"zero_optimization.stage=2", "model.family=llama"},
        [&](int, tw_engine_t *engine, tw_model_t *) {
            tw_engine_unit_t *root = &engine->units[TW_MODEL_ROOT];
            for (size_t t = root->first_tensor; t < root->first_tensor + root->n_tensors; t++) {
                *(uint16_t *)tw_engine_grad_at(engine, root->shard_grads, engine->piece_offsets[t]) = 0x7f80;
            }
            tw_engine_report_t report = {};
            int is_bad = 0;
            report.norm.n_nonfinite = 1;
            EXPECT_EQ(tw_engine_alarm(engine, &report, NAN, &is_bad), TW_ERR_MISMATCH);
        });
}

/* What was held for a while before, by a tokenizer say, is none of the engine's. */
TEST_F(TrainEngine, MemoryHeldBeforeIsNotTheEngines)
{
    const size_t much = (size_t)96 << 20;
    void *before = tw_buffer_alloc_zero(much);
    memset(before, 1, much);
    tw_buffer_free(before);
    run({0}, {}, [&](int, tw_engine_t *engine, tw_model_t *) {
        tw_trainer_step_t step;
        ASSERT_EQ(tw_engine_step(engine, &step), TW_OK);
        EXPECT_LT(tw_engine_resident_bytes(engine), much / 2);
    });
}

TEST_F(TrainEngine, AModelWithoutGradientStopsAllRanks)
{
    expect_log("step 1: the gradient is zero: nothing is learnt");
    /* no embedding and no position: every logit is 0 whatever the tokens, but then the embedding's own
     * gradient is not; a final norm that gives zeros takes that away too */
    run({0, 1}, {}, [&](int, tw_engine_t *engine, tw_model_t *) {
        size_t n_pieces;
        const tw_engine_piece_t *pieces = tw_engine_pieces(engine, &n_pieces);
        for (size_t p = 0; p < n_pieces; p++) {
            for (size_t i = 0; i < pieces[p].n_elems; i++) {
                pieces[p].master[i] = 0;
            }
        }
        ASSERT_EQ(tw_engine_loaded(engine, 0, 0), TW_OK);
        tw_trainer_step_t step;
        EXPECT_EQ(tw_engine_step(engine, &step), TW_ERR_MISMATCH);
    });
}

/* Changes under way after a step: all of them, or as many as the bucket allows. */
TEST_F(TrainEngine, ABucketBoundsTheChangesUnderWay)
{
    for (const char *bucket : {"1", "500000000"}) {
        run({0, 1},
            {"thinwire.delta_lossless=y", std::string("zero_optimization.allgather_bucket_size=") + bucket},
            [&](int, tw_engine_t *engine, tw_model_t *) {
                tw_trainer_step_t step;
                for (int i = 0; i < 3; i++) {
                    ASSERT_EQ(tw_engine_step(engine, &step), TW_OK);
                    EXPECT_EQ(engine->sync.ready, engine->n_units);
                    if (bucket[1] == '\0') {
                        EXPECT_LE(engine->sync.begun - engine->sync.done, 1U);
                    } else {
                        EXPECT_EQ(engine->sync.begun, engine->n_units);
                    }
                }
            });
    }
}

/* Bytes that travel from and to, but for the weights that are in use and next: what of `moving` is no
 * gathered weight. */
static size_t travelling_bytes(const tw_engine_t *engine)
{
    size_t bytes = engine->homes[TW_ENGINE_MOVING].bytes;
    if (engine->root_slot.elems) {
        bytes -= engine->units[TW_MODEL_ROOT].n_elems * sizeof(uint16_t);
        bytes -= engine->n_block_slots * engine->units[1].n_elems * sizeof(uint16_t);
    }
    return bytes;
}

/* Layers four times as large, and their embedding, travel from and to buffers of the same size, as long as a
 * bucket is smaller than they are: 32,768 elements of each of two ranks, two slices of gradients, and of
 * changes one. */
TEST_F(TrainEngine, BuffersDoNotGrowWithALayer)
{
    const std::vector<std::string> small = {"zero_optimization.reduce_bucket_size=1",
                                            "zero_optimization.allgather_bucket_size=1", "model.n_head=1",
                                            "thinwire.sequence_length=2", "thinwire.val_sequences=0"};
    for (const char *set :
         {"zero_optimization.stage=2", "zero_optimization.stage=3", "thinwire.delta_lossless=y"}) {
        std::vector<size_t> travelling;
        for (const char *width : {"model.n_embd=128", "model.n_embd=256"}) {
            std::vector<std::string> sets = small;
            sets.insert(sets.end(), {set, width, "model.vocab_size=600"});
            run({0, 1}, sets, [&](int rank, tw_engine_t *engine, tw_model_t *) {
                tw_trainer_step_t step;
                ASSERT_GT(engine->units[0].n_elems, 2U * TW_HPZ_SLICE_ELEMS);
                ASSERT_EQ(tw_engine_step(engine, &step), TW_OK);
                if (rank == 0) {
                    travelling.push_back(travelling_bytes(engine));
                }
            });
        }
        ASSERT_EQ(travelling.size(), 2U);
        EXPECT_EQ(travelling[0], travelling[1]) << set;
        size_t lists = 1 << 14, slice = 2 * TW_HPZ_SLICE_ELEMS * sizeof(uint16_t);
        size_t changes = set[0] == 't' ? slice / 2 * 3 + 64 : 0;
        EXPECT_LE(travelling[0], 2 * slice + changes + lists) << set;
    }
}

/* Gathers and reductions themselves work in scratch memory that does not grow with what they move either: a
 * layer's weights are gathered into the place where they are used. */
TEST_F(TrainEngine, ScratchDoesNotGrowWithALayer)
{
    const size_t most = 64 << 10;
    set_env("TW_COLL_SCRATCH", "64K");
    for (const char *set : {"zero_optimization.zero_quantized_weights=y", "zero_optimization.stage=1",
                            "zero_optimization.zero_quantized_gradients=y", "thinwire.hpz=on"}) {
        run({0, 0, 1, 1}, {set, "model.n_embd=256", "thinwire.sequence_length=2", "thinwire.val_sequences=0"},
            [&](int, tw_engine_t *engine, tw_model_t *) {
                tw_trainer_step_t step;
                ASSERT_GT(engine->units[1].n_elems * sizeof(uint16_t), 16 * most);
                for (int i = 0; i < 2; i++) {
                    ASSERT_EQ(tw_engine_step(engine, &step), TW_OK);
                    EXPECT_LE(tw_coll_workspace_bytes(engine->coll), most) << set;
                }
                EXPECT_GT(tw_coll_workspace_bytes(engine->coll), 0U) << set;
            });
    }
}

static uint16_t *replica_of(const tw_engine_t *engine, int unit)
{
    return static_cast<uint16_t *>(const_cast<void *>(tw_hpz_replica(engine->hpz, unit)));
}

/* Where ranks hold the same weights, a rank that does not is named, and the tensor. */
TEST_F(TrainEngine, CopiesThatDifferAreNamed)
{
    expect_log("the weights of rank 2 are not those of rank 0, in transformer.h.0.mlp.c_fc.weight");
    expect_log("unit 2: the replica of rank 2 is not that of rank 0, in transformer.h.1.");
    const std::vector<std::string> all = {"zero_optimization.stage=0", "zero_optimization.stage=1",
                                          "zero_optimization.stage=2", "thinwire.delta_lossless=y"};
    for (const std::string &set : all) {
        run({0, 0, 1, 1}, {set}, [&](int rank, tw_engine_t *engine, tw_model_t *) {
            tw_trainer_step_t step;
            int equal = 0;
            ASSERT_EQ(tw_engine_step(engine, &step), TW_OK);
            ASSERT_EQ(tw_engine_check(engine, &equal), TW_OK);
            EXPECT_EQ(equal, 1) << set;
            for (size_t t = 0; t < engine->n_tensors && rank == 2; t++) {
                if (std::string(engine->tensors[t].name) == "transformer.h.0.mlp.c_fc.weight" &&
                    engine->stage < 3) {
                    size_t at = tw_hpz_full_piece(tw_hpz_layout(engine->hpz), t).offset;
                    static_cast<uint16_t *>(engine->units[1].weights)[at] ^= 1;
                }
            }
            if (engine->stage == 3 && rank == 2) {
                replica_of(engine, 2)[0] ^= 1;
            }
            ASSERT_EQ(tw_engine_check(engine, &equal), TW_OK);
            EXPECT_EQ(equal, 0) << set;
        });
    }
}

/* A replica that has gone wrong between two checks: the next lossless change does not fit it, and the run
 * ends there. */
TEST_F(TrainEngine, AChangeThatDoesNotFitItsReplicaStopsTheRun)
{
    expect_log("the changes of node 0 do not fit the replica");
    expect_log("delta_decode: a block does not decode");
    allow_log("gave the job up");
    run({0, 1}, {"thinwire.delta_lossless=y"}, [&](int rank, tw_engine_t *engine, tw_model_t *) {
        tw_trainer_step_t step;
        int equal = 0;
        ASSERT_EQ(tw_engine_step(engine, &step), TW_OK);
        ASSERT_EQ(tw_engine_check(engine, &equal), TW_OK);
        if (rank == 1) { /* node 0's half comes first */
            replica_of(engine, 1)[0] ^= 4;
        }
        tw_status_t status = TW_OK;
        for (int i = 0; i < 3 && status == TW_OK; i++) {
            status = tw_engine_step(engine, &step);
        }
        if (rank == 1) {
            EXPECT_EQ(status, TW_ERR_FORMAT);
            tw_coll_abort(engine->coll);
        }
        EXPECT_NE(status, TW_OK);
    });
}

TEST_F(TrainEngine, ALossyDeltasSyncBringsTheMastersBack)
{
    run({0, 0, 1, 1}, {"thinwire.delta_bits=4"}, [&](int, tw_engine_t *engine, tw_model_t *) {
        tw_trainer_step_t step;
        double before, after;
        int equal = 0;
        for (int i = 0; i < 3; i++) {
            ASSERT_EQ(tw_engine_step(engine, &step), TW_OK);
        }
        ASSERT_EQ(tw_engine_validate(engine, &before), TW_OK);
        ASSERT_EQ(tw_engine_sync(engine), TW_OK);
        ASSERT_EQ(tw_engine_validate(engine, &after), TW_OK);
        EXPECT_NE(before, after);
        EXPECT_NEAR(before, after, 0.01);
        ASSERT_EQ(tw_engine_check(engine, &equal), TW_OK);
        EXPECT_EQ(equal, 1);
        EXPECT_EQ(tw_engine_steps_done(engine), 3u);
    });
}

/* Frozen matrices: no products are made for their gradients, which stay zero. */
TEST_F(TrainEngine, FrozenMatricesHaveNoGradients)
{
    run({0, 1}, {"thinwire.groups=*.h.0.mlp.* frozen, *wte* frozen", "gradient_accumulation_steps=2"},
        [&](int, tw_engine_t *engine, tw_model_t *) {
            tw_trainer_step_t step;
            size_t n_frozen = 0;
            ASSERT_EQ(tw_engine_step(engine, &step), TW_OK);
            for (size_t t = 0; t < engine->n_tensors; t++) {
                const tw_model_tensor_t *of = &engine->tensors[t];
                const float *first = static_cast<const float *>(engine->units[of->unit].sums) +
                                     tw_hpz_full_piece(tw_hpz_layout(engine->hpz), t).offset;
                bool is_zero = std::all_of(first, first + of->n_elems, [](float g) { return g == 0.0f; });
                bool is_frozen_matrix = engine->groups[t].is_frozen && of->n_dims == 2;
                EXPECT_EQ(is_zero, is_frozen_matrix) << of->name;
                n_frozen += is_frozen_matrix;
            }
            EXPECT_EQ(n_frozen, 3u);
        });
}

/* Momenta that were sent are under way until they are asked for, and so are those that go back. */
TEST_F(TrainEngine, MuonsMomentaTravelBehindOthers)
{
    run({0, 1}, {"optimizer.type=Muon", "zero_optimization.stage=2", "model.n_layer=3"},
        [&](int, tw_engine_t *engine, tw_model_t *) {
            tw_trainer_step_t step;
            ASSERT_EQ(tw_engine_step(engine, &step), TW_OK);
            ASSERT_EQ(tw_engine_drain(engine), TW_OK);
            const tw_engine_muon_place_t *places = engine->muon.places;
            for (size_t unit = 1; unit <= 3; unit++) {
                ASSERT_EQ(tw_muon_send(engine, unit, 1.0f), TW_OK);
            }
            EXPECT_EQ(places[0].ops.n_requests, 1u);
            EXPECT_EQ(places[2].ops.n_requests, 1u);
            ASSERT_EQ(tw_muon_answer(engine, 1), TW_OK);
            EXPECT_EQ(places[0].ops.n_requests, 1u); /* back */
            ASSERT_EQ(tw_muon_answer(engine, 2), TW_OK);
            ASSERT_EQ(tw_muon_apply(engine, 1, 0.0), TW_OK);
            EXPECT_EQ(places[0].ops.n_requests, 0u);
            EXPECT_EQ(places[1].ops.n_requests, 1u); /* whoever ends now waits for it */
        });
}

/* Whoever does not sample waits for the rank that does, longer than any operation may take. */
TEST_F(TrainEngine, SamplingMayTakeLonger)
{
    allow_log("without a limit"); /* where rank 0 is not as quick as rank 1 */
    int32_t tokens[4 * 64];
    std::fill_n(tokens, 4 * 64, -1);
    run({0, 1},
        {"zero_optimization.stage=0", "thinwire.sample_steps=1", "thinwire.sample_lines=4",
         "thinwire.sample_tokens=64"},
        [&](int rank, tw_engine_t *engine, tw_model_t *) {
            const int32_t prompt[] = {1, 2};
            const tw_engine_lines_t sample = {prompt, 2, tokens};
            double limit = tw_coll_timeout(engine->coll);
            tw_coll_timeout_set(engine->coll, rank == 1 ? 1e-3 : limit);
            EXPECT_EQ(tw_engine_sample(engine, &sample), TW_OK);
            if (rank == 1) {
                EXPECT_GE(tokens[4 * 64 - 1], 0);
                EXPECT_NEAR(tw_coll_timeout(engine->coll), 1e-3, 1e-6);
            }
            tw_coll_timeout_set(engine->coll, limit);
        });
}
