//! Work shared between threads that borrow their part.

/// Does each piece in a thread of its own and returns what they returned, in order.
pub fn each<T: Send, R: Send>(
    pieces: impl IntoIterator<Item = T>,
    work: impl Fn(usize, T) -> R + Sync,
) -> Vec<R> {
    let work = &work;
    std::thread::scope(|scope| {
        let all: Vec<_> =
            pieces.into_iter().enumerate().map(|(n, p)| scope.spawn(move || work(n, p))).collect();
        all.into_iter().map(|one| one.join().expect("a thread of a kernel panicked")).collect()
    })
}

/// Items of `all` for each of `threads`, whole pages of words.
pub fn share(all: usize, threads: usize) -> usize {
    const PAGE: usize = 512;
    all.div_ceil(threads.max(1)).next_multiple_of(PAGE)
}

/// Cuts rows that are `ld` apart into one piece a thread: first row of each, and the piece. The
/// last one may end before its last row does, where the matrix begins in a column other than the
/// first.
pub fn rows_of(
    m: &mut [f64],
    ld: usize,
    rows: usize,
    threads: usize,
) -> Vec<(usize, usize, &mut [f64])> {
    let each = rows.div_ceil(threads.max(1)).max(1);
    let pieces = m.chunks_mut(each * ld).enumerate();
    pieces
        .map(|(n, piece)| (n * each, each.min(rows.saturating_sub(n * each)), piece))
        .filter(|p| p.1 > 0)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_done_once_and_in_order() {
        assert_eq!(each([3, 1, 2], |n, p| (n, p * 10)), [(0, 30), (1, 10), (2, 20)]);
        assert_eq!(share(1_000, 2), 512);
    }

    #[test]
    fn rows_are_cut_without_loss() {
        let mut m = vec![0.0; 5 * 4 - 1];
        let cut: Vec<_> =
            rows_of(&mut m, 4, 5, 2).into_iter().map(|(at, rows, p)| (at, rows, p.len())).collect();
        assert_eq!(cut, [(0, 3, 12), (3, 2, 7)]);
    }
}
