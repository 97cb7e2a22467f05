// max_all(v, local): the largest v of the workgroup's WG threads, given to all of them; two barriers, which also make
// workgroup memory written before the call visible. Plain twin of kv_max_subgroup.
const MAX_GROUPS = 16u;
var<workgroup> max_scratch: array<f32, WG>;
var<workgroup> max_groups: array<f32, MAX_GROUPS>;

fn max_all(v: f32, local: u32) -> f32 {
    max_scratch[local] = v;
    workgroupBarrier();
    if (local < MAX_GROUPS) {
        var most = max_scratch[local];
        for (var i = local + MAX_GROUPS; i < WG; i += MAX_GROUPS) {
            most = max(most, max_scratch[i]);
        }
        max_groups[local] = most;
    }
    workgroupBarrier();
    var most = max_groups[0];
    for (var i = 1u; i < MAX_GROUPS; i++) {
        most = max(most, max_groups[i]);
    }
    return most;
}

// A thread has a key of its own: nothing to add up.
const KEY_LANES = 1u;

fn sum_lanes(v: vec4f) -> vec4f {
    return v;
}
