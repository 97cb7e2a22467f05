//!include reduce_{REDUCE=tree}
//!include dot_int4_{WORDS=1}
//!include prologue_plain
//!include epilogue_single
//!include bias_{BIAS=none}
//!include matvec_{SHAPE=lanes}
// y[t, n] = sum_k x[t, k] * w[n, k] + bias[n] + residual[t, n]
// w = q * s + b, w_q [N, K/8] u32 is bound at 1 by the include.
struct Params {
    T: u32,
    K: u32,
    N: u32,          // columns of y
    x_stride: u32,   // floats from row to row of x; a multiple of 4, as x_offset
    x_offset: u32,
}
@group(0) @binding(0) var<storage, read> x: array<vec4f>;   // [T, K]
@group(0) @binding(2) var<storage, read> w_sb: array<u32>;   // [N, K/GROUP] pairs
@group(0) @binding(3) var<storage, read> residual: array<f32>;   // [T, N]
@group(0) @binding(4) var<storage, read_write> y: array<f32>;   // [T, N]
@group(0) @binding(5) var<uniform> params: Params;

fn finish(t: u32, n: u32, sum: f32, other: f32) -> f32 {
    return sum + bias_at(n) + residual[t * params.N + n];
}
