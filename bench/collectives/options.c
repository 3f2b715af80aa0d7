/* The command line. */
#include "bench/collectives/bench.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "flags/flags.h"

static const char *const mode_names[TW_BENCH_MODE_COUNT] = {"exact", "lossless", "int8", "int4"};

const char *tw_bench_mode_name(tw_bench_mode_t mode)
{
    return (unsigned)mode < TW_BENCH_MODE_COUNT ? mode_names[mode] : "?";
}

enum {
    KEY_HADAMARD = 256,
    KEY_INNER,
    KEY_TYPE,
    KEY_ITERS,
    KEY_TENSORS,
    KEY_JSON,
    KEY_SEED,
    KEY_FORCE,
    KEY_NO_IPERF,
    KEY_BLOCK,
    KEY_DEVICE,
    KEY_WIRE
};

static const char *const wire_names[] = {"auto", "nccl", "transport"};

static const struct argp_option option_list[] = {
    {.name = "nodes",
     .key = 'n',
     .arg = "N",
     .doc = "Nodes of the cluster in a box (default: 4)",
     .group = 1},
    {.name = "ranks-per-node", .key = 'r', .arg = "L", .doc = "Ranks on each node (default: 1)", .group = 1},
    {.name = "link",
     .key = 'l',
     .arg = "RATE",
     .doc =
         "Rate of each node's link, each way: 1gbit, 100mbit; none: not shaped (default: 1gbit). In a job of "
         "another launcher: "
         "what the links' real rate is, for the table (default: not known)",
     .group = 1},
    {.name = "sizes",
     .key = 's',
     .arg = "LIST",
     .doc = "Bytes of the whole tensors in their source type (default: 64K,1M,16M,64M)",
     .group = 2},
    {.name = "modes",
     .key = 'm',
     .arg = "LIST",
     .doc = "Of exact, lossless, int8, int4 (default: all; with --device cuda all but lossless)",
     .group = 2},
    {.name = "algo",
     .key = 'a',
     .arg = "NAME",
     .doc = "Algorithm, for the modes that have one of this name (default: auto, by the cost model)",
     .group = 2},
    {.name = "block",
     .key = KEY_BLOCK,
     .arg = "N",
     .doc = "Elements that share a scale: 32 to 4096, a multiple of 32 (default: 128)",
     .group = 2},
    {.name = "inner",
     .key = KEY_INNER,
     .arg = "MODE",
     .doc = "Inside the nodes, where a reduction has two hops: exact or int8 (default: exact)",
     .group = 2},
    {.name = "hadamard",
     .key = KEY_HADAMARD,
     .doc = "Rotate groups of 32 elements before quantizing (default: no)",
     .group = 2},
    {.name = "type",
     .key = KEY_TYPE,
     .arg = "TYPE",
     .doc = "Source type: bf16, fp16 or fp32 (default: bf16)",
     .group = 2},
    {.name = "force",
     .key = KEY_FORCE,
     .doc = "Quantize also where the cost model expects exact to be faster (default: no)",
     .group = 2},
    {.name = "device",
     .key = KEY_DEVICE,
     .arg = "DEVICE",
     .doc = "Where the tensors are: cpu, or cuda: in GPU memory (default: cpu)",
     .group = 2},
    {.name = "wire",
     .key = KEY_WIRE,
     .arg = "WIRE",
     .doc = "Between GPUs: nccl; transport, straight from GPU memory or through pinned host memory as "
            "TW_COLL_GPU_WORKSPACE says; auto: nccl where each rank has a GPU of its own (default: auto)",
     .group = 2},
    {.name = "iters",
     .key = 'i',
     .arg = "N",
     .doc =
         "Measured iterations of each mode and size, fewer where they take long, at least 3; more of small "
         "ones, up to ten times as many in half a second (default: 10)",
     .group = 3},
    {.name = "tensors",
     .key = KEY_TENSORS,
     .arg = "FILE",
     .doc =
         "Real weights: a safetensors file, repeated and cut to each size (default: made up from the seed)",
     .group = 3},
    {.name = "seed", .key = KEY_SEED, .arg = "N", .doc = "Seed of made-up tensors (default: 1)", .group = 3},
    {.name = "json",
     .key = KEY_JSON,
     .arg = "FILE",
     .doc = "Write each line of the table as a JSON object (default: do not)",
     .group = 3},
    {.name = "no-iperf",
     .key = KEY_NO_IPERF,
     .doc = "Do not measure one TCP stream with iperf3 first (default: do)",
     .group = 3},
    {0},
};

static const char after_doc[] =
    "\vOn its own it makes a cluster in a box: nodes with a network of their own on this machine, joined by "
    "shaped links. "
    "Under mpirun, torchrun or srun it joins that job, and --nodes and --ranks-per-node do not count.\n\n"
    "A line is ok when the result lies within the codec's error bound of an fp64 reference, is the same on "
    "all ranks and in "
    "all iterations, and the bytes counted by the transport equal the plan's and fit the interface's own "
    "counters.\n\n"
    "algbw is bytes / time, busbw what nccl-tests defines; GB/s are 10^9 bytes per second. The exit code is "
    "0 when all "
    "lines are ok.";

static const char *const op_docs[] = {
    [TW_COLL_ALLGATHER] = "Measures the exact and the quantized all-gather.",
    [TW_COLL_REDUCE_SCATTER] = "Measures the exact and the quantized reduce-scatter (mean).",
    [TW_COLL_ALLREDUCE] = "Measures the exact and the quantized all-reduce (mean).",
};

static void add_size(struct argp_state *state, void *input, const char *item)
{
    tw_bench_options_t *options = input;
    size_t bytes;
    if (tw_parse_bytes(item, &bytes) != TW_OK || bytes == 0) {
        argp_error(state, "--sizes: '%s' is not a size such as 65536, 64K or 1M", item);
        return;
    }
    if (options->n_sizes == TW_BENCH_MAX_SIZES) {
        argp_error(state, "--sizes: more than %d sizes", TW_BENCH_MAX_SIZES);
        return;
    }
    options->sizes[options->n_sizes++] = bytes;
}

static void add_mode(struct argp_state *state, void *input, const char *item)
{
    tw_bench_options_t *options = input;
    for (int mode = 0; mode < TW_BENCH_MODE_COUNT; mode++) {
        if (strcmp(item, mode_names[mode]) != 0) {
            continue;
        }
        for (size_t i = 0; i < options->n_modes; i++) {
            if ((int)options->modes[i] == mode) {
                argp_error(state, "--modes: %s twice", item);
                return;
            }
        }
        options->modes[options->n_modes++] = (tw_bench_mode_t)mode;
        return;
    }
    argp_error(state, "--modes: unknown mode '%s'; there are exact, lossless, int8 and int4", item);
}

const tw_coll_algo_info_t *tw_bench_algo_get(const tw_bench_options_t *options, size_t index)
{
    return tw_coll_algo_get(options->cuda ? TW_MEM_CUDA : TW_MEM_HOST, index);
}

static void check_algo(struct argp_state *state, tw_bench_options_t *options)
{
    char known[512] = "auto";
    const char *name = options->algo;
    const tw_coll_algo_info_t *info;
    int found = !options->algo;
    for (size_t i = 0; !found && (info = tw_bench_algo_get(options, i)) != NULL; i++) {
        if (info->op != options->op) {
            continue;
        }
        found |= strcmp(info->name, name) == 0;
        if (!strstr(known, info->name)) {
            snprintf(known + strlen(known), sizeof(known) - strlen(known), ", %s", info->name);
        }
    }
    if (!found) {
        argp_error(state, "--algo: %s has no algorithm '%s'; there are %s", tw_coll_op_name(options->op),
                   name, known);
    }
}

static error_t parse_cluster_option(int key, char *arg, struct argp_state *state)
{
    tw_bench_options_t *options = state->input;
    switch (key) {
    case 'n':
        options->n_nodes = (int)tw_flag_int(state, "nodes", arg, 1, TW_CLUSTER_MAX_NODES);
        return 0;
    case 'r':
        options->ranks_per_node = (int)tw_flag_int(state, "ranks-per-node", arg, 1, TW_CLUSTER_MAX_RANKS);
        return 0;
    case 'l':
        options->link_bps = tw_flag_link(state, "link", arg);
        options->link_given = 1;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void parse_type(struct argp_state *state, tw_bench_options_t *options, const char *arg)
{
    if (tw_type_parse(arg, &options->type) != TW_OK || options->type == TW_TYPE_BYTE) {
        argp_error(state, "--type: '%s' is not bf16, fp16 or fp32", arg);
    }
}

static void parse_device(struct argp_state *state, tw_bench_options_t *options, const char *arg)
{
    options->cuda = strcmp(arg, "cuda") == 0;
    if (!options->cuda && strcmp(arg, "cpu") != 0) {
        argp_error(state, "--device: '%s' is not cpu or cuda", arg);
    }
}

static void parse_wire(struct argp_state *state, tw_bench_options_t *options, const char *arg)
{
    for (size_t i = 0; i < sizeof(wire_names) / sizeof(wire_names[0]); i++) {
        if (strcmp(arg, wire_names[i]) == 0) {
            options->wire = (tw_bench_wire_t)i;
            return;
        }
    }
    argp_error(state, "--wire: '%s' is not auto, nccl or transport", arg);
}

static error_t parse_codec_option(int key, char *arg, struct argp_state *state)
{
    tw_bench_options_t *options = state->input;
    switch (key) {
    case 'a':
        options->algo = strcmp(arg, "auto") == 0 ? NULL : arg;
        return 0;
    case KEY_BLOCK:
        options->block = (int)tw_flag_int(state, "block", arg, TW_QUANT_BLOCK_MIN, TW_QUANT_BLOCK_MAX);
        if (options->block % TW_QUANT_BLOCK_MIN != 0) {
            argp_error(state, "--block: %s is not a multiple of %d", arg, TW_QUANT_BLOCK_MIN);
        }
        return 0;
    case KEY_INNER:
        options->inner_int8 = strcmp(arg, "int8") == 0;
        if (!options->inner_int8 && strcmp(arg, "exact") != 0) {
            argp_error(state, "--inner: unknown mode '%s'; there are exact and int8", arg);
        }
        return 0;
    case KEY_HADAMARD:
        options->hadamard = 1;
        return 0;
    case KEY_TYPE:
        parse_type(state, options, arg);
        return 0;
    case KEY_FORCE:
        options->force = 1;
        return 0;
    case KEY_DEVICE:
        parse_device(state, options, arg);
        return 0;
    case KEY_WIRE:
        parse_wire(state, options, arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* What no machine has room for would take long to be found out. All ranks of a cluster in a box are on this one. */
static void check_memory(struct argp_state *state, const tw_bench_options_t *options, size_t bytes)
{
    char wanted[32], there[32];
    size_t memory = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    size_t ranks = tw_job_launched() ? 1 : (size_t)options->n_nodes * (size_t)options->ranks_per_node;
    if (bytes > memory / ranks) {
        argp_error(state, "--sizes: %s on each of %zu ranks is more than this machine's memory, %s",
                   tw_format_bytes(bytes, wanted, sizeof(wanted)), ranks,
                   tw_format_bytes(memory, there, sizeof(there)));
    }
}

/* What depends on several flags. */
static void finish(struct argp_state *state, tw_bench_options_t *options)
{
    if (options->n_sizes == 0) {
        tw_flag_list(state, "64K,1M,16M,64M", add_size);
    }
    if (options->n_modes == 0) {
        tw_flag_list(state, options->cuda ? "exact,int8,int4" : "exact,lossless,int8,int4", add_mode);
    }
    check_algo(state, options);
    for (size_t i = 0; i < options->n_sizes; i++) {
        check_memory(state, options, options->sizes[i]);
        if (options->sizes[i] % tw_type_bytes(options->type) != 0) {
            argp_error(state, "--sizes: %zu bytes are no whole number of %s elements", options->sizes[i],
                       tw_type_name(options->type));
        }
    }
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    tw_bench_options_t *options = state->input;
    switch (key) {
    case 's':
        options->n_sizes = 0;
        tw_flag_list(state, arg, add_size);
        return 0;
    case 'm':
        options->n_modes = 0;
        tw_flag_list(state, arg, add_mode);
        return 0;
    case 'i':
        options->iters = (int)tw_flag_int(state, "iters", arg, 1, TW_BENCH_MAX_ITERS);
        return 0;
    case KEY_TENSORS:
        options->tensors = arg;
        return 0;
    case KEY_SEED:
        options->seed = (uint64_t)tw_flag_int(state, "seed", arg, 0, INT64_MAX);
        return 0;
    case KEY_JSON:
        options->json = arg;
        return 0;
    case KEY_NO_IPERF:
        options->no_iperf = 1;
        return 0;
    case ARGP_KEY_END:
        finish(state, options);
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "what is '%s'?", arg);
        return EINVAL;
    default: {
        error_t status = parse_cluster_option(key, arg, state);
        return status == ARGP_ERR_UNKNOWN ? parse_codec_option(key, arg, state) : status;
    }
    }
}

void tw_bench_options_parse(tw_bench_options_t *options, tw_coll_op_t op, int argc, char **argv)
{
    char doc[sizeof(after_doc) + 128];
    snprintf(doc, sizeof(doc), "%s%s", op_docs[op], after_doc);
    const struct argp argp = {.options = option_list, .parser = parse_option, .doc = doc};
    *options = (tw_bench_options_t){.op = op,
                                    .n_nodes = 4,
                                    .ranks_per_node = 1,
                                    .link_bps = 1e9,
                                    .block = 128,
                                    .type = TW_TYPE_BF16,
                                    .iters = 10,
                                    .seed = 1};
    tw_flags_parse(&argp, argc, argv, 0, options);
}
