#include "bench/collectives/bench.h"

int main(int argc, char **argv)
{
    return tw_bench_main(TW_COLL_ALLTOALL, argc, argv);
}
