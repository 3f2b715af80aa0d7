"""merged_object: one object file of some cc_librarys and all static libraries that they depend on."""

def _merged_object_impl(ctx):
    linking = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]).linking_context
    libraries, flags = [], []
    for linked in linking.linker_inputs.to_list():
        flags += [flag for flag in linked.user_link_flags if flag.startswith("-L") or flag == "-lcudart_static"]
        libraries += [one.pic_static_library or one.static_library for one in linked.libraries]
    libraries = [one for one in libraries if one]
    out = ctx.actions.declare_file(ctx.label.name)
    arguments = ctx.actions.args()
    arguments.add_all(["-r", "-nostdlib", "-o", out])
    arguments.add(ctx.file.roots, format = "-Wl,@%s")
    arguments.add("-Wl,--start-group")
    arguments.add_all(libraries)
    arguments.add_all(flags + ctx.attr.linkopts)
    arguments.add("-Wl,--end-group")
    ctx.actions.run(
        executable = "cc",
        arguments = [arguments],
        inputs = libraries + [ctx.file.roots],
        outputs = [out],
        use_default_shell_env = True,
        mnemonic = "MergeObjects",
        progress_message = "Merging %s" % ctx.label,
    )
    return [DefaultInfo(files = depset([out]))]

merged_object = rule(
    implementation = _merged_object_impl,
    doc = "One object of what `deps` need for the symbols that the linker's options in `roots` name.",
    attrs = {
        "deps": attr.label_list(providers = [CcInfo]),
        "linkopts": attr.string_list(doc = "static libraries of the system"),
        "roots": attr.label(allow_single_file = True),
    },
)
