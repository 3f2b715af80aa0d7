"""The one way to declare a GoogleTest test."""

def tw_test(name, srcs, deps = [], copts = [], tags = [], size = "small", **kwargs):
    """A C++17 test with GoogleTest's main().

    Tags that mean something here: `no-sanitizer`, `cluster` and `slow` keep a test out of the
    sanitizer configurations; `exclusive` runs it alone.

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
