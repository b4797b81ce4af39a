//! Stores past the caches (`movnt*`): a core gathers them by line and sends each line over the bus
//! once, unread (Intel SDM vol. 1, 10.4.6.2 "Caching of Temporal vs. Non-Temporal Data", and vol.
//! 3, 12.3.1 "Buffering of Write Combining Memory Locations").

/// Lines that a core gathers at once: Intel's cores have ten to sixteen fill buffers for it.
const BUFFERS: usize = 10;

/// The lines that are being gathered.
#[derive(Debug, Clone)]
pub(crate) struct Combining {
    lines: [u64; BUFFERS],
    next: usize,
}

impl Combining {
    /// None.
    pub(crate) fn new() -> Self {
        Self { lines: [u64::MAX; BUFFERS], next: 0 }
    }

    /// A store to `line`. Whether that begins a line: of those begun, the first is sent when there
    /// is no free space. A line that is come back to is sent twice, as it is then.
    #[inline]
    pub(crate) fn begins(&mut self, line: u64) -> bool {
        if self.lines.contains(&line) {
            return false;
        }
        self.lines[self.next] = line;
        self.next = (self.next + 1) % BUFFERS;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_sent_once_while_it_is_gathered() {
        let mut c = Combining::new();
        // Four stores a line, one after the other, and two streams in turn.
        let begun = (0..64).filter(|store| c.begins(store / 4)).count();
        assert_eq!(begun, 16);
        let begun = (0..64).filter(|store| c.begins(1000 * (store % 2) + store / 8)).count();
        assert_eq!(begun, 16);
        // Eleven in turn are one too many.
        let begun = (0..44).filter(|store| c.begins(5000 + store % 11)).count();
        assert_eq!(begun, 44);
    }
}
