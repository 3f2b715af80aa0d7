/* The tuner's variables, and its built-in constants. */
#include "plugin/nccl/tuner/tuner.h"

#include "plugin/nccl/collnet/collnet.h"
#include "plugin/plugin.h"

#define FIELD(member) offsetof(tw_tuner_options_t, member)

static const tw_config_field_t fields[] = {
    {.name = "TW_TUNER_FILE",
     .dflt = "",
     .doc = "JSON file with what the links and NCCL's algorithms and protocols cost; the same on all ranks.",
     .type = TW_CONFIG_STRING,
     .offset = FIELD(file)},
    {.name = "TW_NET_ALPHA_US",
     .dflt = "0",
     .unit = "us",
     .doc = "What a small message takes between nodes. 0: as TW_TUNER_FILE says, else 50. The same on all "
            "ranks.",
     .type = TW_CONFIG_DOUBLE,
     .offset = FIELD(alpha_us),
     .max = 1e6},
    {.name = "TW_NET_GBPS",
     .dflt = "0",
     .unit = "Gb/s",
     .doc = "Speed between nodes, each way, of all links of a node together. 0: as TW_TUNER_FILE says, else "
            "NCCL's own times are kept, which follow the speeds that all nodes' devices have. The same on "
            "all ranks.",
     .type = TW_CONFIG_DOUBLE,
     .offset = FIELD(gbps),
     .max = 1e5},
    {.name = "TW_TUNER_EXPLAIN",
     .dflt = "no",
     .doc = "Log (with NCCL_DEBUG=INFO) the times from which the tuner chose, once for each operation and "
            "power of two.",
     .type = TW_CONFIG_BOOL,
     .offset = FIELD(explain)},
};

const tw_config_table_t tw_tuner_config_table = TW_CONFIG_TABLE("tuner", fields, tw_tuner_options_t);

void tw_tuner_constants_init(tw_tuner_constants_t *constants)
{
    *constants = (tw_tuner_constants_t){
        .inter = {.alpha_us = 50, .gbps = 1},
        .node = {.alpha_us = 5, .gbps = 100},
        .proto = {[TW_NCCL_LL] = {.alpha_us = 0, .bytes = 2},
                  [TW_NCCL_LL128] = {.alpha_us = 3, .bytes = 128.0 / 120},
                  [TW_NCCL_SIMPLE] = {.alpha_us = 9, .bytes = 1}},
        .collnet_min_bytes = (size_t)1 << 20,
        .collnet_bytes = 1,
    };
    for (int algo = 0; algo < TW_NCCL_ALGOS; algo++) {
        constants->share[algo] = 1;
    }
    constants->share[TW_NCCL_TREE] = 0.92;
    constants->share[TW_NCCL_PAT] = 0.75;
}

static tw_status_t read_codec(tw_tuner_constants_t *constants)
{
    tw_collnet_settings_t settings;
    tw_status_t status = tw_collnet_settings_read(&settings);
    if (status == TW_OK && settings.has_codec) {
        constants->collnet_bytes = tw_quant_usual_bits(&settings.codec, TW_TYPE_BF16) / 16;
    }
    return status;
}

static void log_constants(const tw_tuner_constants_t *constants, const char *file)
{
    if (constants->inter.gbps == 0) {
        tw_info("tuner: neither TW_NET_GBPS nor TW_TUNER_FILE says how fast the links between nodes are: "
                "NCCL's own times are kept, by the speeds of all nodes' devices");
        return;
    }
    tw_info("tuner: %g us and %g Gb/s between nodes, %g us and %g Gb/s inside, %s%s",
            constants->inter.alpha_us, constants->inter.gbps, constants->node.alpha_us, constants->node.gbps,
            file[0] != '\0' ? "with " : "protocols as built in", file);
}

tw_status_t tw_tuner_configure(tw_tuner_constants_t *constants, int *explain)
{
    tw_tuner_constants_t read;
    tw_tuner_options_t options;
    TW_TRY(tw_config_init(&tw_tuner_config_table, &options));
    tw_tuner_constants_init(&read);
    read.inter.gbps = 0;
    tw_status_t status = read_codec(&read);
    if (status == TW_OK && options.file[0] != '\0') {
        status = tw_tuner_file_read(options.file, &read);
    }
    if (status == TW_OK) {
        read.inter.alpha_us = options.alpha_us > 0 ? options.alpha_us : read.inter.alpha_us;
        read.inter.gbps = options.gbps > 0 ? options.gbps : read.inter.gbps;
        log_constants(&read, options.file);
        *constants = read;
        *explain = options.explain;
    }
    tw_config_cleanup(&tw_tuner_config_table, &options);
    return status;
}
