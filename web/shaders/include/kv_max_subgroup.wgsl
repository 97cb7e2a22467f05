// max_all(v, local): the largest v of the workgroup's WG threads, given to all of them; one barrier, which also makes
// workgroup memory written before the call visible. Right for every subgroup size: SUBGROUP is the smallest the adapter has.
const SUBGROUP: u32 = 4u;
const MAX_LANES = min(SUBGROUP, WG);
var<workgroup> max_scratch: array<f32, WG / MAX_LANES>;

fn max_all(v: f32, local: u32) -> f32 {
    var most = v;
    for (var lanes = 1u; lanes < MAX_LANES; lanes *= 2u) {
        most = max(most, subgroupShuffleXor(most, lanes));
    }
    if (local % MAX_LANES == 0u) {
        max_scratch[local / MAX_LANES] = most;
    }
    workgroupBarrier();
    for (var i = 0u; i < WG / MAX_LANES; i++) {
        most = max(most, max_scratch[i]);
    }
    return most;
}

// sum_lanes(v): sums of v over the KEY_LANES neighbouring threads that share a key, given to all of them.
const LANES: u32 = 4u;
const KEY_LANES = min(MAX_LANES, LANES);

fn sum_lanes(v: vec4f) -> vec4f {
    var sum = v;
    for (var lanes = 1u; lanes < KEY_LANES; lanes *= 2u) {
        sum += subgroupShuffleXor(sum, lanes);
    }
    return sum;
}
