#include "tests/trainer/engine/params.h"

#include "tests/common/fixture.h"
#include "tests/trainer/engine/ranks.h"
#include "trainer/shape.h"

namespace tw
{

void with_params(const std::vector<std::string> &sets, tw_coll_t *world, const MakeModel &make,
                 const std::function<void(const tw_engine_params_t &)> &body)
{
    std::vector<std::string> all = tiny_sets();
    all.insert(all.end(), sets.begin(), sets.end());
    std::vector<const char *> pointers;
    for (const std::string &set : all) {
        pointers.push_back(set.c_str());
    }
    tw_train_config_t *config = nullptr;
    ASSERT_EQ(tw_train_config_create(nullptr, pointers.data(), pointers.size(), &config), TW_OK);
    ASSERT_EQ(tw_train_config_resolve(config, tw_coll_size(world), tw_coll_n_nodes(world)), TW_OK);
    const tw_train_options_t *options = tw_train_config_options(config);
    tw_data_config_t data_config = {};
    data_config.path = options->data;
    data_config.val_share = options->val_share;
    data_config.document_token = -1;
    tw_data_t *data = nullptr;
    ASSERT_EQ(tw_data_open(&data_config, &data), TW_OK);
    tw_model_config_t shape = {};
    tw_model_t *model = nullptr;
    ASSERT_EQ(tw_trainer_shape(options, 0, &shape), TW_OK);
    ASSERT_EQ(make(&shape, &model), TW_OK);
    body({options, model, data, world, {}});
    tw_model_destroy(model);
    tw_data_close(data);
    tw_train_config_destroy(config);
}

} // namespace tw
