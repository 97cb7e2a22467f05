//!include step
// y[t, h] = softmax_s(q[t, h] . k[slot, s, g] * scale) . v[slot, s, g], s in [kv_len - window, kv_len), g = h's kv head.
// One workgroup a (head, BLOCK rows), LANES threads a row; keys and values pass through one tile of TILE keys in workgroup
// memory. A block is walked in runs of rows of one slot. Tiles start at multiples of TILE, so a row's result does not
// depend on its neighbours. No keys or an idle row: 0.
override WG: u32 = 128u;
const ROWS: u32 = 1u;
const HEAD_DIM: u32 = 64u;
const TILE: u32 = 32u;          // a multiple of LANES; (TILE * (HEAD_DIM/4 + 1) * 16 + BLOCK * (TILE + 5) * 4) bytes of workgroup memory
const LANES = 4u;
const BLOCK = WG / LANES;
const D4 = HEAD_DIM / 4u;       // a multiple of LANES
const LANE_KEYS = TILE / LANES;
const LANE_COLUMNS = D4 / LANES;
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
var<workgroup> weights: array<f32, BLOCK * (TILE + 1u)>;
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
    let my_weights = local / LANES * (TILE + 1u);
    let stride = params.kv_heads * D4;
    var most = LOWEST;
    var sum = 0.0;
    var value: array<vec4f, LANE_COLUMNS>;

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
            for (var i = local; i < TILE * D4; i += WG) {
                let s = i / D4;
                tile[s * LINE + i % D4] = select(vec4f(), k_cache[cache + min(base + s, last - 1u) * stride + i % D4], base + s < last);
            }
            workgroupBarrier();
            var scores = array<f32, LANE_KEYS>();   // naga zeroes a var in a loop only where it has a value
            for (var c = 0u; c < D4; c++) {
                let part = q[query + c];
                for (var i = 0u; i < LANE_KEYS; i++) {
                    scores[i] += dot(part, tile[(lane + LANES * i) * LINE + c]);
                }
            }
            var now = LOWEST;
            for (var i = 0u; i < LANE_KEYS; i++) {
                let s = base + lane + LANES * i;
                scores[i] *= params.scale;
                now = max(now, select(LOWEST, scores[i], s >= mine.x && s < mine.y));
            }
            lane_values[local] = now;
            workgroupBarrier();
            for (var i = local; i < TILE * D4; i += WG) {
                let s = i / D4;
                tile[s * LINE + i % D4] = select(vec4f(), v_cache[cache + min(base + s, last - 1u) * stride + i % D4], base + s < last);
            }
            now = most;
            for (var i = 0u; i < LANES; i++) {
                now = max(now, lane_values[local - lane + i]);
            }
            let fade = exp(most - now);
            most = now;
            sum *= fade;
            for (var i = 0u; i < LANE_KEYS; i++) {
                let s = base + lane + LANES * i;
                let p = select(0.0, exp(scores[i] - most), s >= mine.x && s < mine.y);
                weights[my_weights + lane + LANES * i] = p;
                sum += p;
            }
            workgroupBarrier();
            for (var i = 0u; i < LANE_COLUMNS; i++) {
                value[i] *= fade;
            }
            for (var s = 0u; s < TILE; s++) {
                let p = weights[my_weights + s];
                for (var i = 0u; i < LANE_COLUMNS; i++) {
                    value[i] += p * tile[s * LINE + lane + LANES * i];
                }
            }
            workgroupBarrier();
        }
    }
    lane_values[local] = sum;
    workgroupBarrier();
    if (wg.y * BLOCK + local / LANES < params.T) {
        let first_lane = local - lane;
        let total = lane_values[first_lane] + lane_values[first_lane + 1u] + lane_values[first_lane + 2u] + lane_values[first_lane + 3u];
        let goal = (my_row * params.heads + head) * D4;
        for (var i = 0u; i < LANE_COLUMNS; i++) {
            y[goal + lane + LANES * i] = value[i] / max(total, 1e-30);
        }
    }
}
