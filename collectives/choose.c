/** Chooses how an operation in host memory is done: its algorithm, the length of its messages, and whether it
 *  is quantized at all. The choice is the candidate that the cost model expects to be the quickest. Where the
 *  model's difference is below its error, the choice is the candidate with fewer inter-node bytes. The choice
 *  depends only on the cost model, the sizes, the topology and TW_COLL_CHUNK. These are the same on all
 *  ranks, so all ranks choose alike.
 *
 *  In a deterministic communicator the cost model decides nothing that changes a bit. A codec is used
 *  whenever there are several nodes. Candidates are only the algorithms with the bits that this placement of
 *  ranks defines. The choice is the one with the fewest inter-node bytes for a tensor of REFERENCE_BYTES. The
 *  operation's own size only decides the length of its messages. One exception: lossless messages give the
 *  bits of plain ones, so a lossless operation is sent plain if the cost model expects plain messages to be
 *  as fast. The model is TW_COLL_MODEL or the library's default, since nothing is measured. The exception
 *  does not apply if the caller names an algorithm that adds up in another order. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/communicator.h"

#define MIN_CHUNK_BYTES ((size_t)64 << 10)
#define MAX_CHUNK_BYTES ((size_t)2 << 20)
/** Messages of operations in which every rank sends to all others at once. About MEETING_MESSAGES messages go
 *  to each other rank, none shorter than MEETING_CHUNK_BYTES. Longer messages let some peers get ahead of
 *  others at a link that they share, so that the link idles at the end. Shorter ones cost more processor
 *  time. Both were measured on 4 nodes with 1 Gb/s and on 8 nodes with 250 Mb/s. On a fast link
 *  messages are longer: one message to each peer must occupy the link for more than MEETING_TURNS turns, or
 *  the link waits for handshakes. */
#define MEETING_MESSAGES 32
#define MEETING_CHUNK_BYTES ((size_t)32 << 10)
#define MEETING_TURNS 2
/** The shortest lossless messages. Each carries its own scales and tables, so shorter messages compress
 *  less. In sums of 64 MB on 4 nodes with 1 Gb/s, messages of 256 KB were 4 % slower. */
#define LOSSLESS_CHUNK_BYTES ((size_t)512 << 10)
/** An all-to-all never packs messages that are shorter than this. */
#define PACKED_LEAST_BYTES ((size_t)1 << 10)
/** Quantizing costs precision. So it must save more time than the cost model may be wrong by: WORTH_SHARE of
 *  the plain time, plus WORTH_TURNS turns of a message for the extra wake-ups of busy processors. */
#define WORTH_SHARE 0.05
#define WORTH_TURNS 4
/** A lossless codec costs no precision. It must save only as much time as this many turns of a message, to
 *  make up for the processor's work. */
#define PACKING_TURNS 2
/** A candidate with over LEANER times the inter-node bytes of another one is taken only if it is faster even
 *  with the noise of the measurements (prefer_lean). */
#define LEANER 1.25
#define REFERENCE_BYTES ((size_t)64 << 20)
/** Inter-node bytes count as equal up to this factor, because they are sums of rounded fractions. */
#define EQUAL 1.001

/** An algorithm that can do the operation, with its best chunk and its estimated times. */
typedef struct candidate {
    size_t algo;
    const tw_traffic_t *traffic;
    size_t chunk_bytes;
    double sec;
    double quiet_sec, typical_sec; /**< its time by the quiet model, and by the typical one (model.h) */
    double inter_bytes;
} candidate_t;

typedef struct pick {
    tw_coll_t *coll;
    tw_case_t c;
    tw_coll_model_t quiet, typical;
    candidate_t candidates[TW_COLL_ALGOS];
    size_t n_candidates;
    /** the best plain and the best quantized candidate; NULL: there is none */
    const candidate_t *plain, *quantized;
    int loses_nothing; /**< 1: no codec of the caller's segments loses values; `c` may have other segments */
} pick_t;

/* ---- candidates ---------------------------------------------------------------------------------------- */

/** Whether the algorithm fits a deterministic operation. It fits if the bits do not depend on the owner of
 *  an element, and if it sums inside nodes first exactly when there are several nodes, some with several
 *  ranks. An algorithm that the caller names always fits. */
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

/** Whether the algorithm is a candidate. If the caller gives a codec and a name, the name is that of a
 *  quantized algorithm, and plain algorithms stay candidates. An algorithm that encodes again on each hop
 *  sends as many bytes as others, and rounds its sums more often. So the caller must name it. */
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

/** Get the traffic of an algorithm's flows, which is computed once. Returns NULL if memory is out. */
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

/** Returns the largest chunk, a power of two, with which any algorithm needs at most half of the scratch
 *  memory. The other half is left for other operations. One round, together with what earlier rounds still
 *  hold, takes 8 chunks per rank, or more if the messages inside a node are larger. */
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

/** Returns the chunk, a power of two, of an operation in which every rank sends to all others at once. */
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

/** Returns 1 if the algorithm's messages are lossless, so that their length is not known beforehand. */
static int is_lossless(const pick_t *pick, size_t index)
{
    return tw_quant_form(pick->c.args->codec) == TW_QUANT_MESSAGE && tw_algo_get(index)->info.quantized;
}

/** Find an algorithm's best chunk. Small chunks cost messages, large ones make link and processor wait. */
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

/** Prefer a candidate with fewer inter-node bytes to the quickest one. An algorithm's inter-node bytes are
 *  certain. Its times in the processor and inside a node are not: the machine may have been busy when they
 *  were measured. So the quickest one wins only if its typical time is below the other's quiet time. */
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

/** Whether `a` sends fewer bytes between nodes than `b`, or equally many and takes less time. */
static int is_leaner(const candidate_t *a, const candidate_t *b)
{
    return a->inter_bytes * EQUAL < b->inter_bytes ||
           (a->inter_bytes <= b->inter_bytes * EQUAL && a->sec < b->sec);
}

/** Find the best plain or quantized candidate; NULL: there is none. */
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
    /* If a codec was given but only plain algorithms are candidates, the caller's algorithm name is wrong. */
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

/** Write the candidate's times by the quiet and by the typical model. */
static const char *describe_doubt(const candidate_t *candidate, char *buf, size_t buf_bytes)
{
    char quiet[24], typical[24];
    snprintf(buf, buf_bytes, " (quiet %s, typical %s)",
             format_sec(candidate->quiet_sec, quiet, sizeof(quiet)),
             format_sec(candidate->typical_sec, typical, sizeof(typical)));
    return buf;
}

/** Returns why the chosen candidate is not the quickest of its kind; "" if it is the quickest. */
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

/** Returns how many seconds encoding must save to be chosen. */
static double choose_least_sec(const pick_t *pick, double plain_sec)
{
    const tw_coll_t *coll = pick->coll;
    const tw_coll_tier_t *tier = coll->topo.n_nodes > 1 ? &coll->model.inter : &coll->model.node;
    return tw_args_lose_nothing(pick->c.args) ? PACKING_TURNS * tier->turn_sec
                                              : WORTH_SHARE * plain_sec + WORTH_TURNS * tier->turn_sec;
}

/** Whether encoding is worth it. In doubt, a codec that loses precision is used, because the caller asked
 *  for it. In doubt, a lossless codec is not used, because plain messages give the same bits. */
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

/** Choose the best candidate. If quantizing is not worth it, choose the plain one and write the reason. */
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

/** Returns 1 if an operation for which a deterministic communicator has chosen a lossless algorithm may
 *  still go plain. It may not if the caller names an algorithm that adds up in another order than the plain
 *  one, because the plain one then gives other bits. */
static int is_free_to_go_plain(const pick_t *pick, const candidate_t *chosen)
{
    return pick->coll->deterministic && pick->plain && chosen == pick->quantized && pick->loses_nothing &&
           tw_algo_adds_as_plain(tw_algo_get(chosen->algo), pick->c.topo);
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

/** Whether packing is worth it for this operation's size. `pick` holds algorithms that were chosen for a
 *  tensor of another size, and that give the same bits. If packing is not worth it, write the reason. */
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

/** Find the shortest message of an all-to-all that is worth packing. All ranks must find the same length, so
 *  it does not depend on the lengths of the operation's own messages, which differ between ranks. Sender and
 *  receiver compare a message's length with it, and so both know whether that message is packed. */
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
    /* the sizes of other ranks' segments are unknown: take one segment of n_elems */
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
