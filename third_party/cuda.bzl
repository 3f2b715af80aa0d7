"""cuda_library: kernels compiled by nvcc, or nothing at all where there is no CUDA.

Flags that a command line may set:
  --define=TW_CUDA_ARCHS=75,90    GPU architectures; the last one also as PTX for newer GPUs.
                                  Default 90. --config=release sets all that are supported.
  --define=TW_NVCC_WERROR=1       warnings are errors
  --define=TW_LINEINFO=1          lines of the source in kernels, for profilers and compute-sanitizer: three times the size
  --define=TW_PTX_ARCH=75         the architecture of output group `ptx`, the kernels as text. Default 80.
"""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")
load("@local_cuda//:defs.bzl", "CUDA_FOUND", "NVCC")

_HOST_FLAGS = ["-Wall", "-fPIC", "-ffp-contract=off"]

def _arch_flags(var):
    archs = var.get("TW_CUDA_ARCHS", "90").split(",")
    flags = ["-gencode=arch=compute_%s,code=sm_%s" % (a, a) for a in archs]
    if len(archs) > 1:
        flags.append("-gencode=arch=compute_%s,code=compute_%s" % (archs[-1], archs[-1]))
    return flags

def _compile(ctx, src, headers, context, kind = "o"):
    out = ctx.actions.declare_file("_cuda/%s/%s.%s" % (ctx.label.name, src.basename, kind))
    args = ctx.actions.args()
    args.add_all(["-c" if kind == "o" else "-ptx", src, "-o", out, "-std=c++17", "-O3"])
    if ctx.var.get("TW_LINEINFO") == "1" or kind == "ptx":
        args.add("-lineinfo")
    args.add_all([f for h in _HOST_FLAGS for f in ["-Xcompiler", h]])

    # CPU and GPU give the same bits: the device does not contract either.
    args.add("--fmad=" + ("true" if ctx.attr.fmad else "false"))
    args.add_all(_arch_flags(ctx.var) if kind == "o" else ["-arch=compute_" + ctx.var.get("TW_PTX_ARCH", "80")])
    if ctx.var.get("TW_NVCC_WERROR") == "1":
        args.add_all(["-Werror", "all-warnings"])
    args.add_all(context.defines, before_each = "-D")
    args.add_all(["-I", "."])
    args.add_all(context.quote_includes, before_each = "-I")
    args.add_all(context.includes, before_each = "-I")
    args.add_all(context.system_includes, before_each = "-isystem")
    args.add_all(ctx.attr.copts)
    ctx.actions.run(
        executable = NVCC,
        arguments = [args],
        inputs = depset([src, ctx.file._version] + headers, transitive = [context.headers]),
        outputs = [out],
        mnemonic = "CudaCompile" if kind == "o" else "CudaPtx",
        progress_message = "Compiling %s with nvcc" % src.short_path,
        use_default_shell_env = True,
    )
    return out

def _cuda_objects_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    deps = cc_common.merge_cc_infos(cc_infos = [d[CcInfo] for d in ctx.attr.deps])
    own = cc_common.create_compilation_context(headers = depset(ctx.files.hdrs))
    objects = depset([
        _compile(ctx, src, ctx.files.hdrs, deps.compilation_context)
        for src in ctx.files.srcs
    ])
    linking, _ = cc_common.create_linking_context_from_compilation_outputs(
        name = ctx.label.name,
        actions = ctx.actions,
        feature_configuration = features,
        cc_toolchain = toolchain,
        compilation_outputs = cc_common.create_compilation_outputs(
            objects = objects,
            pic_objects = objects,
        ),
        linking_contexts = [deps.linking_context],
        disallow_dynamic_library = True,
    )
    info = CcInfo(compilation_context = own, linking_context = linking)
    ptx = [_compile(ctx, src, ctx.files.hdrs, deps.compilation_context, "ptx") for src in ctx.files.srcs]
    return [
        DefaultInfo(files = objects),
        OutputGroupInfo(ptx = depset(ptx)),
        cc_common.merge_cc_infos(direct_cc_infos = [info], cc_infos = [deps]),
    ]

_cuda_objects = rule(
    implementation = _cuda_objects_impl,
    attrs = {
        "copts": attr.string_list(),
        "deps": attr.label_list(providers = [CcInfo]),
        "fmad": attr.bool(default = False),
        "hdrs": attr.label_list(allow_files = [".h", ".cuh"]),
        "srcs": attr.label_list(allow_files = [".cu"]),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
        "_version": attr.label(default = "@local_cuda//:version.txt", allow_single_file = True),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def cuda_library(name, srcs, hdrs = [], deps = [], copts = [], fmad = False, **kwargs):
    """A library of CUDA kernels and their launchers.

    With CUDA, those who depend on it compile with TW_HAVE_CUDA=1. Without, it is a library of
    headers only: callers of a launcher stand under #ifdef TW_HAVE_CUDA.

    Args:
      name: the target
      srcs: .cu files, C++17
      hdrs: headers (.h, .cuh)
      deps: libraries whose headers they use; the CUDA runtime is added
      copts: more flags for nvcc
      fmad: let the compiler fuse multiply and add: faster, other bits than the CPU
      **kwargs: visibility, tags, ...
    """
    deps = deps + ["@local_cuda//:cuda"]
    if CUDA_FOUND:
        _cuda_objects(name = name, srcs = srcs, hdrs = hdrs, deps = deps, copts = copts, fmad = fmad, **kwargs)
    else:
        native.cc_library(name = name, hdrs = hdrs, deps = deps, **kwargs)
