/** GPU memory: whether UCX supports it here, and the settings that UCX needs. */
#include <stdlib.h>
#include <string.h>

#include "transport/p2p/carrier.h"
#include "transport/p2p/ucx_load.h"

/** UCX's component for GPU memory. It exists only if UCX was built with CUDA, and has no memory domains
 *  without a GPU or a driver. */
#define CUDA_COMPONENT "cuda_cpy"
/** UCX's name for all its CUDA transports. UCX does not complain if only some of them exist. */
#define CUDA_TLS "cuda"

static int component_has_gpu(uct_component_h component)
{
    uct_component_attr_t attr = {.field_mask = UCT_COMPONENT_ATTR_FIELD_NAME |
                                               UCT_COMPONENT_ATTR_FIELD_MD_RESOURCE_COUNT};
    return tw_ucx->uct_component_query(component, &attr) == UCS_OK && attr.md_resource_count > 0 &&
           !strcmp(attr.name, CUDA_COMPONENT);
}

/** Check for a GPU first, because UCX warns of every transport in UCX_TLS that it does not have. */
int tw_p2p_ucx_finds_gpu(void)
{
    uct_component_h *components;
    unsigned n_components = 0;
    int found = 0;
    if (!tw_ucx_load()) {
        return 0;
    }
    ucs_status_t status = tw_ucx->uct_query_components(&components, &n_components);
    TW_FAIL_IF(status != UCS_OK, 0, "UCX: what it is made of: %s", tw_ucx->ucs_status_string(status));
    for (unsigned i = 0; i < n_components && !found; i++) {
        found = component_has_gpu(components[i]);
    }
    tw_ucx->uct_release_component_list(components);
    return found;
}

/** Return 1 if a list of transports decides about CUDA: it excludes some ("^..."), or names all or CUDA. */
static int decides_cuda(const char *tls)
{
    if (tls[0] == '^') {
        return 1;
    }
    for (const char *word = tls; word; word = strchr(word, ',')) {
        word += *word == ',';
        if (!strncmp(word, CUDA_TLS, strlen(CUDA_TLS)) ||
            (!strncmp(word, "all", 3) && strchr(",", word[3]))) {
            return 1;
        }
    }
    return 0;
}

char *tw_p2p_tls_with_cuda(const char *tls, int has_gpu)
{
    const int add = has_gpu && !decides_cuda(tls);
    const size_t bytes = strlen(tls) + sizeof("," CUDA_TLS);
    char *all = malloc(bytes);
    if (all) {
        snprintf(all, bytes, "%s%s", tls, add ? "," CUDA_TLS : "");
    } else {
        tw_error("out of memory for the names of UCX's transports");
    }
    return all;
}

int tw_p2p_context_takes_cuda(ucp_context_h context)
{
    ucp_context_attr_t attr = {.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES};
    ucs_status_t status = tw_ucx->ucp_context_query(context, &attr);
    if (status != UCS_OK) {
        tw_error("UCX: what memory it takes: %s", tw_ucx->ucs_status_string(status));
    }
    return status == UCS_OK && (attr.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
}
