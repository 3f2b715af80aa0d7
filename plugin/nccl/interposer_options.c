/** The interposer's variables. */
#include "plugin/nccl/interposer_options.h"

#include "plugin/plugin.h"

#define FIELD(member) offsetof(tw_ip_options_t, member)

static const tw_config_field_t fields[] = {
    {.name = "TW_INTERPOSE_GATHERS",
     .dflt = "plain",
     .doc = "Codec of what NCCL gathers between nodes, or plain.",
     .type = TW_CONFIG_STRING,
     .offset = FIELD(gathers)},
    {.name = "TW_INTERPOSE_SUMS",
     .dflt = "plain",
     .doc = "Codec of what NCCL reduces between nodes, or plain.",
     .type = TW_CONFIG_STRING,
     .offset = FIELD(sums)},
    {.name = "TW_INTERPOSE_MIN_BYTES",
     .dflt = "1M",
     .unit = "bytes",
     .doc = "Calls on less than this, over all ranks, stay plain.",
     .type = TW_CONFIG_BYTES,
     .offset = FIELD(min_bytes),
     .min = 1,
     .max = 1e15},
    {.name = "TW_REPORT_SEC",
     .dflt = "0",
     .unit = "s",
     .doc = "Report what was saved so often, besides at exit. 0: at exit alone.",
     .type = TW_CONFIG_TIME,
     .offset = FIELD(report_sec),
     .max = 1e9},
    {.name = "TW_JOIN_TIMEOUT",
     .dflt = "60s",
     .unit = "s",
     .doc = "With TW_INTERPOSE: how long ranks wait for each other to say that they have the interposer.",
     .type = TW_CONFIG_TIME,
     .offset = FIELD(join_sec),
     .min = 0.1,
     .max = 86400},
    {.name = "TW_INTERPOSE",
     .dflt = "n",
     .doc = "The net plugin puts the interposer between NCCL and what is in the process already.",
     .type = TW_CONFIG_BOOL,
     .offset = FIELD(redirects)},
};

const tw_config_table_t tw_interpose_config_table =
    TW_CONFIG_TABLE("nccl interposer", fields, tw_ip_options_t);

tw_status_t tw_ip_options_init(tw_ip_options_t *options)
{
    return tw_config_init(&tw_interpose_config_table, options);
}

void tw_ip_options_cleanup(tw_ip_options_t *options)
{
    tw_config_cleanup(&tw_interpose_config_table, options);
}
