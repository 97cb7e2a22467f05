"""dense (f32, f16, bf16) kernels of op "linear": decode (matvec family) and prefill (matmul)."""

from __future__ import annotations

from .linear import Form, dense_matrix, matmul_kernel, matvec_kernel, multiply_linear, write_linear


@matvec_kernel("matvec", Form("dense"))
def matvec(x, w, y, params, consts, bias=None):
    """y[t, n] = sum_k x[t, k] * w[n, k] + bias[n]

    Shapes:  x [T, K], w [N, K] f32, f16 or bf16, bias [N] -> y [T, N]
    """
    write_linear(x, dense_matrix(w, params.N, params.K, consts), y, params, bias)


@matvec_kernel("matvec_residual", Form("dense", ("residual",)))
def matvec_residual(x, w, residual, y, params, consts, bias=None):
    """y[t, n] = sum_k x[t, k] * w[n, k] + bias[n] + residual[t, n]

    Shapes:  as matvec; residual [T, N]
    """
    write_linear(x, dense_matrix(w, params.N, params.K, consts), y, params, bias, residual=residual)


@matvec_kernel("matvec_norm", Form("dense", ("norm",)))
def matvec_norm(x, w, norm, y, params, consts, bias=None):
    """y[t, n] = rsqrt(mean_k x[t, k]^2 + eps) * sum_k x[t, k] * norm[k] * w[n, k] + bias[n]

    Shapes:  as matvec; norm [K]
    """
    write_linear(x, dense_matrix(w, params.N, params.K, consts), y, params, bias, norm=norm)


@matvec_kernel("matvec_swiglu", Form("dense", (), True))
def matvec_swiglu(x, w, y, params, consts, bias=None):
    """y[t, n] = silu(g[n]) * g[n + N], g[n] = sum_k x[t, k] * w[n, k] + bias[n]

    Shapes:  as matvec with 2 N rows of w and bias: gate, then up
    """
    write_linear(x, dense_matrix(w, 2 * params.N, params.K, consts), y, params, bias, is_swiglu=True)


@matvec_kernel("matvec_norm_swiglu", Form("dense", ("norm",), True))
def matvec_norm_swiglu(x, w, norm, y, params, consts, bias=None):
    """y[t, n] = silu(g[n]) * g[n + N], g[n] = rsqrt(mean_k x[t, k]^2 + eps) * sum_k x[t, k] * norm[k] * w[n, k] + bias[n]

    Shapes:  as matvec_swiglu; norm [K]
    """
    write_linear(x, dense_matrix(w, 2 * params.N, params.K, consts), y, params, bias, norm=norm, is_swiglu=True)


@matmul_kernel("matmul", Form("dense"))
def matmul(x, w, y, params, consts, bias=None):
    """y[t, n] = sum_k x[t, k] * w[n, k] + bias[n], T past a decode step

    Shapes:  as matvec
    """
    multiply_linear(x, dense_matrix(w, params.N, params.K, consts), y, params, bias)


@matmul_kernel("matmul_residual", Form("dense", ("residual",)))
def matmul_residual(x, w, residual, y, params, consts, bias=None):
    """y[t, n] = sum_k x[t, k] * w[n, k] + bias[n] + residual[t, n]

    Shapes:  as matvec; residual [T, N]
    """
    multiply_linear(x, dense_matrix(w, params.N, params.K, consts), y, params, bias, residual)
