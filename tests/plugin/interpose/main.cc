#include "tests/plugin/interpose/run.h"

int main(int argc, char **argv)
{
    return job::run(argc, argv);
}
