//!include step
//!include rope_vec4
// y[t] = rope(q[t]); k_cache[slot, position] = rope(k[t]), v_cache[slot, position] = v[t] for rows that are not idle.
// A thread makes four columns: first those of q, then of k, then of v. Turned as in attention/append, bit for bit.
override WG: u32 = 64u;
const ROWS: u32 = 1u;

struct Params {
    T: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    context: u32,    // keys of a slot; the tables have at least as many rows
    q_stride: u32,
    q_offset: u32,
    k_stride: u32,
    k_offset: u32,
    v_stride: u32,
    v_offset: u32,
}
@group(0) @binding(0) var<storage, read> q: array<vec4f>;            // [T, heads * head_dim] in rows of q_stride
@group(0) @binding(1) var<storage, read> k: array<vec4f>;            // [T, kv_heads * head_dim] in rows of k_stride
@group(0) @binding(2) var<storage, read> v: array<vec4f>;            // [T, kv_heads * head_dim] in rows of v_stride
@group(0) @binding(3) var<storage, read> cos: array<f32>;            // [context, head_dim/2]
@group(0) @binding(4) var<storage, read> sin: array<f32>;            // [context, head_dim/2]
@group(0) @binding(5) var<storage, read_write> y: array<vec4f>;      // [T, heads * head_dim]
@group(0) @binding(6) var<storage, read_write> k_cache: array<vec4f>;  // [slots, context, kv_heads * head_dim]
@group(0) @binding(7) var<storage, read_write> v_cache: array<vec4f>;  // [slots, context, kv_heads * head_dim]
@group(0) @binding(8) var<uniform> step: array<StepRow, ROWS>;
@group(0) @binding(9) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) wg: vec3u) {
    let row = step[wg.y];
    let columns = params.head_dim / 4u;
    let unit = wg.x * WG + local;
    let c = unit % columns;
    let head = unit / columns;
    let other = rope_other(c, columns);
    let angle = min(row.position, params.context - 1u) * (params.head_dim / 2u);
    if (head < params.heads) {
        let source = (wg.y * params.q_stride + params.q_offset) / 4u + head * columns;
        y[(wg.y * params.heads + head) * columns + c] = rope4(q[source + c], q[source + other], angle, c, columns);
        return;
    }
    if (is_idle(row.flags) || row.position >= params.context) {
        return;
    }
    let cache = (row.slot * params.context + row.position) * params.kv_heads;
    if (head < params.heads + params.kv_heads) {
        let kv_head = head - params.heads;
        let source = (wg.y * params.k_stride + params.k_offset) / 4u + kv_head * columns;
        k_cache[(cache + kv_head) * columns + c] = rope4(k[source + c], k[source + other], angle, c, columns);
    } else if (head < params.heads + 2u * params.kv_heads) {
        let kv_head = head - params.heads - params.kv_heads;
        v_cache[(cache + kv_head) * columns + c] = v[(wg.y * params.v_stride + params.v_offset) / 4u + kv_head * columns + c];
    }
}
