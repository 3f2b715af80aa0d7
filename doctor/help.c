/* Estimates whether Thinwire would help: how long a step of sharded training communicates. */
#include <math.h>

#include "doctor/doctor.h"
#include "doctor/help.h"
#include "quant/quant.h"

/* Bits that a plain step sends for a parameter: two gathers of the weight, one gradient, all in bf16. */
#define PLAIN_BITS 48.0
/* A smaller speedup than this is within the noise of the measurements. */
#define LEAST_GAIN 1.1
#define USUAL_PARAMS 1e9
/* Bytes of host memory for one parameter's replica: the bf16 weight, and a byte of the codec's. */
#define REPLICA_BYTES 3.0
#define ECDQ_TEXT "ecdq:step=0.5"
#define ECDQ_STEP (-4) /* the step of ecdq:step=0.5, in quarters of an octave */

enum { INT4 = 1, LOSSLESS, ECDQ }; /* indices of tw_doctor_codec_names */

static const double sizes[] = {124e6, USUAL_PARAMS, 7e9, 70e9};

/** Bytes a second that a node sends on all its devices together, while all nodes send. 0: nothing arrived. */
static double node_rate(const tw_doctor_result_t *result, int node)
{
    double bps = 0.0;
    for (int i = 0; i < result->n_flows; i++) {
        const tw_doctor_flow_t *flow = &result->flows[i];
        bps += flow->kind == TW_DOCTOR_ALL && flow->from == node ? flow->bps : 0.0;
    }
    return bps / 8.0;
}

tw_doctor_links_t tw_doctor_links_of(const tw_doctor_result_t *result)
{
    tw_doctor_links_t links = {.n_nodes = result->n_nodes,
                               .ranks_per_node = (result->world + result->n_nodes - 1) / result->n_nodes,
                               .link_Bps = INFINITY};
    for (int node = 0; node < result->n_nodes; node++) {
        links.link_Bps = fmin(links.link_Bps, node_rate(result, node));
    }
    for (int c = 0; c < TW_DOCTOR_CODECS; c++) {
        links.encode_Bps[c] = INFINITY;
    }
    for (int r = 0; r < result->world; r++) {
        for (int c = 0; c < TW_DOCTOR_CODECS; c++) {
            links.encode_Bps[c] = fmin(links.encode_Bps[c], 1e9 * result->facts[r].encode_GBps[c]);
        }
    }
    return links;
}

/** About how many bits the codec needs for one parameter's weight or gradient in training. */
static double usual_bits(tw_quant_kind_t kind)
{
    const tw_quant_codec_t codec = {
        .kind = kind, .block = tw_quant_row_get(kind)->block, .step = kind == TW_QUANT_ECDQ ? ECDQ_STEP : 0};
    return tw_quant_usual_bits(&codec, TW_TYPE_BF16);
}

/** The share of a rail's parameters that ranks of other nodes own. A rail has one rank of each node. */
static double elsewhere_of(const tw_doctor_links_t *links)
{
    return (links->n_nodes - 1.0) / links->n_nodes;
}

/** Bytes that a node sends in a step, if a parameter takes `bits` bits. */
static double step_bytes(const tw_doctor_links_t *links, double n_params, double bits)
{
    return n_params * bits / 8.0 * elsewhere_of(links);
}

/** Seconds that a step communicates with lossless changes of weights, and with gradients in a codec of
 *  `gradient_bits` bits. The longer of two times: the links' for the bytes, and one core's for coding them. A
 *  rank encodes the changes of its own shard and decodes those of its rail. It encodes the gradients that
 *  other nodes of its rail own, and decodes as many. */
static double coded_sec(const tw_doctor_links_t *links, double n_params, double gradient_bits, int codec)
{
    const double rail = n_params / links->ranks_per_node;
    const double bits = usual_bits(TW_QUANT_DELTA) + gradient_bits;
    const double link = step_bytes(links, n_params, bits) / links->link_Bps;
    const double changes = 2.0 * rail / links->encode_Bps[LOSSLESS],
                 gradients = 2.0 * 2.0 * rail * elsewhere_of(links) / links->encode_Bps[codec];
    return fmax(link, changes + gradients);
}

tw_doctor_step_t tw_doctor_step_of(const tw_doctor_links_t *links, double n_params)
{
    return (tw_doctor_step_t){.n_params = n_params,
                              .plain_sec = step_bytes(links, n_params, PLAIN_BITS) / links->link_Bps,
                              .lossless_sec =
                                  coded_sec(links, n_params, usual_bits(TW_QUANT_LOSSLESS), LOSSLESS),
                              .ecdq_sec = coded_sec(links, n_params, usual_bits(TW_QUANT_ECDQ), ECDQ),
                              .int4_sec = coded_sec(links, n_params, usual_bits(TW_QUANT_INT4), INT4)};
}

int tw_doctor_steps(const tw_doctor_links_t *links, double n_params, tw_doctor_step_t steps[TW_DOCTOR_STEPS])
{
    const int is_linked = links->n_nodes > 1 && links->link_Bps > 0.0;
    const int n = !is_linked ? 0 : n_params > 0.0 ? 1 : TW_DOCTOR_STEPS;
    for (int i = 0; i < n; i++) {
        steps[i] = tw_doctor_step_of(links, n_params > 0.0 ? n_params : sizes[i]);
    }
    return n;
}

static const char *count_text(double n, char text[32])
{
    const double unit = n >= 1e9 ? 1e9 : n >= 1e6 ? 1e6 : 1;
    snprintf(text, 32, "%.4g%s", n / unit, unit == 1e9 ? " G" : unit == 1e6 ? " M" : "");
    return text;
}

/** Seconds as text: three digits if below 1000, else a whole number. For example 0.412, 70.1, 17600. */
static const char *sec_text(double sec, char text[32])
{
    snprintf(text, 32, sec < 1000 ? "%.3g" : "%.0f", sec);
    return text;
}

static void print_table(const tw_doctor_step_t *steps, int n)
{
    char count[32], plain[32], lossless[32], ecdq[32], int4[32];
    printf("a step of FSDP or ZeRO-3 in bf16: seconds that its weights and gradients take on these links, "
           "where a core of\neach rank codes them:\n  %-12s %10s %12s %24s %16s\n",
           "parameters", "plain", "TW_FSDP=1", "+ TW_GRADS=" ECDQ_TEXT, "+ TW_GRADS=int4");
    for (int i = 0; i < n; i++) {
        printf("  %-12s %10s %12s %24s %16s\n", count_text(steps[i].n_params, count),
               sec_text(steps[i].plain_sec, plain), sec_text(steps[i].lossless_sec, lossless),
               sec_text(steps[i].ecdq_sec, ecdq), sec_text(steps[i].int4_sec, int4));
    }
}

/** Print the step's times, and the command that turns Thinwire on if that makes the step faster. */
static void print_advice(const tw_doctor_step_t *step)
{
    const char *grads = step->ecdq_sec <= step->int4_sec ? ECDQ_TEXT : "int4";
    const double rounded_sec = fmin(step->ecdq_sec, step->int4_sec);
    const int lossless = step->plain_sec >= LEAST_GAIN * step->lossless_sec,
              rounded = step->plain_sec >= LEAST_GAIN * rounded_sec;
    char count[32], plain[32], coded[32], with_loss[32];
    printf("thinwire: a step of %s parameters takes %s s on these links, with Thinwire %s s and no loss "
           "changed, %s s with TW_GRADS=%s (changes losses, Muon's most: docs/loss.md): ",
           count_text(step->n_params, count), sec_text(step->plain_sec, plain),
           sec_text(step->lossless_sec, coded), sec_text(rounded_sec, with_loss), grads);
    if (lossless || rounded) {
        printf("type TW_FSDP=1 %s%s%storchrun ... job.py (FSDP2; DDP: TW_DDP=1; DeepSpeed, Megatron: "
               "docs/nccl.md)\n",
               lossless ? "" : "TW_GRADS=", lossless ? "" : grads, lossless ? "" : " ");
    } else {
        printf("it will not help you, plain is as fast\n");
    }
}

void tw_doctor_print_help(const tw_doctor_links_t *links, double n_params)
{
    tw_doctor_step_t steps[TW_DOCTOR_STEPS];
    const int n = tw_doctor_steps(links, n_params, steps);
    if (n == 0) {
        printf("thinwire: %s\n", links->n_nodes < 2
                                     ? "one node: no byte crosses a network, and it will not help you"
                                     : "not all links carry anything: first what stands above");
        return;
    }
    print_advice(n > 1 ? &steps[1] : &steps[0]);
}

void tw_doctor_print_steps(const tw_doctor_links_t *links, double n_params)
{
    tw_doctor_step_t steps[TW_DOCTOR_STEPS];
    const int n = tw_doctor_steps(links, n_params, steps);
    if (n > 0) {
        print_table(steps, n);
    }
}

/** Print the cluster, the codecs' speeds, and the bytes of a step of the model (decimal GB). */
static void print_cluster(const tw_doctor_links_t *links, double n_params)
{
    const double coded_bits = usual_bits(TW_QUANT_DELTA) + usual_bits(TW_QUANT_LOSSLESS);
    printf("nodes: %d, ranks on each: %d, links: %.4g Gb/s each way; a core of this machine encodes %.2f "
           "GB/s of gradients\nwithout loss, ",
           links->n_nodes, links->ranks_per_node, links->link_Bps * 8 / 1e9,
           links->encode_Bps[LOSSLESS] / 1e9);
    printf("%.2f with " ECDQ_TEXT ", %.2f with int4\n", links->encode_Bps[ECDQ] / 1e9,
           links->encode_Bps[INT4] / 1e9);
    if (n_params > 0.0) {
        printf(
            "in a step a node sends %.4g GB plain, %.4g GB with TW_FSDP=1, which keeps %.4g GB of weights in "
            "its host memory\n",
            step_bytes(links, n_params, PLAIN_BITS) / 1e9, step_bytes(links, n_params, coded_bits) / 1e9,
            n_params * REPLICA_BYTES / 1e9);
    }
}

tw_status_t tw_doctor_plan(const tw_doctor_cluster_t *cluster)
{
    TW_FAIL_IF(cluster->n_nodes < 1 || cluster->n_nodes > TW_DOCTOR_NODES_MAX, TW_ERR_INVALID,
               "doctor: n_nodes %d: 1 to %d", cluster->n_nodes, TW_DOCTOR_NODES_MAX);
    TW_FAIL_IF(cluster->ranks_per_node < 1 || cluster->ranks_per_node > TW_DOCTOR_NODES_MAX, TW_ERR_INVALID,
               "doctor: ranks_per_node %d: 1 to %d", cluster->ranks_per_node, TW_DOCTOR_NODES_MAX);
    TW_FAIL_IF(!(cluster->link_bps > 0.0) || isinf(cluster->link_bps), TW_ERR_INVALID,
               "doctor: link_bps %g: more than 0", cluster->link_bps);
    TW_FAIL_IF(!(cluster->n_params >= 0.0) || cluster->n_params > TW_DOCTOR_PARAMS_MAX, TW_ERR_INVALID,
               "doctor: n_params %g: 0 to %g", cluster->n_params, TW_DOCTOR_PARAMS_MAX);
    tw_doctor_facts_t facts = {0};
    TW_TRY(tw_doctor_codecs_measure(&facts));
    tw_doctor_links_t links = {.n_nodes = cluster->n_nodes,
                               .ranks_per_node = cluster->ranks_per_node,
                               .link_Bps = cluster->link_bps / 8};
    for (int c = 0; c < TW_DOCTOR_CODECS; c++) {
        links.encode_Bps[c] = 1e9 * facts.encode_GBps[c];
    }
    print_cluster(&links, cluster->n_params);
    tw_doctor_print_steps(&links, cluster->n_params);
    tw_doctor_print_help(&links, cluster->n_params);
    TW_FAIL_IF(fflush(stdout) != 0, TW_ERR_IO, "doctor: cannot write to stdout");
    return TW_OK;
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

json_t *tw_doctor_step_json(const tw_doctor_result_t *result, int i)
{
    const tw_doctor_links_t links = tw_doctor_links_of(result);
    tw_doctor_step_t steps[TW_DOCTOR_STEPS];
    (void)tw_doctor_steps(&links, result->n_params, steps);
    return json_pack("{s:f, s:f, s:f, s:f, s:f}", "params", steps[i].n_params, "plain_sec",
                     steps[i].plain_sec, "lossless_sec", steps[i].lossless_sec, "ecdq_sec", steps[i].ecdq_sec,
                     "int4_sec", steps[i].int4_sec);
}

json_t *tw_doctor_case_json(const tw_doctor_result_t *result, int i)
{
    const tw_doctor_links_t links = tw_doctor_links_of(result);
    json_t *codecs = json_object();
    for (int c = 0; c < TW_DOCTOR_CODECS; c++) {
        json_object_set_new(codecs, tw_doctor_codec_names[c], json_real(links.encode_Bps[c]));
    }
    (void)i;
    return json_pack("{s:s, s:i, s:i, s:f, s:o}", "name", "the doctor's cluster", "nodes", links.n_nodes,
                     "gpus_per_node", links.ranks_per_node, "link_bytes_per_sec", links.link_Bps,
                     "codec_bytes_per_sec", codecs);
}
