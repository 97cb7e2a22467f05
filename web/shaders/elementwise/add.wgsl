// y[t, c] = a[t, c] + b[t, c].
override WG: u32 = 64u;

struct Params {
    T: u32,
    C: u32,
    a_stride: u32,
    a_offset: u32,
    b_stride: u32,
    b_offset: u32,
}
@group(0) @binding(0) var<storage, read> a: array<f32>;        // [T, C] in rows of a_stride
@group(0) @binding(1) var<storage, read> b: array<f32>;        // [T, C] in rows of b_stride
@group(0) @binding(2) var<storage, read_write> y: array<f32>;  // [T, C]
@group(0) @binding(3) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) wg: vec3u) {
    let c = wg.x * WG + local;
    if (c >= params.C) {
        return;
    }
    y[wg.y * params.C + c] = a[wg.y * params.a_stride + params.a_offset + c] + b[wg.y * params.b_stride + params.b_offset + c];
}
