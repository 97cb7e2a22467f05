"""kernels.html: every kernel case in the browser, compiled by Tint and by naga, against its numpy reference."""

from __future__ import annotations


def check(last: dict, reports: list[dict]) -> None:
    assert last["ev"] == "result", last
    assert last["failures"] == [] and last["failed"] == 0
    cases = [r for r in reports if r["ev"] == "case"]
    assert len(cases) == last["passed"] and last["passed"] > 0
    assert all(case["ok"] for case in cases)
    skipped = {r["kernel"] for r in reports if r["ev"] == "skip"}
    assert skipped <= {case["kernel"] for case in cases}, "a kernel ran in no variant at all"


def test_every_kernel_case_is_right_in_chromium(run_page, chromium_path):
    last, reports = run_page("kernels.html?auto=1", {"op": "kernels"}, timeout_s=600)
    check(last, reports)


def test_every_kernel_is_right_in_chromium_with_default_limits(run_page, chromium_path):
    last, reports = run_page("kernels.html?auto=1&limits=default&cases=first", {"op": "kernels"}, timeout_s=600)
    check(last, reports)
    assert "no features" in last["adapter"]


def test_every_kernel_is_right_in_firefox(run_page, firefox_path):
    """The first case of each variant; naga has all of them in tests/test_kernels.py."""
    last, reports = run_page("kernels.html?auto=1&cases=first", {"op": "kernels"}, browser="firefox", timeout_s=600)
    check(last, reports)


def test_a_page_without_its_wheel_says_so_and_ends(dist_dir, run_page, chromium_path, monkeypatch, tmp_path):
    """A 404 where the wheel should be ends in an error report, not in silence."""
    from tools import browsers, jobs

    broken = tmp_path / "dist"
    broken.mkdir()
    for entry in dist_dir.iterdir():
        if entry.name not in ("wheels", "models"):
            (broken / entry.name).symlink_to(entry)
    last = jobs.run_page(jobs.PageRun(broken, "kernels.html?auto=1", {"op": "kernels"}, {}, browsers.Choice("chromium"), 120))
    assert last["ev"] == "error" and last["code"] == "boot_failed"
    assert ".whl answered 404" in last["message"]
