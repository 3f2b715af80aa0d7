/** What an operation in host memory becomes: which algorithm, how large its messages are, and whether to
 *  quantize at all. It is the candidate that the model expects to be the quickest, but in doubt one with
 *  fewer inter-node bytes. Nothing but the model, the sizes, the topology and TW_COLL_CHUNK is looked at, and
 *  these are the same on all ranks, so they choose alike.
 *
 *  In a deterministic communicator the model decides nothing that changes a bit: a codec is used wherever
 *  there are several nodes, and of the algorithms only those that give the bits of such a place of ranks are
 *  candidates. Of these it takes the one with the fewest inter-node bytes, for a tensor of REFERENCE_BYTES
 *  whatever the operation's size. Sizes only decide how large the messages are. What goes lossless has the
 *  bits of plain messages, so there, too, it goes plain where that is as fast: by TW_COLL_MODEL, or the model
 *  that the library comes with, as such a communicator never measures. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/communicator.h"

#define MIN_CHUNK_BYTES ((size_t)64 << 10)
#define MAX_CHUNK_BYTES ((size_t)2 << 20)
/** Where everybody sends to everybody, a message is one of about so many to a rank, and no shorter than this.
 *  Longer ones let some peers get ahead of others at a link that they share, and then it idles at the end;
 *  shorter ones cost the processor more. Measured on 4 nodes with 1 Gb/s and on 8 with 250 Mb/s. On a fast
 *  link they are longer: those to all peers together take it longer than so many turns of a message, or it
 *  would wait for handshakes. */
#define MEETING_MESSAGES 32
#define MEETING_CHUNK_BYTES ((size_t)32 << 10)
#define MEETING_TURNS 2
/** A lossless message carries scales and tables of its own: shorter ones cost bits, and in sums of 64 MB on 4
 *  nodes with 1 Gb/s those of 256 KB were 4 % slower. */
#define LOSSLESS_CHUNK_BYTES ((size_t)512 << 10)
/** The shortest messages of an all-to-all about which it is asked whether packing is worth it. */
#define PACKED_LEAST_BYTES ((size_t)1 << 10)
/** Quantizing costs precision, so it has to be worth it: it saves more than the model may be wrong. That is a
 *  share of the time, and what a few more wake-ups on busy processors cost, of which the turn of a message is
 *  the measure. */
#define WORTH_SHARE 0.05
#define WORTH_TURNS 4
/** What loses nothing only has to be worth the processor's time, and needs no share. */
#define PACKING_TURNS 2
/** Of two algorithms, the one that sends more than so many times the other's inter-node bytes needs
 *  evidence. */
#define LEANER 1.25
#define REFERENCE_BYTES ((size_t)64 << 20)
/** Inter-node bytes that differ by no more are equal: they are sums of fractions. */
#define EQUAL 1.001

/** An algorithm that does what was asked for. */
typedef struct candidate {
    size_t algo;
    const tw_traffic_t *traffic;
    size_t chunk_bytes;
    double sec;
    double quiet_sec, typical_sec; /**< by those models */
    double inter_bytes;
} candidate_t;

typedef struct plan {
    tw_coll_t *coll;
    tw_case_t c;
    tw_coll_model_t quiet, typical;
    candidate_t *candidates;
    size_t n_candidates;
    const candidate_t *plain, *quantized; /**< the best of their kind; NULL: there is none */
} plan_t;

/* ---- candidates ---------------------------------------------------------------------------------------- */

static int is_named(const tw_coll_args_t *args)
{
    return args->algo && strcmp(args->algo, "auto") != 0;
}

/** In a deterministic operation the owner of an element must not matter, and sums are made inside nodes first
 *  exactly where nodes have several ranks and there are several of them; unless an algorithm is asked for by
 *  name. */
static int is_ordered(const plan_t *plan, const tw_algo_t *algo)
{
    const tw_coll_args_t *args = plan->c.args;
    int reduces = args->op == TW_COLL_REDUCE_SCATTER || args->op == TW_COLL_ALLREDUCE;
    int is_asked_for = is_named(args) && algo->info.quantized == (args->codec != NULL);

    if (!plan->coll->deterministic || is_asked_for || !reduces) {
        return 1;
    }
    return !algo->owner_matters && algo->flows.nodes_first == tw_topo_has_tiers(plan->c.topo);
}

/** A name is one of the quantized algorithms when there is a codec; the plain ones then stay candidates. */
static int is_candidate(const plan_t *plan, const tw_algo_t *algo)
{
    const tw_coll_args_t *args = plan->c.args;
    int wants_codec = args->codec != NULL;

    if (algo->info.op != args->op || (algo->info.quantized && !wants_codec) || !is_ordered(plan, algo)) {
        return 0;
    }
    if (!algo->info.quantized && wants_codec) {
        return !args->force_codec;
    }
    return !is_named(args) || strcmp(algo->info.name, args->algo) == 0;
}

/** What an algorithm's flows come to; read once. NULL: out of memory. */
static const tw_traffic_t *get_traffic(tw_coll_t *coll, size_t index, int inner)
{
    const tw_algo_t *algo = tw_algo_get(index);
    tw_traffic_t **traffic = &coll->traffic[index][inner];

    if (*traffic) {
        return *traffic;
    }
    tw_traffic_t *read = malloc(sizeof(*read));
    tw_status_t status = read ? tw_traffic_read(&coll->topo, &algo->flows, algo->info.quantized, inner, read)
                              : TW_ERR_NO_MEMORY;
    if (status != TW_OK) {
        free(read);
        return NULL;
    }
    return *traffic = read;
}

static double model_sec(const plan_t *plan, const tw_coll_model_t *model, candidate_t *candidate)
{
    tw_coll_cost_t cost;
    tw_case_t c = plan->c;

    c.model = model;
    c.chunk_bytes = (double)candidate->chunk_bytes;
    tw_cost_read(&c, &tw_algo_get(candidate->algo)->flows, candidate->traffic, &cost);
    candidate->inter_bytes = cost.inter_bytes;
    return tw_coll_model_time(model, &cost);
}

/** The largest chunk with which a round of any algorithm, and what earlier rounds have left to it, is within
 *  half of the scratch memory (the other half may be other operations'): 8 chunks per rank at most, or more
 *  where what travels inside a node is larger. Of halving's slices, which overlap, 2 log2(W) - 2 chunks per
 *  rank are there at a time: with more than 32 ranks more than half. A power of two. */
static size_t most_chunk(const plan_t *plan)
{
    int is_larger = plan->c.topo->max_local > 1 && plan->c.inner_bytes > plan->c.encoded_bytes;
    double ratio = is_larger && plan->c.encoded_bytes > 0 ? plan->c.inner_bytes / plan->c.encoded_bytes : 1;
    double room = (double)plan->coll->options.scratch_bytes / 2 / (plan->c.topo->world * (6 + 2 * ratio));
    size_t most = (size_t)TW_COLL_CHUNK_LEAST;

    while (most < MAX_CHUNK_BYTES && 2 * (double)most <= room) {
        most *= 2;
    }
    return most;
}

static size_t clamp(size_t bytes, size_t least, size_t most)
{
    return bytes < least ? least : bytes > most ? most : bytes;
}

/** The chunk of an operation in which all ranks send to all; a power of two. */
static size_t meeting_chunk(const plan_t *plan)
{
    const tw_coll_tier_t *link = &plan->c.model->inter;
    int world = plan->c.topo->world;
    double message = plan->c.encoded_bytes / world / MEETING_MESSAGES;
    double hidden = world > 1 ? MEETING_TURNS * link->turn_sec / link->beta_sec / (world - 1) : 0;
    size_t chunk = MEETING_CHUNK_BYTES;

    message = hidden > message ? hidden : message;
    while (chunk < MAX_CHUNK_BYTES && 2 * (double)chunk <= message) {
        chunk *= 2;
    }
    return chunk;
}

static int is_lossless(const plan_t *plan, size_t index)
{
    const tw_quant_codec_t *codec = plan->c.args->codec;

    return codec && codec->lossless && tw_algo_get(index)->info.quantized;
}

/** The best chunk for an algorithm: small ones cost messages, large ones leave wire and processor waiting for
 *  each other. */
static candidate_t make_candidate(const plan_t *plan, size_t index, const tw_traffic_t *traffic)
{
    size_t given = plan->coll->options.chunk_bytes;
    size_t most = most_chunk(plan);
    if (given == 0 && tw_algo_get(index)->meets && plan->c.topo->max_local == 1) {
        given = meeting_chunk(plan);
        given = is_lossless(plan, index) && given < LOSSLESS_CHUNK_BYTES ? LOSSLESS_CHUNK_BYTES : given;
    }
    size_t least = is_lossless(plan, index) ? LOSSLESS_CHUNK_BYTES : MIN_CHUNK_BYTES;
    size_t min = clamp(given > 0 ? given : least, (size_t)TW_COLL_CHUNK_LEAST, most);
    size_t max = given > 0 ? min : most;
    candidate_t best = {.algo = index, .traffic = traffic, .chunk_bytes = min};

    best.sec = model_sec(plan, plan->c.model, &best);
    for (size_t chunk = 2 * min; chunk <= max; chunk *= 2) {
        candidate_t next = {.algo = index, .traffic = traffic, .chunk_bytes = chunk};
        next.sec = model_sec(plan, plan->c.model, &next);
        best = next.sec < best.sec ? next : best;
    }
    best.quiet_sec = model_sec(plan, &plan->quiet, &best);
    best.typical_sec = model_sec(plan, &plan->typical, &best);
    return best;
}

static tw_status_t no_candidate(const plan_t *plan)
{
    const tw_coll_args_t *args = plan->c.args;

    tw_error("rank %d: %s: there is no %s algorithm \"%s\"", plan->c.topo->rank, tw_coll_op_name(args->op),
             args->codec ? "quantized" : "plain", args->algo ? args->algo : "auto");
    return TW_ERR_INVALID;
}

static int is_kind(const candidate_t *candidate, int quantized)
{
    return tw_algo_get(candidate->algo)->info.quantized == quantized;
}

/** The inter-node bytes of an algorithm are certain; its processor and in-node times were measured at a
 *  moment that may have been a busy one. So the quickest loses to one with fewer bytes unless it is faster
 *  under both models, even if it is as slow as typical and the other one as fast as when quiet. */
static const candidate_t *prefer_lean(const plan_t *plan, const candidate_t *quickest)
{
    const candidate_t *best = quickest;

    for (size_t i = 0; quickest && i < plan->n_candidates; i++) {
        const candidate_t *lean = &plan->candidates[i];
        int leaner = lean->inter_bytes * LEANER < quickest->inter_bytes;
        if (is_kind(lean, tw_algo_get(quickest->algo)->info.quantized) && leaner &&
            lean->quiet_sec <= quickest->typical_sec &&
            (best == quickest || lean->quiet_sec < best->quiet_sec)) {
            best = lean;
        }
    }
    return best;
}

static const candidate_t *find_quickest(const plan_t *plan, int quantized)
{
    const candidate_t *best = NULL;

    for (size_t i = 0; i < plan->n_candidates; i++) {
        const candidate_t *other = &plan->candidates[i];
        if (is_kind(other, quantized) && (!best || other->sec < best->sec)) {
            best = other;
        }
    }
    return best;
}

/** The one with the fewest inter-node bytes; of equals, the quickest. NULL: there is none. */
static const candidate_t *find_leanest(const plan_t *plan, int quantized)
{
    const candidate_t *best = NULL;

    for (size_t i = 0; i < plan->n_candidates; i++) {
        const candidate_t *other = &plan->candidates[i];
        if (!is_kind(other, quantized)) {
            continue;
        }
        if (!best || other->inter_bytes * EQUAL < best->inter_bytes ||
            (other->inter_bytes <= best->inter_bytes * EQUAL && other->sec < best->sec)) {
            best = other;
        }
    }
    return best;
}

static const candidate_t *find_best(const plan_t *plan, int quantized)
{
    return plan->coll->deterministic ? find_leanest(plan, quantized)
                                     : prefer_lean(plan, find_quickest(plan, quantized));
}

static tw_status_t find_candidates(plan_t *plan)
{
    const tw_algo_t *algo;
    size_t n = 0;

    while (tw_algo_get(n)) {
        n++;
    }
    plan->candidates = malloc(n * sizeof(*plan->candidates));
    if (!plan->candidates) {
        return TW_ERR_NO_MEMORY;
    }
    for (size_t i = 0; (algo = tw_algo_get(i)); i++) {
        if (!is_candidate(plan, algo)) {
            continue;
        }
        const tw_traffic_t *traffic = get_traffic(plan->coll, i, plan->c.args->inner_codec != NULL);
        if (!traffic) {
            return TW_ERR_NO_MEMORY;
        }
        plan->candidates[plan->n_candidates++] = make_candidate(plan, i, traffic);
    }
    plan->plain = find_best(plan, 0);
    plan->quantized = find_best(plan, 1);
    /* a codec, but only plain algorithms: the name, if any, is wrong */
    int found = plan->c.args->codec ? plan->quantized != NULL : plan->plain != NULL;
    return found ? TW_OK : no_candidate(plan);
}

/* ---- explaining ---------------------------------------------------------------------------------------- */

static const char *format_sec(double sec, char *buf, size_t buf_bytes)
{
    if (sec < 1e-3) {
        snprintf(buf, buf_bytes, "%.1f us", sec * 1e6);
    } else {
        snprintf(buf, buf_bytes, "%.3f ms", sec * 1e3);
    }
    return buf;
}

static const char *describe_candidate(const plan_t *plan, const candidate_t *candidate, char *buf,
                                      size_t buf_bytes)
{
    const tw_coll_algo_info_t *info = &tw_algo_get(candidate->algo)->info;
    char codec[64] = "plain", sec[32];

    if (info->quantized) {
        tw_quant_codec_format(plan->c.args->codec, codec, sizeof(codec));
    }
    snprintf(buf, buf_bytes, "%s %s %s", codec, info->name, format_sec(candidate->sec, sec, sizeof(sec)));
    return buf;
}

/** What the model's doubt makes of it. */
static const char *describe_doubt(const candidate_t *candidate, char *buf, size_t buf_bytes)
{
    char quiet[24], typical[24];

    snprintf(buf, buf_bytes, " (quiet %s, typical %s)",
             format_sec(candidate->quiet_sec, quiet, sizeof(quiet)),
             format_sec(candidate->typical_sec, typical, sizeof(typical)));
    return buf;
}

/** Why it is not the quickest of its kind; "" if it is. */
static const char *describe_preference(const plan_t *plan, const candidate_t *chosen)
{
    int quantized = tw_algo_get(chosen->algo)->info.quantized;

    for (size_t i = 0; i < plan->n_candidates; i++) {
        const candidate_t *other = &plan->candidates[i];
        if (tw_algo_get(other->algo)->info.quantized == quantized && other->sec < chosen->sec) {
            return ", for its fewer inter-node bytes";
        }
    }
    return "";
}

/** The same operation again is not explained again. */
static int is_news(tw_coll_t *coll, const plan_t *plan)
{
    char text[128], codec[64] = "plain";
    const tw_coll_args_t *args = plan->c.args;

    if (args->codec) {
        tw_quant_codec_format(args->codec, codec, sizeof(codec));
    }
    snprintf(text, sizeof(text), "%d %s %.0f %s", (int)args->op, tw_type_name(args->type), plan->c.bytes,
             codec);
    for (size_t i = 0; i < TW_COLL_EXPLAINED; i++) {
        if (strcmp(coll->explained[i], text) == 0) {
            return 0;
        }
    }
    snprintf(coll->explained[coll->n_explained++ % TW_COLL_EXPLAINED], TW_COLL_EXPLAINED_BYTES, "%s", text);
    return 1;
}

static void explain(tw_coll_t *coll, const plan_t *plan, const candidate_t *chosen, int is_declined)
{
    char bytes[32], chunk[32], text[128], doubt[96];

    if (!coll->options.explain || coll->topo.rank != 0 || !is_news(coll, plan)) {
        return;
    }
    for (size_t i = 0; i < plan->n_candidates; i++) {
        const candidate_t *candidate = &plan->candidates[i];
        fprintf(stderr, "thinwire: %s of %s %s on %d ranks, %d nodes: %s%s, chunk %s%s%s%s\n",
                tw_coll_op_name(plan->c.args->op),
                tw_format_bytes((size_t)plan->c.bytes, bytes, sizeof(bytes)),
                tw_type_name(plan->c.args->type), coll->topo.world, coll->topo.n_nodes,
                describe_candidate(plan, candidate, text, sizeof(text)),
                describe_doubt(candidate, doubt, sizeof(doubt)),
                tw_format_bytes(candidate->chunk_bytes, chunk, sizeof(chunk)),
                candidate == chosen ? "  <- chosen" : "",
                candidate == chosen ? describe_preference(plan, chosen) : "",
                candidate == chosen && is_declined ? ", quantizing declined" : "");
    }
}

/* ---- choosing ------------------------------------------------------------------------------------------ */

/** What encoding has to save. */
static double least_sec(const plan_t *plan, double plain_sec)
{
    const tw_coll_t *coll = plan->coll;
    const tw_coll_tier_t *tier = coll->topo.n_nodes > 1 ? &coll->model.inter : &coll->model.node;

    return tw_args_lose_nothing(plan->c.args) ? PACKING_TURNS * tier->turn_sec
                                              : WORTH_SHARE * plain_sec + WORTH_TURNS * tier->turn_sec;
}

/** As it was measured, or as it may be: in doubt, the fewer bytes that were asked for. */
static int is_worth_quantizing(const plan_t *plan)
{
    const candidate_t *plain = plan->plain, *quantized = plan->quantized;
    int shorter = plan->c.encoded_bytes < plan->c.bytes;

    return shorter && (plain->sec - quantized->sec > least_sec(plan, plain->sec) ||
                       plain->quiet_sec - quantized->quiet_sec > least_sec(plan, plain->quiet_sec));
}

/** The bits are the same: in doubt, the plain ones. */
static int is_worth_packing(const plan_t *plan)
{
    const candidate_t *plain = plan->plain, *packed = plan->quantized;

    return plan->c.encoded_bytes < plan->c.bytes && plain->sec - packed->sec > least_sec(plan, plain->sec) &&
           plain->quiet_sec - packed->quiet_sec > least_sec(plan, plain->quiet_sec) &&
           plain->typical_sec - packed->typical_sec > least_sec(plan, plain->typical_sec);
}

static const candidate_t *decline(const plan_t *plan, char *reason, size_t reason_bytes)
{
    char plain[128], quantized[128];

    snprintf(reason, reason_bytes, "%s would save less than %.0f us of %s",
             describe_candidate(plan, plan->quantized, quantized, sizeof(quantized)),
             least_sec(plan, plan->plain->sec) * 1e6,
             describe_candidate(plan, plan->plain, plain, sizeof(plain)));
    return plan->plain;
}

/** The best; plain when quantizing is not worth it, and then the reason is noted. */
static const candidate_t *choose(const plan_t *plan, char *reason, size_t reason_bytes)
{
    reason[0] = '\0';
    if (!plan->plain || !plan->quantized) {
        return plan->plain ? plan->plain : plan->quantized;
    }
    if (plan->coll->deterministic) {
        int spans_nodes = plan->c.topo->n_nodes > 1;
        snprintf(reason, reason_bytes, "%s", spans_nodes ? "" : "all ranks are on one node");
        return spans_nodes ? plan->quantized : plan->plain;
    }
    int is_worth = tw_args_lose_nothing(plan->c.args) ? is_worth_packing(plan) : is_worth_quantizing(plan);
    return is_worth ? plan->quantized : decline(plan, reason, reason_bytes);
}

/** 1: in a deterministic communicator, which chose the lossless one whatever the size. */
static int is_free_to_go_plain(const plan_t *plan, const candidate_t *chosen, const tw_coll_args_t *args)
{
    return plan->coll->deterministic && plan->plain && chosen == plan->quantized &&
           tw_args_lose_nothing(args);
}

static tw_case_t make_case(const tw_coll_t *coll, const tw_coll_args_t *args, size_t n_elems)
{
    tw_case_t c = {
        .model = &coll->model,
        .topo = &coll->topo,
        .args = args,
        .bytes = (double)n_elems * (double)tw_type_bytes(args->type),
    };

    c.encoded_bytes = tw_cost_encoded_bytes(&c, args->codec);
    c.inner_bytes = tw_cost_encoded_bytes(&c, args->inner_codec);
    return c;
}

/** The same two algorithms for another size. */
static void size_plan(plan_t *sized, const tw_case_t *own, candidate_t *plain, candidate_t *packed)
{
    sized->c = *own;
    *plain = make_candidate(sized, sized->plain->algo, sized->plain->traffic);
    *packed = make_candidate(sized, sized->quantized->algo, sized->quantized->traffic);
    sized->plain = plain;
    sized->quantized = packed;
}

/** The algorithms were found for a tensor of another size, and have the same bits; now for the operation's
 *  own. */
static const candidate_t *choose_packed(const plan_t *plan, const tw_case_t *own, char *reason,
                                        size_t reason_bytes)
{
    plan_t sized = *plan;
    candidate_t plain, packed;

    size_plan(&sized, own, &plain, &packed);
    if (is_worth_packing(&sized)) {
        return plan->quantized;
    }
    decline(&sized, reason, reason_bytes);
    return plan->plain;
}

/** From which length on the messages of an all-to-all are worth packing: the operation's own lengths are not
 *  the same on all ranks, so it is chosen without them, and both ends of a message look at them then. */
static size_t find_least_packed(const plan_t *plan)
{
    const size_t world = (size_t)plan->c.topo->world, elem_bytes = tw_type_bytes(plan->c.args->type);
    size_t bytes = PACKED_LEAST_BYTES;

    for (; (double)(bytes * world) < plan->c.bytes; bytes *= 2) {
        const tw_coll_segment_t segment = {.n_elems = bytes / elem_bytes * world};
        tw_coll_args_t args = *plan->c.args;
        plan_t sized = *plan;
        candidate_t plain, packed;
        args.segments = &segment;
        args.n_segments = 1;
        const tw_case_t own = make_case(plan->coll, &args, segment.n_elems);
        size_plan(&sized, &own, &plain, &packed);
        if (is_worth_packing(&sized)) {
            break;
        }
    }
    return bytes;
}

tw_status_t tw_coll_choose(tw_coll_t *coll, const tw_coll_args_t *args, size_t n_elems,
                           tw_coll_choice_t *choice)
{
    const tw_coll_segment_t segment = {.n_elems = REFERENCE_BYTES / tw_type_bytes(args->type)};
    const tw_coll_segment_t whole = {.n_elems = n_elems};
    tw_coll_args_t reference = *args, sized = *args;
    plan_t plan = {.coll = coll};

    reference.segments = &segment;
    reference.n_segments = 1;
    if (args->op == TW_COLL_ALLTOALL) { /* the sizes of other ranks are not known */
        sized.segments = &whole;
        sized.n_segments = 1;
    }
    plan.c =
        coll->deterministic ? make_case(coll, &reference, segment.n_elems) : make_case(coll, &sized, n_elems);
    tw_coll_model_quiet(&coll->model, &plan.quiet);
    tw_coll_model_typical(&coll->model, &plan.typical);
    tw_status_t status = find_candidates(&plan);
    if (status == TW_OK) {
        const candidate_t *chosen = choose(&plan, choice->reason, sizeof(choice->reason));
        const tw_case_t own = make_case(coll, &sized, n_elems);
        if (is_free_to_go_plain(&plan, chosen, args)) {
            chosen = choose_packed(&plan, &own, choice->reason, sizeof(choice->reason));
        }
        explain(coll, &plan, chosen, choice->reason[0] != '\0');
        int sizes_differ = args->op == TW_COLL_ALLTOALL && tw_args_lose_nothing(args) && !args->force_codec;
        choice->least_packed_bytes =
            sizes_differ && plan.plain && chosen == plan.quantized ? find_least_packed(&plan) : 0;
        plan.c = own;
        candidate_t made = make_candidate(&plan, chosen->algo, chosen->traffic);
        choice->algo = made.algo;
        choice->chunk_bytes = made.chunk_bytes;
        choice->model_sec = made.sec;
    }
    free(plan.candidates);
    return status;
}
