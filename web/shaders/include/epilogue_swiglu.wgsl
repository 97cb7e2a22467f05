//!include silu
// Two weight rows an output: w = [gate; up], N rows each; of a thread's COLUMNS sums the first half are gates.
const OUTPUTS = COLUMNS / 2u;

fn weight_row(first: u32, c: u32) -> u32 {
    return first + select(c, c - OUTPUTS + params.N, c >= OUTPUTS);
}
