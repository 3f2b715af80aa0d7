/* Training with models on emulated devices, one for each rank: losses near those of the CPU, and the same
 * bits whatever the stage and whatever travels. */
#include <cmath>

#include "tests/common/fixture.h"
#include "tests/trainer/device/emulated.h"
#include "tests/trainer/device/training.h"
#include "tests/trainer/engine/ranks.h"
#include "trainer/agreement.h"
#include "trainer/device/state.h"
#include "trainer/engine/calls.h"
#include "trainer/plan/plan.h"

namespace
{

using tw::Floats;
using tw::gpt2;
using tw::Job;
using tw::llama;
using tw::Sets;

struct Outcome {
    std::vector<double> losses;
    double validation = 0;
    size_t device_bytes = 0, most_bytes = 0; /* as the engine counts the device's, and as they were taken */
    size_t host_bytes = 0;                   /* without what the communicator works in */
    /* of each block's gradients, and each block's new weights, that came: kernels enqueued behind them */
    std::vector<int> gradients, weights;
    int n_copies = 0;       /* of the last step */
    std::vector<int> calls; /* likewise: kernels, products, copies, events, waits for one */
    int n_products = 0, most_pins = 0;
    size_t bytes_out = 0; /* of the device */
    size_t sample_bytes = 0;
    uint64_t sent_bytes = 0, planned_bytes = 0; /* between nodes */
    bool is_equal = false;
    tw_status_t status = TW_OK;
};

/* What the host waited for of so many bytes. */
std::vector<int> arrivals_of(const tw::EmulatedDevice &device, size_t bytes)
{
    std::vector<int> behind;
    for (const auto &arrival : device.arrivals) {
        if (arrival.bytes == bytes) {
            behind.push_back(arrival.kernels_behind);
        }
    }
    return behind;
}

std::vector<int> calls_of(const tw::EmulatedDevice &device)
{
    return {device.n_kernels, device.n_products, device.n_copies, device.n_records, device.n_waits};
}

std::vector<int> less(std::vector<int> some, const std::vector<int> &others)
{
    for (size_t i = 0; i < some.size(); i++) {
        some[i] -= others[i];
    }
    return some;
}

/* One rank. The device's copy number failing, from 0 on, of the first step fails. */
void run(const Sets &sets, tw_coll_t *coll, tw::EmulatedDevice *device, Outcome *out, int failing = -1)
{
    Job job(sets, coll, device ? device->table() : nullptr);
    for (int64_t step = 0; step < job.options->steps && job.status == TW_OK; step++) {
        const int n_copies = device ? device->n_copies : 0;
        const std::vector<int> calls = device ? calls_of(*device) : std::vector<int>();
        if (device) {
            device->copies_left = failing;
        }
        out->losses.push_back(job.step());
        out->n_copies = device ? device->n_copies - n_copies : 0;
        out->calls = device ? less(calls_of(*device), calls) : calls;
    }
    if (device) {
        device->copies_left = -1;
        const size_t n_block = reinterpret_cast<tw_device_model_t *>(job.model)->block.n_elems;
        out->gradients = arrivals_of(*device, n_block * sizeof(uint16_t));
        out->n_products = device->n_products;
        out->most_pins = device->most_pins;
        out->bytes_out = device->bytes_out;
        out->weights = arrivals_of(*device, tw_model_unit_get(job.model, 1)->n_elems * sizeof(uint16_t));
    }
    out->status = job.status;
    if (out->status == TW_OK) {
        EXPECT_EQ(job.engine->adamw == nullptr, job.engine->optimizer.device != nullptr);
        int equal = 0;
        EXPECT_EQ(tw_engine_validate(job.engine, &out->validation), TW_OK);
        EXPECT_EQ(tw_engine_check(job.engine, &equal), TW_OK);
        out->is_equal = equal;
        const tw_engine_totals_t totals = tw_engine_totals_get(job.engine);
        out->sent_bytes = totals.inter_node_bytes;
        out->planned_bytes = totals.planned_inter_node_bytes;
        out->sample_bytes = tw_engine_sample_bytes(job.options, job.model);
        out->device_bytes = tw_engine_device_bytes(job.engine);
        out->most_bytes = device ? device->most_bytes : 0;
        out->host_bytes = tw_engine_memory_bytes(job.engine) - tw_coll_workspace_bytes(coll);
    } else if (out->status != TW_ERR_CONFIG && tw_coll_size(coll) > 1) { /* that all ranks find themselves */
        tw_coll_abort(coll);
    }
}

/* n_nodes x 2 ranks. */
Outcome train(const Sets &sets, bool on_device, int n_nodes = 2)
{
    std::vector<int> node_of;
    for (int rank = 0; rank < 2 * n_nodes; rank++) {
        node_of.push_back(rank / 2);
    }
    std::vector<Outcome> outcomes(node_of.size());
    tw::run_ranks(node_of, [&](int rank, tw_coll_t *coll) {
        if (on_device) {
            tw::EmulatedDevice device((uint32_t)rank + 1);
            run(sets, coll, &device, &outcomes[(size_t)rank]);
        } else {
            run(sets, coll, nullptr, &outcomes[(size_t)rank]);
        }
    });
    for (const Outcome &outcome : outcomes) {
        EXPECT_EQ(outcome.losses, outcomes[0].losses);
        EXPECT_EQ(outcome.status, outcomes[0].status);
    }
    return outcomes[0];
}

/* A rank alone. */
Outcome train_alone(const Sets &sets, int failing = -1, bool on_device = true)
{
    Outcome outcome;
    tw::run_ranks({0}, [&](int, tw_coll_t *coll) {
        tw::EmulatedDevice device(1);
        run(sets, coll, on_device ? &device : nullptr, &outcome, failing);
    });
    return outcome;
}

class DeviceTraining : public tw::Fixture
{
};

/* As far as weights of bf16 and their rounding are the same, so are losses; each step adds its rounding. */
TEST_F(DeviceTraining, LossesOfTheCpu)
{
    for (const char *family : {gpt2, llama}) {
        SCOPED_TRACE(family);
        const Sets sets = {family, "zero_optimization.stage=3", "thinwire.steps=20"};
        const Outcome cpu = train(sets, false, 1), device = train(sets, true, 1);
        ASSERT_EQ(device.losses.size(), 20u);
        EXPECT_NE(device.losses, cpu.losses);
        for (size_t i = 0; i < 20; i++) {
            EXPECT_NEAR(device.losses[i], cpu.losses[i], 0.01 * cpu.losses[i]) << "step " << i + 1;
        }
        EXPECT_LT(device.losses[19], 0.8 * device.losses[0]);
        EXPECT_NEAR(device.validation, cpu.validation, 0.01 * cpu.validation);
    }
}

/* Where nothing is rounded but sums. */
TEST_F(DeviceTraining, LossesOfTheCpuInFp32)
{
    for (const char *family : {gpt2, llama}) {
        SCOPED_TRACE(family);
        const Sets sets = {family, "bf16.enabled=n", "zero_optimization.stage=3", "thinwire.steps=4"};
        const Outcome cpu = train(sets, false, 1), device = train(sets, true, 1);
        ASSERT_EQ(device.losses.size(), 4u);
        for (size_t i = 0; i < 4; i++) {
            EXPECT_NEAR(device.losses[i], cpu.losses[i], 1e-5 * cpu.losses[i]) << "step " << i + 1;
        }
        EXPECT_NEAR(device.validation, cpu.validation, 1e-5 * cpu.validation);
    }
}

TEST_F(DeviceTraining, AllStagesAreEqualInFp32)
{
    const std::vector<Sets> others = {
        {"zero_optimization.stage=0"},
        {"zero_optimization.stage=2", "zero_optimization.offload_optimizer.device=cpu"},
        {"zero_optimization.stage=3", "zero_optimization.zero_hpz_partition_size=2"},
        {"zero_optimization.stage=3", "thinwire.lossless_weights=y", "thinwire.lossless_gradients=y"},
    };
    const Sets first_sets = {"bf16.enabled=n", "zero_optimization.stage=3", "thinwire.hpz=off",
                             "thinwire.steps=2"};
    const Outcome first = train(first_sets, true);
    for (Sets sets : others) {
        sets.insert(sets.end(), {"bf16.enabled=n", "thinwire.steps=2"});
        SCOPED_TRACE(sets[0] + " " + sets[1]);
        const Outcome other = train(sets, true);
        EXPECT_EQ(other.losses, first.losses);
        EXPECT_EQ(other.validation, first.validation);
        EXPECT_TRUE(other.is_equal);
    }
}

/* Its matrices are made orthogonal in bf16, which the CPU does in fp32. */
TEST_F(DeviceTraining, Muon)
{
    for (const Sets &more : std::vector<Sets>{{llama}, {gpt2, "bf16.enabled=n"}}) {
        SCOPED_TRACE(more.back());
        Sets sets = more;
        sets.insert(sets.end(), {"thinwire.steps=4", "optimizer.type=Muon", "zero_optimization.stage=3"});
        const Outcome cpu = train(sets, false, 1), device = train(sets, true, 1);
        ASSERT_EQ(device.losses.size(), 4u);
        for (size_t i = 0; i < 4; i++) {
            EXPECT_NEAR(device.losses[i], cpu.losses[i], 0.01 * cpu.losses[i]) << "step " << i + 1;
        }
        sets.back() = "zero_optimization.stage=0";
        EXPECT_EQ(train(sets, true, 1).losses, device.losses);
    }
}

/* Bit for bit. */
TEST_F(DeviceTraining, AllStagesAndSetsAreEqual)
{
    const std::vector<Sets> others = {
        {"zero_optimization.stage=0"},
        {"zero_optimization.stage=1"},
        {"zero_optimization.stage=2"},
        {"zero_optimization.stage=3", "zero_optimization.zero_hpz_partition_size=2"},
        {"zero_optimization.stage=3", "thinwire.delta_lossless=y"},
        {"zero_optimization.stage=3", "zero_optimization.offload_param.device=nvme",
         "zero_optimization.offload_param.nvme_path=" + ::testing::TempDir()},
        {"zero_optimization.stage=3", "thinwire.lossless_weights=y", "thinwire.lossless_gradients=y"},
        {"zero_optimization.stage=3", "thinwire.delta_lossless=y", "thinwire.lossless_gradients=y",
         "zero_optimization.offload_optimizer.device=cpu"},
    };
    for (const char *family : {gpt2, llama}) {
        const Outcome first =
            train({family, "zero_optimization.stage=3", "thinwire.hpz=off", "thinwire.steps=3"}, true);
        ASSERT_EQ(first.losses.size(), 3u);
        for (Sets sets : others) {
            sets.push_back("thinwire.steps=3");
            SCOPED_TRACE(family + (" " + sets[0]) + (sets.size() > 1 ? " " + sets[1] : ""));
            sets.push_back(family);
            const Outcome other = train(sets, true);
            EXPECT_EQ(other.losses, first.losses);
            EXPECT_EQ(other.validation, first.validation);
            EXPECT_TRUE(other.is_equal);
        }
    }
}

const Sets delta = {"zero_optimization.stage=3", "thinwire.delta_lossless=y"},
           hpz = {"zero_optimization.stage=3", "zero_optimization.zero_hpz_partition_size=2"},
           on_gpu = {"thinwire.device=cuda", "thinwire.replicas=device"};

Sets both(Sets one, const Sets &other)
{
    one.insert(one.end(), other.begin(), other.end());
    return one;
}

/* Replicas on the device: bits and bytes of those of the host, whatever travels, and all replicas equal after
 * each step. */
TEST_F(DeviceTraining, ReplicasOnTheDeviceAreThoseOfTheHost)
{
    set_env("TW_HPZ_CHECK_STEPS", "1");
    const std::vector<Sets> all = {
        both(hpz, {"thinwire.lossless_gradients=y", "thinwire.groups=*.mlp.* frozen"}),
        both(delta, {"thinwire.sync_every=2", "zero_optimization.allgather_bucket_size=4000",
                     "thinwire.groups=*.mlp.* frozen"}),
        both(delta, {"zero_optimization.offload_optimizer.device=cpu", "gradient_accumulation_steps=2",
                     "train_micro_batch_size_per_gpu=1"}),
        both(hpz, {"bf16.enabled=n", "zero_optimization.allgather_bucket_size=4000"}),
        both(hpz, {"bf16.enabled=n", "thinwire.lossless_weights=y",
                   "zero_optimization.offload_optimizer.device=cpu"}),
    };
    for (size_t i = 0; i < all.size(); i++) {
        const Sets sets = both(all[i], {"thinwire.steps=3", i % 2 == 0 ? gpt2 : llama});
        SCOPED_TRACE(sets[1] + " " + sets[2]);
        const Outcome host = train(sets, true), device = train(both(sets, on_gpu), true);
        ASSERT_EQ(device.status, TW_OK);
        ASSERT_EQ(device.losses.size(), 3u);
        EXPECT_EQ(device.losses, host.losses);
        EXPECT_EQ(device.validation, host.validation);
        EXPECT_TRUE(device.is_equal);
        EXPECT_GT(device.sent_bytes, 0u);
        EXPECT_EQ(device.sent_bytes, host.sent_bytes);
        EXPECT_EQ(device.planned_bytes, host.planned_bytes);
        EXPECT_GT(device.device_bytes, host.device_bytes);
        EXPECT_LT(device.host_bytes, host.host_bytes);
    }
}

/* Masters of the host's memory become the replicas' new values once a step. */
TEST_F(DeviceTraining, MastersComeOnceAStep)
{
    tw::run_ranks({0, 1}, [&](int rank, tw_coll_t *world) {
        tw::EmulatedDevice device((uint32_t)rank + 1);
        Job job(both(both(delta, on_gpu), {"zero_optimization.offload_optimizer.device=cpu"}), world,
                device.table());
        job.step();
        const size_t before = device.bytes_in;
        job.step();
        EXPECT_EQ(tw_engine_drain(job.engine), TW_OK);
        size_t n_pieces, n_elems = 0;
        const tw_engine_piece_t *pieces = tw_engine_pieces(job.engine, &n_pieces);
        for (size_t p = 0; p < n_pieces; p++) {
            n_elems += pieces[p].n_elems;
        }
        EXPECT_GE(device.bytes_in - before, n_elems * sizeof(float));
        EXPECT_LT(device.bytes_in - before, 2 * n_elems * sizeof(float));
    });
}

/* What backward spoils on one rank's device stops all, and the tensor where it began is named; so is a weight
 * that is none. Whether the optimizer is on the device or not. */
TEST_F(DeviceTraining, ANumberThatIsNoneStopsAllAndNamesATensor)
{
    const std::vector<Sets> all = {
        {"zero_optimization.stage=2"},
        {"zero_optimization.stage=2", "zero_optimization.offload_optimizer.device=cpu"},
        both(delta, on_gpu)};
    for (const Sets &sets : all) {
        SCOPED_TRACE(sets.back());
        expect_log("step 2: the gradient of transformer.h.1.ln_1.weight is not finite");
        expect_log("rank 1: step 2: the weight of transformer.h.0.attn.c_attn.weight is not finite");
        tw::run_ranks({0, 1}, [&](int rank, tw_coll_t *world) {
            tw::EmulatedDevice devices[] = {tw::EmulatedDevice(2 * (uint32_t)rank + 1),
                                            tw::EmulatedDevice(2 * (uint32_t)rank + 2)};
            Job first(sets, world, devices[0].table()), second(sets, world, devices[1].table());
            first.step();
            EXPECT_EQ(first.status, TW_OK);
            const size_t n_block = reinterpret_cast<tw_device_model_t *>(first.model)->block.n_elems;
            devices[0].spoilt_bytes = rank == 1 ? n_block * sizeof(uint16_t) : 0;
            first.step();
            EXPECT_EQ(first.status, TW_ERR_MISMATCH);
            EXPECT_EQ(devices[0].spoilt_bytes, 0u);

            second.step();
            std::vector<Floats> state = second.state();
            for (size_t t = 0; rank == 1 && t < second.engine->n_tensors; t++) {
                if (std::string(second.engine->tensors[t].name) == "transformer.h.0.attn.c_attn.weight") {
                    state[3 * t][0] = NAN;
                }
            }
            second.load(state, 1);
            second.step();
            EXPECT_EQ(second.status, TW_ERR_MISMATCH);
        });
    }
    EXPECT_EQ(log_count("is not finite"), 2 * all.size()); /* each time by one rank */
}

/* A state goes from one to the other, and to a run that begins with it. */
TEST_F(DeviceTraining, StatesGoFromReplicasThereToReplicasHere)
{
    const Sets host = both(tw::tiny_sets(), delta), there = both(host, on_gpu);
    tw::run_ranks({0, 0, 1, 1}, [&](int rank, tw_coll_t *coll) {
        tw::EmulatedDevice devices[] = {tw::EmulatedDevice(2 * (uint32_t)rank + 1),
                                        tw::EmulatedDevice(2 * (uint32_t)rank + 2)};
        Job first(there, coll, devices[0].table()), second(host, coll, devices[1].table());
        EXPECT_EQ(first.step(), second.step());
        const std::vector<Floats> after = first.state();
        EXPECT_EQ(after, second.state());
        const double loss = first.step();
        second.step();
        second.step();
        second.load(after, 1);
        EXPECT_EQ(second.step(), loss);
        first.load(after, 1);
        EXPECT_EQ(first.step(), loss);
        EXPECT_EQ(first.state(), second.state());
        EXPECT_EQ(first.status, TW_OK);
    });
}

TEST_F(DeviceTraining, ReplicasThatCannotBeOnTheDeviceAreRefused)
{
    tw::run_ranks({0}, [&](int, tw_coll_t *coll) {
        expect_log("emulated: there are no communicators over GPU memory");
        expect_log("rank 0: thinwire.replicas is device");
        tw::EmulatedDevice device(1);
        device.has_no_groups = true;
        EXPECT_EQ(Job(both(tw::tiny_sets(), both(delta, on_gpu)), coll, device.table()).status,
                  TW_ERR_UNSUPPORTED);
    });
    tw::run_ranks({0}, [&](int, tw_coll_t *coll) {
        expect_log("emulated: out of memory");
        expect_log("out of the device's memory for replicas (thinwire.replicas is device): ");
        tw::EmulatedDevice device(1);
        device.room_bytes = 1000;
        EXPECT_EQ(Job(both(tw::tiny_sets(), both({"zero_optimization.stage=3", "thinwire.hpz=on"}, on_gpu)),
                      coll, device.table())
                      .status,
                  TW_ERR_NO_MEMORY);
    });
}

TEST_F(DeviceTraining, RanksWhoseReplicasLieElsewhereAreTold)
{
    expect_log("rank 1: thinwire.replicas is 'device', on rank 0 it is 'host'");
    tw::run_ranks({0, 1}, [&](int rank, tw_coll_t *coll) {
        tw_train_config_t *config = nullptr;
        tw_lines_t lines = {};
        const char *sets[] = {rank == 0 ? "thinwire.replicas=host" : "thinwire.replicas=device"};
        ASSERT_EQ(tw_train_config_create(nullptr, sets, 1, &config), TW_OK);
        tw_train_config_lines(config, &lines);
        EXPECT_EQ(tw_agree_on(coll, &lines), TW_ERR_MISMATCH);
        tw_lines_cleanup(&lines);
        tw_train_config_destroy(config);
    });
}

/* Layers computed again, and inputs kept in host memory, change nothing; micro-batches are added up. */
TEST_F(DeviceTraining, RecomputingAndInputsElsewhere)
{
    const Sets micros = {"zero_optimization.stage=3", "gradient_accumulation_steps=2",
                         "train_micro_batch_size_per_gpu=1", "thinwire.steps=3"};
    const Outcome first = train(micros, true, 1), cpu = train(micros, false, 1);
    EXPECT_NEAR(first.losses.back(), cpu.losses.back(), 0.01 * cpu.losses.back());
    for (const char *more : {"thinwire.recompute=y", "activation_checkpointing.cpu_checkpointing=y"}) {
        Sets sets = micros;
        sets.push_back(more);
        const Outcome other = train(sets, true, 1);
        EXPECT_EQ(other.losses, first.losses) << more;
        EXPECT_LT(other.device_bytes, first.device_bytes) << more;
    }
}

/* What is frozen costs no products, and no bytes from the device; losses are those of the CPU. */
TEST_F(DeviceTraining, FrozenMatricesTakeNoProducts)
{
    const Sets all = {"zero_optimization.stage=2", "thinwire.steps=2"};
    Sets sets = all;
    sets.emplace_back("thinwire.groups=*.h.1.* frozen");
    const Outcome plain = train_alone(all), frozen = train_alone(sets), cpu = train_alone(sets, -1, false);
    EXPECT_EQ(frozen.losses[0], plain.losses[0]);
    EXPECT_NE(frozen.losses[1], plain.losses[1]);
    EXPECT_NEAR(frozen.losses[1], cpu.losses[1], 0.01 * cpu.losses[1]);
    EXPECT_EQ(plain.n_products - frozen.n_products, 4 * 2); /* a block's matrices, of 2 steps */
    EXPECT_LT(frozen.bytes_out, plain.bytes_out);
}

/* Whole pages, each once. */
TEST_F(DeviceTraining, PinnedMemoryHasItsPagesToItself)
{
    for (const char *stage : {"zero_optimization.stage=2", "zero_optimization.stage=3"}) {
        EXPECT_GT(train_alone({stage, "model.n_embd=64", "thinwire.steps=1"}).most_pins, 1) << stage;
    }
}

/* A block's gradients are waited for when the next one's are being computed, the first's when the embeddings'
 * are; its new weights when the next one's are. */
TEST_F(DeviceTraining, NewsLeaveBehindTheNextBlock)
{
    const Sets sets = {"model.n_layer=4", "zero_optimization.stage=2", "thinwire.steps=2"};
    const Outcome lagging = train_alone(sets);
    Sets more = sets;
    more.push_back("zero_optimization.overlap_comm=n");
    const Outcome waiting = train_alone(more);
    EXPECT_EQ(lagging.losses, waiting.losses);
    ASSERT_EQ(lagging.gradients.size(), 8u);
    ASSERT_EQ(lagging.weights.size(), 8u);
    for (size_t i = 0; i < 8; i++) {
        EXPECT_GE(lagging.gradients[i], i % 4 < 3 ? 10 : 1) << "block " << 4 - i % 4;
        EXPECT_EQ(lagging.weights[i], i % 4 < 3 ? 12 : 0) << "block " << 1 + i % 4;
    }
    EXPECT_EQ(waiting.gradients, std::vector<int>(8, 0));
}

TEST_F(DeviceTraining, AloneBesideTheCpu)
{
    tw::run_ranks({0}, [&](int, tw_coll_t *coll) {
        tw::EmulatedDevice device(7);
        tw::check_training(coll, device.table());
    });
}

/* Masters, moments and losses are the same bits where the device has them and where the host has, and a
 * state goes from one to the other. */
TEST_F(DeviceTraining, OptimizersAreEqualWhereverTheyLie)
{
    const std::vector<Sets> all = {
        {"zero_optimization.stage=0"},
        {"zero_optimization.stage=2", "gradient_accumulation_steps=2", "train_micro_batch_size_per_gpu=1"},
        {"zero_optimization.stage=3", "communication_data_type=fp32"},
        {"zero_optimization.stage=3", "thinwire.delta_bits=4", "thinwire.sync_every=2"},
        {"zero_optimization.stage=1", "thinwire.groups=*.attn.* lr=0.5, *.mlp.* frozen"},
        {"zero_optimization.stage=0", "bf16.enabled=n"},
        {"zero_optimization.stage=2", "communication_data_type=bf16", "bf16.enabled=n"},
    };
    bool begins_near = false;
    for (const Sets &more : all) {
        SCOPED_TRACE(more.back());
        begins_near = !begins_near;
        const Sets near = more;
        Sets far = more;
        std::vector<Floats> of_first; /* rank's */
        far.push_back("zero_optimization.offload_optimizer.device=cpu");
        tw::run_ranks({0, 1}, [&](int rank, tw_coll_t *coll) {
            tw::EmulatedDevice devices[] = {tw::EmulatedDevice(2 * (uint32_t)rank + 1),
                                            tw::EmulatedDevice(2 * (uint32_t)rank + 2)};
            Job first(begins_near ? near : far, coll, devices[0].table());
            Job second(begins_near ? far : near, coll, devices[1].table());
            EXPECT_EQ(first.state(), second.state());
            EXPECT_EQ(first.step(), second.step());
            EXPECT_EQ(first.step(), second.step());
            EXPECT_EQ(first.state(), second.state());
            EXPECT_GT(tw_engine_device_bytes((begins_near ? first : second).engine),
                      tw_engine_device_bytes((begins_near ? second : first).engine));
            const std::vector<Floats> after = first.state();
            if (rank == 0) {
                of_first = after;
            }
            const double loss = first.step();
            second.step();
            second.load(after.empty() ? of_first : after, 2);
            EXPECT_EQ(second.step(), loss);
            EXPECT_EQ(first.state(), second.state());
            EXPECT_EQ(first.status, TW_OK);
            EXPECT_EQ(second.status, TW_OK);
        });
    }
}

/* What a step asks of a GPU, without layers and for each: docs/gpu_step.py counts on it. */
TEST_F(DeviceTraining, EachLayerAsksForAsMuch)
{
    const struct {
        Sets sets;
        std::vector<int> without, layer; /* kernels, products, copies, events, waits */
    } cases[] = {
        {{"zero_optimization.stage=3"}, {12, 3, 15, 14, 9}, {30, 21, 13, 10, 9}},
        {delta, {12, 3, 15, 14, 9}, {30, 21, 13, 10, 9}},
    };
    for (const auto &each : cases) {
        const auto calls = [&](const char *layers) {
            return train(both(each.sets, {llama, layers, "thinwire.steps=2"}), true).calls;
        };
        const std::vector<int> two = calls("model.n_layer=2"), three = calls("model.n_layer=3");
        EXPECT_EQ(less(three, two), each.layer);
        EXPECT_EQ(less(less(two, each.layer), each.layer), each.without);
    }
}

/* Whichever copy of a step fails, the step does. */
TEST_F(DeviceTraining, CopiesThatFailAreNotLost)
{
    const Sets stage = {"zero_optimization.stage=3"};
    for (const Sets &sets : {both(stage, {"thinwire.steps=1"}),
                             both(both(delta, on_gpu), {"thinwire.steps=1", "thinwire.hpz=on"})}) {
        const int n = train_alone(sets).n_copies;
        ASSERT_GT(n, 20);
        for (int failing = 0; failing < n; failing += failing < n - 8 ? n / 6 : 1) {
            expect_log("emulated: a copy failed");
            EXPECT_EQ(train_alone(sets, failing).status, TW_ERR_CUDA) << "copy " << failing << " of " << n;
        }
    }
}

/* Rank 0 samples on its processor: what that takes is counted as such. */
TEST_F(DeviceTraining, SamplingTakesHostMemory)
{
    const Sets sampled = {"thinwire.sample_steps=1", "thinwire.steps=1"};
    const Outcome plain = train_alone({"thinwire.steps=1"}), other = train_alone(sampled);
    EXPECT_EQ(other.device_bytes, plain.device_bytes);
    EXPECT_EQ(other.sample_bytes, train_alone(sampled, -1, false).sample_bytes);
}

/* The device holds what it is said to hold, and no more than thinwire.device_mem. */
TEST_F(DeviceTraining, MemoryOfTheDevice)
{
    const Outcome all = train({"zero_optimization.stage=3", "thinwire.steps=1"}, true, 1);
    EXPECT_LE(all.most_bytes, all.device_bytes);
    EXPECT_LT(all.device_bytes, all.most_bytes + 100000); /* lists of the host's, AdamW's scratch */
    expect_log("bytes are needed on the device, thinwire.device_mem is");
    expect_log("bytes are needed on the device, thinwire.device_mem is");
    EXPECT_EQ(train({"zero_optimization.stage=3", "thinwire.device_mem=100K"}, true, 1).status,
              TW_ERR_CONFIG);
}

/* For two ranks of a node, with GPUs that are not there. */
tw_plan_memory_t planned(const Sets &sets)
{
    tw_model_t *model = nullptr;
    tw_plan_memory_t memory = {};
    const tw_plan_cluster_t cluster = tw_plan_cluster_of(2, 1);
    const tw::Config config(tw::shaped(sets), 2, 1);
    EXPECT_EQ(tw_device_model_create_planned(&config.shape, &model), TW_OK);
    EXPECT_EQ(tw_plan_memory_of(config.options, model, &cluster, &memory), TW_OK);
    tw_model_destroy(model);
    return memory;
}

/* To the byte; an emulated device's products work in no memory of their own. */
TEST_F(DeviceTraining, MemoryIsWhatIsPlanned)
{
    const std::vector<Sets> cases = {
        {"zero_optimization.stage=0"},
        {"zero_optimization.stage=3"},
        {"zero_optimization.stage=1", "thinwire.recompute=y"},
        {"zero_optimization.stage=2", "activation_checkpointing.cpu_checkpointing=y"},
        {"zero_optimization.stage=3", "bf16.enabled=n"},
        {"zero_optimization.stage=2", "optimizer.type=Muon"},
        hpz,
        both(hpz, on_gpu),
        both(delta, on_gpu),
    };
    for (const char *family : {gpt2, llama}) {
        for (Sets sets : cases) {
            sets.insert(sets.end(), {family, "thinwire.steps=1"});
            SCOPED_TRACE(sets[0] + " " + sets[1] + " " + family);
            const Outcome taken = train(sets, true, 1);
            const tw_plan_memory_t memory = planned(sets);
            EXPECT_EQ((double)(taken.most_bytes + TW_DEVICE_PRODUCTS_BYTES), memory.gpu);
            /* how long a delta's messages are is a guess */
            const double host = tw_plan_memory_sum(&memory) - memory.chunks - memory.besides;
            const bool has_delta = sets[1] == delta[1];
            EXPECT_NEAR((double)taken.host_bytes, host, has_delta ? 0.05 * host : 0.0);
            EXPECT_EQ(tw_plan_memory_sum(&memory), memory.off_device);
        }
    }
}

} // namespace
