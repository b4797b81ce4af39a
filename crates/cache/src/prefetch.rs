//! What a level fetches unasked.

/// Kinds of prefetcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Prefetch {
    /// None.
    #[default]
    Nothing,
    /// A miss also fetches the line after it.
    NextLine,
    /// Misses of one 4 KiB page that come at equal distances: the next one or more at that
    /// distance. (Without program counters the page stands for the instruction, as in the streamers
    /// of present-day cores.)
    Stride {
        /// Lines fetched ahead.
        ahead: u8,
    },
}

/// Pages remembered.
const PAGES: usize = 16;

/// One page that a stride detector remembers.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    page: u64,
    line: u64,
    stride: i64,
    used: u64,
}

/// The state of one cache's prefetcher.
#[derive(Debug, Clone, Default)]
pub(crate) struct Prefetcher {
    entries: [Entry; PAGES],
    clock: u64,
}

impl Prefetcher {
    /// Lines to fetch after a miss of `line`, into `wanted`; `page_shift`: of lines in a page.
    pub fn after_miss(
        &mut self,
        kind: Prefetch,
        line: u64,
        page_shift: u32,
        wanted: &mut Vec<u64>,
    ) {
        match kind {
            Prefetch::Nothing => {}
            Prefetch::NextLine => wanted.push(line + 1),
            Prefetch::Stride { ahead } => {
                let stride = self.learn(line, line >> page_shift);
                for n in 1..=i64::from(ahead) {
                    // A prefetcher works on physical addresses: it stops at the page's end.
                    let next = line.wrapping_add_signed(stride * n);
                    if stride != 0 && next >> page_shift == line >> page_shift {
                        wanted.push(next);
                    }
                }
            }
        }
    }

    /// The stride, once seen twice running; else zero.
    fn learn(&mut self, line: u64, page: u64) -> i64 {
        self.clock += 1;
        let known = self.entries.iter_mut().find(|e| e.used > 0 && e.page == page);
        if let Some(entry) = known {
            let stride = line.wrapping_sub(entry.line) as i64;
            let again = stride != 0 && stride == entry.stride;
            *entry = Entry { page, line, stride, used: self.clock };
            return if again { stride } else { 0 };
        }
        if let Some(oldest) = self.entries.iter_mut().min_by_key(|e| e.used) {
            *oldest = Entry { page, line, stride: 0, used: self.clock };
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(kind: Prefetch, lines: &[u64]) -> Vec<Vec<u64>> {
        let mut p = Prefetcher::default();
        let each = |line: &u64| {
            let mut out = Vec::new();
            p.after_miss(kind, *line, 6, &mut out);
            out
        };
        lines.iter().map(each).collect()
    }

    #[test]
    fn the_next_line_follows_every_miss() {
        assert_eq!(wanted(Prefetch::NextLine, &[7, 3]), [[8], [4]]);
    }

    #[test]
    fn strides_are_believed_at_the_second_time_and_end_with_the_page() {
        let got = wanted(Prefetch::Stride { ahead: 2 }, &[0, 3, 6, 9, 60, 10]);
        assert_eq!(got, [vec![], vec![], vec![9, 12], vec![12, 15], vec![], vec![]]);
        assert_eq!(
            wanted(Prefetch::Stride { ahead: 2 }, &[50, 56, 62]).concat(),
            Vec::<u64>::new()
        );
        let down = wanted(Prefetch::Stride { ahead: 1 }, &[20, 18, 16]);
        assert_eq!(down[2], [14]);
    }

    #[test]
    fn many_pages_at_once_are_distinguished() {
        let lines: Vec<u64> = (0..3).flat_map(|i| (0..8).map(move |page| page * 64 + i)).collect();
        let got = wanted(Prefetch::Stride { ahead: 1 }, &lines);
        assert!(got[16..].iter().all(|g| g.len() == 1), "{got:?}");
    }
}
