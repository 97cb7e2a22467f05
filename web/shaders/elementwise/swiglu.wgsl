// y[t, c] = silu(gate[t, c]) * up[t, c], silu(g) = g / (1 + exp(-g)).
override WG: u32 = 64u;

struct Params {
    T: u32,
    C: u32,
    gate_stride: u32,
    gate_offset: u32,
    up_stride: u32,
    up_offset: u32,
}
@group(0) @binding(0) var<storage, read> gate: array<f32>;     // [T, C] in rows of gate_stride
@group(0) @binding(1) var<storage, read> up: array<f32>;       // [T, C] in rows of up_stride
@group(0) @binding(2) var<storage, read_write> y: array<f32>;  // [T, C]
@group(0) @binding(3) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) wg: vec3u) {
    let c = wg.x * WG + local;
    if (c >= params.C) {
        return;
    }
    let g = gate[wg.y * params.gate_stride + params.gate_offset + c];
    let u = up[wg.y * params.up_stride + params.up_offset + c];
    y[wg.y * params.C + c] = g / (1.0 + exp(min(-g, 80.0))) * u;   // clamped: exp overflows past 88
}
