"""int4 and int8 kernels of op "linear": decode (matvec family) and prefill (matmul); one reference serves both kinds.

Shapes, wherever a docstring says w: w_q u32 [N, K/8] (int4) or [N, K/4] (int8), w_sb [N, K/GROUP] pairs.
"""

from __future__ import annotations

from functools import partial

from .linear import PER_WORD, Form, matmul_kernel, matvec_kernel, multiply_linear, quantised_matrix, write_linear


def _matvec(name: str, slots: tuple[str, ...] = (), is_swiglu: bool = False):
    """Registers the decorated reference, whose first parameter is the kind, as <kind>/name for every kind."""

    def register(reference):
        for kind in PER_WORD:
            matvec_kernel(name, Form(kind, slots, is_swiglu))(partial(reference, kind))
        return reference

    return register


def _matmul(name: str, slots: tuple[str, ...] = ()):
    """As _matvec."""

    def register(reference):
        for kind in PER_WORD:
            matmul_kernel(name, Form(kind, slots))(partial(reference, kind))
        return reference

    return register


@_matvec("matvec")
def matvec(kind, x, w_q, w_sb, y, params, consts, bias=None):
    """y[t, n] = sum_k x[t, k] * w[n, k] + bias[n]

    Shapes:  x [T, K], w [N, K], bias [N] -> y [T, N]
    """
    write_linear(x, quantised_matrix(kind, w_q, w_sb, params.N, params.K, consts), y, params, bias)


@_matvec("matvec_residual", ("residual",))
def matvec_residual(kind, x, w_q, w_sb, residual, y, params, consts, bias=None):
    """y[t, n] = sum_k x[t, k] * w[n, k] + bias[n] + residual[t, n]

    Shapes:  as matvec; residual [T, N]
    """
    write_linear(x, quantised_matrix(kind, w_q, w_sb, params.N, params.K, consts), y, params, bias, residual=residual)


@_matvec("matvec_norm", ("norm",))
def matvec_norm(kind, x, w_q, w_sb, norm, y, params, consts, bias=None):
    """y[t, n] = rsqrt(mean_k x[t, k]^2 + eps) * sum_k x[t, k] * norm[k] * w[n, k] + bias[n]

    Shapes:  as matvec; norm [K]
    """
    write_linear(x, quantised_matrix(kind, w_q, w_sb, params.N, params.K, consts), y, params, bias, norm=norm)


@_matvec("matvec_swiglu", is_swiglu=True)
def matvec_swiglu(kind, x, w_q, w_sb, y, params, consts, bias=None):
    """y[t, n] = silu(g[n]) * g[n + N], g[n] = sum_k x[t, k] * w[n, k] + bias[n]

    Shapes:  as matvec with 2 N rows of w and bias: gate, then up
    """
    write_linear(x, quantised_matrix(kind, w_q, w_sb, 2 * params.N, params.K, consts), y, params, bias, is_swiglu=True)


@_matvec("matvec_norm_swiglu", ("norm",), True)
def matvec_norm_swiglu(kind, x, w_q, w_sb, norm, y, params, consts, bias=None):
    """y[t, n] = silu(g[n]) * g[n + N], g[n] = rsqrt(mean_k x[t, k]^2 + eps) * sum_k x[t, k] * norm[k] * w[n, k] + bias[n]

    Shapes:  as matvec_swiglu; norm [K]
    """
    write_linear(x, quantised_matrix(kind, w_q, w_sb, 2 * params.N, params.K, consts), y, params, bias, norm=norm, is_swiglu=True)


@_matmul("matmul")
def matmul(kind, x, w_q, w_sb, y, params, consts, bias=None):
    """y[t, n] = sum_k x[t, k] * w[n, k] + bias[n], T past a decode step

    Shapes:  as matvec
    """
    multiply_linear(x, quantised_matrix(kind, w_q, w_sb, params.N, params.K, consts), y, params, bias)


@_matmul("matmul_residual", ("residual",))
def matmul_residual(kind, x, w_q, w_sb, residual, y, params, consts, bias=None):
    """y[t, n] = sum_k x[t, k] * w[n, k] + bias[n] + residual[t, n]

    Shapes:  as matvec; residual [T, N]
    """
    multiply_linear(x, quantised_matrix(kind, w_q, w_sb, params.N, params.K, consts), y, params, bias, residual)
