/** Makes a kept unit: allocates its memory, and agrees with all ranks on keeping it. */
#include "hpz/keep_state.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* What a rank tells others about a unit to be kept: a hash of its params, and whether the rank has room. */
typedef struct offer {
    uint64_t id;
    uint64_t has_room;
} offer_t;

/** Hash everything that must be the same on all ranks. */
static uint64_t hash_of(const tw_hpz_kept_params_t *params)
{
    uint64_t hash = XXH64(params->name, strlen(params->name), params->run_bytes);
    for (size_t i = 0; i < params->n_parts; i++) {
        const uint64_t part[] = {params->parts[i].offset_bytes, params->parts[i].n_elems,
                                 (uint64_t)params->parts[i].type, (uint64_t)params->parts[i].rounded};
        hash = XXH64(part, sizeof(part), hash);
    }
    return params->codec ? XXH64(params->codec, sizeof(*params->codec), hash) : hash;
}

static size_t memory_bytes(const tw_hpz_keeper_t *keeper, const tw_hpz_form_t *form)
{
    return (size_t)keeper->n_nodes * (form->run_bytes + form->n_coded);
}

size_t tw_hpz_kept_memory_bytes(const tw_hpz_keeper_t *keeper, const tw_hpz_kept_params_t *params)
{
    tw_hpz_form_t form;
    size_t bytes = tw_hpz_form_init(&form, params) == TW_OK ? memory_bytes(keeper, &form) : 0;
    tw_hpz_form_cleanup(&form);
    return bytes;
}

/** Allocate the unit's memory; return 0 if there is not enough. */
static int kept_take_memory(tw_hpz_kept_t *kept)
{
    size_t nodes = (size_t)kept->keeper->n_nodes;
    kept->runs = tw_buffer_alloc(nodes * kept->form.run_bytes);
    kept->states = tw_buffer_alloc_zero(nodes * kept->form.n_coded);
    return kept->runs && kept->states;
}

static void kept_free(tw_hpz_kept_t *kept)
{
    tw_buffer_free(kept->runs);
    tw_buffer_free(kept->states);
    tw_hpz_round_destroy(kept->round);
    tw_hpz_form_cleanup(&kept->form);
    free(kept->name);
    free(kept);
}

static tw_status_t kept_exchange(tw_hpz_keeper_t *keeper, offer_t *offers)
{
    tw_coll_segment_t segment = {.dst = offers, .n_elems = (size_t)keeper->world * sizeof(*offers)};
    tw_coll_args_t args = {
        .op = TW_COLL_ALLGATHER, .type = TW_TYPE_BYTE, .segments = &segment, .n_segments = 1};
    return tw_coll_run(keeper->all_ranks, &args);
}

static tw_status_t kept_look_at(const tw_hpz_keeper_t *keeper, const char *name, const offer_t *offers,
                                int *refusing)
{
    for (int r = keeper->world - 1; r >= 0; r--) {
        TW_FAIL_IF(offers[r].id != offers[keeper->rank].id, TW_ERR_MISMATCH,
                   "rank %d: unit %s: rank %d gathers another unit, or one of another shape", keeper->rank,
                   name, r);
        *refusing = offers[r].has_room ? *refusing : r;
    }
    return TW_OK;
}

/** Exchange offers. *refusing is the lowest rank without room, or -1 if all ranks keep the unit. */
static tw_status_t kept_agree(tw_hpz_kept_t *kept, int has_room, int *refusing)
{
    tw_hpz_keeper_t *keeper = kept->keeper;
    offer_t *offers = calloc((size_t)keeper->world, sizeof(*offers));
    TW_FAIL_IF(!offers, TW_ERR_NO_MEMORY, "rank %d: unit %s: out of memory for %d ranks", keeper->rank,
               kept->name, keeper->world);
    offers[keeper->rank] = (offer_t){.id = kept->id, .has_room = (uint64_t)has_room};
    tw_status_t status = kept_exchange(keeper, offers);
    status = status == TW_OK ? kept_look_at(keeper, kept->name, offers, refusing) : status;
    free(offers);
    return status;
}

static tw_status_t kept_make(tw_hpz_keeper_t *keeper, const tw_hpz_kept_params_t *params, tw_hpz_kept_t **out)
{
    tw_hpz_kept_t *kept = calloc(1, sizeof(*kept));
    if (!kept || !(kept->name = strdup(params->name))) {
        tw_error("unit %s: out of memory", params->name);
        free(kept);
        return TW_ERR_NO_MEMORY;
    }
    kept->keeper = keeper;
    kept->id = hash_of(params);
    tw_status_t status = tw_hpz_form_init(&kept->form, params);
    status = status == TW_OK ? tw_hpz_round_create(params, &kept->round) : status;
    if (status != TW_OK) {
        kept_free(kept);
        return status;
    }
    *out = kept;
    return TW_OK;
}

tw_status_t tw_hpz_kept_create(tw_hpz_keeper_t *keeper, const tw_hpz_kept_params_t *params,
                               tw_hpz_kept_t **out, int *refusing)
{
    tw_hpz_kept_t *kept = NULL;
    *refusing = -1;
    tw_status_t status = kept_make(keeper, params, &kept);
    if (status == TW_OK) {
        int has_room = params->has_room && kept_take_memory(kept);
        /* under the gathers' lock, so that all ranks make units and gathers in the same order */
        pthread_mutex_lock(&keeper->posting);
        status = kept_agree(kept, has_room, refusing);
        pthread_mutex_unlock(&keeper->posting);
    }
    if (status == TW_ERR_NO_MEMORY) {
        tw_coll_abort(keeper->all_ranks); /* the other ranks wait for this rank's offer */
    }
    if (kept && (status != TW_OK || *refusing >= 0)) {
        kept_free(kept);
        kept = NULL;
    }
    *out = kept;
    return status;
}

void tw_hpz_kept_destroy(tw_hpz_kept_t *kept)
{
    if (kept) {
        (void)tw_hpz_kept_wait(kept, NULL);
        kept_free(kept);
    }
}
