//!include step
// y[t, h] = sum_i exp(most[i] - m) * value[i] / sum_i exp(most[i] - m) * sum[i], m = max_i most[i], over the splits that
// row t has keys in. One workgroup a (head, row): all (most, sum) are read at once, then HEAD_DIM threads a part of the splits.
override WG: u32 = 256u;
const ROWS: u32 = 1u;
const HEAD_DIM: u32 = 64u;
const PARTS = WG / HEAD_DIM;      // HEAD_DIM is at most WG
const LOWEST = -3.4e38;

struct Params {
    T: u32,
    heads: u32,
    context: u32,     // keys of a slot
    splits: u32,      // at most WG
    split_keys: u32,
}
@group(0) @binding(0) var<storage, read> partials: array<f32>;   // [T, heads, splits, head_dim + 2]
@group(0) @binding(1) var<storage, read_write> y: array<f32>;    // [T, heads * head_dim]
@group(0) @binding(2) var<uniform> step: array<StepRow, ROWS>;
@group(0) @binding(3) var<uniform> params: Params;

var<workgroup> maxima: array<f32, WG + 3u>;   // LOWEST past the last split
var<workgroup> weights: array<f32, WG>;
var<workgroup> sums: array<f32, WG>;
var<workgroup> values: array<f32, WG>;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) wg: vec3u) {
    let row = step[wg.y];
    let seen = select(min(row.kv_len, params.context), 0u, is_idle(row.flags));
    let count = min((seen + params.split_keys - 1u) / params.split_keys, params.splits);
    let base = (wg.y * params.heads + wg.x) * params.splits * (HEAD_DIM + 2u);
    let mine = base + min(local, params.splits - 1u) * (HEAD_DIM + 2u);
    let is_split = local < count;
    let my_most = select(LOWEST, partials[mine], is_split);
    let my_sum = select(0.0, partials[mine + 1u], is_split);
    maxima[local] = my_most;
    if (local < 3u) {
        maxima[WG + local] = LOWEST;
    }
    workgroupBarrier();
    var most = LOWEST;
    for (var i = 0u; i < count; i += 4u) {
        most = max(max(most, max(maxima[i], maxima[i + 1u])), max(maxima[i + 2u], maxima[i + 3u]));
    }
    let weight = exp(my_most - most);
    weights[local] = weight;
    sums[local] = weight * my_sum;
    workgroupBarrier();
    let d = local % HEAD_DIM;
    var value = 0.0;
    var sum = 0.0;
    for (var i = local / HEAD_DIM; i < count; i += PARTS) {
        value += weights[i] * partials[base + i * (HEAD_DIM + 2u) + 2u + d];
        sum += sums[i];
    }
    workgroupBarrier();
    values[local] = value;
    sums[local] = sum;
    workgroupBarrier();
    if (local < HEAD_DIM) {
        value = 0.0;
        sum = 0.0;
        for (var part = 0u; part < PARTS; part++) {
            value += values[part * HEAD_DIM + local];
            sum += sums[part * HEAD_DIM + local];
        }
        y[(wg.y * params.heads + wg.x) * HEAD_DIM + local] = value / max(sum, 1e-30);
    }
}
