//! Tridiagonal systems of blocks, one for each line of inner points.

use crate::memory::WordMemory;
use crate::npb::flow::{five, put_five, FlowGrid, Matrix5};
use crate::team::get;

/// A row while it is solved: what multiplies the next row's solution, and the right side.
#[derive(Debug, Clone, Copy)]
pub struct SolvedRow {
    next: Matrix5,
    right: [f64; 5],
}

/// Solves the line along `dimension` through `(a, b)` in the other two, in their order. Beyond
/// both ends of the inner points the solution is zero.
pub fn solve<M: WordMemory + ?Sized>(
    grid: &FlowGrid,
    memory: &M,
    rows: &mut Vec<SolvedRow>,
    dimension: usize,
    (a, b): (usize, usize),
) {
    let first = match dimension {
        0 => grid.index([1, a, b]),
        1 => grid.index([a, 1, b]),
        _ => grid.index([a, b, 1]),
    };
    let (stride, count) = (grid.stride(dimension), grid.side - 2);
    let blocks = |i: usize| {
        let point = first + i * stride;
        let derived = |which: usize| get(memory, grid.derived(which, point));
        grid.scales.blocks(
            dimension,
            five(memory, grid.u(point)),
            derived(3),
            derived(4),
            derived(5),
        )
    };
    rows.clear();
    let mut before: Option<Matrix5> = None;
    let mut here = blocks(0);
    for i in 0..count {
        let after = if i + 1 < count { blocks(i + 1) } else { [[[0.0; 5]; 5]; 3] };
        let mut own = here[1];
        let mut row =
            SolvedRow { next: after[2], right: five(memory, grid.right(first + i * stride)) };
        if let (Some(lower), Some(last)) = (before, rows.last()) {
            subtract(&mut own, &mut row.right, &lower, last);
        }
        eliminate(own, &mut row);
        rows.push(row);
        before = Some(here[0]);
        here = after;
    }
    let mut solution = [0.0; 5];
    for (i, row) in rows.iter().enumerate().rev() {
        solution = std::array::from_fn(|m| {
            row.right[m] - row.next[m].iter().zip(&solution).map(|(n, s)| n * s).sum::<f64>()
        });
        put_five(memory, grid.right(first + i * stride), solution);
    }
}

/// Takes `lower` times the row above from a row.
fn subtract(own: &mut Matrix5, right: &mut [f64; 5], lower: &Matrix5, above: &SolvedRow) {
    for i in 0..5 {
        for (l, (next, value)) in lower[i].iter().zip(above.next.iter().zip(&above.right)) {
            for j in 0..5 {
                own[i][j] -= l * next[j];
            }
            right[i] -= l * value;
        }
    }
}

/// Multiplies the row by the inverse of `own`, by elimination; the diagonal leads in this problem.
fn eliminate(mut own: Matrix5, row: &mut SolvedRow) {
    for p in 0..5 {
        let pivot = 1.0 / own[p][p];
        own[p].iter_mut().chain(&mut row.next[p]).for_each(|value| *value *= pivot);
        row.right[p] *= pivot;
        let (lead, next, right) = (own[p], row.next[p], row.right[p]);
        for i in (0..5).filter(|i| *i != p) {
            let factor = own[i][p];
            own[i].iter_mut().zip(lead).for_each(|(value, l)| *value -= factor * l);
            row.next[i].iter_mut().zip(next).for_each(|(value, n)| *value -= factor * n);
            row.right[i] -= factor * right;
        }
    }
}
