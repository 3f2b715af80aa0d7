/** What an engine is made from, for tests that make it themselves. */
#ifndef TW_TESTS_TRAINER_ENGINE_PARAMS_H
#define TW_TESTS_TRAINER_ENGINE_PARAMS_H

#include <functional>
#include <string>
#include <vector>

#include "trainer/engine/engine.h"

namespace tw
{

using MakeModel = std::function<tw_status_t(const tw_model_config_t *, tw_model_t **)>;

/** body(params) on a rank of `world`, with tiny_sets and these: the configuration, its data and the model
 *  that `make` makes of its shape. They end with the body. */
void with_params(const std::vector<std::string> &sets, tw_coll_t *world, const MakeModel &make,
                 const std::function<void(const tw_engine_params_t &)> &body);

} // namespace tw

#endif
