/** Chooses how an operation in host memory is done: by which algorithm, with how large messages, and whether
 *  it is quantized at all. It takes the candidate that the cost model expects to be the quickest, but in
 *  doubt one with fewer inter-node bytes. The choice depends only on that model, the sizes, the topology and
 *  TW_COLL_CHUNK, which are the same on all ranks, so all choose alike.
 *
 *  In a deterministic communicator the model decides nothing that changes a bit: a codec is used wherever
 *  there are several nodes, and only algorithms are candidates that give the bits which this placement of
 *  ranks defines. Of these it takes the one with the fewest inter-node bytes, for a tensor of REFERENCE_BYTES
 *  whatever the operation's size. Sizes only decide how large the messages are. Lossless messages give the
 *  bits of plain ones, so even here they go plain where that is as fast: by TW_COLL_MODEL, or the library's
 *  default model, as such a communicator never measures. They do not if the caller names an algorithm that
 *  adds up in another order. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/communicator.h"

#define MIN_CHUNK_BYTES ((size_t)64 << 10)
#define MAX_CHUNK_BYTES ((size_t)2 << 20)
/** Where all ranks send to all, each sends about so many messages to each other rank, none shorter than this.
 *  Longer ones let some peers get ahead of others at a link that they share, and then it idles at the end;
 *  shorter ones cost the processor more. Measured on 4 nodes with 1 Gb/s and on 8 with 250 Mb/s. On a fast
 *  link they are longer: one message to each peer must occupy the link for more than so many turns, or it
 *  would wait for handshakes. */
#define MEETING_MESSAGES 32
#define MEETING_CHUNK_BYTES ((size_t)32 << 10)
#define MEETING_TURNS 2
/** A lossless message carries scales and tables of its own: shorter ones cost bits, and in sums of 64 MB on 4
 *  nodes with 1 Gb/s those of 256 KB were 4 % slower. */
#define LOSSLESS_CHUNK_BYTES ((size_t)512 << 10)
/** The shortest messages of an all-to-all for which packing is considered. */
#define PACKED_LEAST_BYTES ((size_t)1 << 10)
/** Quantizing costs precision, so it must save more time than the model may be wrong by: a share of the time,
 *  and the cost of a few more wake-ups on busy processors, which is measured by the turn of a message. */
#define WORTH_SHARE 0.05
#define WORTH_TURNS 4
/** A lossless codec only has to be worth the processor's time, without that share. */
#define PACKING_TURNS 2
/** An algorithm with over this many times another's inter-node bytes is preferred only on evidence. */
#define LEANER 1.25
#define REFERENCE_BYTES ((size_t)64 << 20)
/** Inter-node bytes count as equal up to this factor: they are sums of fractions. */
#define EQUAL 1.001

/** An algorithm that can do the operation, with its best chunk and its times. */
typedef struct candidate {
    size_t algo;
    const tw_traffic_t *traffic;
    size_t chunk_bytes;
    double sec;
    double quiet_sec, typical_sec; /**< the time by the quiet model, and by the typical one */
    double inter_bytes;
} candidate_t;

typedef struct pick {
    tw_coll_t *coll;
    tw_case_t c;
    tw_coll_model_t quiet, typical;
    candidate_t candidates[TW_COLL_ALGOS];
    size_t n_candidates;
    const candidate_t *plain, *quantized; /**< the best of their kind; NULL: there is none */
    int loses_nothing; /**< 1: no segment that the caller gave loses values; `c` may have other segments */
} pick_t;

/* ---- candidates ---------------------------------------------------------------------------------------- */

/** Whether the algorithm fits a deterministic operation: the owner of an element must not matter, and sums
 *  are made inside nodes first exactly if there are several nodes, some with several ranks. An algorithm that
 *  the caller names always fits. */
static int is_ordered(const pick_t *pick, const tw_algo_t *algo)
{
    const tw_coll_args_t *args = pick->c.args;
    int reduces = args->op == TW_COLL_REDUCE_SCATTER || args->op == TW_COLL_ALLREDUCE;
    int is_asked_for = tw_args_name_algo(args) && algo->info.quantized == (args->codec != NULL);
    if (!pick->coll->deterministic || is_asked_for || !reduces) {
        return 1;
    }
    return !algo->owner_matters && algo->flows.nodes_first == tw_topo_has_tiers(pick->c.topo);
}

/** Whether the algorithm is a candidate. With a codec, a name is that of a quantized one; the plain ones then
 *  stay candidates. An algorithm that encodes again on each hop sends no fewer bytes than others, and rounds
 *  its sums more often: it is taken only by name. */
static int is_candidate(const pick_t *pick, const tw_algo_t *algo)
{
    const tw_coll_args_t *args = pick->c.args;
    int wants_codec = args->codec != NULL;
    if (algo->info.op != args->op || (algo->info.quantized && !wants_codec) || !is_ordered(pick, algo)) {
        return 0;
    }
    if (!algo->info.quantized && wants_codec) {
        return !args->force_codec;
    }
    if (algo->flows.recodes && !(tw_args_name_algo(args) && pick->loses_nothing)) {
        return 0;
    }
    return !tw_args_name_algo(args) || strcmp(algo->info.name, args->algo) == 0;
}

/** What an algorithm's flows amount to, read once. NULL: out of memory. */
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

static double model_sec(const pick_t *pick, const tw_coll_model_t *model, candidate_t *candidate)
{
    tw_coll_cost_t cost;
    tw_case_t c = pick->c;
    c.model = model;
    c.chunk_bytes = (double)candidate->chunk_bytes;
    tw_cost_read(&c, &tw_algo_get(candidate->algo)->flows, candidate->traffic, &cost);
    candidate->inter_bytes = cost.inter_bytes;
    return tw_coll_model_time(model, &cost);
}

/** The largest chunk with which one round of any algorithm, with what earlier rounds left, fits half of the
 *  scratch memory (the other half may be other operations'): 8 chunks per rank, or more if the messages
 *  inside a node are larger. A power of two. */
static size_t most_chunk(const pick_t *pick)
{
    int is_larger = pick->c.topo->max_local > 1 && pick->c.inner_bytes > pick->c.encoded_bytes;
    double ratio = is_larger && pick->c.encoded_bytes > 0 ? pick->c.inner_bytes / pick->c.encoded_bytes : 1;
    double room = (double)pick->coll->options.scratch_bytes / 2 / (pick->c.topo->world * (6 + 2 * ratio));
    size_t most = (size_t)TW_COLL_CHUNK_LEAST;
    while (most < MAX_CHUNK_BYTES && 2 * (double)most <= room) {
        most *= 2;
    }
    return most;
}

/** The chunk of an operation in which all ranks send to all: a power of two. */
static size_t meeting_chunk(const pick_t *pick)
{
    const tw_coll_tier_t *link = &pick->c.model->inter;
    int world = pick->c.topo->world;
    double message = pick->c.encoded_bytes / world / MEETING_MESSAGES;
    double hidden = world > 1 ? MEETING_TURNS * link->turn_sec / link->beta_sec / (world - 1) : 0;
    size_t chunk = MEETING_CHUNK_BYTES;
    message = hidden > message ? hidden : message;
    while (chunk < MAX_CHUNK_BYTES && 2 * (double)chunk <= message) {
        chunk *= 2;
    }
    return chunk;
}

/** Returns 1 if the algorithm's messages have no fixed length. */
static int is_lossless(const pick_t *pick, size_t index)
{
    return tw_quant_form(pick->c.args->codec) == TW_QUANT_MESSAGE && tw_algo_get(index)->info.quantized;
}

/** Find the best chunk for an algorithm: small chunks cost messages, with large ones wire and processor wait
 *  for each other. */
static candidate_t make_candidate(const pick_t *pick, size_t index, const tw_traffic_t *traffic)
{
    size_t given = pick->coll->options.chunk_bytes;
    size_t most = most_chunk(pick);
    if (given == 0 && tw_algo_get(index)->meets && pick->c.topo->max_local == 1) {
        given = meeting_chunk(pick);
        given = is_lossless(pick, index) && given < LOSSLESS_CHUNK_BYTES ? LOSSLESS_CHUNK_BYTES : given;
    }
    size_t least = is_lossless(pick, index) ? LOSSLESS_CHUNK_BYTES : MIN_CHUNK_BYTES;
    size_t first = given > 0 ? given : least, min = first < most ? first : most;
    size_t max = given > 0 ? min : most;
    candidate_t best = {.algo = index, .traffic = traffic, .chunk_bytes = min};

    best.sec = model_sec(pick, pick->c.model, &best);
    for (size_t chunk = 2 * min; chunk <= max; chunk *= 2) {
        candidate_t next = {.algo = index, .traffic = traffic, .chunk_bytes = chunk};
        next.sec = model_sec(pick, pick->c.model, &next);
        best = next.sec < best.sec ? next : best;
    }
    best.quiet_sec = model_sec(pick, &pick->quiet, &best);
    best.typical_sec = model_sec(pick, &pick->typical, &best);
    return best;
}

static tw_status_t no_candidate(const pick_t *pick)
{
    const tw_coll_args_t *args = pick->c.args;
    return tw_fail(TW_ERR_INVALID, "rank %d: %s: there is no %s algorithm \"%s\"", pick->c.topo->rank,
                   tw_coll_op_name(args->op), args->codec ? "quantized" : "plain",
                   args->algo ? args->algo : "auto");
}

static int is_kind(const candidate_t *candidate, int quantized)
{
    return tw_algo_get(candidate->algo)->info.quantized == quantized;
}

/** The inter-node bytes of an algorithm are certain; its processor and in-node times were measured at a
 *  moment that may have been a busy one. So the quickest one loses to one with fewer bytes, unless it is
 *  faster even when it takes its typical time and the other one its quiet time. */
static const candidate_t *prefer_lean(const pick_t *pick, const candidate_t *quickest)
{
    const candidate_t *best = quickest;
    for (size_t i = 0; quickest && i < pick->n_candidates; i++) {
        const candidate_t *lean = &pick->candidates[i];
        int leaner = lean->inter_bytes * LEANER < quickest->inter_bytes;
        if (is_kind(lean, tw_algo_get(quickest->algo)->info.quantized) && leaner &&
            lean->quiet_sec <= quickest->typical_sec &&
            (best == quickest || lean->quiet_sec < best->quiet_sec)) {
            best = lean;
        }
    }
    return best;
}

/** Whether `a` sends fewer bytes between nodes than `b`, or as many and takes less time. */
static int is_leaner(const candidate_t *a, const candidate_t *b)
{
    return a->inter_bytes * EQUAL < b->inter_bytes ||
           (a->inter_bytes <= b->inter_bytes * EQUAL && a->sec < b->sec);
}

/** Find the best candidate of a kind; NULL: there is none. */
static const candidate_t *find_best(const pick_t *pick, int quantized)
{
    const candidate_t *best = NULL;
    for (size_t i = 0; i < pick->n_candidates; i++) {
        const candidate_t *other = &pick->candidates[i];
        if (!is_kind(other, quantized)) {
            continue;
        }
        int is_better =
            !best || (pick->coll->deterministic ? is_leaner(other, best) : other->sec < best->sec);
        best = is_better ? other : best;
    }
    return pick->coll->deterministic ? best : prefer_lean(pick, best);
}

static tw_status_t find_candidates(pick_t *pick)
{
    const tw_algo_t *algo;
    for (size_t i = 0; (algo = tw_algo_get(i)); i++) {
        if (!is_candidate(pick, algo)) {
            continue;
        }
        const tw_traffic_t *traffic = get_traffic(pick->coll, i, pick->c.args->inner_codec != NULL);
        if (!traffic) {
            return TW_ERR_NO_MEMORY;
        }
        pick->candidates[pick->n_candidates++] = make_candidate(pick, i, traffic);
    }
    pick->plain = find_best(pick, 0);
    pick->quantized = find_best(pick, 1);
    /* With a codec but only plain algorithms, the name that the caller gave, if any, is wrong. */
    int found = pick->c.args->codec ? pick->quantized != NULL : pick->plain != NULL;
    return found ? TW_OK : no_candidate(pick);
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

static const char *describe_candidate(const pick_t *pick, const candidate_t *candidate, char *buf,
                                      size_t buf_bytes)
{
    const tw_coll_algo_info_t *info = &tw_algo_get(candidate->algo)->info;
    char codec[64] = "plain", sec[32];
    if (info->quantized) {
        tw_quant_codec_format(pick->c.args->codec, codec, sizeof(codec));
    }
    snprintf(buf, buf_bytes, "%s %s %s", codec, info->name, format_sec(candidate->sec, sec, sizeof(sec)));
    return buf;
}

/** Write how much slower the candidate is with the model's noise added. */
static const char *describe_doubt(const candidate_t *candidate, char *buf, size_t buf_bytes)
{
    char quiet[24], typical[24];
    snprintf(buf, buf_bytes, " (quiet %s, typical %s)",
             format_sec(candidate->quiet_sec, quiet, sizeof(quiet)),
             format_sec(candidate->typical_sec, typical, sizeof(typical)));
    return buf;
}

/** Say why it is not the quickest of its kind; "" if it is. */
static const char *describe_preference(const pick_t *pick, const candidate_t *chosen)
{
    int quantized = tw_algo_get(chosen->algo)->info.quantized;
    for (size_t i = 0; i < pick->n_candidates; i++) {
        const candidate_t *other = &pick->candidates[i];
        if (is_kind(other, quantized) && other->sec < chosen->sec) {
            return ", for its fewer inter-node bytes";
        }
    }
    return "";
}

static void choose_explain(tw_coll_t *coll, const pick_t *pick, const candidate_t *chosen, int is_declined)
{
    char bytes[32], chunk[32], text[128], doubt[96];
    if (!coll->options.explain || coll->topo.rank != 0) {
        return;
    }
    for (size_t i = 0; i < pick->n_candidates; i++) {
        const candidate_t *candidate = &pick->candidates[i];
        fprintf(stderr, "thinwire: %s of %s %s on %d ranks, %d nodes: %s%s, chunk %s%s%s%s\n",
                tw_coll_op_name(pick->c.args->op),
                tw_format_bytes((size_t)pick->c.bytes, bytes, sizeof(bytes)),
                tw_type_name(pick->c.args->type), coll->topo.world, coll->topo.n_nodes,
                describe_candidate(pick, candidate, text, sizeof(text)),
                describe_doubt(candidate, doubt, sizeof(doubt)),
                tw_format_bytes(candidate->chunk_bytes, chunk, sizeof(chunk)),
                candidate == chosen ? "  <- chosen" : "",
                candidate == chosen ? describe_preference(pick, chosen) : "",
                candidate == chosen && is_declined ? ", quantizing declined" : "");
    }
}

/* ---- choosing ------------------------------------------------------------------------------------------ */

/** Seconds that encoding must save to be chosen. */
static double choose_least_sec(const pick_t *pick, double plain_sec)
{
    const tw_coll_t *coll = pick->coll;
    const tw_coll_tier_t *tier = coll->topo.n_nodes > 1 ? &coll->model.inter : &coll->model.node;
    return tw_args_lose_nothing(pick->c.args) ? PACKING_TURNS * tier->turn_sec
                                              : WORTH_SHARE * plain_sec + WORTH_TURNS * tier->turn_sec;
}

/** Whether encoding is worth it. If in doubt: yes, with a loss of precision that the caller asked for; no, if
 *  it is lossless and has the same bits anyway. */
static int is_worth_encoding(const pick_t *pick)
{
    const candidate_t *plain = pick->plain, *coded = pick->quantized;
    int as_measured = plain->sec - coded->sec > choose_least_sec(pick, plain->sec);
    int as_quiet = plain->quiet_sec - coded->quiet_sec > choose_least_sec(pick, plain->quiet_sec);
    int as_typical = plain->typical_sec - coded->typical_sec > choose_least_sec(pick, plain->typical_sec);
    int loses_nothing = tw_args_lose_nothing(pick->c.args);
    return pick->c.encoded_bytes < pick->c.bytes &&
           (loses_nothing ? as_measured && as_quiet && as_typical : as_measured || as_quiet);
}

static const candidate_t *choose_decline(const pick_t *pick, char *reason, size_t reason_bytes)
{
    char plain[128], quantized[128];
    snprintf(reason, reason_bytes, "%s would save less than %.0f us of %s",
             describe_candidate(pick, pick->quantized, quantized, sizeof(quantized)),
             choose_least_sec(pick, pick->plain->sec) * 1e6,
             describe_candidate(pick, pick->plain, plain, sizeof(plain)));
    return pick->plain;
}

/** Choose the best candidate; the plain one if quantizing is not worth it, and then note the reason. */
static const candidate_t *choose_algo(const pick_t *pick, char *reason, size_t reason_bytes)
{
    reason[0] = '\0';
    if (!pick->plain || !pick->quantized) {
        return pick->plain ? pick->plain : pick->quantized;
    }
    if (pick->coll->deterministic) {
        int spans_nodes = pick->c.topo->n_nodes > 1;
        snprintf(reason, reason_bytes, "%s", spans_nodes ? "" : "all ranks are on one node");
        return spans_nodes ? pick->quantized : pick->plain;
    }
    return is_worth_encoding(pick) ? pick->quantized : choose_decline(pick, reason, reason_bytes);
}

/** Returns 1 if a deterministic communicator, which has chosen a lossless algorithm whatever the size,
 *  may still go plain. An algorithm that the caller names may add up in another order than the plain one, and
 *  then has other bits. */
static int is_free_to_go_plain(const pick_t *pick, const candidate_t *chosen)
{
    const tw_algo_t *algo = tw_algo_get(chosen->algo);
    int is_in_order = !algo->owner_matters && (algo->flows.nodes_first || !tw_topo_has_tiers(pick->c.topo));
    return pick->coll->deterministic && pick->plain && chosen == pick->quantized && pick->loses_nothing &&
           (!algo->flows.reduce || is_in_order);
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

/** Whether packing is worth it for this operation's size: the algorithms, which give the same bits, were
 *  chosen for a tensor of another size. If not, note the reason. */
static int is_worth_packing_here(const pick_t *pick, const tw_case_t *here, char *reason, size_t reason_bytes)
{
    pick_t sized = *pick;
    sized.c = *here;
    const candidate_t plain = make_candidate(&sized, pick->plain->algo, pick->plain->traffic);
    const candidate_t packed = make_candidate(&sized, pick->quantized->algo, pick->quantized->traffic);
    sized.plain = &plain;
    sized.quantized = &packed;
    int is_worth = is_worth_encoding(&sized);
    if (!is_worth) {
        choose_decline(&sized, reason, reason_bytes);
    }
    return is_worth;
}

/** Copy the arguments with `segment` as the only one. */
static tw_coll_args_t with_segment(const tw_coll_args_t *args, const tw_coll_segment_t *segment)
{
    tw_coll_args_t with = *args;
    with.segments = segment;
    with.n_segments = 1;
    return with;
}

/** Find the length from which on messages of an all-to-all are worth packing. The operation's own lengths are
 *  not the same on all ranks, so it is chosen without them; both ends of a message then compare its
 *  length. */
static size_t find_least_packed(const pick_t *pick)
{
    const size_t world = (size_t)pick->c.topo->world, elem_bytes = tw_type_bytes(pick->c.args->type);
    size_t bytes = PACKED_LEAST_BYTES;
    for (; (double)(bytes * world) < pick->c.bytes; bytes *= 2) {
        const tw_coll_segment_t segment = {.n_elems = bytes / elem_bytes * world};
        const tw_coll_args_t args = with_segment(pick->c.args, &segment);
        const tw_case_t here = make_case(pick->coll, &args, segment.n_elems);
        if (is_worth_packing_here(pick, &here, NULL, 0)) {
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
    const tw_coll_args_t reference = with_segment(args, &segment);
    /* this rank does not know the sizes of others */
    const tw_coll_args_t sized = args->op == TW_COLL_ALLTOALL ? with_segment(args, &whole) : *args;
    const tw_case_t own = make_case(coll, &sized, n_elems);
    pick_t pick = {.coll = coll, .loses_nothing = tw_args_lose_nothing(args)};
    pick.c = coll->deterministic ? make_case(coll, &reference, segment.n_elems) : own;
    tw_coll_model_quiet(&coll->model, &pick.quiet);
    tw_coll_model_typical(&coll->model, &pick.typical);
    tw_status_t status = find_candidates(&pick);
    if (status == TW_OK) {
        const candidate_t *chosen = choose_algo(&pick, choice->reason, sizeof(choice->reason));
        if (is_free_to_go_plain(&pick, chosen) &&
            !is_worth_packing_here(&pick, &own, choice->reason, sizeof(choice->reason))) {
            chosen = pick.plain;
        }
        choose_explain(coll, &pick, chosen, choice->reason[0] != '\0');
        int sizes_differ = args->op == TW_COLL_ALLTOALL && pick.loses_nothing && !args->force_codec;
        choice->least_packed_bytes =
            sizes_differ && pick.plain && chosen == pick.quantized ? find_least_packed(&pick) : 0;
        pick.c = own;
        candidate_t made = make_candidate(&pick, chosen->algo, chosen->traffic);
        choice->algo = made.algo;
        choice->chunk_bytes = made.chunk_bytes;
        choice->model_sec = made.sec;
    }
    return status;
}
