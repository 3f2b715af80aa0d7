#include "tests/trainer/engine/job.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "tests/transport/local.h"

namespace tw
{

static const std::string &text_path()
{
    static const std::string path = [] {
        const char *folder = getenv("TEST_TMPDIR");
        std::string name = std::string(folder ? folder : "/tmp") + "/text.txt";
        FILE *file = fopen(name.c_str(), "w");
        unsigned state = 1;
        for (int i = 0; i < 4000; i++) {
            static const char *const words[] = {"the ",    "ark ",  "and ",  "of ",
                                                "waters ", "went ", "upon ", "earth.\n"};
            state = state * 1664525u + 1013904223u;
            fputs(words[state >> 29], file);
        }
        fclose(file);
        return name;
    }();
    return path;
}

std::vector<std::string> tiny_sets()
{
    return {"thinwire.data=" + text_path(),
            "model.n_layer=2",
            "model.n_head=2",
            "model.n_embd=32",
            "model.vocab_size=257",
            "thinwire.sequence_length=17",
            "thinwire.val_sequences=8",
            "thinwire.steps=5",
            "scheduler.params.warmup_num_steps=2",
            "optimizer.params.lr=3e-3"};
}

void run_ranks(const std::vector<int> &node_of, const std::function<void(int, tw_coll_t *)> &body)
{
    std::vector<tw_transport_t *> transports(node_of.size());
    ASSERT_EQ(tw_transport_local_create((int)node_of.size(), node_of.data(), transports.data()), TW_OK);
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < node_of.size(); rank++) {
        threads.emplace_back([&, rank] {
            tw_coll_params_t params = {};
            params.transport = transports[rank];
            params.deterministic = 1;
            params.progress_thread = 1;
            tw_coll_t *world = nullptr;
            ASSERT_EQ(tw_coll_create(&params, &world), TW_OK);
            body((int)rank, world);
            tw_coll_destroy(world);
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    for (tw_transport_t *transport : transports) {
        tw_transport_destroy(transport);
    }
}

static void note(void *ctx, const tw_trainer_step_t *step)
{
    static_cast<Outcome *>(ctx)->steps.push_back(*step);
}

static void note_sample(void *ctx, uint64_t step, const char *text)
{
    static_cast<Outcome *>(ctx)->samples.push_back(std::to_string(step) + " " + text);
}

std::vector<tw_status_t> train_apart(const std::vector<std::string> &one,
                                     const std::vector<std::string> &other)
{
    std::vector<tw_status_t> statuses(2);
    run_ranks({0, 1}, [&](int rank, tw_coll_t *world) {
        std::vector<const char *> pointers;
        for (const std::string &set : rank == 0 ? one : other) {
            pointers.push_back(set.c_str());
        }
        tw_trainer_params_t params = {};
        tw_trainer_result_t result;
        params.sets = pointers.data();
        params.n_sets = pointers.size();
        params.world = world;
        statuses[(size_t)rank] = tw_trainer_run(&params, &result);
    });
    return statuses;
}

Outcome train(int n_nodes, int ranks_per_node, const std::vector<std::string> &sets)
{
    std::vector<int> node_of;
    for (int rank = 0; rank < n_nodes * ranks_per_node; rank++) {
        node_of.push_back(rank / ranks_per_node);
    }
    return train_on(node_of, sets);
}

Outcome train_on(const std::vector<int> &node_of, const std::vector<std::string> &sets)
{
    return train_with(node_of, sets, std::vector<std::vector<std::string>>(node_of.size()));
}

Outcome train_with(const std::vector<int> &node_of, const std::vector<std::string> &sets,
                   const std::vector<std::vector<std::string>> &own)
{
    std::vector<Outcome> outcomes(node_of.size());
    run_ranks(node_of, [&](int rank, tw_coll_t *world) {
        Outcome &outcome = outcomes[(size_t)rank];
        std::vector<std::string> all = tiny_sets();
        all.insert(all.end(), sets.begin(), sets.end());
        all.insert(all.end(), own[(size_t)rank].begin(), own[(size_t)rank].end());
        std::vector<const char *> pointers;
        for (const std::string &set : all) {
            pointers.push_back(set.c_str());
        }
        tw_trainer_params_t params = {};
        params.sets = pointers.data();
        params.n_sets = pointers.size();
        params.world = world;
        params.on_step = note;
        params.on_sample = note_sample;
        params.ctx = &outcome;
        outcome.status = tw_trainer_run(&params, &outcome.result);
    });
    for (const Outcome &outcome : outcomes) {
        EXPECT_EQ(outcome.losses(), outcomes[0].losses());
        EXPECT_TRUE(&outcome == &outcomes[0] || outcome.samples.empty());
        if (outcome.status != TW_OK) {
            outcomes[0].status = outcome.status;
        }
    }
    return outcomes[0];
}

} // namespace tw
