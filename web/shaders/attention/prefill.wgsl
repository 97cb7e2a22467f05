//!include step
// y[t, h] = softmax_s(q[t, h] . k[slot, s, g] * scale) . v[slot, s, g], s in [kv_len - window, kv_len), g = h's kv head.
// One workgroup a (head, BLOCK rows), LANES threads a row; keys and values pass through one tile of TILE keys in workgroup
// memory; a thread scores four keys and adds up every LANES-th column group. A block is walked in runs of rows of one slot.
// Tiles start at multiples of TILE, so a row's result does not depend on its neighbours. No keys or an idle row: 0.
override WG: u32 = 128u;
const ROWS: u32 = 1u;
const HEAD_DIM: u32 = 64u;
const LANES: u32 = 8u;          // (4 * LANES * (HEAD_DIM/4 + 1) + WG + BLOCK) * 16 + WG * 4 bytes of workgroup memory
const TILE = 4u * LANES;
const BLOCK = WG / LANES;
const D4 = HEAD_DIM / 4u;       // a multiple of LANES
const COLUMNS = D4 / LANES;
const LINE = D4 + 1u;           // one past, against bank conflicts
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

var<workgroup> tile: array<vec4f, TILE * LINE>;
var<workgroup> weights: array<vec4f, BLOCK * (LANES + 1u)>;   // of keys lane + LANES * (0, 1, 2, 3)
var<workgroup> lane_values: array<f32, WG>;

// Keys [x, y) that row t sees.
fn key_range(t: u32) -> vec2u {
    let end = select(min(step[t].kv_len, params.context), 0u, is_idle(step[t].flags));
    return vec2u(select(0u, end - min(params.window, end), params.window > 0u), end);
}

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) wg: vec3u) {
    let head = wg.x;
    let block_end = min((wg.y + 1u) * BLOCK, params.T);
    let lane = local % LANES;
    let my_row = min(wg.y * BLOCK + local / LANES, params.T - 1u);
    let query = (my_row * params.q_stride + params.q_offset) / 4u + head * D4;
    let my_weights = local / LANES * (LANES + 1u);
    let stride = params.kv_heads * D4;
    var most = LOWEST;
    var sum = 0.0;
    var value: array<vec4f, COLUMNS>;

    var run_end = wg.y * BLOCK;
    while (run_end < block_end) {
        let run_start = run_end;
        let slot = step[run_start].slot;
        var first = 0xffffffffu;
        var last = 0u;
        while (run_end < block_end && step[run_end].slot == slot) {
            let range = key_range(run_end);
            if (range.y > 0u) {
                first = min(first, range.x);
                last = max(last, range.y);
            }
            run_end++;
        }
        let mine = select(vec2u(), key_range(my_row), my_row >= run_start && my_row < run_end);
        let cache = slot * params.context * stride + head / (params.heads / params.kv_heads) * D4;

        for (var base = first - first % TILE; base < last; base += TILE) {
            let keys = min(last - base, TILE);
            for (var i = local; i < TILE * D4; i += 2u * WG) {
                // two loads under way; what lies past the last key is 0, not what the cache holds there
                let origin = cache + base * stride;
                let j = i + WG;
                let one = select(vec4f(), k_cache[origin + min(i / D4, keys - 1u) * stride + i % D4], i / D4 < keys);
                let two = select(vec4f(), k_cache[origin + min(j / D4, keys - 1u) * stride + j % D4], j / D4 < keys);
                tile[i / D4 * LINE + i % D4] = one;
                if (j < TILE * D4) {
                    tile[j / D4 * LINE + j % D4] = two;
                }
            }
            workgroupBarrier();
            var scores = vec4f();
            for (var c = 0u; c < D4; c += 2u) {
                let one = q[query + c];
                let two = q[query + c + 1u];
                let key = lane * LINE + c;
                scores += vec4f(dot(one, tile[key]), dot(one, tile[key + LANES * LINE]), dot(one, tile[key + 2u * LANES * LINE]), dot(one, tile[key + 3u * LANES * LINE]));
                scores += vec4f(dot(two, tile[key + 1u]), dot(two, tile[key + LANES * LINE + 1u]), dot(two, tile[key + 2u * LANES * LINE + 1u]),
                                dot(two, tile[key + 3u * LANES * LINE + 1u]));
            }
            let s = base + lane + LANES * vec4u(0u, 1u, 2u, 3u);
            let is_seen = (s >= vec4u(mine.x)) & (s < vec4u(mine.y));
            scores = select(vec4f(LOWEST), scores * params.scale, is_seen);
            lane_values[local] = max(max(scores.x, scores.y), max(scores.z, scores.w));
            workgroupBarrier();
            for (var i = local; i < TILE * D4; i += 2u * WG) {
                let origin = cache + base * stride;
                let j = i + WG;
                let one = select(vec4f(), v_cache[origin + min(i / D4, keys - 1u) * stride + i % D4], i / D4 < keys);
                let two = select(vec4f(), v_cache[origin + min(j / D4, keys - 1u) * stride + j % D4], j / D4 < keys);
                tile[i / D4 * LINE + i % D4] = one;
                if (j < TILE * D4) {
                    tile[j / D4 * LINE + j % D4] = two;
                }
            }
            var now = most;
            for (var i = 0u; i < LANES; i++) {
                now = max(now, lane_values[local - lane + i]);
            }
            let fade = exp(most - now);
            most = now;
            let p = select(vec4f(), exp(scores - most), is_seen);
            weights[my_weights + lane] = p;
            sum = sum * fade + (p.x + p.y + p.z + p.w);
            workgroupBarrier();
            for (var i = 0u; i < COLUMNS; i++) {
                value[i] *= fade;
            }
            for (var j = 0u; j < LANES; j++) {
                let weight = weights[my_weights + j];
                for (var i = 0u; i < COLUMNS; i++) {
                    let column = j * LINE + lane + LANES * i;
                    value[i] += mat4x4f(tile[column], tile[column + LANES * LINE], tile[column + 2u * LANES * LINE], tile[column + 3u * LANES * LINE]) * weight;
                }
            }
            workgroupBarrier();
        }
    }
    lane_values[local] = sum;
    workgroupBarrier();
    if (wg.y * BLOCK + local / LANES < params.T) {
        let first_lane = local - lane;
        var total = 0.0;
        for (var i = 0u; i < LANES; i++) {
            total += lane_values[first_lane + i];
        }
        let goal = (my_row * params.heads + head) * D4;
        for (var i = 0u; i < COLUMNS; i++) {
            y[goal + lane + LANES * i] = value[i] / max(total, 1e-30);
        }
    }
}
