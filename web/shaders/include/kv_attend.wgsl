// attend(local, start, end, scale): softmax(q . k * scale) . v over keys [start, end) of one head, by one workgroup, running
// maximum over tiles of TILE keys. The file that includes this gives q4(c), key4(s, c), value4(s, c): column group c of D4
// of the query, of key s, of value s. Order of sums: keys of a column are spread over WG / D4 threads, then added in order;
// it depends on [start, end) only. Every thread of the workgroup must call it with the same range.
override WG: u32 = 256u;
const HEAD_DIM: u32 = 64u;
const TILE: u32 = 256u;
const LOWEST = -3.4e38;

const D4 = HEAD_DIM / 4u;
const KEYS_ABREAST = WG / KEY_LANES;   // keys scored at once
const VALUES_ABREAST = WG / D4;        // values added at once
var<workgroup> attend_scores: array<f32, TILE>;
var<workgroup> attend_values: array<vec4f, VALUES_ABREAST * D4>;
var<workgroup> attend_sums: array<f32, VALUES_ABREAST>;

struct Attended {
    value: vec4f,   // not yet divided by sum: column group `local`, for threads local < D4
    most: f32,      // the maximum, LOWEST where there is no key
    sum: f32,       // sum of exp(score - most)
}

fn attend(local: u32, start: u32, end: u32, scale: f32) -> Attended {
    let lane = local % KEY_LANES;
    let c = local % D4;
    let part = local / D4;
    var most = LOWEST;
    var sum = 0.0;
    var value = vec4f();
    for (var tile = start; tile < end; tile += TILE) {
        let count = min(end - tile, TILE);
        var mine = LOWEST;
        for (var base = 0u; base < count; base += KEYS_ABREAST) {
            let s = base + local / KEY_LANES;
            let is_key = s < count;
            let key = tile + min(s, count - 1u);
            var score = 0.0;
            for (var j = lane; j < D4; j += KEY_LANES) {
                score += dot(q4(j), key4(key, j));
            }
            score = sum_lanes(score) * scale;
            if (is_key) {
                mine = max(mine, score);
                if (lane == 0u) {
                    attend_scores[s] = score;
                }
            }
        }
        let now = max(most, max_all(mine, local));
        let fade = exp(most - now);
        most = now;
        sum *= fade;
        value *= fade;
        if (part < VALUES_ABREAST) {
            for (var s = part; s < count; s += VALUES_ABREAST) {
                let p = exp(attend_scores[s] - most);
                sum += p;
                value += p * value4(tile + s, c);
            }
        }
        workgroupBarrier();
    }
    if (part < VALUES_ABREAST) {
        attend_values[local] = value;
        if (c == 0u) {
            attend_sums[part] = sum;
        }
    }
    workgroupBarrier();
    value = vec4f();
    sum = 0.0;
    if (local < D4) {
        for (var i = 0u; i < VALUES_ABREAST; i++) {
            value += attend_values[i * D4 + local];
            sum += attend_sums[i];
        }
    }
    return Attended(value, most, sum);
}
