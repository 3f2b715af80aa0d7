/** Shapes: the choice and the plan for all operations with the same arguments, made once. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "collectives/gpu/gpu.h"

#define MAX_SHAPES 256
#define ROUND_BYTES ((size_t)16 << 20)      /**< the most bytes of a round's messages to all ranks */
#define ROUNDS 8                            /**< the number of rounds that a shard should have */
#define MIN_CHUNK_BYTES ((size_t)256 << 10) /**< the fewest bytes of a chunk */
/** The shortest messages that are packed, and the seconds that a GPU takes to pack and unpack one of them. A
 *  warp codes 65,536 elements of a message step by step, so a shorter message takes as long: 27 launches, in
 *  which 485,000 instructions wait for each other, 4 cycles each at 1.4 GHz (counted in
 *  bench/results/gpu-counts.jsonl). That is 1.5 ms; a quarter more, since no GPU has measured it. Sending
 *  such a message at 10 Gb/s takes about as long. */
#define MIN_PACKED_BYTES ((size_t)2 << 20)
#define PACKING_SEC 1.9e-3
/** The smallest operations that are quantized. In smaller ones, the codec's two launches cost as much as it
 *  saves on a 10 Gb/s link (26 us, 8 bits of 16). */
#define MIN_QUANTIZED_BYTES ((size_t)64 << 10)

/* ---- comparing ----------------------------------------------------------------------------------------- */

/** Whether this is an all-to-all whose source and target are the same memory. */
static int is_in_place(const tw_coll_request_t *request)
{
    return request->args.op == TW_COLL_ALLTOALL && request->aliased;
}

/** Hash everything that determines a shape: all that a choice depends on (tw_request_key), and all else that
 *  a plan is made from. */
static uint64_t gpu_shape_key_of(const tw_coll_request_t *request)
{
    const tw_coll_args_t *args = &request->args;
    size_t counts_bytes = (size_t)request->coll->topo.world * sizeof(*request->counts);
    uint64_t key = tw_request_key(request);
    int32_t rest[2] = {(int32_t)args->reduction, is_in_place(request)};

    key = XXH3_64bits_withSeed(rest, sizeof(rest), key);
    key = XXH3_64bits_withSeed(&args->factor, sizeof(args->factor), key);
    for (size_t s = 0; s < args->n_segments; s++) {
        const tw_coll_segment_t *segment = &args->segments[s];
        uint64_t tensor[4] = {segment->n_elems, segment->tensor, segment->first_elem, segment->row_elems};
        key = XXH3_64bits_withSeed(tensor, sizeof(tensor), key);
        if (args->op == TW_COLL_ALLTOALL) {
            key = XXH3_64bits_withSeed(segment->counts, counts_bytes, key);
            key = XXH3_64bits_withSeed(segment->recv_counts, counts_bytes, key);
        }
    }
    return key;
}

/* ---- choosing ------------------------------------------------------------------------------------------ */

static int is_even(const tw_coll_args_t *args, int world)
{
    for (size_t s = 0; s < args->n_segments && args->op != TW_COLL_ALLREDUCE; s++) {
        for (int r = 0; r < world; r++) {
            if (args->segments[s].counts[r] != args->segments[s].n_elems / (size_t)world) {
                return 0;
            }
        }
    }
    return 1;
}

static int is_packed(const tw_coll_request_t *request)
{
    return tw_quant_form(request->args.codec) == TW_QUANT_MESSAGE;
}

static size_t choose_chunk(const tw_coll_t *coll, const tw_coll_request_t *request, int quantized)
{
    size_t world = (size_t)coll->topo.world, bytes = 0;
    size_t most = ROUND_BYTES / world, least = MIN_CHUNK_BYTES;

    if (coll->options.chunk_bytes > 0) {
        return coll->options.chunk_bytes;
    }
    if (quantized && is_packed(request)) {
        least = MIN_PACKED_BYTES;
    }
    bytes = tw_message_bytes(quantized ? request->args.codec : NULL, request->args.type, request->n_elems);
    bytes /= world * ROUNDS;
    bytes = bytes < most ? bytes : most;
    return bytes > least ? bytes : least;
}

/** Whether a GPU takes longer to pack and unpack a rank's messages, one after another, than packing saves on
 *  the link. A link that TW_COLL_MODEL does not describe counts as one of 1 Gb/s. */
static int is_packing_slower(const tw_coll_t *coll, const tw_coll_request_t *request)
{
    size_t bytes = request->n_elems * tw_type_bytes(request->args.type),
           chunk = choose_chunk(coll, request, 1);
    const tw_case_t c = {.topo = &coll->topo, .args = &request->args, .bytes = (double)bytes};
    double saved_bytes = c.bytes - tw_cost_encoded_bytes(&c, request->args.codec);
    double others = coll->topo.n_nodes - 1;
    double n_chunks = others * ceil(c.bytes / coll->topo.world / (double)chunk);
    return n_chunks * PACKING_SEC > saved_bytes * others / coll->topo.n_nodes * coll->model.inter.beta_sec;
}

static const char native_doc[] = "NCCL's own collective; where all shards of a tensor are of one size";

static const tw_algo_t natives[] = {
    {.info = {TW_COLL_ALLGATHER, "native", native_doc, 0, 0}},
    {.info = {TW_COLL_REDUCE_SCATTER, "native", native_doc, 0, 0}},
    {.info = {TW_COLL_ALLREDUCE, "native", native_doc, 0, 0}},
};

#define N_NATIVES (sizeof(natives) / sizeof(natives[0]))

/** Returns row `index`: NCCL's own algorithms, then the table's that work on a GPU; NULL past the end. */
static const tw_algo_t *get_algo(size_t index)
{
    const tw_algo_t *algo = index < N_NATIVES ? &natives[index] : NULL;
    size_t next = N_NATIVES;

    for (size_t i = 0; !algo && tw_algo_get(i); i++) {
        int is_it = tw_algo_get(i)->on_gpu && next++ == index;
        algo = is_it ? tw_algo_get(i) : NULL;
    }
    return algo;
}

const tw_coll_algo_info_t *tw_gpu_algo_get(size_t index)
{
    const tw_algo_t *algo = get_algo(index);

    return algo ? &algo->info : NULL;
}

/** An algorithm's flows on a GPU. Data goes to all nodes at once, as a further hop costs a tick (plan.h). */
static tw_flows_t flows_of(const tw_algo_t *algo)
{
    tw_flows_t flows = algo->flows;

    flows.spread = flows.spread == tw_flow_spread_hierarchical ? tw_flow_spread_rails : flows.spread;
    return flows;
}

/** Whether the algorithm suits the topology: with two tiers, sums must be made inside nodes first. */
static int is_sensible(const tw_coll_t *coll, const tw_algo_t *algo)
{
    return !algo->flows.reduce || algo->flows.nodes_first == tw_topo_has_tiers(&coll->topo);
}

/** Whether a declined codec would change bits: it loses some, or the caller names an algorithm that adds up
 *  in another order than the plain one. */
static int declining_changes_bits(const tw_coll_t *coll, const tw_coll_args_t *args)
{
    const tw_algo_t *algo = NULL;

    for (size_t i = 0; tw_args_name_algo(args) && (algo = get_algo(i)); i++) {
        if (algo->info.op == args->op && algo->info.quantized && strcmp(algo->info.name, args->algo) == 0) {
            break;
        }
    }
    return !tw_args_lose_nothing(args) || (algo && !tw_algo_adds_as_plain(algo, &coll->topo));
}

static const char *gpu_shape_decline(const tw_coll_t *coll, const tw_gpu_shape_t *shape)
{
    const tw_coll_request_t *request = shape->request;

    if (!request->args.codec || request->args.force_codec) {
        return "";
    }
    if (coll->topo.n_nodes == 1) {
        return "all ranks are on one node";
    }
    int changes_bits = coll->deterministic && declining_changes_bits(coll, &request->args);
    if (!changes_bits && request->n_elems * tw_type_bytes(request->args.type) < MIN_QUANTIZED_BYTES) {
        return "the tensors are so small that the codec would cost more time than it saves";
    }
    if (!changes_bits && is_packed(request) && is_packing_slower(coll, request)) {
        return "packing would take a GPU longer than it saves on this link";
    }
    return "";
}

/** Whether NCCL's own algorithm may be used. NCCL chooses the order of its sums by size, so in a
 *  deterministic communicator the caller must name the algorithm. */
static int may_be_native(const tw_coll_t *coll, const tw_coll_args_t *args, int is_named)
{
    return coll->gpu->wire && is_even(args, coll->topo.world) && args->factor == 1 &&
           (is_named || !coll->deterministic);
}

/** Choose an algorithm. A name that the caller gives together with a codec is that of a quantized algorithm.
 *  So if the codec is declined, the name is ignored. */
static const tw_algo_t *gpu_shape_choose(const tw_coll_t *coll, const tw_gpu_shape_t *shape, int quantized,
                                         size_t *index)
{
    const tw_coll_args_t *args = &shape->request->args;
    const tw_algo_t *algo;
    int declined = args->codec && !quantized;
    int is_named = tw_args_name_algo(args) && !declined;

    for (*index = 0; (algo = get_algo(*index)); (*index)++) {
        if (algo->info.op != args->op || algo->info.quantized != quantized) {
            continue;
        }
        if (*index < N_NATIVES && !may_be_native(coll, args, is_named)) {
            continue;
        }
        if (is_named ? strcmp(algo->info.name, args->algo) == 0 : is_sensible(coll, algo)) {
            return algo;
        }
    }
    return tw_fail(NULL, "rank %d: %s: there is no %s algorithm \"%s\" for this", coll->topo.rank,
                   tw_coll_op_name(args->op), quantized ? "quantized" : "plain",
                   args->algo ? args->algo : "auto");
}

/** Bytes that NCCL's rings send from this rank's node to the next one, counted by the node's first rank: all
 *  shards but one, and twice that in an all-reduce. */
static uint64_t native_inter_node_bytes(const tw_coll_t *coll, const tw_coll_request_t *request)
{
    const tw_topo_t *topo = &coll->topo;
    uint64_t bytes = request->n_elems * tw_type_bytes(request->args.type);
    int is_first = topo->local[topo->rank] == 0;

    if (topo->n_nodes == 1 || !is_first) {
        return 0;
    }
    bytes = bytes / (uint64_t)topo->world * (uint64_t)(topo->world - 1);
    return request->args.op == TW_COLL_ALLREDUCE ? 2 * bytes : bytes;
}

/* ---- making one ---------------------------------------------------------------------------------------- */

/** Find how many bytes of workspace the codecs of messages need for the largest chunk. */
static tw_status_t find_packing_bytes(tw_coll_t *coll, tw_gpu_shape_t *shape)
{
    const tw_coll_args_t *args = &shape->request->args;
    const tw_grid_t *grid = &shape->plan.grid;
    tw_quant_message_segment_t *pieces = malloc((grid->n_pieces + 1) * sizeof(*pieces));
    tw_status_t status = pieces ? TW_OK : TW_ERR_NO_MEMORY;
    tw_quant_messages_stream_t *packer;

    for (size_t c = 0; c < grid->n_chunks && status == TW_OK; c++) {
        const tw_quant_codec_t *codec = tw_grid_chunk_codec(grid, c);
        if (tw_quant_form(codec) != TW_QUANT_MESSAGE) {
            continue;
        }
        tw_grid_walk_t walk = tw_grid_walk_start(grid, c, shape->request->tensors, args->type);
        const tw_quant_message_args_t message = {
            .type = args->type, .segments = pieces, .n_segments = tw_grid_pieces(walk, NULL, 1, pieces)};
        status = tw_codecs_messages(&coll->codecs, codec, &packer);
        if (status == TW_OK) {
            size_t encode = tw_quant_messages_encode_workspace_bytes(packer, &message);
            size_t decode = tw_quant_messages_decode_workspace_bytes(
                packer, args->type, grid->chunks[c].n_elems, message.n_segments);
            size_t bytes = encode > decode ? encode : decode;
            shape->packing_bytes = bytes > shape->packing_bytes ? bytes : shape->packing_bytes;
        }
    }
    free(pieces);
    return status;
}

static tw_status_t get_codecs(tw_coll_t *coll, tw_gpu_shape_t *shape)
{
    const tw_coll_args_t *args = &shape->request->args;
    const tw_grid_t *grid = &shape->plan.grid;
    tw_quant_t *codec;

    for (size_t k = 0; k < grid->n_codecs; k++) { /* compute.c later finds the codecs that are made here */
        if (tw_quant_form(grid->codecs[k]) == TW_QUANT_MESSAGE) {
            TW_TRY(find_packing_bytes(coll, shape));
        } else {
            TW_TRY(tw_codecs_get(&coll->codecs, grid->codecs[k], &codec));
        }
    }
    if (args->inner_codec) {
        TW_TRY(tw_codecs_get(&coll->codecs, args->inner_codec, &shape->inner));
    }
    return TW_OK;
}

static tw_status_t make_plan(tw_coll_t *coll, tw_gpu_shape_t *shape, const tw_algo_t *algo)
{
    tw_coll_request_t *request = shape->request;
    tw_coll_args_t args = request->args;
    const tw_flows_t flows = flows_of(algo);
    tw_gpu_plan_params_t params = {
        .topo = &coll->topo,
        .flows = &flows,
        .kept = &coll->programs[request->choice.algo],
        .args = &args,
        .chunk_bytes = request->choice.chunk_bytes,
        .rounds_sums = tw_coll_rounds_sums(coll, &args),
        .in_place = is_in_place(request),
    };
    tw_status_t status;

    if (shape->is_native) {
        shape->inter_node_bytes = native_inter_node_bytes(coll, request);
        return TW_OK;
    }
    if (!algo->info.quantized) { /* the caller may have given a codec, which was declined */
        args.codec = args.inner_codec = NULL;
    }
    status = tw_gpu_plan_init(&shape->plan, &params);
    if (status == TW_OK && algo->info.quantized) {
        status = get_codecs(coll, shape);
    }
    shape->inter_node_bytes = shape->plan.inter_node_bytes;
    /* over a transport, ranks also send messages that compare arguments */
    if (status == TW_OK && !coll->gpu->wire) {
        status = tw_check_create_sched(request);
        shape->inter_node_bytes += status == TW_OK ? tw_check_inter_node_bytes(request) : 0;
        tw_sched_destroy(request->sched);
        request->sched = NULL;
    }
    return status;
}

static tw_status_t decide(tw_coll_t *coll, tw_gpu_shape_t *shape)
{
    const tw_coll_request_t *request = shape->request;
    tw_coll_choice_t *choice = &shape->request->choice;
    const char *reason = gpu_shape_decline(coll, shape);
    int quantized = request->args.codec && reason[0] == '\0';
    const tw_algo_t *algo = gpu_shape_choose(coll, shape, quantized, &choice->algo);

    if (!algo) {
        return TW_ERR_UNSUPPORTED;
    }
    shape->is_native = choice->algo < N_NATIVES;
    choice->chunk_bytes = choose_chunk(coll, request, quantized);
    snprintf(choice->reason, sizeof(choice->reason), "%s", reason);
    return make_plan(coll, shape, algo);
}

/** Log what was chosen, once for each shape, on rank 0. */
static void gpu_shape_explain(const tw_coll_t *coll, const tw_gpu_shape_t *shape)
{
    const tw_coll_args_t *args = &shape->request->args;
    const tw_coll_choice_t *choice = &shape->request->choice;
    const tw_coll_algo_info_t *info = tw_gpu_algo_get(choice->algo);
    const tw_topo_t *topo = &coll->topo;
    char bytes[32], chunk[32], workspace[32], codec[64] = "plain";

    if (!coll->options.explain || topo->rank != 0) {
        return;
    }
    if (info->quantized) {
        tw_quant_codec_format(args->codec, codec, sizeof(codec));
    }
    fprintf(
        stderr,
        "thinwire: %s of %s %s on %d GPUs, %d nodes: %s %s, chunk %s, %zu rounds, workspace %s in %s%s%s\n",
        tw_coll_op_name(args->op),
        tw_format_bytes(shape->request->n_elems * tw_type_bytes(args->type), bytes, sizeof(bytes)),
        tw_type_name(args->type), topo->world, topo->n_nodes, codec, info->name,
        tw_format_bytes(choice->chunk_bytes, chunk, sizeof(chunk)), shape->plan.n_rounds,
        tw_format_bytes(shape->plan.workspace_bytes, workspace, sizeof(workspace)),
        coll->gpu->memory.pinned ? "pinned host memory" : "GPU memory",
        choice->reason[0] != '\0' ? "; quantizing declined: " : "", choice->reason);
}

static void destroy_shape(tw_gpu_shape_t *shape)
{
    tw_gpu_plan_cleanup(&shape->plan);
    if (shape->request) {
        tw_request_destroy(shape->request);
    }
    free(shape->tensors);
    free(shape);
}

static tw_status_t check_op(const tw_coll_t *coll, const tw_coll_args_t *args)
{
    int is_alltoall = args->op == TW_COLL_ALLTOALL && !coll->gpu->wire; /* NCCL has its own */

    if (args->op == TW_COLL_ALLGATHER || args->op == TW_COLL_REDUCE_SCATTER ||
        args->op == TW_COLL_ALLREDUCE || is_alltoall) {
        return TW_OK;
    }
    return tw_fail(TW_ERR_UNSUPPORTED, "rank %d: operation %d (%s) does not work on GPU memory",
                   coll->topo.rank, (int)args->op, tw_coll_op_name(args->op));
}

static tw_status_t create_shape(tw_coll_t *coll, const tw_coll_args_t *args, tw_gpu_shape_t **out)
{
    tw_gpu_shape_t *shape = calloc(1, sizeof(*shape));

    if (!shape) {
        return TW_ERR_NO_MEMORY;
    }
    shape->tensors = calloc(args->n_segments + 1, sizeof(*shape->tensors));
    tw_status_t status = shape->tensors ? TW_OK : TW_ERR_NO_MEMORY;
    if (status == TW_OK) {
        status = tw_request_create(coll, args, &shape->request);
    }
    if (status == TW_OK) {
        status = decide(coll, shape);
    }
    if (status != TW_OK) {
        destroy_shape(shape);
        return status;
    }
    gpu_shape_explain(coll, shape);
    *out = shape;
    return TW_OK;
}

/** Whether a shape was made from these arguments. Compares hashes, and what determines sizes. */
static int is_shape_of(const tw_gpu_shape_t *shape, const tw_coll_request_t *request, uint64_t key)
{
    const tw_coll_args_t *made = &shape->request->args, *asked = &request->args;
    int is_alike = shape->key == key && made->op == asked->op && made->type == asked->type &&
                   made->n_segments == asked->n_segments;

    for (size_t s = 0; is_alike && s < asked->n_segments; s++) {
        is_alike = made->segments[s].n_elems == asked->segments[s].n_elems;
    }
    return is_alike;
}

/** Drop the shape that was not used for the longest time. */
static void drop_oldest(tw_gpu_t *gpu)
{
    tw_gpu_shape_t *shape = TAILQ_LAST(&gpu->shapes, tw_gpu_shapes);

    TAILQ_REMOVE(&gpu->shapes, shape, link);
    destroy_shape(shape);
    gpu->n_shapes--;
}

static tw_status_t get_shape(const tw_coll_request_t *request, tw_gpu_shape_t **out)
{
    tw_coll_t *coll = request->coll;
    uint64_t key = gpu_shape_key_of(request);
    tw_gpu_shape_t *shape;

    TAILQ_FOREACH(shape, &coll->gpu->shapes, link)
    {
        if (is_shape_of(shape, request, key)) {
            break;
        }
    }
    if (shape) {
        TAILQ_REMOVE(&coll->gpu->shapes, shape, link);
    } else {
        TW_TRY(create_shape(coll, &request->args, &shape));
        shape->key = key;
        /* operations in flight still use their shapes */
        if (coll->gpu->n_shapes >= MAX_SHAPES && TAILQ_EMPTY(&coll->active)) {
            drop_oldest(coll->gpu);
        }
        coll->gpu->n_shapes++;
    }
    TAILQ_INSERT_HEAD(&coll->gpu->shapes, shape, link);
    *out = shape;
    return TW_OK;
}

tw_status_t tw_gpu_shape_get(tw_coll_t *coll, const tw_coll_args_t *args, tw_coll_request_t **request,
                             tw_gpu_shape_t **shape)
{
    TW_TRY(check_op(coll, args));
    TW_TRY(tw_request_create(coll, args, request));
    tw_status_t status = get_shape(*request, shape);
    if (status != TW_OK) {
        tw_request_destroy(*request);
    }
    return status;
}

void tw_gpu_shapes_cleanup(tw_gpu_t *gpu)
{
    while (!TAILQ_EMPTY(&gpu->shapes)) {
        drop_oldest(gpu);
    }
}

tw_status_t tw_gpu_planned_bytes(tw_coll_t *coll, const tw_coll_args_t *args, uint64_t *bytes)
{
    tw_coll_request_t *request;
    tw_gpu_shape_t *shape;
    TW_TRY(tw_gpu_shape_get(coll, args, &request, &shape));
    *bytes = shape->inter_node_bytes;
    tw_request_destroy(request);
    return TW_OK;
}
