//!include partial
// reduce_part(part, local): merge over the LANES (a power of two) neighbouring threads that share local / LANES; their first
// thread has it, the others have a piece. Every thread of the workgroup must call it.
var<workgroup> part_scratch: array<Partial, WG>;

fn reduce_part(part: Partial, local: u32) -> Partial {
    part_scratch[local] = part;
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (local % LANES < half) {
            part_scratch[local] = merge(part_scratch[local], part_scratch[local + half]);
        }
    }
    return part_scratch[local];
}
