/* A configuration from outside: any bytes as a file, and what follows from it for 6 ranks on 2 nodes. */
#include <cstdint>
#include <cstdlib>

#include "trainer/config/config.h"

static void be_silent(void *, tw_log_level_t, const char *, int, const char *)
{
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tw_train_config_t *config = nullptr;
    tw_log_set_sink(be_silent, nullptr);
    if (tw_train_config_parse("fuzz", (const char *)data, size, nullptr, 0, &config) != TW_OK) {
        return 0;
    }
    const tw_train_options_t *options = tw_train_config_options(config);
    if (tw_train_config_resolve(config, 6, 2) == TW_OK) {
        /* what has been accepted adds up */
        if (options->batch != 6 * options->micro_batch * options->accumulation || options->batch < 6 ||
            options->stage < 0 || options->stage > 3) {
            abort();
        }
        double lr = tw_train_lr(options, 1);
        if (!(lr >= 0 && lr <= 10)) {
            abort();
        }
    }
    tw_train_config_destroy(config);
    return 0;
}
