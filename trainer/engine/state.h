/** What an engine is made of. Private to engine; what its files offer each other is in calls.h. */
#pragma once

#include "hpz/hpz.h"
#include "quant/loss.h"
#include "trainer/engine/engine.h"
#include "trainer/engine/norm.h"

TW_C_BEGIN

#define TW_ENGINE_NOT_PLANNED UINT64_MAX

/** Operations in flight that belong together. */
typedef struct tw_engine_ops {
    tw_coll_request_t **requests;
    size_t n_requests, max_requests;
} tw_engine_ops_t;

/** A buffer for the elements of a unit, or of a slice, and the operations that fill or empty it. */
typedef struct tw_engine_slot {
    void *elems;  /* weights or gradients: room for the largest unit or slice that comes here */
    void *near;   /* weights from replicas on the model's device; elems is NULL if all come from there */
    void *filled; /* weights: elems or near, whichever was filled last */
    tw_engine_ops_t ops;
} tw_engine_slot_t;

/** A unit as this rank has it. "Whole" is [n_elems], its tensors one after the other; "shard" is
 *  [shard_elems], this rank's pieces of them, likewise. In stage 0 the shard is the whole. */
typedef struct tw_engine_unit {
    size_t first_tensor, n_tensors, n_elems, shard_elems;
    float *master; /* shard; with fp32 weights, these are the masters */
    float *m, *v;  /* [moment_elems]: the shard without frozen tensors */
    size_t moment_elems;
    void *shard; /* shard of weights: bf16(master), or the masters; NULL with a delta: replicas have it */
    void *shard_grads;      /* shard of mean gradients, of grad_type, once reduced */
    void *weights;          /* whole weights; stage 3: NULL */
    void *sent_grads;       /* whole gradients, of grad_type; stages 2 and 3: NULL, see reduce_slots */
    void *sums;             /* whole, of sum_type: backward adds gradients here */
    tw_engine_ops_t gather; /* stages 1 and 2: gather after the update */
    tw_engine_ops_t reduce; /* stages 0 and 1: reduction of gradients */
    uint64_t planned_gather, planned_reduce; /* inter-node bytes among all ranks, or TW_ENGINE_NOT_PLANNED */
} tw_engine_unit_t;

/** Where a step is in its walk through the units. */
typedef struct tw_engine_walk {
    size_t n_visits, period; /* visits of all micro-batches, and of one */
    size_t at, asked;        /* the current visit; the first one whose unit's gather is not posted yet */
    size_t block_asked, block_left, root_asked, root_left;
} tw_engine_walk_t;

/** With a delta: how far the replicas have followed the last update. */
typedef struct tw_engine_sync {
    tw_hpz_sync_t kind;
    int is_near;        /* 1: the masters are on the device */
    tw_status_t failed; /* error that has ended the sync: nothing is tried again */
    /* how many units, in order, have new masters; have begun to sync; have been synced */
    size_t ready, begun, done;
} tw_engine_sync_t;

/** Processor time: of the threads that compute, and of the process's others, which communicate. */
typedef struct tw_engine_processor {
    double compute_sec, progress_sec;
} tw_engine_processor_t;

/** Where a holding lies: on the device (TW_TRAIN_NONE), in host memory or in files. */
typedef struct tw_engine_home {
    tw_train_place_t place;
    const char *folder; /**< folder of its files */
    size_t bytes;
    size_t gpu_bytes; /**< how many of them are in a GPU's memory */
} tw_engine_home_t;

/** Most mapped files: masters, both moments, shards, replicas, their states, kept tensors, inputs. */
#define TW_ENGINE_MAX_MAPS 8
typedef struct tw_engine_map {
    void *start;
    size_t n_bytes;
} tw_engine_map_t;

/** Addresses of blocks of memory. */
typedef struct tw_engine_list {
    void **items;
    size_t n, max;
} tw_engine_list_t;

/** Losses and norms of the last steps, in ring buffers; past: both in order. */
typedef struct tw_engine_outliers {
    double *losses, *norms, *past; /* [window], [window], [2 * window] */
    size_t window, n, at; /* room; steps kept; index of the next one, which is the oldest's once it is full */
    uint64_t n_bad;       /* bad steps in a row; with rollback, all bad steps */
    uint64_t passed_over;
} tw_engine_outliers_t;

/** One unit's exchange of momenta. */
typedef struct tw_engine_muon_place {
    /* sent: this rank's pieces of all matrices; owned: the whole matrices that it owns */
    uint16_t *sent, *owned;
    tw_engine_ops_t ops;
} tw_engine_muon_place_t;

/** State of Muon: each matrix's owner, and memory. */
typedef struct tw_engine_muon {
    int *owners; /* [n_tensors], -1: AdamW's; NULL: there is no Muon */
    tw_engine_muon_place_t places[TW_ENGINE_MUON_PLACES]; /* units use them in turn */
    float *scratch;                                       /* scratch for one matrix */
    void *near;                                           /* scratch for one matrix on the model's device */
    size_t *counts, *recv_counts;                         /* counts of the operation that is posted */
} tw_engine_muon_t;

/** The optimizer on the model's device. */
typedef struct tw_engine_near {
    struct tw_device_optimizer *device; /* NULL: AdamW runs on this processor */
    struct tw_device_piece *pieces;     /* [most tensors of a unit] */
    int is_here;                        /* 1: host memory has the same state */
} tw_engine_near_t;

/** What lossy codecs lost of a sample of this step's values. */
typedef struct tw_engine_losses {
    tw_quant_loss_t gradients, weights;
} tw_engine_losses_t;

struct tw_engine {
    const tw_train_options_t *options;
    tw_model_t *model;
    const tw_data_t *data;
    tw_coll_t *coll;
    tw_engine_hooks_t hooks;
    tw_hpz_t *hpz;        /* layout and operations of the units; with hpZ, replicas */
    tw_hpz_place_t place; /* place of a planned engine's rank */
    int rank, world, stage, has_replicas;
    int has_near_replicas; /* 1: replicas lie on the model's device */
    struct tw_device_replicas *replicas;
    tw_type_t weight_type; /* bf16 or fp32 */
    tw_type_t sum_type;    /* type of sums of gradients: fp32; bf16 if the model gives rounded gradients */
    tw_type_t grad_type;   /* type in which gradients are sent: fp32 or bf16 */
    size_t n_units, n_layer, n_tensors;
    const tw_model_tensor_t *tensors;
    const char **names;       /* [n_tensors] */
    tw_train_group_t *groups; /* [n_tensors] */
    size_t n_frozen;          /* how many tensors are frozen */
    void **kept;              /* [n_tensors]: whole frozen tensors, gathered once; NULL: none are kept */
    tw_engine_unit_t *units;
    /* [n_tensors] exponents of fp8 tensors, TW_HPZ_BF16 for others; NULL: weights are bf16 */
    int8_t *exponents;
    tw_engine_piece_t *pieces; /* [n_tensors] */
    size_t *piece_offsets;     /* [n_tensors] offset of the piece in the unit's shard */
    /* memory */
    tw_engine_home_t homes[TW_ENGINE_HOLDING_COUNT];
    int is_planned; /* 1: tensors are counted, never written (planned.c) */
    /* planned engine: start and length of each tensor's range of addresses, alternating */
    tw_engine_list_t spaces;
    tw_engine_list_t blocks, near_blocks, pinned; /* near: on the model's device */
    size_t memory_bytes, most_bytes; /* allocated now by the engine; the peak, with hpZ and communicator */
    tw_engine_map_t maps[TW_ENGINE_MAX_MAPS];
    size_t n_maps, file_bytes;
    size_t resident_before; /* bytes that the process held before the engine was made */
    size_t resident_high;   /* the process's earlier peak, if the system still knows it */
    size_t resident_most;   /* most beyond resident_before of any rank, at the last exchange */
    /* weights and gradients on their way */
    tw_engine_walk_t walk;
    tw_engine_sync_t sync;
    tw_engine_slot_t *block_slots, root_slot;
    size_t n_block_slots;
    tw_engine_slot_t reduce_slots[TW_ENGINE_REDUCE_SLOTS], root_reduce_slot;
    size_t n_reduces;         /* how many reductions have used the reduce_slots */
    const void **weight_ptrs; /* [most tensors of a unit], for the model's calls */
    float **grad_ptrs;
    tw_coll_segment_t *segments;
    tw_train_codecs_t codecs;
    /* computing */
    int32_t *tokens, *targets;
    /* where each token's document begins in its sequence; NULL: documents are not separated */
    int32_t *documents;
    float **x; /* [n_layer + 1] activations between units; inputs.c */
    float *near[3];
    void **saved;       /* [n_layer] what layers save for backward; with recomputation, all the same */
    tw_quant_t **adamw; /* [threads] */
    tw_norm_t *norms;   /* [threads] norms, one of each thread */
    tw_engine_muon_t muon;
    tw_engine_near_t optimizer;
    /* the run */
    double mask_factor; /* factor of this step's losses: all targets by those that are learned; 1: no masks */
    uint64_t steps_done, version;     /* version of the weights; the first is 1 */
    double forward_sec, backward_sec; /* times of this step */
    double exchange_progress_sec;     /* processor time of the progress thread in this step's exchange */
    /* processor time of the compute thread when this step's gradients had been reduced */
    double reduced_compute_sec;
    tw_engine_notices_t notices; /* notices of the last step */
    uint64_t lag_blocks;         /* blocks that have lagged so far */
    tw_engine_losses_t losses;   /* losses of lossy codecs in this step */
    unsigned char *vanished; /* [n_tensors] how many times in a row most of a tensor's gradients became 0 */
    int has_warned;          /* 1: a warning of vanished gradients was logged */
    tw_engine_outliers_t outliers;
    double recent_loss;     /* moving mean, for the jump alarm; 0: none yet */
    double wait_sec;        /* time since the engine was made that communication blocked the compute thread */
    uint64_t planned_bytes; /* bytes that `coll` was planned to send */
    /* counters of `coll` from before the engine, and of operations that are not the engine's */
    tw_coll_counters_t base;
    tw_engine_totals_t aside[TW_ENGINE_ASIDE_COUNT];
    tw_engine_totals_t reported; /* sums over the ranks at the last step's exchange */
};

TW_C_END
