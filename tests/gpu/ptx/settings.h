/** How the machine runs: read from the environment when it is first asked for; a test may change it. */
#pragma once

#include <string>

namespace tw::ptx
{

struct Settings {
    std::string files;  /**< PTX_FILES: .ptx files and folders of them, with spaces between */
    std::string log;    /**< PTX_LOG: the file that counts of kernels and reports go to at the end */
    std::string expect; /**< PTX_EXPECT: kinds of reports that are no failure, with commas between */
    std::string mutant; /**< PTX_MUTANT: FILE:LINE of an instruction that is taken out: see mutants.py */
    unsigned long seed; /**< PTX_SEED: blocks and warps in random order; 0: in theirs */
    bool diverge;       /**< PTX_DIVERGE: lanes that went apart stay apart for as long as they may */
    bool races;         /**< PTX_RACES: look for races on global memory, between blocks and between warps */
    bool lazy;          /**< PTX_LAZY: streams run as late as CUDA allows */
    bool count;         /**< PTX_COUNT: instructions and accesses of kernels: see report.h */
    bool last_error;    /**< PTX_LAST_ERROR: report what is left for cudaGetLastError at a cudaMemcpy */
    long ulps;          /**< PTX_ULPS: approximate instructions are up to so many units off */
    long processors;    /**< PTX_PROCESSORS: multiprocessors of the device */
    long capability;    /**< PTX_CAPABILITY: 80 is 8.0 */
    long memory_mb;     /**< PTX_MEMORY_MB: of the device */
    long driver;  /**< PTX_DRIVER: the CUDA that the driver says it is for, 12010 is 12.1; 0: the toolkit's */
    long runtime; /**< PTX_RUNTIME: the CUDA that the runtime says it is; 0: the toolkit's */
    /** PTX_BRANCHES: branches backwards that a launch may take before it is given up */
    unsigned long branches;
};

Settings &settings();

} // namespace tw::ptx
