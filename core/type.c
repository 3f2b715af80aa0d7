#include "core/core.h"

#include <string.h>

size_t tw_type_bytes(tw_type_t type)
{
    switch (type) {
    case TW_TYPE_FP32:
        return 4;
    case TW_TYPE_BF16:
    case TW_TYPE_FP16:
        return 2;
    case TW_TYPE_BYTE:
        return 1;
    }
    return 0;
}

const char *tw_type_name(tw_type_t type)
{
    switch (type) {
    case TW_TYPE_FP32:
        return "fp32";
    case TW_TYPE_BF16:
        return "bf16";
    case TW_TYPE_FP16:
        return "fp16";
    case TW_TYPE_BYTE:
        return "byte";
    }
    return "?";
}

tw_status_t tw_type_parse(const char *name, tw_type_t *type)
{
    static const struct {
        const char *name;
        tw_type_t type;
    } names[] = {
        {"fp32", TW_TYPE_FP32},    {"float32", TW_TYPE_FP32},  {"f32", TW_TYPE_FP32},
        {"bf16", TW_TYPE_BF16},    {"bfloat16", TW_TYPE_BF16}, {"fp16", TW_TYPE_FP16},
        {"float16", TW_TYPE_FP16}, {"half", TW_TYPE_FP16},     {"f16", TW_TYPE_FP16},
        {"byte", TW_TYPE_BYTE},
    };

    if (!name) {
        return TW_ERR_INVALID;
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(name, names[i].name) == 0) {
            *type = names[i].type;
            return TW_OK;
        }
    }
    return TW_ERR_INVALID;
}
