"""Tests that run under pytest, in an interpreter with PyTorch."""

def torch_test(name, data = [], **kwargs):
    """pytest over `<name>.py`, with the wheel unpacked where the interpreter finds it.

    The interpreter is TW_TORCH_PYTHON, or that of the venv which torch_venv.py makes in the user's cache. Without
    one the test skips, visibly.

    Args:
      name: `test_<module>`
      data: more files
      **kwargs: passed on to sh_test
    """
    native.sh_test(
        name = name,
        size = "medium",
        srcs = ["run_pytest.sh"],
        args = ["$(rootpath :%s.py)" % name],
        data = [
            name + ".py",
            "conftest.py",
            "device.py",
            "models.py",
            "ranks.py",
            "torch_venv.py",
            "//bench:fsdp_job.py",
            "//plugin/torch:wheel",
        ] + data,
        # A sanitizer's library does not load into an interpreter built without it.
        tags = ["no-sanitizer"],
        **kwargs
    )
