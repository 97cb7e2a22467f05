//!include step
//!include rope_pairs
//!include kv_max_{REDUCE=tree}
//!include kv_attend
// q and k are turned by the position's angles, k and v appended to the cache, then
// y[t, h] = softmax_s(q[t, h] . k[slot, s, g] * scale) . v[slot, s, g], s in [kv_len - window, kv_len), g = h's kv head.
// For steps with at most one row a slot: the row's own key and value never pass through the cache, so every head of a group
// makes the new key for itself and the group's first head writes it. One workgroup a (head, row); an idle row gives 0 and
// writes no cache.
const ROWS: u32 = 1u;

struct Params {
    T: u32,
    heads: u32,
    kv_heads: u32,
    context: u32,    // keys of a slot; the tables have at least as many rows
    window: u32,     // 0: all keys
    q_stride: u32,
    q_offset: u32,
    k_stride: u32,
    k_offset: u32,
    v_stride: u32,
    v_offset: u32,
    scale: f32,
}
@group(0) @binding(0) var<storage, read> q: array<f32>;                // [T, heads * head_dim] in rows of q_stride
@group(0) @binding(1) var<storage, read> k: array<f32>;                // [T, kv_heads * head_dim] in rows of k_stride
@group(0) @binding(2) var<storage, read> v: array<vec4f>;              // [T, kv_heads * head_dim] in rows of v_stride
@group(0) @binding(3) var<storage, read> cos: array<f32>;              // [context, head_dim/2]
@group(0) @binding(4) var<storage, read> sin: array<f32>;              // [context, head_dim/2]
@group(0) @binding(5) var<storage, read_write> y: array<vec4f>;        // [T, heads * head_dim]
@group(0) @binding(6) var<storage, read_write> k_cache: array<vec4f>;  // [slots, context, kv_heads * head_dim]
@group(0) @binding(7) var<storage, read_write> v_cache: array<vec4f>;  // [slots, context, kv_heads * head_dim]
@group(0) @binding(8) var<uniform> step: array<StepRow, ROWS>;
@group(0) @binding(9) var<uniform> params: Params;

var<workgroup> turned_q: array<f32, HEAD_DIM>;
var<workgroup> turned_k: array<f32, HEAD_DIM>;
var<private> cache: u32;      // first vec4 of this head's key 0
var<private> newest: u32;     // the row's own key: turned_k and v stand for its place in the cache
var<private> new_value: u32;  // first vec4 of the row's own value

fn q4(c: u32) -> vec4f {
    return vec4f(turned_q[4u * c], turned_q[4u * c + 1u], turned_q[4u * c + 2u], turned_q[4u * c + 3u]);
}

fn new_k4(c: u32) -> vec4f {
    return vec4f(turned_k[4u * c], turned_k[4u * c + 1u], turned_k[4u * c + 2u], turned_k[4u * c + 3u]);
}

fn key4(s: u32, c: u32) -> vec4f {
    if (s == newest) {
        return new_k4(c);
    }
    return k_cache[cache + s * params.kv_heads * D4 + c];
}

fn value4(s: u32, c: u32) -> vec4f {
    if (s == newest) {
        return v[new_value + c];
    }
    return v_cache[cache + s * params.kv_heads * D4 + c];
}

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) wg: vec3u) {
    let row = step[wg.y];
    let head = wg.x;
    let group = params.heads / params.kv_heads;
    let kv_head = head / group;
    let is_live = !is_idle(row.flags) && row.position < params.context;
    let end = select(0u, min(row.kv_len, params.context), is_live);
    let start = select(0u, end - min(params.window, end), params.window > 0u);
    cache = (row.slot * params.context * params.kv_heads + kv_head) * D4;
    newest = row.position;
    new_value = (wg.y * params.v_stride + params.v_offset) / 4u + kv_head * D4;

    let half = HEAD_DIM / 2u;
    let angle = min(row.position, params.context - 1u) * half;
    let q_head = wg.y * params.q_stride + params.q_offset + head * HEAD_DIM;
    let k_head = wg.y * params.k_stride + params.k_offset + kv_head * HEAD_DIM;
    for (var i = local; i < half; i += WG) {
        let first = rope_first(i);
        let second = rope_second(i, half);
        let cosine = cos[angle + i];
        let sine = sin[angle + i];
        let pair_q = rope_turn(q[q_head + first], q[q_head + second], cosine, sine);
        let pair_k = rope_turn(k[k_head + first], k[k_head + second], cosine, sine);
        turned_q[first] = pair_q.x;
        turned_q[second] = pair_q.y;
        turned_k[first] = pair_k.x;
        turned_k[second] = pair_k.y;
    }
    workgroupBarrier();
    if (is_live && head % group == 0u) {
        let goal = cache + row.position * params.kv_heads * D4;
        for (var c = local; c < D4; c += WG) {
            k_cache[goal + c] = new_k4(c);
            v_cache[goal + c] = v[new_value + c];
        }
    }
    let got = attend(local, start, end, params.scale);
    if (local < D4) {
        y[(wg.y * params.heads + head) * D4 + local] = got.value / max(got.sum, 1e-30);
    }
}
