/** What an engine is made from, for tests that make it themselves. */
#ifndef TW_TESTS_TRAINER_ENGINE_PARAMS_H
#define TW_TESTS_TRAINER_ENGINE_PARAMS_H

#include <functional>
#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/engine/engine.h"

namespace tw
{

using MakeModel = std::function<tw_status_t(const tw_model_config_t *, tw_model_t **)>;

/** A configuration of tiny_sets and these, resolved. */
class Config
{
  public:
    Config(const std::vector<std::string> &sets, int world, int n_nodes);
    ~Config();
    Config(const Config &) = delete;
    Config &operator=(const Config &) = delete;

    tw_train_config_t *config = nullptr;
    const tw_train_options_t *options = nullptr;
    tw_model_config_t shape = {};
};

/** On a rank of `coll`: its data, and the model that `make` makes of its shape. */
class Params : public Config
{
  public:
    Params(const std::vector<std::string> &sets, tw_coll_t *coll, const MakeModel &make);
    ~Params();

    tw_engine_params_t params = {};

  private:
    tw_data_t *data_ = nullptr;
};

} // namespace tw

#endif
