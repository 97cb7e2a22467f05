//!include step
//!include kv_max_{REDUCE=tree}
//!include kv_attend
// Attention over keys [i * split_keys, (i + 1) * split_keys) of row t and head h, cut to what the row sees:
// partials[t, h, i] = (most, sum, value) with value = sum_s exp(score - most) * v[s], sum = sum_s exp(score - most).
// One workgroup a (split, head, row). Splits past kv_len are left as they are; those before the window are (LOWEST, 0, 0).
// The cut depends on kv_len only.
const ROWS: u32 = 1u;

struct Params {
    T: u32,
    heads: u32,
    kv_heads: u32,
    context: u32,     // keys of a slot
    window: u32,      // 0: all keys
    splits: u32,
    split_keys: u32,
    q_stride: u32,
    q_offset: u32,
    scale: f32,
}
@group(0) @binding(0) var<storage, read> q: array<vec4f>;              // [T, heads * head_dim] in rows of q_stride
@group(0) @binding(1) var<storage, read> k_cache: array<vec4f>;        // [slots, context, kv_heads * head_dim]
@group(0) @binding(2) var<storage, read> v_cache: array<vec4f>;        // [slots, context, kv_heads * head_dim]
@group(0) @binding(3) var<storage, read_write> partials: array<f32>;   // [T, heads, splits, head_dim + 2]
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
    let row = step[wg.z];
    let head = wg.y;
    let seen = select(min(row.kv_len, params.context), 0u, is_idle(row.flags));
    if (wg.x * params.split_keys >= seen) {
        return;
    }
    let end = min(seen, (wg.x + 1u) * params.split_keys);
    let start = max(wg.x * params.split_keys, select(0u, seen - min(params.window, seen), params.window > 0u));
    query = (wg.z * params.q_stride + params.q_offset) / 4u + head * D4;
    cache = (row.slot * params.context * params.kv_heads + head / (params.heads / params.kv_heads)) * D4;
    own = seen - 1u;
    var got: Attended;
    if (end == seen) {
        got = attend_own(local, start, end, params.scale);
    } else {
        got = attend(local, start, end, params.scale);
    }
    let goal = ((wg.z * params.heads + head) * params.splits + wg.x) * (HEAD_DIM + 2u);
    if (local == 0u) {
        partials[goal] = got.most;
        partials[goal + 1u] = got.sum;
    }
    if (local < D4) {
        for (var i = 0u; i < 4u; i++) {
            partials[goal + 2u + 4u * local + i] = got.value[i];
        }
    }
}
