/* AdamW on the host. It updates CHUNK_ELEMS elements at a time, so that they are in the cache when their
 * change is encoded. */
#include "quant/arithmetic/adamw.h"
#include "quant/arithmetic/block.h"
#include "quant/backend.h"

enum { CHUNK_ELEMS = 8192 };

static void step_elems(const tw_adamw_factors_t *factors, const tw_quant_adamw_t *adamw,
                       const tw_quant_adamw_segment_t *segment, size_t first, size_t n)
{
    float grad[CHUNK_ELEMS], scale = adamw->grad_scale ? *adamw->grad_scale : 1.0f;
    float *master = segment->master + first, *m = segment->m + first, *v = segment->v + first;
    tw_convert_to_fp32(adamw->grad_type,
                       (const char *)segment->grad + first * tw_type_bytes(adamw->grad_type), grad, n);
    for (size_t i = 0; i < n; i++) {
        master[i] = tw_adamw_element(factors, tw_float_mul(grad[i], scale), master[i], &m[i], &v[i]);
    }
}

/** Update a segment without encoding. */
static void update_segment(const tw_adamw_factors_t *factors, const tw_quant_adamw_t *adamw,
                           const tw_quant_adamw_segment_t *segment)
{
    for (size_t first = 0; first < segment->n_elems; first += CHUNK_ELEMS) {
        size_t left = segment->n_elems - first;
        step_elems(factors, adamw, segment, first, left < CHUNK_ELEMS ? left : CHUNK_ELEMS);
    }
}

static tw_status_t step_segment(tw_quant_t *quant, const tw_quant_args_t *args,
                                const tw_adamw_factors_t *factors, const tw_quant_adamw_t *adamw,
                                const tw_quant_adamw_segment_t *segment)
{
    size_t frame_elems = tw_layout_frame_elems(&quant->codec),
           frame_bytes = tw_layout_frame_bytes(&quant->codec);
    size_t chunk_frames = CHUNK_ELEMS < frame_elems ? 1 : CHUNK_ELEMS / frame_elems;
    for (size_t frame = 0; frame * frame_elems < segment->n_elems; frame += chunk_frames) {
        size_t first = frame * frame_elems, left = segment->n_elems - first;
        size_t n = left < chunk_frames * frame_elems ? left : chunk_frames * frame_elems;
        for (size_t done = 0; done < n; done += CHUNK_ELEMS) {
            step_elems(factors, adamw, segment, first + done,
                       n - done < CHUNK_ELEMS ? n - done : CHUNK_ELEMS);
        }
        tw_quant_segment_t change = {
            .src = segment->master + first,
            .base = (const char *)segment->replica + first * tw_type_bytes(args->type),
            .dst = (char *)segment->dst + frame * frame_bytes,
            .n_elems = n,
            .tensor = segment->tensor,
            .first_elem = segment->first_elem + first,
        };
        TW_TRY(quant->backend->encode(quant, args, &change, 1, 1));
    }
    return TW_OK;
}

tw_status_t tw_quant_host_adamw_encode_delta(tw_quant_t *quant, const tw_quant_args_t *args,
                                             const tw_quant_adamw_t *adamw,
                                             const tw_quant_adamw_segment_t *segments, size_t n_segments)
{
    tw_adamw_factors_t factors = tw_adamw_factors_of(adamw);
    for (size_t s = 0; s < n_segments; s++) {
        if (segments[s].dst) {
            TW_TRY(step_segment(quant, args, &factors, adamw, &segments[s]));
        } else {
            update_segment(&factors, adamw, &segments[s]);
        }
    }
    return TW_OK;
}
