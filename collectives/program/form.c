#include "collectives/program/form.h"

int tw_flows_owns(const tw_flows_t *flows, const tw_topo_t *topo, int rank)
{
    return flows->of != TW_FLOWS_SOME || flows->owns(topo, rank);
}

int tw_flows_has_cost(const tw_flows_t *flows, const tw_topo_t *topo, int rank)
{
    return flows->of == TW_FLOWS_ROOT ? rank == 0 : tw_flows_owns(flows, topo, rank);
}

int tw_flows_count_shards(const tw_flows_t *flows, const tw_topo_t *topo)
{
    int n = 0;
    if (flows->of == TW_FLOWS_WHOLES || flows->of == TW_FLOWS_ROOT) {
        return 1;
    }
    for (int r = 0; r < topo->world; r++) {
        n += tw_flows_owns(flows, topo, r);
    }
    return n;
}

tw_form_t tw_form_of_move(const tw_flows_t *flows, const tw_move_t *move)
{
    if (move->coding == TW_CODING_NONE || (flows->by_pair && !move->crosses)) {
        return TW_FORM_PLAIN;
    }
    if (move->coding != TW_CODING_BLOCKS) {
        return move->is_spread || move->crosses ? TW_FORM_PACKED : TW_FORM_PLAIN;
    }
    if (flows->nodes_first && !move->is_spread && !move->is_sum && !move->crosses) {
        return move->has_inner ? TW_FORM_INNER : TW_FORM_PLAIN;
    }
    return TW_FORM_CODEC;
}

int tw_form_encodes_twice(const tw_flows_t *flows, const tw_topo_t *topo, tw_coding_t coding)
{
    return flows->nodes_first && topo->n_nodes == 1 && topo->max_local > 1 && coding == TW_CODING_BLOCKS;
}

tw_form_t tw_form_of_inputs(const tw_flows_t *flows, const tw_topo_t *topo, tw_coding_t coding, int has_inner,
                            int is_last)
{
    if (coding != TW_CODING_BLOCKS) {
        return TW_FORM_PLAIN;
    }
    if (!is_last || tw_form_encodes_twice(flows, topo, coding)) {
        return has_inner ? TW_FORM_INNER : TW_FORM_PLAIN;
    }
    return TW_FORM_CODEC;
}
