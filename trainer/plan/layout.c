/* Lays tensors out over ranks. */
#include "trainer/plan/layout.h"

#include <stdlib.h>

tw_status_t tw_plan_layout(const tw_model_t *model, const tw_plan_cluster_t *cluster, tw_hpz_layout_t **out)
{
    size_t n_tensors;
    const tw_model_tensor_t *tensors = tw_model_tensors(model, &n_tensors);
    tw_hpz_tensor_t *list = calloc(n_tensors, sizeof(*list));
    TW_FAIL_IF(!list, TW_ERR_NO_MEMORY, "plan: out of memory");
    for (size_t t = 0; t < n_tensors; t++) {
        list[t] = (tw_hpz_tensor_t){
            .n_elems = tensors[t].n_elems, .unit = tensors[t].unit, .unquantized = tensors[t].n_dims < 2};
    }
    tw_status_t status =
        tw_hpz_layout_create(list, n_tensors, cluster->n_nodes, cluster->ranks_per_node, out);
    free(list);
    return status;
}

tw_plan_cluster_t tw_plan_cluster_of(int world, int n_nodes)
{
    int is_even = world % n_nodes == 0;
    return (tw_plan_cluster_t){.n_nodes = is_even ? n_nodes : world,
                               .ranks_per_node = is_even ? world / n_nodes : 1,
                               .besides_bytes = TW_PLAN_PROCESS_BYTES};
}
