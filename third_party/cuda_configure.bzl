"""Finds CUDA and NCCL on this machine and describes them as the repository @local_cuda.

  CUDA    CUDA_HOME, else CUDA_PATH, else /usr/local/cuda, else the folder of nvcc in PATH
  NCCL    NCCL_HOME, else the CUDA toolkit, else /usr, else /usr/local

@local_cuda//:cuda, @local_cuda//:nccl and @local_cuda//:nccl_headers (for who loads the library at run
time) always exist. What was found sets TW_HAVE_CUDA=1 or TW_HAVE_NCCL=1 for those who depend on it; what
was not found is an empty library. A toolkit without cuBLASLt's header is said: who needs it looks itself.
TW_CUDA=0 (--repo_env=TW_CUDA=0) finds neither, TW_NCCL=0 finds no NCCL.
"""

_BUILD = """
package(default_visibility = ["//visibility:public"])

exports_files(["version.txt"])

cc_library(
    name = "cuda",
{cuda}
)

cc_library(
    name = "nccl_headers",
{nccl_headers}
)

cc_library(
    name = "nccl",
    deps = [":nccl_headers"],
{nccl}
)
"""

_DEFS = """# Written by //third_party:cuda_configure.bzl
CUDA_FOUND = {cuda_found}
NCCL_FOUND = {nccl_found}
NVCC = "{nvcc}"
"""

# What host code needs; kernels find the rest (CUB, libcu++) beside nvcc.
_CUDA_HEADERS = ["*.h", "*.hpp", "crt/*"]
_NCCL_HEADERS = ["nccl.h", "nccl_device.h", "nccl_device/**"]

def _first(ctx, folders, names):
    """Returns the first folder/name that exists, or None."""
    for folder in folders:
        for name in names:
            path = ctx.path("%s/%s" % (folder, name))
            if path.exists:
                return path
    return None

def _cuda_home(ctx):
    env = ctx.os.environ
    homes = [env[v] for v in ["CUDA_HOME", "CUDA_PATH"] if env.get(v)] + ["/usr/local/cuda"]
    nvcc = _first(ctx, homes, ["bin/nvcc"])
    if not nvcc:
        nvcc = ctx.which("nvcc")
    if not nvcc:
        return None

    # nvcc names its own toolkit, also where it is a link or a wrapper.
    dry = ctx.execute([nvcc, "--dryrun", "-c", "-x", "cu", "/dev/null", "-o", "/dev/null"])
    for line in dry.stderr.split("\n"):
        if line.startswith("#$ TOP="):
            return struct(nvcc = nvcc, top = str(ctx.path(line[len("#$ TOP="):].strip()).realpath))
    return struct(nvcc = nvcc, top = str(nvcc.dirname.dirname))

def _library(attributes):
    return "\n".join(["    %s = %s," % (k, v) for k, v in attributes.items()])

def _configure_cuda(ctx, cuda):
    """Returns the attributes of :cuda, or None if the toolkit lacks headers or runtime."""
    header = _first(ctx, [cuda.top], ["include/cuda_runtime.h", "targets/x86_64-linux/include/cuda_runtime.h"])
    folders = [cuda.top + "/" + f for f in ["lib64", "lib", "targets/x86_64-linux/lib"]]
    runtime = _first(ctx, folders, ["libcudart_static.a", "libcudart.so"])
    if not header or not runtime:
        return None
    ctx.symlink(header.dirname, "cuda/include")
    folder = str(runtime.dirname)
    linkopts = ["-L" + folder]
    if runtime.basename.endswith(".a"):
        linkopts += ["-lcudart_static", "-ldl", "-lrt", "-lpthread"]
    else:
        linkopts += ["-lcudart", "-Wl,-rpath," + folder]
    globs = ["cuda/include/" + g for g in _CUDA_HEADERS]
    if not ctx.path("%s/cublasLt.h" % header.dirname).exists:
        # buildifier: disable=print
        print("%s has no cublasLt.h: the trainer will not compute on GPUs" % header.dirname)
    return {
        "hdrs": "glob(%s, exclude = [\"cuda/include/nccl*\"])" % globs,
        "defines": ["TW_HAVE_CUDA=1"],
        "includes": ["cuda/include"],
        "linkopts": linkopts,
    }

def _configure_nccl(ctx, cuda):
    """Returns the attributes of :nccl_headers and of :nccl, or None."""
    env = ctx.os.environ
    homes = ([env["NCCL_HOME"]] if env.get("NCCL_HOME") else []) + [cuda.top, "/usr", "/usr/local"]
    header = _first(ctx, homes, ["include/nccl.h"])
    library = _first(
        ctx,
        homes,
        [f + "/libnccl.so" for f in ["lib64", "lib", "lib/x86_64-linux-gnu"]],
    )
    if not header or not library:
        return None
    for item in ["nccl.h", "nccl_device.h", "nccl_device"]:
        path = ctx.path("%s/%s" % (header.dirname, item))
        if path.exists:
            ctx.symlink(path, "nccl/include/" + item)
    folder = str(library.dirname)
    headers = {
        "hdrs": "glob(%s)" % ["nccl/include/" + g for g in _NCCL_HEADERS],
        "defines": ["TW_HAVE_NCCL=1"],
        "includes": ["nccl/include"],
        "linkopts": ["-Wl,-rpath," + folder],
        "deps": [":cuda"],
    }
    return headers, {"linkopts": ["-L" + folder, "-lnccl"]}

def _cuda_configure_impl(ctx):
    wanted = ctx.os.environ.get("TW_CUDA", "1") != "0"
    home = _cuda_home(ctx) if wanted else None
    cuda = _configure_cuda(ctx, home) if home else None
    nccl_wanted = ctx.os.environ.get("TW_NCCL", "1") != "0"
    nccl = _configure_nccl(ctx, home) if cuda and nccl_wanted else None

    version = ctx.execute([home.nvcc, "--version"]).stdout if cuda else "none\n"
    ctx.file("version.txt", version, executable = False)
    ctx.file("BUILD", _BUILD.format(
        cuda = _library(cuda or {}),
        nccl_headers = _library(nccl[0] if nccl else {}),
        nccl = _library(nccl[1] if nccl else {}),
    ), executable = False)
    ctx.file("defs.bzl", _DEFS.format(
        cuda_found = cuda != None,
        nccl_found = nccl != None,
        nvcc = home.nvcc if cuda else "",
    ), executable = False)

cuda_configure = repository_rule(
    implementation = _cuda_configure_impl,
    configure = True,
    environ = ["CUDA_HOME", "CUDA_PATH", "NCCL_HOME", "PATH", "TW_CUDA", "TW_NCCL"],
    local = True,
)
