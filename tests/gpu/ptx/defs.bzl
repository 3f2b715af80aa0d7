"""gpu_check as a test on the PTX machine."""

# Parameters of more than 4 KB are what the kernels are launched with; the compiler reads ahead from shared memory
# what it then does not use.
EXPECTED = "PARAMS-OVER-4K,UNINIT-SHARED"

def gpu_check_test(name, ptx, args, env = {}, tags = [], quick = True):
    """Runs a part of gpu_check and fails on any report of the machine, too.

    Args:
      name: the target
      ptx: targets of the kernels that it needs
      args: more for gpu_check
      env: how the machine runs: see settings.h
      tags: Bazel tags
      quick: a sample of its cases
    """
    files = " ".join(["$(rootpaths %s)" % each for each in ptx])
    native.cc_test(
        name = name,
        size = "large",
        args = args + (["--quick"] if quick else []),
        data = ptx,
        env = dict(env, PTX_FILES = files, PTX_EXPECT = EXPECTED, PTX_RACES = "1"),
        linkopts = ["-ldl"],
        tags = ["no-sanitizer"] + tags,
        deps = [
            ":runtime",
            "//tests/gpu:gpu_check_main",
        ],
    )
