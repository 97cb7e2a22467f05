"""int4 kernels of op "linear": decode (matvec family) and prefill (matmul)."""

from __future__ import annotations

from .core import kernel
from .linear import (
    Form,
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
    quantised_matrix,
    write_linear,
)


def _matvec(name: str, form: Form):
    return kernel(f"int4/{name}", op="linear", lower=lower_matvec(form), data=linear_data(form), grid=matvec_grid(form),
                  variants=matvec_variants(form), cases=matvec_cases(form), strided=("x",))


@_matvec("matvec", Form("int4"))
def matvec(x, w_q, w_sb, y, params, consts, bias=None):
    """y[t, n] = sum_k x[t, k] * w[n, k] + bias[n]

    Shapes:  x [T, K], w_q u32 [N, K/8], w_sb [N, K/GROUP] pairs, bias [N] -> y [T, N]
    """
    write_linear(x, quantised_matrix("int4", w_q, w_sb, params.N, params.K, consts), y, params, bias)


@_matvec("matvec_residual", Form("int4", ("residual",)))
def matvec_residual(x, w_q, w_sb, residual, y, params, consts, bias=None):
    """y[t, n] = sum_k x[t, k] * w[n, k] + bias[n] + residual[t, n]

    Shapes:  as matvec; residual [T, N]
    """
    write_linear(x, quantised_matrix("int4", w_q, w_sb, params.N, params.K, consts), y, params, bias, residual=residual)


@_matvec("matvec_norm", Form("int4", ("norm",)))
def matvec_norm(x, w_q, w_sb, norm, y, params, consts, bias=None):
    """y[t, n] = rsqrt(mean_k x[t, k]^2 + eps) * sum_k x[t, k] * norm[k] * w[n, k] + bias[n]

    Shapes:  as matvec; norm [K]
    """
    write_linear(x, quantised_matrix("int4", w_q, w_sb, params.N, params.K, consts), y, params, bias, norm=norm)


@_matvec("matvec_swiglu", Form("int4", (), True))
def matvec_swiglu(x, w_q, w_sb, y, params, consts, bias=None):
    """y[t, n] = silu(g[n]) * g[n + N], g[n] = sum_k x[t, k] * w[n, k] + bias[n]

    Shapes:  as matvec with 2 N rows of w and bias: gate, then up
    """
    write_linear(x, quantised_matrix("int4", w_q, w_sb, 2 * params.N, params.K, consts), y, params, bias, is_swiglu=True)


@_matvec("matvec_norm_swiglu", Form("int4", ("norm",), True))
def matvec_norm_swiglu(x, w_q, w_sb, norm, y, params, consts, bias=None):
    """y[t, n] = silu(g[n]) * g[n + N], g[n] = rsqrt(mean_k x[t, k]^2 + eps) * sum_k x[t, k] * norm[k] * w[n, k] + bias[n]

    Shapes:  as matvec_swiglu; norm [K]
    """
    write_linear(x, quantised_matrix("int4", w_q, w_sb, 2 * params.N, params.K, consts), y, params, bias, norm=norm, is_swiglu=True)


def _matmul(name: str, form: Form):
    return kernel(f"int4/{name}", op="linear", lower=lower_matmul(form), data=linear_data(form), grid=matmul_grid,
                  variants=matmul_variants(form), cases=matmul_cases(form), strided=("x",))


@_matmul("matmul", Form("int4"))
def matmul(x, w_q, w_sb, y, params, consts, bias=None):
    """y[t, n] = sum_k x[t, k] * w[n, k] + bias[n], T past a decode step

    Shapes:  as matvec
    """
    multiply_linear(x, quantised_matrix("int4", w_q, w_sb, params.N, params.K, consts), y, params, bias)


@_matmul("matmul_residual", Form("int4", ("residual",)))
def matmul_residual(x, w_q, w_sb, residual, y, params, consts, bias=None):
    """y[t, n] = sum_k x[t, k] * w[n, k] + bias[n] + residual[t, n]

    Shapes:  as matvec; residual [T, N]
    """
    multiply_linear(x, quantised_matrix("int4", w_q, w_sb, params.N, params.K, consts), y, params, bias, residual)
