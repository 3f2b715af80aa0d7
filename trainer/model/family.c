#include "trainer/model/family.h"

#define NAME(id, name_, ...) name_,
const char *const tw_model_family_names[TW_MODEL_FAMILY_COUNT + 1] = {TW_MODEL_FAMILIES(NAME) NULL};

#define ROW(id, name_, architecture_, ...) {.name = name_, .architecture = architecture_, __VA_ARGS__},
static const tw_model_family_row_t rows[] = {TW_MODEL_FAMILIES(ROW)};

const tw_model_family_row_t *tw_model_family_get(tw_model_family_t family)
{
    return &rows[family];
}

const char *tw_model_family_name(tw_model_family_t family)
{
    return (int)family >= 0 && family < TW_MODEL_FAMILY_COUNT ? rows[family].name : NULL;
}
