//!include step
// k_cache[slot, position] = k[t], v_cache[slot, position] = v[t] for rows that are not idle.
override WG: u32 = 64u;
const ROWS: u32 = 1u;

struct Params {
    T: u32,
    C: u32,          // kv_heads * head_dim
    context: u32,
    k_stride: u32,
    k_offset: u32,
    v_stride: u32,
    v_offset: u32,
}
@group(0) @binding(0) var<storage, read> k: array<f32>;              // [T, C] in rows of k_stride
@group(0) @binding(1) var<storage, read> v: array<f32>;              // [T, C] in rows of v_stride
@group(0) @binding(2) var<storage, read_write> k_cache: array<f32>;  // [slots, context, C]
@group(0) @binding(3) var<storage, read_write> v_cache: array<f32>;  // [slots, context, C]
@group(0) @binding(4) var<uniform> step: array<StepRow, ROWS>;
@group(0) @binding(5) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) wg: vec3u) {
    let row = step[wg.y];
    let c = wg.x * WG + local;
    if (is_idle(row.flags) || row.position >= params.context || c >= params.C) {
        return;
    }
    let goal = (row.slot * params.context + row.position) * params.C + c;
    k_cache[goal] = k[wg.y * params.k_stride + params.k_offset + c];
    v_cache[goal] = v[wg.y * params.v_stride + params.v_offset + c];
}
