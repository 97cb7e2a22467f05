//!include step
//!include rope_pairs
// y[t] = rope(q[t]); k_cache[slot, position] = rope(k[t]), v_cache[slot, position] = v[t] for rows that are not idle.
// A thread makes one pair of columns: first the pairs of q, then of k, then of v.
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
@group(0) @binding(0) var<storage, read> q: array<f32>;              // [T, heads * head_dim] in rows of q_stride
@group(0) @binding(1) var<storage, read> k: array<f32>;              // [T, kv_heads * head_dim] in rows of k_stride
@group(0) @binding(2) var<storage, read> v: array<f32>;              // [T, kv_heads * head_dim] in rows of v_stride
@group(0) @binding(3) var<storage, read> cos: array<f32>;            // [context, head_dim/2]
@group(0) @binding(4) var<storage, read> sin: array<f32>;            // [context, head_dim/2]
@group(0) @binding(5) var<storage, read_write> y: array<f32>;        // [T, heads * head_dim]
@group(0) @binding(6) var<storage, read_write> k_cache: array<f32>;  // [slots, context, kv_heads * head_dim]
@group(0) @binding(7) var<storage, read_write> v_cache: array<f32>;  // [slots, context, kv_heads * head_dim]
@group(0) @binding(8) var<uniform> step: array<StepRow, ROWS>;
@group(0) @binding(9) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) wg: vec3u) {
    let row = step[wg.y];
    let half = params.head_dim / 2u;
    let pair = wg.x * WG + local;
    let i = pair % half;
    let head = pair / half;
    let first = rope_first(i);
    let second = rope_second(i, half);
    let angle = min(row.position, params.context - 1u) * half + i;
    if (head < params.heads) {
        let source = wg.y * params.q_stride + params.q_offset + head * params.head_dim;
        let goal = (wg.y * params.heads + head) * params.head_dim;
        let turned = rope_turn(q[source + first], q[source + second], cos[angle], sin[angle]);
        y[goal + first] = turned.x;
        y[goal + second] = turned.y;
        return;
    }
    if (is_idle(row.flags) || row.position >= params.context) {
        return;
    }
    let cache = (row.slot * params.context + row.position) * params.kv_heads;
    if (head < params.heads + params.kv_heads) {
        let kv_head = head - params.heads;
        let source = wg.y * params.k_stride + params.k_offset + kv_head * params.head_dim;
        let goal = (cache + kv_head) * params.head_dim;
        let turned = rope_turn(k[source + first], k[source + second], cos[angle], sin[angle]);
        k_cache[goal + first] = turned.x;
        k_cache[goal + second] = turned.y;
    } else if (head < params.heads + 2u * params.kv_heads) {
        let kv_head = head - params.heads - params.kv_heads;
        let source = wg.y * params.v_stride + params.v_offset + kv_head * params.head_dim;
        let goal = (cache + kv_head) * params.head_dim;
        v_cache[goal + first] = v[source + first];
        v_cache[goal + second] = v[source + second];
    }
}
