//!include partial
// reduce_part(part, local): merge over the LANES (a power of two) neighbouring threads that share local / LANES; their first
// thread has it, the others have a piece. A butterfly over SUBGROUP (the smallest size the adapter has) threads, the rest
// through workgroup memory. Every thread of the workgroup must call it.
const SUBGROUP: u32 = 4u;
var<workgroup> part_scratch: array<Partial, WG>;

fn reduce_part(part: Partial, local: u32) -> Partial {
    var whole = part;
    for (var step = 1u; step < min(LANES, SUBGROUP); step *= 2u) {
        let other = Partial(subgroupShuffleXor(whole.maximum, step), subgroupShuffleXor(whole.id, step),
                            subgroupShuffleXor(whole.total, step), subgroupShuffleXor(whole.bad, step));
        whole = merge(whole, other);
    }
    if (LANES > SUBGROUP) {
        part_scratch[local] = whole;
        workgroupBarrier();
        if (local % LANES == 0u) {
            for (var lane = SUBGROUP; lane < LANES; lane += SUBGROUP) {
                whole = merge(whole, part_scratch[local + lane]);
            }
        }
    }
    return whole;
}
