/** The structs of an engine's state. Private to engine; calls.h has the functions. */
#pragma once

#include "hpz/hpz.h"
#include "quant/loss.h"
#include "trainer/engine/engine.h"
#include "trainer/engine/norm.h"

TW_C_BEGIN

/** Planned bytes that tw_engine_post has not computed yet. */
#define TW_ENGINE_NOT_PLANNED UINT64_MAX

/** Operations in flight that are waited for together. */
typedef struct tw_engine_ops {
    tw_coll_request_t **requests;
    size_t n_requests, max_requests;
} tw_engine_ops_t;

/** A buffer for the elements of a unit, or of a slice, and the operations that fill or empty it. */
typedef struct tw_engine_slot {
    void *elems;  /* weights or gradients, as large as the largest unit or slice that uses this slot */
    void *near;   /* weights, gathered on the model's device; if all gathers go there, elems is NULL */
    void *filled; /* weights: elems or near, the one filled last */
    tw_engine_ops_t ops;
} tw_engine_slot_t;

/** A unit's memory on this rank. "Whole" is [n_elems]: its tensors one after the other. "Shard" is
 *  [shard_elems]: this rank's pieces of the tensors, one after the other; in stage 0 the whole unit. */
typedef struct tw_engine_unit {
    size_t first_tensor, n_tensors, n_elems, shard_elems;
    float *master; /* shard of masters; if weights are fp32, they are the masters: the same memory */
    float *m, *v;  /* [moment_elems]: the shard without frozen tensors */
    size_t moment_elems;
    void *shard; /* shard of weights: bf16(master) or master; NULL with a delta, which has replicas instead */
    void *shard_grads;      /* shard of reduced gradients (their mean over ranks), of grad_type */
    void *weights;          /* whole weights; stage 3: NULL */
    void *sent_grads;       /* whole gradients to send, of grad_type; stages 2, 3: NULL (see reduce_slots) */
    void *sums;             /* whole, of sum_type: backward adds gradients here */
    tw_engine_ops_t gather; /* stages 1 and 2: gather of weights after the update */
    tw_engine_ops_t reduce; /* stages 0 and 1: reduction of gradients */
    uint64_t planned_gather, planned_reduce; /* inter-node bytes among all ranks, or TW_ENGINE_NOT_PLANNED */
} tw_engine_unit_t;

/** A step's position in its walk through the units (walk.c). */
typedef struct tw_engine_walk {
    size_t n_visits, period; /* visits in all micro-batches; visits in one */
    size_t at, asked;        /* the current visit; the first visit whose gather is not posted yet */
    size_t block_asked, block_left, root_asked, root_left; /* gathers posted and visits ended so far */
} tw_engine_walk_t;

/** With a delta: progress of the sync that brings replicas to the last update's masters. */
typedef struct tw_engine_sync {
    tw_hpz_sync_t kind;
    int is_near;        /* 1: the masters are on the device */
    tw_status_t failed; /* error that has ended the sync; later calls return it */
    /* how many units, from unit 0 on, have new masters; have begun their sync; have ended their sync */
    size_t ready, begun, done;
} tw_engine_sync_t;

/** Processor time of the threads that compute, and of the process's other threads, which communicate. */
typedef struct tw_engine_processor {
    double compute_sec, progress_sec;
} tw_engine_processor_t;

/** Where a holding lies: on the device (TW_TRAIN_NONE), in host memory or in files. */
typedef struct tw_engine_home {
    tw_train_place_t place;
    const char *folder; /**< folder of its files */
    size_t bytes;
    size_t gpu_bytes; /**< the part of `bytes` that is in a GPU's memory */
} tw_engine_home_t;

/** Most mapped files: masters, m, v, shards, replicas, their previous changes, frozen tensors, inputs. */
#define TW_ENGINE_MAX_MAPS 8
typedef struct tw_engine_map {
    void *start;
    size_t n_bytes;
} tw_engine_map_t;

/** A growing list of addresses: n used, max allocated. */
typedef struct tw_engine_list {
    void **items;
    size_t n, max;
} tw_engine_list_t;

/** Losses and norms of the last steps, in ring buffers. `past` is a copy of both, the oldest first. */
typedef struct tw_engine_outliers {
    double *losses, *norms, *past; /* [window], [window], [2 * window] */
    size_t window, n, at;          /* capacity in steps; steps kept; index that the next step is written to */
    uint64_t n_bad;                /* bad steps in a row; with thinwire.bad_step "rollback", all bad steps */
    uint64_t passed_over;          /* see tw_engine_past_t */
} tw_engine_outliers_t;

/** Buffers of one unit's exchange of momenta. */
typedef struct tw_engine_muon_place {
    /* sent: this rank's pieces of all matrices; owned: all ranks' pieces of the matrices this rank owns */
    uint16_t *sent, *owned;
    tw_engine_ops_t ops;
} tw_engine_muon_place_t;

/** State of Muon. */
typedef struct tw_engine_muon {
    int *owners; /* [n_tensors] rank that owns the matrix, -1 for AdamW's tensors; NULL: AdamW has all */
    tw_engine_muon_place_t places[TW_ENGINE_MUON_PLACES]; /* units use them in turn */
    float *scratch;                                       /* scratch for one matrix */
    void *near;                                           /* scratch for one matrix on the model's device */
    size_t *counts, *recv_counts;                         /* per rank, for the operation being posted */
} tw_engine_muon_t;

/** The optimizer on the model's device. */
typedef struct tw_engine_near {
    struct tw_device_optimizer *device; /* NULL: AdamW runs on this processor */
    struct tw_device_piece *pieces;     /* [most tensors of a unit] */
    int is_here;                        /* 1: host memory has the same masters and moments as the device */
} tw_engine_near_t;

/** Errors of lossy codecs, measured on a sample of this step's values. */
typedef struct tw_engine_losses {
    tw_quant_loss_t gradients, weights;
} tw_engine_losses_t;

struct tw_engine {
    const tw_train_options_t *options;
    tw_model_t *model;
    const tw_data_t *data;
    tw_coll_t *coll;
    tw_engine_hooks_t hooks;
    tw_hpz_t *hpz;        /* layout and operations of the units; replicas, if there are any */
    tw_hpz_place_t place; /* node and rank that a planned engine stands for */
    int rank, world, stage, has_replicas;
    int has_near_replicas; /* 1: replicas lie on the model's device */
    struct tw_device_replicas *replicas;
    tw_type_t weight_type; /* bf16 or fp32 */
    tw_type_t sum_type;    /* type of unit->sums: fp32, or bf16 if a device rounds gradients */
    tw_type_t grad_type;   /* type in which gradients are sent: fp32 or bf16 */
    size_t n_units, n_layer, n_tensors;
    const tw_model_tensor_t *tensors;
    const char **names;       /* [n_tensors] */
    tw_train_group_t *groups; /* [n_tensors] */
    size_t n_frozen;          /* how many tensors are frozen */
    void **kept;              /* [n_tensors]: whole frozen tensors in stage 3, gathered once; NULL: none */
    tw_engine_unit_t *units;
    /* [n_tensors] exponents of fp8 tensors, TW_HPZ_BF16 for other tensors; NULL without gather=fp8 */
    int8_t *exponents;
    tw_engine_piece_t *pieces; /* [n_tensors] */
    size_t *piece_offsets;     /* [n_tensors] offset of the piece in the unit's shard */
    /* memory */
    tw_engine_home_t homes[TW_ENGINE_HOLDING_COUNT];
    int is_planned; /* 1: tensors are counted, never written (planned.c) */
    /* planned engine: its mapped ranges, each as two items: start and length in bytes */
    tw_engine_list_t spaces;
    tw_engine_list_t blocks, near_blocks, pinned; /* near: on the model's device */
    size_t memory_bytes, most_bytes; /* the engine's allocated bytes; peak, with hpZ and communicator */
    tw_engine_map_t maps[TW_ENGINE_MAX_MAPS];
    size_t n_maps, file_bytes;
    size_t resident_before; /* bytes that the process held before the engine was made */
    size_t resident_high;   /* VmHWM then: larger than resident_before if it could not be reset */
    size_t resident_most;   /* largest tw_engine_resident_bytes of all ranks, at the last exchange */
    /* gathers and reductions */
    tw_engine_walk_t walk;
    tw_engine_sync_t sync;
    tw_engine_slot_t *block_slots, root_slot;
    size_t n_block_slots;
    tw_engine_slot_t reduce_slots[TW_ENGINE_REDUCE_SLOTS], root_reduce_slot;
    size_t n_reduces;         /* reductions that have used reduce_slots so far, in turn */
    const void **weight_ptrs; /* [most tensors of a unit], for the model's calls */
    float **grad_ptrs;
    tw_coll_segment_t *segments;
    tw_train_codecs_t codecs;
    /* computing */
    int32_t *tokens, *targets;
    /* where each token's document begins in its sequence; NULL: documents are not separated */
    int32_t *documents;
    float **x;      /* [n_layer + 1] activations between units; see inputs.c */
    float *near[3]; /* buffers for activations where the model computes; see inputs.c */
    void **saved;   /* [n_layer] activations saved for backward; with recomputation all share one buffer */
    tw_quant_t **adamw; /* [threads] */
    tw_norm_t *norms;   /* [threads] */
    tw_engine_muon_t muon;
    tw_engine_near_t optimizer;
    /* the run */
    double mask_factor; /* factor of this step's losses: all targets / targets not masked; 1: no masks */
    uint64_t steps_done, version;     /* version of the weights; the first is 1 */
    double forward_sec, backward_sec; /* times of this step */
    double exchange_progress_sec;     /* progress thread's processor time during this step's exchange */
    /* processor time of the compute thread when this step's gradients had been reduced */
    double reduced_compute_sec;
    tw_engine_notices_t notices; /* notices of the last step */
    uint64_t lag_blocks;         /* blocks that lagged more than thinwire.lag_bound so far */
    tw_engine_losses_t losses;   /* errors of lossy codecs in this step */
    unsigned char *vanished;     /* [n_tensors] times in a row that a codec made most of its gradients 0 */
    int has_warned;              /* 1: a warning of vanished gradients was logged */
    int has_warned_of_muon;      /* 1: a warning of rounded gradients with Muon was logged */
    tw_engine_outliers_t outliers;
    double recent_loss;     /* moving mean of losses, for thinwire.loss_jump; 0: none yet */
    double wait_sec;        /* time since the engine was made that communication blocked the compute thread */
    uint64_t planned_bytes; /* inter-node bytes planned for the engine's operations */
    /* counters of `coll` to subtract: from before the engine, and of operations that are not planned */
    tw_coll_counters_t base;
    tw_engine_totals_t aside[TW_ENGINE_ASIDE_COUNT];
    tw_engine_totals_t reported; /* all ranks' totals at the last step's exchange */
};

TW_C_END
