// reduce(v, local): sum of v over the LANES (a power of two) neighbouring threads that share local / LANES, given to all
// of them. Plain twin of reduce_subgroup: workgroup memory and barriers. Every thread of the workgroup must call it.
var<workgroup> reduce_scratch: array<f32, WG>;

fn reduce(v: f32, local: u32) -> f32 {
    workgroupBarrier();
    reduce_scratch[local] = v;
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (local % LANES < half) {
            reduce_scratch[local] += reduce_scratch[local + half];
        }
    }
    workgroupBarrier();
    return reduce_scratch[local - local % LANES];
}
