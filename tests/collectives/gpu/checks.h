/** What a program that carries the tests of //tests/collectives:gpu_checks to a GPU may ask of them. */
#ifndef TW_TESTS_COLLECTIVES_GPU_CHECKS_H
#define TW_TESTS_COLLECTIVES_GPU_CHECKS_H

namespace tw
{

/** Fewer and smaller cases from now on, as for a run under compute-sanitizer. */
void set_gpu_checks_quick();

} // namespace tw

#endif
