//!include step
//!include rope_vec4
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
@group(0) @binding(0) var<storage, read> q: array<vec4f>;              // [T, heads * head_dim] in rows of q_stride
@group(0) @binding(1) var<storage, read> k: array<vec4f>;              // [T, kv_heads * head_dim] in rows of k_stride
@group(0) @binding(2) var<storage, read> v: array<vec4f>;              // [T, kv_heads * head_dim] in rows of v_stride
@group(0) @binding(3) var<storage, read> cos: array<f32>;              // [context, head_dim/2]
@group(0) @binding(4) var<storage, read> sin: array<f32>;              // [context, head_dim/2]
@group(0) @binding(5) var<storage, read_write> y: array<vec4f>;        // [T, heads * head_dim]
@group(0) @binding(6) var<storage, read_write> k_cache: array<vec4f>;  // [slots, context, kv_heads * head_dim]
@group(0) @binding(7) var<storage, read_write> v_cache: array<vec4f>;  // [slots, context, kv_heads * head_dim]
@group(0) @binding(8) var<uniform> step: array<StepRow, ROWS>;
@group(0) @binding(9) var<uniform> params: Params;

var<workgroup> turned: array<vec4f, 2u * D4>;   // q, then the new key
var<private> cache: u32;                        // first vec4 of this head's key 0
var<private> own_value: u32;                    // first vec4 of the row's own value

fn q4(c: u32) -> vec4f {
    return turned[c];
}

fn key4(s: u32, c: u32) -> vec4f {
    return k_cache[cache + s * params.kv_heads * D4 + c];
}

fn value4(s: u32, c: u32) -> vec4f {
    return v_cache[cache + s * params.kv_heads * D4 + c];
}

fn own_key4(c: u32) -> vec4f {
    return turned[D4 + c];
}

fn own_value4(c: u32) -> vec4f {
    return v[own_value + c];
}

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) wg: vec3u) {
    let row = step[wg.y];
    let head = wg.x;
    let group = params.heads / params.kv_heads;
    let kv_head = head / group;
    let is_live = !is_idle(row.flags) && row.position < params.context && row.kv_len > 0u;
    let end = select(0u, min(row.kv_len, params.context), is_live);
    let start = select(0u, end - min(params.window, end), params.window > 0u);
    cache = (row.slot * params.context * params.kv_heads + kv_head) * D4;

    let angle = min(row.position, params.context - 1u) * (HEAD_DIM / 2u);
    let q_head = (wg.y * params.q_stride + params.q_offset) / 4u + head * D4;
    let k_head = (wg.y * params.k_stride + params.k_offset) / 4u + kv_head * D4;
    own_value = (wg.y * params.v_stride + params.v_offset) / 4u + kv_head * D4;
    let column = local % D4;
    let other = rope_other(column, D4);
    if (local < D4) {
        turned[local] = rope4(q[q_head + column], q[q_head + other], angle, column, D4);
    } else if (local < 2u * D4) {
        turned[local] = rope4(k[k_head + column], k[k_head + other], angle, column, D4);
    }
    workgroupBarrier();
    let got = attend_own(local, start, end, params.scale);
    if (local < D4 && is_live && head % group == 0u) {
        let goal = cache + row.position * params.kv_heads * D4 + local;
        k_cache[goal] = own_key4(local);
        v_cache[goal] = own_value4(local);
    }
    if (local < D4) {
        y[(wg.y * params.heads + head) * D4 + local] = got.value / max(got.sum, 1e-30);
    }
}
