//! Page frames of one node: which are free, singly and by the huge page.

use terrace_model::layout::Layout;

/// Base pages of a huge page.
pub const HUGE: u64 = 512;

/// The frames of a node that programs can have.
#[derive(Debug, Clone)]
pub struct Pool {
    node: usize,
    layout: Layout,
    /// Frames never given out begin here, counted from the node's first.
    next: u64,
    /// Frames in all.
    frames: u64,
    single: Vec<u64>,
    huge: Vec<u64>,
    used: u64,
    /// Frames beside these that others have.
    others: u64,
}

impl Pool {
    /// All frames of `node` free: `frames` of them, those that the kernel keeps taken off.
    #[must_use]
    pub fn new(node: usize, frames: u64, layout: Layout) -> Self {
        Self { node, layout, next: 0, frames, single: Vec::new(), huge: Vec::new(), used: 0, others: 0 }
    }

    /// The node has so many frames more, which others use and keep.
    #[must_use]
    pub fn beside(self, others: u64) -> Self {
        Self { others, ..self }
    }

    /// Frames that are in use or can be, by whomever.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.frames + self.others
    }

    /// Frames in all.
    #[must_use]
    pub const fn frames(&self) -> u64 {
        self.frames
    }

    /// Free frames.
    #[must_use]
    pub const fn free(&self) -> u64 {
        self.frames - self.used
    }

    /// A free frame.
    pub fn take(&mut self) -> Option<u64> {
        let index = match self.single.pop() {
            Some(index) => index,
            None if self.next < self.frames => {
                self.next += 1;
                self.next - 1
            }
            None => {
                let first = self.huge.pop()?;
                self.single.extend((first + 1..first + HUGE).rev());
                first
            }
        };
        self.used += 1;
        self.frame(index)
    }

    /// [`HUGE`] consecutive free frames: the first.
    pub fn take_huge(&mut self) -> Option<u64> {
        let index = match self.huge.pop() {
            Some(index) => index,
            None => {
                let first = self.next.next_multiple_of(HUGE);
                if first + HUGE > self.frames {
                    return None;
                }
                self.single.extend((self.next..first).rev());
                self.next = first + HUGE;
                first
            }
        };
        self.used += HUGE;
        self.frame(index)
    }

    /// Gives back a frame, or [`HUGE`] of them from `frame` on.
    pub fn give_back(&mut self, frame: u64, huge: bool) {
        let Some(index) = self.index(frame) else { return };
        if huge {
            self.huge.push(index);
            self.used -= HUGE;
        } else {
            self.single.push(index);
            self.used -= 1;
        }
    }

    fn frame(&self, index: u64) -> Option<u64> {
        self.layout.address(self.node, index << 12).map(|a| a >> 12)
    }

    fn index(&self, frame: u64) -> Option<u64> {
        self.layout.offset(self.node, frame << 12).map(|o| o >> 12)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(frames: u64) -> Pool {
        Pool::new(1, frames, Layout::q35(&[1 << 30, 3 << 30]))
    }

    #[test]
    fn every_frame_is_given_out_once_and_again_when_back() {
        let mut p = pool(1000);
        let mut all: Vec<u64> = std::iter::from_fn(|| p.take()).collect();
        assert_eq!((all.len(), p.free()), (1000, 0));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 1000);
        p.give_back(all[500], false);
        assert_eq!((p.take(), p.take()), (Some(all[500]), None));
    }

    #[test]
    fn huge_pages_are_aligned_and_broken_up_when_nothing_else_is_left() {
        let mut p = pool(3 * HUGE);
        p.take();
        let huge = p.take_huge().unwrap();
        assert_eq!((huge % HUGE, p.take_huge().is_some(), p.take_huge()), (0, true, None));
        assert_eq!(p.free(), HUGE - 1);
        p.give_back(huge, true);
        assert_eq!(std::iter::from_fn(|| p.take()).count() as u64, 2 * HUGE - 1);
    }

    #[test]
    fn frames_beyond_the_hole_of_a_large_machine_are_used() {
        let mut p = pool((3 << 30) >> 12);
        let last = std::iter::from_fn(|| p.take()).last().unwrap();
        assert_eq!(last, ((6u64 << 30) >> 12) - 1);
        p.give_back(last, false);
        assert_eq!(p.take(), Some(last));
    }
}
