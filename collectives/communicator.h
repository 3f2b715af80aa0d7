/** Inside of a communicator and its requests. Private to collectives. */
#ifndef TW_COLLECTIVES_COMMUNICATOR_H
#define TW_COLLECTIVES_COMMUNICATOR_H

#include <sys/queue.h>

#include "collectives/algorithms/algorithm.h"
#include "collectives/quantized/codecs.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TW_COLL_ID_SHIFT 40 /**< tags: communicator, operation, message */
#define TW_COLL_EXPLAINED 32
#define TW_COLL_EXPLAINED_BYTES 128

/** The environment, see tw_coll_config_table. */
typedef struct tw_coll_options {
    size_t chunk_bytes; /**< 0: chosen */
    int64_t window;
    int check;
    double timeout_sec;
    size_t scratch_bytes;
    char *model;
    int explain;
    int gpu_workspace; /**< tw_coll_gpu_workspace_t */
} tw_coll_options_t;

/** Where a communicator on a GPU has its workspace, over a transport: TW_COLL_GPU_WORKSPACE. */
typedef enum tw_coll_gpu_workspace {
    TW_COLL_GPU_WORKSPACE_AUTO,
    TW_COLL_GPU_WORKSPACE_PINNED,
    TW_COLL_GPU_WORKSPACE_DEVICE
} tw_coll_gpu_workspace_t;

/** What a rank says about an operation to its neighbour in the ring; all members but `rank` must agree. */
typedef struct tw_coll_signature {
    uint32_t sequence; /**< how many operations the communicator had before */
    uint32_t op, type; /**< op TW_COLL_OP_COUNT, all else 0: the post failed there */
    uint32_t algo;     /**< row of the table */
    uint64_t n_elems;
    uint64_t hash; /**< of everything else that must agree */
} tw_coll_signature_t;

/** What an operation became: the result of planning, the same on all ranks. */
typedef struct tw_coll_choice {
    size_t algo; /**< row of the table */
    size_t chunk_bytes;
    double model_sec;
    const char *reason; /**< as in tw_coll_plan_t */
} tw_coll_choice_t;

struct tw_coll_request {
    TAILQ_ENTRY(tw_coll_request) link; /**< in tw_coll.active, then in tw_coll.ended */
    tw_coll_t *coll;
    tw_status_t status; /**< TW_IN_PROGRESS while running */
    int silent;         /**< not an operation, only a word about one to the neighbours; nobody waits for it */
    int failed;         /**< silent: this rank could not post the operation */

    /* The caller's arguments, checked and copied; what is optional there is filled in here. */
    tw_coll_args_t args;
    tw_coll_segment_t *segments;
    size_t *counts;                   /**< memory of all the segments' counts */
    tw_quant_codec_t *segment_codecs; /**< [n_segments] those of segments that have their own */
    tw_quant_codec_t codec, inner_codec;

    tw_view_t in, out;
    size_t *in_first, *out_first; /**< [W + 1], see tw_build_t; NULL there: of no meaning here */
    size_t *first_memory;
    int in_place, aliased;
    size_t n_elems; /**< the whole tensor: all segments, all shards; all-to-all: a size to plan with */

    tw_coll_choice_t choice;
    tw_coll_signature_t signature, neighbour_signature;
    tw_view_t signature_view, neighbour_view;
    tw_sched_t *sched; /**< NULL once ended */
};

typedef TAILQ_HEAD(tw_coll_request_list, tw_coll_request) tw_coll_request_list_t;

struct tw_coll {
    tw_transport_t *transport; /**< borrowed */
    tw_transport_mover_t mover;
    int id;
    tw_coll_options_t options;
    tw_topo_t topo;
    tw_scratch_t *scratch;
    const tw_coll_algo_info_t *(*algo_info)(size_t index); /**< the table that choices refer to */
    uint32_t sequence;
    tw_status_t silent_status;     /**< TW_OK, or how a silent request ended */
    tw_coll_request_list_t active; /**< in the order posted */
    tw_coll_request_list_t ended;  /**< nobody has asked for their status yet */
    tw_coll_plan_t last_plan;
    char reason[320]; /**< of the last choice; last_plan and choices point here */
    char explained[TW_COLL_EXPLAINED]
                  [TW_COLL_EXPLAINED_BYTES]; /**< operations that TW_COLL_EXPLAIN has printed */
    size_t n_explained;
    tw_coll_model_t model;
    tw_codecs_t codecs;
    uint64_t moved_ns;  /**< when something last moved, for the watchdog */
    uint64_t looked_ns; /**< when progress was last asked for */
};

/** Check and copy the arguments, describe the tensors as views. Errors are logged. */
tw_status_t tw_request_create(tw_coll_t *coll, const tw_coll_args_t *args, tw_coll_request_t **out);
void tw_request_destroy(tw_coll_request_t *request);
/** What a request's sum is multiplied with. */
float tw_coll_factor(const tw_coll_args_t *args, int world);
/** What a rank's contribution to a sum that travels in the tensor's type is multiplied with before: the sums on the way to
 *  a mean of fp16 are means of what they have so far, since sums might overflow. */
float tw_coll_scale(const tw_coll_args_t *args, int world);
/** Choose algorithm and chunk. TW_ERR_UNSUPPORTED or TW_ERR_INVALID, logged. */
tw_status_t tw_coll_choose(tw_coll_t *coll, const tw_coll_args_t *args, size_t n_elems,
                           tw_coll_choice_t *choice);
/** Emit the tasks of a request whose choice is made, into request->sched. */
tw_status_t tw_request_build(tw_coll_request_t *request);

/** A transport's mover of a communicator: messages of all its requests, and one computation. */
void tw_coll_move(void *coll, int *moved);

/** How an operation ended here: the other ranks cannot end one that has failed here and are told, by giving the job up,
 *  unless the transport has told them or they are as late themselves. */
void tw_coll_give_up(tw_transport_t *transport, tw_status_t status);

/** Exchange signatures for an operation that is not a request of this communicator: `about` has its arguments and choice, and
 *  is not needed afterwards; NULL: this rank could not post it. Takes a number as an operation does. Ranks that disagree
 *  give the job up; on this one silent_status tells. */
void tw_coll_tell(tw_coll_t *coll, const tw_coll_request_t *about);
/** 1 while words about operations that were posted here have no answer. */
int tw_coll_is_telling(const tw_coll_t *coll);
/** Cancel and free all requests. */
void tw_coll_drop_requests(tw_coll_t *coll);

/** Emit the exchange and comparison of signatures with the neighbours. */
void tw_check_build(tw_coll_request_t *request);
/** 1 if signatures are exchanged. */
int tw_check_is_on(const tw_coll_t *coll);
/** Bytes of signatures that this rank sends to another node with each operation. */
uint64_t tw_check_inter_node_bytes(const tw_coll_t *coll);

#ifdef __cplusplus
}
#endif

#endif
