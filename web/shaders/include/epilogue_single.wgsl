// One weight row an output.
const OUTPUTS = COLUMNS;

fn weight_row(first: u32, c: u32) -> u32 {
    return first + c;
}
