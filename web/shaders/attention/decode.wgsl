//!include step
//!include kv_max_{REDUCE=tree}
//!include kv_attend
// y[t, h] = softmax_s(q[t, h] . k[slot, s, g] * scale) . v[slot, s, g], s in [kv_len - window, kv_len), g = h's kv head.
// One workgroup a (head, row); an idle row or one without keys gives 0.
const ROWS: u32 = 1u;

struct Params {
    T: u32,
    heads: u32,
    kv_heads: u32,
    context: u32,    // keys of a slot
    window: u32,     // 0: all keys
    q_stride: u32,
    q_offset: u32,
    scale: f32,
}
@group(0) @binding(0) var<storage, read> q: array<vec4f>;              // [T, heads * head_dim] in rows of q_stride
@group(0) @binding(1) var<storage, read> k_cache: array<vec4f>;        // [slots, context, kv_heads * head_dim]
@group(0) @binding(2) var<storage, read> v_cache: array<vec4f>;        // [slots, context, kv_heads * head_dim]
@group(0) @binding(3) var<storage, read_write> y: array<vec4f>;        // [T, heads * head_dim]
@group(0) @binding(4) var<uniform> step: array<StepRow, ROWS>;
@group(0) @binding(5) var<uniform> params: Params;

var<private> query: u32;   // first vec4 of this head's query
var<private> cache: u32;   // first vec4 of this head's key 0
var<private> own: u32;     // the row's own key

fn q4(c: u32) -> vec4f {
    return q[query + c];
}

fn key4(s: u32, c: u32) -> vec4f {
    return k_cache[cache + s * params.kv_heads * D4 + c];
}

fn value4(s: u32, c: u32) -> vec4f {
    return v_cache[cache + s * params.kv_heads * D4 + c];
}

fn own_key4(c: u32) -> vec4f {
    return key4(own, c);
}

fn own_value4(c: u32) -> vec4f {
    return value4(own, c);
}

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) wg: vec3u) {
    let row = step[wg.y];
    let head = wg.x;
    let end = select(min(row.kv_len, params.context), 0u, is_idle(row.flags));
    let start = select(0u, end - min(params.window, end), params.window > 0u);
    query = (wg.y * params.q_stride + params.q_offset) / 4u + head * D4;
    cache = (row.slot * params.context * params.kv_heads + head / (params.heads / params.kv_heads)) * D4;
    own = max(end, 1u) - 1u;
    let got = attend_own(local, start, end, params.scale);
    if (local < D4) {
        y[(wg.y * params.heads + head) * D4 + local] = got.value / max(got.sum, 1e-30);
    }
}
