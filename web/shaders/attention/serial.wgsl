//!include step
// y[t, h] = softmax_s(q[t, h] . k[slot, s, g] * scale) . v[slot, s, g], s in [kv_len - window, kv_len), g = h's kv head.
// One thread a (row, head), no barrier, four keys at a time under a running maximum: for software adapters, any rows of any
// slots. Neighbouring threads are rows of one head, so they read the same keys. No keys or an idle row: 0.
override WG: u32 = 64u;
const ROWS: u32 = 1u;
const HEAD_DIM: u32 = 64u;
const D4 = HEAD_DIM / 4u;
const LOWEST = -3.4e38;

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

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) wg: vec3u) {
    let unit = wg.x * WG + local;
    let t = unit % params.T;
    let head = unit / params.T;
    if (head >= params.heads) {
        return;
    }
    let row = step[t];
    let end = select(min(row.kv_len, params.context), 0u, is_idle(row.flags));
    let start = select(0u, end - min(params.window, end), params.window > 0u);
    let query = (t * params.q_stride + params.q_offset) / 4u + head * D4;
    let stride = params.kv_heads * D4;
    let cache = row.slot * params.context * stride + head / (params.heads / params.kv_heads) * D4;
    var most = LOWEST;
    var sum = 0.0;
    var value: array<vec4f, D4>;
    for (var s = start; s < end; s += 4u) {
        // the last keys stand in for those past the end; their weight is 0
        let keys = cache + min(vec4u(s, s + 1u, s + 2u, s + 3u), vec4u(end - 1u)) * stride;
        var scores = vec4f();
        for (var c = 0u; c < D4; c++) {
            let part = q[query + c];
            scores += vec4f(dot(part, k_cache[keys.x + c]), dot(part, k_cache[keys.y + c]), dot(part, k_cache[keys.z + c]), dot(part, k_cache[keys.w + c]));
        }
        scores = select(vec4f(LOWEST), scores * params.scale, vec4u(s, s + 1u, s + 2u, s + 3u) < vec4u(end));
        let now = max(most, max(max(scores.x, scores.y), max(scores.z, scores.w)));
        let fade = exp(most - now);
        let p = exp(scores - now);
        most = now;
        sum = sum * fade + (p.x + p.y + p.z + p.w);
        for (var c = 0u; c < D4; c++) {
            value[c] = value[c] * fade + p.x * v_cache[keys.x + c] + p.y * v_cache[keys.y + c] + p.z * v_cache[keys.z + c] + p.w * v_cache[keys.w + c];
        }
    }
    let goal = (t * params.heads + head) * D4;
    for (var c = 0u; c < D4; c++) {
        y[goal + c] = value[c] / max(sum, 1e-30);
    }
}
