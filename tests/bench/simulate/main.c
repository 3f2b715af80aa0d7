/* The simulator's program: it runs algorithms at many sizes, and prints a table. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "bench/columns.h"
#include "flags/flags.h"
#include "tests/bench/simulate/options.h"

/* Algorithms in which every rank sends its whole tensor to every other run up to this size. */
#define MOST_WHOLES ((size_t)1 << 20)

typedef struct row {
    const char *op, *algo, *codec;
    int nodes, ranks;
    double bytes, chunk_bytes, sec, efficiency, bus_Bps, node_bytes, messages;
    int peers, remote_peers;
} row_t;

static const bench_column_t columns[] = {
    {"op", "op", "%14s", BENCH_STRING, BENCH_AT(op), 0},
    {"algorithm", "algorithm", "%16s", BENCH_STRING, BENCH_AT(algo), 0},
    {"codec", "codec", "%8s", BENCH_STRING, BENCH_AT(codec), 0},
    {"nodes", "nodes", "%5lld", BENCH_INT, BENCH_AT(nodes), 0},
    {"ranks", "ranks", "%5lld", BENCH_INT, BENCH_AT(ranks), 0},
    {"bytes", NULL, NULL, BENCH_DOUBLE, BENCH_AT(bytes), 0},
    {"chunk_bytes", "chunk, KB", "%9.0f", BENCH_DOUBLE, BENCH_AT(chunk_bytes), 1.0 / 1024},
    {"sec", "ms", "%10.3f", BENCH_DOUBLE, BENCH_AT(sec), 1e3},
    {"efficiency", "of links", "%8.2f", BENCH_DOUBLE, BENCH_AT(efficiency), 0},
    {"bus_bytes_per_sec", "bus GB/s", "%8.3f", BENCH_DOUBLE, BENCH_AT(bus_Bps), 1e-9},
    {"node_bytes", "MB a node", "%10.2f", BENCH_DOUBLE, BENCH_AT(node_bytes), 1e-6},
    {"messages", "messages", "%8.0f", BENCH_DOUBLE, BENCH_AT(messages), 0},
    {"peers", "peers", "%5lld", BENCH_INT, BENCH_AT(peers), 0},
    {"remote_peers", "elsewhere", "%9lld", BENCH_INT, BENCH_AT(remote_peers), 0},
};

static const bench_table_t table = {columns, sizeof(columns) / sizeof(columns[0]), 1};

/* ---- what is simulated --------------------------------------------------------------------------------- */

/** Return the bytes on the wire over plain bytes of bf16. */
static double ratio_of(const sim_options_t *o)
{
    return tw_quant_usual_bits(&o->codec, TW_TYPE_BF16) / 16.0;
}

static int is_coded(const sim_options_t *o)
{
    return tw_quant_form(&o->codec) != TW_QUANT_AS_IS;
}

/** Return the least time that the links allow: a node receives every other node's share once, twice in an
 *  all-reduce. */
static double sim_least_sec(const sim_options_t *o, const sim_cluster_t *c)
{
    double nodes = c->n_nodes, local = c->ranks_per_node,
           passes = sim_ops[o->op] == TW_COLL_ALLREDUCE ? 2.0 : 1.0;
    double ratio = c->ratio[TW_FORM_CODEC], bytes = (double)o->bytes;
    return nodes > 1.0 ? passes * bytes * ratio * (nodes - 1.0) / nodes / c->link_Bps
                       : passes * bytes * (local - 1.0) / local / c->in_node_Bps;
}

/* What show_progress needs. */
typedef struct watch {
    const char *what;
    int n_nodes;
    double begin_sec;
} watch_t;

static void show_progress(void *ctx, double share)
{
    const watch_t *watch = ctx;
    char text[160];
    snprintf(text, sizeof(text), "%s on %d nodes: %.0f %%, %.0f s", watch->what, watch->n_nodes,
             100.0 * share, tw_time_sec() - watch->begin_sec);
    tw_terminal_show(stderr, text);
}

static tw_status_t simulate(const sim_options_t *o, const sim_cluster_t *c, const tw_algo_t *algo, row_t *row)
{
    int world = c->n_nodes * c->ranks_per_node;
    double bus = sim_ops[o->op] == TW_COLL_ALLREDUCE ? 2.0 : 1.0;
    watch_t watch = {algo->info.name, c->n_nodes, tw_time_sec()};
    sim_cluster_t shown = *c;
    shown.watch = show_progress;
    shown.watch_ctx = &watch;
    sim_result_t result = {.done = calloc((size_t)world, sizeof(double))};
    tw_status_t status =
        result.done ? sim_run(&shown, algo, (double)o->bytes, (double)o->chunk, &result) : TW_ERR_NO_MEMORY;
    tw_terminal_show(stderr, "");
    *row = (row_t){sim_op_names[o->op],
                   algo->info.name,
                   o->codec_text,
                   c->n_nodes,
                   world,
                   (double)o->bytes,
                   result.chunk_bytes,
                   result.sec,
                   sim_least_sec(o, c) / result.sec,
                   bus * (double)o->bytes * (world - 1.0) / world / result.sec,
                   result.node_bytes,
                   result.messages,
                   result.peers,
                   result.remote_peers};
    free(result.done);
    return status;
}

/* ---- the program --------------------------------------------------------------------------------------- */

/** Run one algorithm at all sizes asked for. Below half of what the links allow it no longer scales. */
static tw_status_t run_algo(const sim_options_t *o, const tw_algo_t *algo, char *note, size_t note_bytes)
{
    int stops = 0, last = o->cluster.n_nodes;
    for (int nodes = o->scale ? 1 : last; nodes <= last;
         nodes = nodes < last && 2 * nodes > last ? last : 2 * nodes) {
        sim_cluster_t cluster = o->cluster;
        row_t row;
        cluster.n_nodes = nodes;
        TW_TRY(simulate(o, &cluster, algo, &row));
        TW_TRY(bench_table_report(&table, &row, NULL, o->out));
        stops = stops == 0 && nodes > 1 && row.efficiency < 0.5 ? nodes : stops;
        if (nodes == last) {
            break;
        }
    }
    if (stops) {
        snprintf(note, note_bytes, "# %s: below half of what the links allow from %d nodes on",
                 algo->info.name, stops);
    } else {
        snprintf(note, note_bytes, "# %s: scales to %d nodes", algo->info.name, last);
    }
    return TW_OK;
}

static tw_status_t run_ops(const sim_options_t *o)
{
    char notes[16][128];
    size_t n_notes = 0;
    const tw_algo_t *algo;
    bench_table_head(&table);
    for (size_t i = 0; (algo = sim_algo(sim_ops[o->op], is_coded(o), i)) && n_notes < 16; i++) {
        int is_asked = o->algo && strcmp(o->algo, algo->info.name) == 0;
        if (algo->flows.recodes && tw_quant_form(&o->codec) != TW_QUANT_MESSAGE) {
            continue;
        }
        if (is_asked || (!o->algo && (algo->flows.of != TW_FLOWS_WHOLES || o->bytes <= MOST_WHOLES))) {
            TW_TRY(run_algo(o, algo, notes[n_notes], sizeof(notes[n_notes])));
            n_notes++;
        }
    }
    TW_FAIL_IF(n_notes == 0, TW_ERR_NOT_FOUND, "--algo %s: no %s algorithm of %s is called so", o->algo,
               o->codec_text, sim_op_names[o->op]);
    for (size_t i = 0; i < n_notes; i++) {
        printf("%s\n", notes[i]);
    }
    return TW_OK;
}

int main(int argc, char **argv)
{
    sim_options_t options;
    sim_options_read(argc, argv, &options);
    for (int f = 0; f < TW_FORM_COUNT; f++) {
        options.cluster.ratio[f] = f == TW_FORM_PLAIN ? 1.0 : ratio_of(&options);
    }
    tw_status_t status = bench_json_open(options.json, BENCH_JSON_ANEW, &options.out);
    if (status == TW_OK) {
        status = run_ops(&options);
        status = bench_json_close(options.json, options.out, status);
    }
    return status == TW_OK ? 0 : 1;
}
