// attend(local, start, end, scale): softmax(q . k * scale) . v over keys [start, end) of one head, by one workgroup, running
// maximum over tiles of TILE keys. The file that includes this gives q4(c), key4(s, c), value4(s, c): column group c of D4
// of the query, of key s, of value s; and own_key4(c), own_value4(c) of the row's own key, which attend_own adds after the
// others (it need not be in the cache yet; every kernel takes it last, so that they agree bit for bit). Order of sums: keys of a column are spread over WG / D4 threads, then added in order;
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
        var base = 0u;
        while (base < count) {
            if (count - base > KEYS_ABREAST) {
                // four keys a thread, so that their loads are under way together
                let s = base + local / KEY_LANES + KEYS_ABREAST * vec4u(0u, 1u, 2u, 3u);
                let keys = tile + min(s, vec4u(count - 1u));
                var scores = vec4f();
                for (var j = lane; j < D4; j += KEY_LANES) {
                    let part_q = q4(j);
                    scores += vec4f(dot(part_q, key4(keys.x, j)), dot(part_q, key4(keys.y, j)), dot(part_q, key4(keys.z, j)), dot(part_q, key4(keys.w, j)));
                }
                scores = sum_lanes(scores) * scale;
                let known = select(vec4f(LOWEST), scores, s < vec4u(count));
                mine = max(mine, max(max(known.x, known.y), max(known.z, known.w)));
                if (lane == 0u) {
                    for (var i = 0u; i < 4u; i++) {
                        if (s[i] < count) {
                            attend_scores[s[i]] = scores[i];
                        }
                    }
                }
                base += 4u * KEYS_ABREAST;
            } else {
                let s = base + local / KEY_LANES;
                let key = tile + min(s, count - 1u);
                var score = 0.0;
                for (var j = lane; j < D4; j += KEY_LANES) {
                    score += dot(q4(j), key4(key, j));
                }
                score = sum_lanes(vec4f(score)).x * scale;
                if (s < count) {
                    mine = max(mine, score);
                    if (lane == 0u) {
                        attend_scores[s] = score;
                    }
                }
                base += KEYS_ABREAST;
            }
        }
        let now = max(most, max_all(mine, local));
        let fade = exp(most - now);
        most = now;
        sum *= fade;
        value *= fade;
        if (part < VALUES_ABREAST) {
            var s = part;
            while (s + 3u * VALUES_ABREAST < count) {
                let p = exp(vec4f(attend_scores[s], attend_scores[s + VALUES_ABREAST], attend_scores[s + 2u * VALUES_ABREAST],
                                  attend_scores[s + 3u * VALUES_ABREAST]) - most);
                let key = tile + s;
                let values = mat4x4f(value4(key, c), value4(key + VALUES_ABREAST, c), value4(key + 2u * VALUES_ABREAST, c), value4(key + 3u * VALUES_ABREAST, c));
                value += values * p;
                sum += p.x + p.y + p.z + p.w;
                s += 4u * VALUES_ABREAST;
            }
            while (s < count) {
                let p = exp(attend_scores[s] - most);
                value += p * value4(tile + s, c);
                sum += p;
                s += VALUES_ABREAST;
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

// attend over the keys of [start, end) but the last, which is the row's own.
fn attend_own(local: u32, start: u32, end: u32, scale: f32) -> Attended {
    if (start >= end) {
        return Attended(vec4f(), LOWEST, 0.0);
    }
    var own = 0.0;
    for (var c = local % KEY_LANES; c < D4; c += KEY_LANES) {
        own += dot(q4(c), own_key4(c));
    }
    let score = sum_lanes(vec4f(own)).x * scale;
    let others = attend(local, start, end - 1u, scale);
    let most = max(others.most, score);
    let fade = exp(others.most - most);
    let p = exp(score - most);
    return Attended(others.value * fade + p * own_value4(local % D4), most, others.sum * fade + p);
}
