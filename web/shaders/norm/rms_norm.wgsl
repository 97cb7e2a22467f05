//!include reduce_{REDUCE=tree}
// y[t, c] = x[t, c] * rsqrt(mean_c(x[t, c]^2) + eps) * w[c]; one workgroup a row, f32 sums.
override WG: u32 = 64u;
const LANES: u32 = 64u;   // threads that share one sum (include/reduce_*): the whole workgroup

struct Params {
    T: u32,
    C: u32,
    eps: f32,
}
@group(0) @binding(0) var<storage, read> x: array<f32>;        // [T, C]
@group(0) @binding(1) var<storage, read> w: array<f32>;        // [C]
@group(0) @binding(2) var<storage, read_write> y: array<f32>;  // [T, C]
@group(0) @binding(3) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) wg: vec3u) {
    let base = wg.x * params.C;
    var total = 0.0;
    for (var c = local; c < params.C; c += WG) {
        total += x[base + c] * x[base + c];
    }
    let scale = inverseSqrt(reduce(total, local) / f32(params.C) + params.eps);
    for (var c = local; c < params.C; c += WG) {
        y[base + c] = x[base + c] * scale * w[c];
    }
}
