"""The one way to declare a GoogleTest test."""

def tw_test(name, srcs, deps = [], copts = [], tags = [], size = "small", **kwargs):
    """A C++17 test with GoogleTest's main().

    Tags that mean something here: `no-sanitizer`, `cluster` and `slow` keep a test out of the
    sanitizer configurations; `exclusive` runs it alone. `nccl`: there is nothing to test without
    NCCL, so .ci/run, whose sanitizers go without CUDA, runs it under them once more with it.

    Args:
      name: the target, `test_<source>`
      srcs: .cc files, private headers
      deps: what is tested; GoogleTest is added
      copts: more compiler flags
      tags: Bazel tags
      size: small (60 s), medium (300 s), large (900 s)
      **kwargs: passed on to cc_test
    """
    native.cc_test(
        name = name,
        srcs = srcs,
        copts = copts,
        size = size,
        tags = tags,
        deps = deps + ["//third_party/gtest:gtest_main"],
        **kwargs
    )

def fuzz_test(name, srcs, corpus, deps = [], mutations = 20000, size = "small", tags = [], **kwargs):
    """A fuzz target, run as a test.

    The sources define

        extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

    which returns 0 and aborts (or trips a sanitizer) when something is wrong. The test, built by any
    compiler, runs it on nothing, on every file of the corpus, and on `mutations` inputs made from those,
    always the same ones. When it dies, it says in which file it left the input; add that to the corpus.

    To look for new inputs, with clang and libFuzzer (Debian: clang, libclang-rt-14-dev); NEW is a folder
    for what it finds, OLD the corpus:

        ./bazelw run --config=fuzz //tests/core:fuzz_config_libfuzzer -- $NEW $OLD -max_total_time=60

    Args:
      name: the target, `fuzz_<what>`; `<name>_libfuzzer` is the libFuzzer binary (tag `manual`)
      srcs: .cc files, private headers
      corpus: seed files, at least one, small: glob(["corpus_<what>/*"])
      deps: what is tested
      mutations: inputs to make; all of them in a few seconds
      size: small (60 s), medium (300 s), large (900 s)
      tags: Bazel tags
      **kwargs: passed on to cc_test
    """
    native.cc_test(
        name = name,
        srcs = srcs,
        args = ["--mutations=%d" % mutations] + ["$(rootpath %s)" % f for f in corpus],
        data = corpus,
        size = size,
        tags = tags,
        deps = deps + ["//tests/fuzz:driver"],
        **kwargs
    )
    native.cc_binary(
        name = name + "_libfuzzer",
        testonly = True,
        srcs = srcs,
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["manual"],
        deps = deps,
    )
