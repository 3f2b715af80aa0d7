#include "collectives/options.h"

#include "collectives/collectives.h"

/** Names of tw_coll_gpu_workspace_t, in the enum's order. */
static const char *const gpu_workspaces[] = {"auto", "pinned", "device", NULL};

#define FIELD(member) offsetof(tw_coll_options_t, member)

static const tw_config_field_t fields[] = {
    {.name = "TW_COLL_CHUNK",
     .dflt = "0",
     .unit = "bytes",
     .doc = "Largest message of a collective operation, in bytes: at least 256, at most what TW_COLL_SCRATCH "
            "has room for. 0: chosen.",
     .type = TW_CONFIG_BYTES,
     .offset = FIELD(chunk_bytes),
     .max = 1 << 30},
    {.name = "TW_COLL_WINDOW",
     .dflt = "8",
     .unit = "messages",
     .doc = "Messages in flight per operation, peer and direction.",
     .type = TW_CONFIG_INT,
     .offset = FIELD(window),
     .min = 1,
     .max = 1024},
    {.name = "TW_COLL_CHECK",
     .dflt = "y",
     .unit = "",
     .doc = "Compare the arguments of every operation between neighbouring ranks: one short message.",
     .type = TW_CONFIG_BOOL,
     .offset = FIELD(check)},
    {.name = "TW_COLL_TIMEOUT",
     .dflt = "600s",
     .unit = "s",
     .doc = "Give an operation up when nothing has moved for so long while it was waited for. 0: never.",
     .type = TW_CONFIG_TIME,
     .offset = FIELD(timeout_sec),
     .max = 1e9},
    {.name = "TW_COLL_SCRATCH",
     .dflt = "32M",
     .unit = "bytes",
     .doc = "Most scratch memory of a communicator on host memory, whatever the tensors' size; messages get "
            "smaller where ranks are many, down to eight blocks of the codec. Only an all-to-all in place "
            "needs more: as much as it sends. The same on all ranks.",
     .type = TW_CONFIG_BYTES,
     .offset = FIELD(scratch_bytes),
     .min = 64 << 10,
     .max = 1e12},
    {.name = "TW_COLL_MODEL",
     .dflt = TW_COLL_MODEL_MEASURE,
     .unit = "",
     .doc =
         "What links and processors can do: \"measure\", or as in "
         "\"inter:alpha=50us,beta=1gbit;node:beta=40gbit;codec:encode=3G,decode=3G\" (what is left out has "
         "a default).",
     .type = TW_CONFIG_STRING,
     .offset = FIELD(model)},
    {.name = "TW_COLL_DETERMINISTIC",
     .dflt = "n",
     .unit = "",
     .doc = "Results that depend on nothing but the input, the codec and where the ranks are: not on sizes, "
            "buckets, speed or load. Nothing is measured; TW_COLL_MODEL's constants may decide to decline "
            "quantizing.",
     .type = TW_CONFIG_BOOL,
     .offset = FIELD(deterministic)},
    {.name = "TW_COLL_EXPLAIN",
     .dflt = "n",
     .unit = "",
     .doc = "Print, on rank 0, what the cost model expects of each algorithm for each new kind of operation, "
            "and the choice.",
     .type = TW_CONFIG_BOOL,
     .offset = FIELD(explain)},
    {.name = "TW_COLL_GPU_WORKSPACE",
     .dflt = "auto",
     .unit = "",
     .doc = "Between GPUs over a transport, messages go from and to host memory that kernels reach "
            "(\"pinned\"), or straight from and to GPU memory (\"device\"). \"auto\": device where the "
            "transport takes it, which UCX does if built with CUDA, inside a node or when TW_NET_TLS is not "
            "tcp.",
     .type = TW_CONFIG_ENUM,
     .offset = FIELD(gpu_workspace),
     .choices = gpu_workspaces},
};

const tw_config_table_t tw_coll_config_table = TW_CONFIG_TABLE("collectives", fields, tw_coll_options_t);

tw_status_t tw_coll_options_read(tw_coll_options_t *options)
{
    tw_status_t status = tw_config_init(&tw_coll_config_table, options);
    if (status == TW_OK && options->chunk_bytes > 0 && options->chunk_bytes < TW_COLL_CHUNK_LEAST) {
        tw_error("TW_COLL_CHUNK=%zu: at least %d bytes, or 0", options->chunk_bytes, TW_COLL_CHUNK_LEAST);
        status = TW_ERR_CONFIG;
    }
    return status;
}
