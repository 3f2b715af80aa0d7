/** Small runs of the trainer, the ranks as threads over the local transport. */
#ifndef TW_TESTS_TRAINER_ENGINE_JOB_H
#define TW_TESTS_TRAINER_ENGINE_JOB_H

#include <functional>
#include <string>
#include <vector>

#include "tests/common/fixture.h"
#include "trainer/trainer.h"

namespace tw
{

/** What a run gave on rank 0. */
struct Outcome {
    tw_status_t status = TW_ERR_INTERNAL; /**< of the first rank that failed */
    tw_trainer_result_t result = {};
    std::vector<tw_trainer_step_t> steps;
    std::vector<std::string> samples; /**< "STEP TEXT" */

    std::vector<double> losses() const
    {
        std::vector<double> out;
        for (const tw_trainer_step_t &step : steps) {
            out.push_back(step.loss);
        }
        return out;
    }
};

/** body(rank, world) on a thread per rank, with a deterministic communicator that has a progress thread.
 *  node_of: as of tw_transport_local_create. */
void run_ranks(const std::vector<int> &node_of, const std::function<void(int, tw_coll_t *)> &body);

/** 1 + 1 ranks with different sets: their statuses. */
std::vector<tw_status_t> train_apart(const std::vector<std::string> &one,
                                     const std::vector<std::string> &other);

/** n_nodes x ranks_per_node ranks train a tiny GPT on a made-up text; sets as of --set. All ranks must report
 *  the same. */
Outcome train(int n_nodes, int ranks_per_node, const std::vector<std::string> &sets);

/** The same where they are put: node_of as above. */
Outcome train_on(const std::vector<int> &node_of, const std::vector<std::string> &sets);

/** The same, where each rank has sets of its own besides: own [ranks]. */
Outcome train_with(const std::vector<int> &node_of, const std::vector<std::string> &sets,
                   const std::vector<std::vector<std::string>> &own);

/** "thinwire.data=..." of that text, and the tiny model's shape. */
std::vector<std::string> tiny_sets();

} // namespace tw

#endif
