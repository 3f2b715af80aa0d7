#include "core/core.h"

#include <errno.h>

const char *tw_status_string(tw_status_t status)
{
    switch (status) {
#define TW_STATUS_CASE(name, value, text) \
    case name:                            \
        return text;
        TW_STATUS_LIST(TW_STATUS_CASE)
#undef TW_STATUS_CASE
    }
    return "unknown status";
}

const char *tw_version(void)
{
    return TW_VERSION;
}

tw_status_t tw_status_from_errno(int error)
{
    switch (error) {
    case ENOMEM:
        return TW_ERR_NO_MEMORY;
    case ETIMEDOUT:
        return TW_ERR_TIMEOUT;
    case EINVAL:
        return TW_ERR_INVALID;
    case ENOENT:
        return TW_ERR_NOT_FOUND;
    default:
        return TW_ERR_IO;
    }
}
