/** Configurations from text, for the tests. */
#ifndef TW_TESTS_TRAINER_CONFIG_CONFIG_H
#define TW_TESTS_TRAINER_CONFIG_CONFIG_H

#include <memory>
#include <string>
#include <vector>

#include "tests/common/fixture.h"
#include "trainer/config/config.h"

namespace tw
{

struct ConfigDeleter {
    void operator()(tw_train_config_t *config) const
    {
        tw_train_config_destroy(config);
    }
};
using Config = std::unique_ptr<tw_train_config_t, ConfigDeleter>;

/** Read a configuration; NULL where it is refused, and *status says why. */
inline Config config_of(const std::string &text, const std::vector<const char *> &sets = {},
                        tw_status_t *status = nullptr)
{
    tw_train_config_t *config = nullptr;
    tw_status_t result =
        tw_train_config_parse("test.json", text.data(), text.size(), sets.data(), sets.size(), &config);
    if (status) {
        *status = result;
    }
    return Config(result == TW_OK ? config : nullptr);
}

inline const tw_train_options_t &options_of(const Config &config)
{
    return *tw_train_config_options(config.get());
}

} // namespace tw

#endif
