/** Ranks as processes over UCX. */
#ifndef TW_TESTS_COLLECTIVES_PROCESSES_H
#define TW_TESTS_COLLECTIVES_PROCESSES_H

#include <functional>
#include <string>
#include <vector>

#include "collectives/collectives.h"

namespace tw
{

/** Fork a process per rank (node_of: the node each pretends to be on), make a communicator in each, and run
 *  body(coll); it returns what is wrong, or the empty string. Returns what was wrong on all ranks, also when
 *  one of them crashed, or took longer than limit_sec (all are killed then). Call it before the test starts
 *  threads of its own. progress_thread: as in tw_coll_params_t. */
std::string run_processes(const std::vector<int> &node_of,
                          const std::function<std::string(tw_coll_t *)> &body, int limit_sec,
                          int progress_thread = 0);

} // namespace tw

#endif
