"""dense (f32, f16, bf16) kernels of op "linear": decode (matvec family) and prefill (matmul)."""

from __future__ import annotations

from .core import kernel
from .linear import (
    Form,
    dense_matrix,
    linear_data,
    lower_matmul,
    lower_matvec,
    matmul_cases,
    matmul_grid,
    matmul_variants,
    matvec_cases,
    matvec_grid,
    matvec_variants,
    multiply_linear,
    write_linear,
)


def _matvec(name: str, form: Form):
    return kernel(f"dense/{name}", op="linear", lower=lower_matvec(form), data=linear_data(form), grid=matvec_grid(form),
                  variants=matvec_variants(form), cases=matvec_cases(form), strided=("x",))


@_matvec("matvec", Form("dense"))
def matvec(x, w, y, params, consts, bias=None):
    """y[t, n] = sum_k x[t, k] * w[n, k] + bias[n]

    Shapes:  x [T, K], w [N, K] f32, f16 or bf16, bias [N] -> y [T, N]
    """
    write_linear(x, dense_matrix(w, params.N, params.K, consts), y, params, bias)


@_matvec("matvec_residual", Form("dense", ("residual",)))
def matvec_residual(x, w, residual, y, params, consts, bias=None):
    """y[t, n] = sum_k x[t, k] * w[n, k] + bias[n] + residual[t, n]

    Shapes:  as matvec; residual [T, N]
    """
    write_linear(x, dense_matrix(w, params.N, params.K, consts), y, params, bias, residual=residual)


@_matvec("matvec_norm", Form("dense", ("norm",)))
def matvec_norm(x, w, norm, y, params, consts, bias=None):
    """y[t, n] = rsqrt(mean_k x[t, k]^2 + eps) * sum_k x[t, k] * norm[k] * w[n, k] + bias[n]

    Shapes:  as matvec; norm [K]
    """
    write_linear(x, dense_matrix(w, params.N, params.K, consts), y, params, bias, norm=norm)


@_matvec("matvec_swiglu", Form("dense", (), True))
def matvec_swiglu(x, w, y, params, consts, bias=None):
    """y[t, n] = silu(g[n]) * g[n + N], g[n] = sum_k x[t, k] * w[n, k] + bias[n]

    Shapes:  as matvec with 2 N rows of w and bias: gate, then up
    """
    write_linear(x, dense_matrix(w, 2 * params.N, params.K, consts), y, params, bias, is_swiglu=True)


@_matvec("matvec_norm_swiglu", Form("dense", ("norm",), True))
def matvec_norm_swiglu(x, w, norm, y, params, consts, bias=None):
    """y[t, n] = silu(g[n]) * g[n + N], g[n] = rsqrt(mean_k x[t, k]^2 + eps) * sum_k x[t, k] * norm[k] * w[n, k] + bias[n]

    Shapes:  as matvec_swiglu; norm [K]
    """
    write_linear(x, dense_matrix(w, 2 * params.N, params.K, consts), y, params, bias, norm=norm, is_swiglu=True)


def _matmul(name: str, form: Form):
    return kernel(f"dense/{name}", op="linear", lower=lower_matmul(form), data=linear_data(form), grid=matmul_grid,
                  variants=matmul_variants(form), cases=matmul_cases(form), strided=("x",))


@_matmul("matmul", Form("dense"))
def matmul(x, w, y, params, consts, bias=None):
    """y[t, n] = sum_k x[t, k] * w[n, k] + bias[n], T past a decode step

    Shapes:  as matvec
    """
    multiply_linear(x, dense_matrix(w, params.N, params.K, consts), y, params, bias)


@_matmul("matmul_residual", Form("dense", ("residual",)))
def matmul_residual(x, w, residual, y, params, consts, bias=None):
    """y[t, n] = sum_k x[t, k] * w[n, k] + bias[n] + residual[t, n]

    Shapes:  as matvec; residual [T, N]
    """
    multiply_linear(x, dense_matrix(w, params.N, params.K, consts), y, params, bias, residual)
