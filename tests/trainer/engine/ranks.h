/** Ranks as threads over the local transport, and what a tiny model needs to train on them. */
#ifndef TW_TESTS_TRAINER_ENGINE_RANKS_H
#define TW_TESTS_TRAINER_ENGINE_RANKS_H

#include <functional>
#include <string>
#include <vector>

#include "collectives/collectives.h"

namespace tw
{

/** body(rank, coll) on a thread per rank, with a deterministic communicator that has a progress thread.
 *  node_of: as of tw_transport_local_create. */
void run_ranks(const std::vector<int> &node_of, const std::function<void(int, tw_coll_t *)> &body);

/** "thinwire.data=..." of a made-up text, and the tiny model's shape. */
std::vector<std::string> tiny_sets();

} // namespace tw

#endif
