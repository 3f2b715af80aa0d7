/* Fills in the table from which NCCL chooses. */
#include "plugin/nccl/tuner/tuner.h"

#include <stdarg.h>
#include <stdio.h>

#define LINE_BYTES 2048

static const char *const func_names[] = {"broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce"};
static const char *const algo_names[] = {"tree",      "ring", "collnet_direct", "collnet_chain", "nvls",
                                         "nvls_tree", "pat"};
static const char *const proto_names[] = {"ll", "ll128", "simple"};

const char *tw_tuner_func_name(int func)
{
    return func >= 0 && func < TW_NCCL_FUNCS ? func_names[func] : "?";
}

const char *tw_tuner_algo_name(int algo)
{
    return algo >= 0 && algo < TW_NCCL_ALGOS ? algo_names[algo] : "?";
}

const char *tw_tuner_proto_name(int proto)
{
    return proto >= 0 && proto < TW_NCCL_PROTOS ? proto_names[proto] : "?";
}

int tw_tuner_lowest(const float *table, int n_algos, int n_protos, int *algo, int *proto)
{
    int best = -1;
    for (int i = 0; i < n_algos * n_protos; i++) {
        if (table[i] >= 0 && (best < 0 || table[i] < table[best])) {
            best = i;
        }
    }
    if (best >= 0) {
        *algo = best / n_protos;
        *proto = best % n_protos;
    }
    return best >= 0;
}

/** Returns 1 if the algorithm needs a collnet plugin between nodes. */
static int needs_collnet(int algo)
{
    return algo == TW_NCCL_COLLNET_DIRECT || algo == TW_NCCL_COLLNET_CHAIN || algo == TW_NCCL_NVLS;
}

static int has_another_way(const float *table, int n_algos, int n_protos)
{
    for (int i = 0; i < n_algos * n_protos; i++) {
        if (table[i] >= 0 && !needs_collnet(i / n_protos)) {
            return 1;
        }
    }
    return 0;
}

static void forbid_collnet(float *table, int n_algos, int n_protos)
{
    for (int i = 0; i < n_algos * n_protos; i++) {
        if (needs_collnet(i / n_protos)) {
            table[i] = TW_NCCL_FORBIDDEN;
        }
    }
}

/* A log line that is built in parts. Text that does not fit is cut. */
typedef struct line {
    char text[LINE_BYTES];
    size_t length;
} line_t;

__attribute__((format(printf, 2, 3))) static void line_add(line_t *line, const char *format, ...)
{
    va_list args;
    int length;
    va_start(args, format);
    length = vsnprintf(line->text + line->length, sizeof(line->text) - line->length, format, args);
    va_end(args);
    if (length > 0) {
        line->length += (size_t)length;
    }
    if (line->length >= sizeof(line->text)) {
        line->length = sizeof(line->text) - 1;
    }
}

static int bits_of(size_t bytes)
{
    return bytes == 0 ? 0 : 63 - __builtin_clzll(bytes);
}

static int was_explained(tw_tuner_t *tuner, const tw_tuner_op_t *op)
{
    uint64_t bit = (uint64_t)1 << bits_of(op->bytes);
    int was = (tuner->explained[op->func] & bit) != 0;
    tuner->explained[op->func] |= bit;
    return was;
}

static void tuner_explain(tw_tuner_t *tuner, const tw_tuner_op_t *op, const float *table, int n_algos,
                          int n_protos)
{
    line_t line = {.length = 0};
    int algo, proto;
    if (!tuner->explain || was_explained(tuner, op)) {
        return;
    }
    line_add(&line, "tuner: %s of %zu bytes, %zu ranks on %zu nodes:", tw_tuner_func_name(op->func),
             op->bytes, tuner->world, tuner->n_nodes);
    for (int i = 0; i < n_algos * n_protos; i++) {
        if (table[i] >= 0) {
            line_add(&line, " %s/%s %.1f us,", tw_tuner_algo_name(i / n_protos),
                     tw_tuner_proto_name(i % n_protos), (double)table[i]);
        }
    }
    if (tw_tuner_lowest(table, n_algos, n_protos, &algo, &proto)) {
        tw_info("%s so %s/%s", line.text, tw_tuner_algo_name(algo), tw_tuner_proto_name(proto));
    } else {
        tw_info("%s nothing is allowed", line.text);
    }
}

void tw_tuner_fill(tw_tuner_t *tuner, const tw_tuner_op_t *op, float *table, int n_algos, int n_protos)
{
    if (tuner->n_nodes < 2 || op->func < 0 || op->func >= TW_NCCL_FUNCS || n_algos <= 0 || n_protos <= 0) {
        return;
    }
    for (int i = 0; i < n_algos * n_protos && tuner->constants.inter.gbps > 0; i++) {
        double time_us = tw_tuner_time_us(tuner, op, i / n_protos, i % n_protos);

        if (table[i] >= 0 && time_us >= 0) {
            table[i] = (float)time_us;
        }
    }
    if (op->func == TW_NCCL_ALL_REDUCE && op->bytes < tuner->constants.collnet_min_bytes &&
        has_another_way(table, n_algos, n_protos)) {
        forbid_collnet(table, n_algos, n_protos);
    }
    tuner_explain(tuner, op, table, n_algos, n_protos);
}
