#include "tests/trainer/engine/params.h"

#include "tests/common/fixture.h"
#include "tests/trainer/engine/ranks.h"
#include "trainer/shape.h"

namespace tw
{

Config::Config(const std::vector<std::string> &sets, int world, int n_nodes)
{
    std::vector<std::string> all = tiny_sets();
    all.insert(all.end(), sets.begin(), sets.end());
    std::vector<const char *> pointers;
    for (const std::string &set : all) {
        pointers.push_back(set.c_str());
    }
    EXPECT_EQ(tw_train_config_create(nullptr, pointers.data(), pointers.size(), &config), TW_OK);
    EXPECT_EQ(tw_train_config_resolve(config, world, n_nodes), TW_OK);
    options = tw_train_config_options(config);
    EXPECT_EQ(tw_trainer_shape(options, 0, &shape), TW_OK);
}

Config::~Config()
{
    tw_train_config_destroy(config);
}

Params::Params(const std::vector<std::string> &sets, tw_coll_t *coll, const MakeModel &make)
    : Config(sets, tw_coll_size(coll), tw_coll_n_nodes(coll))
{
    tw_data_config_t data_config = {};
    data_config.path = options->data;
    data_config.val_share = options->val_share;
    data_config.document_token = -1;
    EXPECT_EQ(tw_data_open(&data_config, &data_), TW_OK);
    params.options = options;
    params.data = data_;
    params.coll = coll;
    EXPECT_EQ(make(&shape, &params.model), TW_OK);
}

Params::~Params()
{
    tw_model_destroy(params.model);
    tw_data_close(data_);
}

} // namespace tw
