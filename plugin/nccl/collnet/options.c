/* Reads the collnet's variable, and the net's variables that it also obeys. */
#include <stdio.h>
#include <string.h>

#include "plugin/nccl/collnet/collnet.h"
#include "plugin/plugin.h"

static const tw_config_field_t fields[] = {
    {.name = "TW_ALLREDUCE_CODEC",
     .dflt = "plain",
     .doc = "How all-reduces travel through the collnet (NCCL_COLLNET_ENABLE=1): \"plain\"; \"lossless\", "
            "the same bits in fewer bytes; or a codec such as int8, ecdq or int4:block=128. The same on "
            "all nodes.",
     .type = TW_CONFIG_STRING,
     .offset = offsetof(tw_collnet_options_t, codec)},
};

const tw_config_table_t tw_collnet_config_table =
    TW_CONFIG_TABLE("nccl collnet", fields, tw_collnet_options_t);

static tw_status_t read_codec(tw_collnet_settings_t *settings)
{
    tw_collnet_options_t options;
    tw_status_t status = TW_OK;
    TW_TRY(tw_config_init(&tw_collnet_config_table, &options));
    settings->has_codec = options.codec[0] != '\0' && !tw_word_is(options.codec, "plain");
    if (settings->has_codec && tw_quant_codec_parse(options.codec, &settings->codec) != TW_OK) {
        tw_error("collnet: TW_ALLREDUCE_CODEC=%s is neither \"plain\" nor \"lossless\" nor a codec",
                 options.codec);
        status = TW_ERR_CONFIG;
    }
    tw_config_cleanup(&tw_collnet_config_table, &options);
    return status;
}

static tw_status_t read_net(tw_collnet_settings_t *settings)
{
    tw_net_options_t options;
    tw_status_t status = tw_net_options_init(&options);
    TW_TRY(status);
    settings->timeout_sec = options.timeout_sec;
    settings->is_open = options.is_nccls;
    int length =
        snprintf(settings->token, sizeof(settings->token), "%s", options.is_nccls ? "" : options.token);
    if (length >= (int)sizeof(settings->token)) {
        tw_error("collnet: TW_JOB_TOKEN: at most %zu characters", sizeof(settings->token) - 1);
        status = TW_ERR_CONFIG;
    }
    tw_config_cleanup(&tw_net_config_table, &options);
    return status;
}

tw_status_t tw_collnet_settings_read(tw_collnet_settings_t *settings)
{
    memset(settings, 0, sizeof(*settings));
    tw_status_t status = read_codec(settings);
    return status == TW_OK ? read_net(settings) : status;
}
