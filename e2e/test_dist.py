"""Every part of dist/ works from its own origin, in a module worker, under the policy the server sends."""

from pathlib import Path

from tools import env


def test_parts_of_dist_load_in_a_worker_under_the_policy(run_page, chromium_path):
    last, _ = run_page("local/pages/parts.html", mounts={"pages": Path(__file__).parent / "pages"}, timeout_s=120)
    assert last["ev"] == "result", last
    assert (last["jird"], last["numpy"], last["sum"]) == (env.version(), "2.4.3", 10)
    assert last["shaders"] == len(list((env.ROOT / "web/shaders").rglob("*.wgsl")))
    assert (last["text"], last["tokenizer"], last["evalError"]) == ("<user>", "function", "EvalError")
