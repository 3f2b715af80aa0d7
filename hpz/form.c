/** Divides a run into fields: its parts, and the bytes between them. */
#include <stdlib.h>

#include "hpz/change.h"

/** Return how a part is coded. The 16-bit codec needs even addresses; parts at odd ones are bytes. */
static tw_hpz_coding_t coding_of(const tw_hpz_kept_params_t *params, const tw_hpz_part_t *part)
{
    if (part->type == TW_TYPE_FP32) {
        return TW_HPZ_AS_WORD;
    }
    int is_half = part->type == TW_TYPE_BF16 || part->type == TW_TYPE_FP16;
    return is_half && part->offset_bytes % 2 == 0 && params->run_bytes % 2 == 0 ? TW_HPZ_AS_HALF
                                                                                : TW_HPZ_AS_BYTES;
}

/** Append a field. If the last field has the same coding, extend that field instead. */
static void form_append(tw_hpz_form_t *form, size_t offset, size_t n_bytes, tw_hpz_coding_t coding)
{
    tw_hpz_field_t *last = form->n_fields > 0 ? &form->fields[form->n_fields - 1] : NULL;
    if (n_bytes == 0) {
        return;
    }
    if (last && last->coding == coding) {
        last->n_bytes += n_bytes;
    } else {
        form->fields[form->n_fields++] = (tw_hpz_field_t){
            .offset = offset, .n_bytes = n_bytes, .coding = coding, .first_state = form->n_coded};
    }
    form->n_coded += coding == TW_HPZ_AS_BYTES ? 0 : n_bytes / (size_t)coding;
}

static tw_status_t form_check(const tw_hpz_kept_params_t *params)
{
    size_t end = 0;
    TW_FAIL_IF(params->run_bytes == 0 || params->run_bytes > TW_HPZ_RUN_BYTES_MAX, TW_ERR_INVALID,
               "unit %s: a run of %zu bytes", params->name, params->run_bytes);
    for (size_t i = 0; i < params->n_parts; i++) {
        const tw_hpz_part_t *part = &params->parts[i];
        size_t n_bytes = tw_size_mul(part->n_elems, tw_type_bytes(part->type));
        TW_FAIL_IF(tw_type_bytes(part->type) == 0 || part->offset_bytes < end ||
                       tw_size_add(part->offset_bytes, n_bytes) > params->run_bytes,
                   TW_ERR_INVALID,
                   "unit %s: part %zu, of %zu elements at byte %zu, does not fit into a run of %zu bytes",
                   params->name, i, part->n_elems, part->offset_bytes, params->run_bytes);
        end = part->offset_bytes + n_bytes;
    }
    return TW_OK;
}

tw_status_t tw_hpz_form_init(tw_hpz_form_t *form, const tw_hpz_kept_params_t *params)
{
    size_t end = 0;
    *form = (tw_hpz_form_t){.run_bytes = params->run_bytes};
    TW_TRY(form_check(params));
    form->fields = calloc(2 * params->n_parts + 1, sizeof(*form->fields));
    TW_FAIL_IF(!form->fields, TW_ERR_NO_MEMORY, "unit %s: out of memory for %zu parts", params->name,
               params->n_parts);
    for (size_t i = 0; i < params->n_parts; i++) {
        const tw_hpz_part_t *part = &params->parts[i];
        size_t n_bytes = part->n_elems * tw_type_bytes(part->type);
        form_append(form, end, part->offset_bytes - end, TW_HPZ_AS_BYTES);
        form_append(form, part->offset_bytes, n_bytes, coding_of(params, part));
        end = part->offset_bytes + n_bytes;
    }
    form_append(form, end, params->run_bytes - end, TW_HPZ_AS_BYTES);
    return TW_OK;
}

void tw_hpz_form_cleanup(tw_hpz_form_t *form)
{
    free(form->fields);
    *form = (tw_hpz_form_t){0};
}
