/* The command line. */
#include "bench/collectives/bench.h"

#include <math.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "flags/flags.h"

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
    [TW_COLL_ALLGATHER] = "Measures the plain and the quantized all-gather.",
    [TW_COLL_REDUCE_SCATTER] = "Measures the plain and the quantized reduce-scatter (mean).",
    [TW_COLL_ALLREDUCE] = "Measures the plain and the quantized all-reduce (mean).",
    [TW_COLL_ALLTOALL] = "Measures the plain and the quantized all-to-all.",
};

static void coll_take_size(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *item)
{
    size_t bytes;
    if (tw_parse_bytes(item, &bytes) != TW_OK || bytes == 0) {
        argp_error(state, "--%s: '%s' is not a size such as 65536, 64K or 1M", flag->field.name, item);
    }
    tw_bench_options_t *options = ctx;
    options->sizes[options->n_sizes] = bytes;
}

/** Return 1 if collectives support the codec: it must decode messages without old values. */
static int is_mode(tw_quant_kind_t kind)
{
    return tw_quant_row_get(kind)->form != TW_QUANT_CHANGE;
}

static void take_mode(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *item)
{
    tw_bench_options_t *options = ctx;
    const char *names[TW_QUANT_KINDS];
    tw_quant_kind_t kinds[TW_QUANT_KINDS];
    size_t n = 0;
    for (int kind = 0; kind < TW_QUANT_KINDS; kind++) {
        kinds[n] = (tw_quant_kind_t)kind;
        names[n] = tw_quant_row_get(kinds[n])->name;
        n += is_mode(kinds[n]);
    }
    tw_quant_kind_t mode = kinds[tw_flag_choice(state, flag, item, names, n)];
    for (size_t i = 0; i < options->n_modes; i++) {
        if (options->modes[i] == mode) {
            argp_error(state, "--%s: %s twice", flag->field.name, item);
        }
    }
    options->modes[options->n_modes] = mode;
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
    for (size_t i = 0; !found && (info = tw_bench_algo_get(options, i)); i++) {
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

static void take_link(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *text)
{
    tw_flag_take_link(state, flag, ctx, text);
    ((tw_bench_options_t *)ctx)->link_given = text != flag->field.dflt;
}

static void take_algo(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *text)
{
    (void)state, (void)flag;
    ((tw_bench_options_t *)ctx)->algo = strcmp(text, "auto") == 0 ? NULL : text;
}

static void take_block(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *text)
{
    tw_bench_options_t *options = ctx;
    if (tw_config_parse(&flag->field, options, text) != TW_OK || options->block % TW_QUANT_BLOCK_MIN != 0) {
        argp_error(state, "--%s: '%s' is not a multiple of %d from %d to %d", flag->field.name, text,
                   TW_QUANT_BLOCK_MIN, TW_QUANT_BLOCK_MIN, TW_QUANT_BLOCK_MAX);
    }
}

static void take_type(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *text)
{
    tw_bench_options_t *options = ctx;
    if (tw_type_parse(text, &options->type) != TW_OK || options->type == TW_TYPE_BYTE) {
        argp_error(state, "--%s: '%s' is not bf16, fp16 or fp32", flag->field.name, text);
    }
}

#define AT(member) offsetof(tw_bench_options_t, member)

static const char *const inner_names[] = {"plain", "int8", NULL};
static const char *const device_names[] = {"cpu", "cuda", NULL};
static const char *const wire_names[] = {"auto", "nccl", "transport", NULL};

static const tw_flag_t flag_list[] = {
    {.field = {"nodes", "4", "N", "Nodes of the cluster in a box", TW_CONFIG_INT32, AT(n_nodes), 1,
               TW_CLUSTER_MAX_NODES, NULL},
     .letter = 'n',
     .group = 1},
    {.field = {"ranks-per-node", "1", "L", "Ranks on each node", TW_CONFIG_INT32, AT(ranks_per_node), 1,
               TW_CLUSTER_MAX_RANKS, NULL},
     .letter = 'r'},
    {.field = {"link", "1gbit", "RATE",
               "Rate of each node's link, each way: 1gbit, 100mbit; none: not shaped. In a job of another "
               "launcher: "
               "what the links' real rate is, for the table, where it is known",
               TW_CONFIG_RATE, AT(link_bps), 0, 0, NULL},
     .letter = 'l',
     .take = take_link},
    {.field = {"sizes", "64K,1M,16M,64M", "LIST", "Bytes of the whole tensors in their source type",
               TW_CONFIG_STRING, AT(n_sizes), 0, 0, NULL},
     .letter = 's',
     .group = 2,
     .take = coll_take_size,
     .most_items = TW_BENCH_MAX_SIZES},
    {.field = {"modes", NULL, "LIST",
               "Codecs, of plain, int8, int4, int2, fp8, lossless (default: all that sum; with --device cuda "
               "all but lossless)",
               TW_CONFIG_STRING, AT(n_modes), 0, 0, NULL},
     .letter = 'm',
     .take = take_mode,
     .most_items = TW_QUANT_KINDS},
    {.field = {"algo", "auto", "NAME",
               "Algorithm, for the modes that have one of this name; auto: by the cost model",
               TW_CONFIG_STRING, 0, 0, 0, NULL},
     .letter = 'a',
     .take = take_algo},
    {.field = {"block", "128", "N", "Elements that share a scale: 32 to 4096, a multiple of 32",
               TW_CONFIG_INT32, AT(block), TW_QUANT_BLOCK_MIN, TW_QUANT_BLOCK_MAX, NULL},
     .take = take_block},
    {.field = {"inner", "plain", "MODE", "Inside the nodes, where a reduction has two hops: plain or int8",
               TW_CONFIG_ENUM, AT(inner_int8), 0, 0, inner_names}},
    {.field = {"hadamard", NULL, NULL, "Rotate groups of 32 elements before quantizing (default: no)",
               TW_CONFIG_BOOL, AT(hadamard), 0, 0, NULL}},
    {.field = {"type", "bf16", "TYPE", "Source type: bf16, fp16 or fp32", TW_CONFIG_STRING, 0, 0, 0, NULL},
     .take = take_type},
    {.field = {"force", NULL, NULL,
               "Quantize also where the cost model expects plain to be faster (default: no)", TW_CONFIG_BOOL,
               AT(force), 0, 0, NULL}},
    {.field = {"device", "cpu", "DEVICE", "Where the tensors are: cpu, or cuda: in GPU memory",
               TW_CONFIG_ENUM, AT(cuda), 0, 0, device_names}},
    {.field = {"wire", "auto", "WIRE",
               "Between GPUs: nccl; transport, straight from GPU memory or through pinned host memory as "
               "TW_COLL_GPU_WORKSPACE says; auto: nccl where each rank has a GPU of its own",
               TW_CONFIG_ENUM, AT(wire), 0, 0, wire_names}},
    {.field = {"iters", "10", "N",
               "Measured iterations of each mode and size, fewer where they take long, at least 3; more of "
               "small ones, "
               "up to ten times as many in half a second",
               TW_CONFIG_INT32, AT(iters), 1, TW_BENCH_MAX_ITERS, NULL},
     .letter = 'i',
     .group = 3},
    {.field =
         {"tensors", NULL, "FILE",
          "Real weights: a safetensors file, repeated and cut to each size (default: made up from the seed)",
          TW_CONFIG_STRING, AT(tensors), 0, 0, NULL}},
    {.field = {"seed", "1", "N", "Seed of made-up tensors", TW_CONFIG_INT, AT(seed), 0, INFINITY, NULL}},
    {.field = {"json", NULL, "FILE", "Write each line of the table as a JSON object (default: do not)",
               TW_CONFIG_STRING, AT(json), 0, 0, NULL}},
    {.field = {"no-iperf", NULL, NULL, "Do not measure one TCP stream with iperf3 first (default: do)",
               TW_CONFIG_BOOL, AT(no_iperf), 0, 0, NULL}},
};

/** End the program if this machine has too little memory for all ranks of a cluster in a box. */
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

static void coll_options_check(struct argp_state *state, void *ctx)
{
    tw_bench_options_t *options = ctx;
    for (int kind = 0, none = options->n_modes == 0; none && kind < TW_QUANT_KINDS; kind++) {
        const tw_quant_row_t *row = tw_quant_row_get((tw_quant_kind_t)kind);
        if (is_mode((tw_quant_kind_t)kind) && row->sums &&
            !(options->cuda && row->form == TW_QUANT_MESSAGE)) {
            options->modes[options->n_modes++] = (tw_quant_kind_t)kind;
        }
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

void tw_bench_options_parse(tw_bench_options_t *options, tw_coll_op_t op, int argc, char **argv)
{
    char doc[sizeof(after_doc) + 128];
    snprintf(doc, sizeof(doc), "%s%s", op_docs[op], after_doc);
    const tw_flags_t flags = {.flags = flag_list,
                              .n_flags = sizeof(flag_list) / sizeof(flag_list[0]),
                              .doc = doc,
                              .check = coll_options_check};
    *options = (tw_bench_options_t){.op = op};
    tw_flags_read(&flags, argc, argv, options);
}
